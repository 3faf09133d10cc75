"""Options as typed, and the terms they become."""

from __future__ import annotations

import msgspec
import pytest

from stoker.app.jobs.context import SubmitContext
from stoker.app.jobs.job_spec import given_options, spec_of
from stoker.app.jobs.option_values import early_signal_text, idle_rule_text, parse_assignment, parse_grace, parse_idle
from stoker.app.jobs.options import BY_NAME, OPTIONS, JobOptions, ShownNames, merged
from stoker.core.errors import Impossible, StokerError, UsageError
from stoker.core.job import Job, Waiting
from stoker.core.spec import RUNNING_FIELDS, Command, Dependency, EarlySignal, IdleRule, JobSpec, Resources
from stoker.python.keywords import Keywords

GIB = 2**30


def resolve(word: str) -> str:
    """Devices of this test have the ids GPU-0 and GPU-1."""
    if word not in ("0", "1"):
        raise Impossible(f"no device {word!r}", "there are 0, 1")
    return f"GPU-{word}"


CONTEXT = SubmitContext(cwd="/here", umask=0o022, environment="abc", default_out="/logs/%j.log", resolve=resolve)


def test_the_table_is_complete() -> None:
    """Structs and typed dictionaries, which type checkers must be able to read, have the options of the table."""
    assert tuple(BY_NAME) == JobOptions.__struct_fields__
    assert Keywords.__optional_keys__ == {*BY_NAME, "tags"} - {"array"}
    kinds = {"text": "str", "number": "int", "flag": "bool", "switch": "bool", "table": "dict[str, str]"}
    for option in OPTIONS:
        assert JobOptions.__annotations__[option.name].startswith(kinds[option.kind])


def test_every_field_of_an_option_exists() -> None:
    """Options for running jobs set the fields that the engine accepts for them, and no field is set by two options."""
    fields = [field for option in OPTIONS for field in option.fields]
    assert set(fields) <= {*JobSpec.__struct_fields__, *Resources.__struct_fields__}
    assert len(set(fields)) == len(fields)
    assert {field for option in OPTIONS if option.while_running for field in option.fields} == {*RUNNING_FIELDS}


def test_values_are_shown_as_they_are_given() -> None:
    """The options of a job, submitted again, make the same spec; those that were not given are not shown."""
    given = JobOptions(vram="6G", on="1", time="2h", signal="USR1@60", begin="now+1hour", retry_on="oom,75", cap=True)
    context = msgspec.structs.replace(CONTEXT, now=1000.0)
    job = Job(1, 1, Command(("true",)), spec_of(given, context), Waiting(0.0), submitted=0.0)
    shown = given_options(job, ShownNames(lambda device: device.removeprefix("GPU-"), str))
    assert set(shown) == {"vram", "on", "time", "signal", "begin", "retry_on", "cap", "chdir", "out"}
    again = msgspec.convert(shown, JobOptions)
    assert spec_of(again, context) == job.spec


def test_nothing_given_is_one_whole_gpu() -> None:
    """The default is one GPU alone, no limit, half a minute of grace, and the place and log of the batch."""
    spec = spec_of(JobOptions(), CONTEXT)
    assert spec.resources == Resources(gpus=1, memory=None)
    assert (spec.cwd, spec.out, spec.err) == ("/here", "/logs/%j.log", "")
    assert (spec.limit, spec.grace, spec.retries, spec.priority) == (None, 30.0, 0, 0)


def test_needs() -> None:
    """Sizes, counts and devices are understood; all is the whole card."""
    options = JobOptions(gpus=2, vram="1.5G", on="1,0", prefer="0")
    assert spec_of(options, CONTEXT).resources == Resources(2, GIB * 3 // 2, ("GPU-1", "GPU-0"), ("GPU-0",))
    assert spec_of(JobOptions(gpus=0, vram="all"), CONTEXT).resources == Resources(0, None)
    assert spec_of(JobOptions(vram=" AUTO"), CONTEXT).resources == Resources(auto=True)
    assert spec_of(JobOptions(vram="All "), CONTEXT).resources == Resources()


@pytest.mark.parametrize(
    ("chdir", "out", "expected"),
    [
        (None, "x.log", ("/here", "/here/x.log")),
        ("sub/..", "x.log", ("/here", "/here/x.log")),
        ("sub", "x.log", ("/here/sub", "/here/sub/x.log")),
        ("/abs", "/y.log", ("/abs", "/y.log")),
        (None, "-", ("/here", "-")),
        (None, "", ("/here", "/logs/%j.log")),
    ],
)
def test_paths_are_made_absolute(chdir: str | None, out: str, expected: tuple[str, str]) -> None:
    """Outputs are seen from the job's directory, and that from the batch's; a dash stays the caller's output."""
    spec = spec_of(JobOptions(chdir=chdir, out=out), CONTEXT)
    assert (spec.cwd, spec.out) == expected


def test_what_a_job_waits_for() -> None:
    """Moments count from now, in the zone of this machine; ids are found by whoever knows the queue."""
    context = msgspec.structs.replace(CONTEXT, now=1000.0, earlier=lambda text: (Dependency(int(text), "any"),))
    spec = spec_of(JobOptions(begin="now+1hour", after="12"), context)
    assert (spec.begin, spec.after) == (4600.0, (Dependency(12, "any"),))
    with pytest.raises(UsageError):
        spec_of(JobOptions(after="12"), CONTEXT)


def test_what_is_noted_and_limited() -> None:
    """Groups, tags, what a retry may mend, the type of a GPU, and the commit of the job's own directory."""
    options = JobOptions(group="g", tag={"b": "2", "a": "1"}, retry_on="OOM, 75", no_requeue=True, gpu_type="A100")
    spec = spec_of(options, msgspec.structs.replace(CONTEXT, commit=lambda cwd: f"commit of {cwd}"))
    assert (spec.group, spec.tags, spec.retry_on) == ("g", (("a", "1"), ("b", "2")), ("oom", "75"))
    assert (spec.requeue, spec.resources.model, spec.commit) == (False, "a100", "commit of /here")


def test_arrays() -> None:
    """Their tasks have logs of their own and placeholders, and only as many run at once as was said."""
    context = msgspec.structs.replace(CONTEXT, array_out="/logs/%A/%a.log")
    options = JobOptions(array="0-6:3%2")
    spec = spec_of(options, context)
    assert (spec.at_once, spec.fill, spec.out) == (2, True, "/logs/%A/%a.log")
    assert spec_of(JobOptions(array="1", out="x"), context).out == "/here/x"
    assert spec_of(JobOptions(), context).fill is False


def test_a_jobs_own_wish_goes_first() -> None:
    """What a job says replaces what its batch says, a zero included; variables are put together."""
    batch = JobOptions(gpus=2, retries=3, env={"A": "1", "B": "1"}, tag={"a": "1"}, no_requeue=True)
    own = JobOptions(gpus=0, env={"B": "2"}, tag={"b": "2"}, no_requeue=False)
    env, tag = {"A": "1", "B": "2"}, {"a": "1", "b": "2"}
    assert merged(batch, own) == JobOptions(gpus=0, retries=3, no_requeue=False, env=env, tag=tag)


@pytest.mark.parametrize(("number", "meant"), [("8", "8G"), ("1.5", "1.5G"), ("8000", "8000M"), ("8589934592", "8.0G")])
def test_memory_without_unit(number: str, meant: str) -> None:
    """A bare number is refused with what was meant: eight bytes for each job would pack all of them on one card."""
    with pytest.raises(UsageError) as refused:
        spec_of(JobOptions(vram=number), CONTEXT)
    assert refused.value.hint == f"write {meant}"


@pytest.mark.parametrize(
    "options",
    [
        JobOptions(gpus=-1),
        JobOptions(vram="lots"),
        JobOptions(vram="0"),
        JobOptions(vram="8"),
        JobOptions(vram="512K"),
        JobOptions(mps="0", vram="4G"),
        JobOptions(mps="101", vram="4G"),
        JobOptions(mps="-5", vram="4G"),
        JobOptions(mps="12.5", vram="4G"),
        JobOptions(mps="ten", vram="4G"),
        JobOptions(mps="9" * 50, vram="4G"),
        JobOptions(mps=True),
        JobOptions(mps="50", vram="all"),
        JobOptions(mps="50", vram="4G", gpus=2),
        JobOptions(mps="50", gpus=0),
        JobOptions(on="0,0"),
        JobOptions(on="7"),
        JobOptions(on=""),
        JobOptions(prefer="1,1"),
        JobOptions(time="never"),
        JobOptions(time="0"),
        JobOptions(grace="-1"),
        JobOptions(signal="USR9"),
        JobOptions(signal="USR1@soon"),
        JobOptions(signal="USR1@0"),
        JobOptions(signal="R:USR1@60"),
        JobOptions(signal=":USR1"),
        JobOptions(signal="KILL@60"),
        JobOptions(signal="USR1@60", time="60s"),
        JobOptions(retries=-1),
        JobOptions(name="a\0b"),
        JobOptions(name="all"),
        JobOptions(name="last"),
        JobOptions(name="12"),
        JobOptions(name="1,4-9"),
        JobOptions(name="x" * 1001),
        JobOptions(priority=10**19),
        JobOptions(priority=-(10**19)),
        JobOptions(retries=10**19),
        JobOptions(chdir="a\0b"),
        JobOptions(out="a\0b"),
        JobOptions(err="a\0b"),
        JobOptions(gpu_type="a\0b"),
        JobOptions(begin="never"),
        JobOptions(array="1-"),
        JobOptions(group="a\nb"),
        JobOptions(retry_on=""),
        JobOptions(retry_on="done"),
        JobOptions(retry_on="256"),
        JobOptions(env={"": "x"}),
        JobOptions(env={"A=B": "x"}),
        JobOptions(env={"A": "x\0y"}),
    ],
)
def test_wrong_values_say_what_to_write(options: JobOptions) -> None:
    """Every value that cannot be is refused with a hint."""
    with pytest.raises(StokerError) as refused:
        spec_of(options, CONTEXT)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("value", "percent"), [(True, 100), ("true", 100), ("50", 50), ("50%", 50), ("1", 1), (False, None), ("off", None)]
)
def test_mps(value: str | bool, percent: int | None) -> None:
    """The share of the threads, all of them where nobody says how many, and a way to say that it is not wanted."""
    resources = spec_of(JobOptions(mps=value, vram="4G"), CONTEXT).resources
    assert (resources.mps, resources.memory) == (percent, 4 * 2**30)


def test_assignments() -> None:
    """The first equals sign parts name and value; a value may be empty."""
    assert parse_assignment("A=b=c") == ("A", "b=c")
    assert parse_assignment("A=") == ("A", "")
    for text in ("A", "=1", "", "A=\0"):
        with pytest.raises(UsageError):
            parse_assignment(text)


@pytest.mark.parametrize(
    ("text", "meant", "shown"),
    [
        ("USR1", EarlySignal(10, 60.0), "USR1@60"),
        ("USR1@90", EarlySignal(10, 90.0), "USR1@90"),
        ("sigint@5m", EarlySignal(2, 300.0), "INT@300"),
        ("B:12@120", EarlySignal(12, 120.0, command_only=True), "B:USR2@120"),
    ],
)
def test_signal_before_the_limit(text: str, meant: EarlySignal, shown: str) -> None:
    """A signal may be a name or a number, the time before the limit seconds or a duration, as in Slurm."""
    spec = spec_of(JobOptions(signal=text, time="1h"), CONTEXT)
    assert spec.signal == meant
    assert early_signal_text(meant) == shown


def test_grace_may_be_nothing() -> None:
    """A grace of zero kills at once."""
    assert [parse_grace(text) for text in ("0", "0s", "5s", "1m")] == [0.0, 0.0, 5.0, 60.0]


def test_unknown_options_are_refused_in_data() -> None:
    """A job file cannot carry an option that is not there."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"gpu": 1}, JobOptions)


@pytest.mark.parametrize(
    ("text", "rule", "shown"),
    [
        ("1h", IdleRule(3600.0), "3600s"),
        ("0", IdleRule(0.0), "0s"),
        ("stop", IdleRule(1800.0, "stop"), "1800s:stop"),
        ("45m:preempt", IdleRule(2700.0, "preempt"), "2700s:preempt"),
        ("1:30:00", IdleRule(5400.0), "5400s"),
        ("1:30:00:stop", IdleRule(5400.0, "stop"), "5400s:stop"),
    ],
)
def test_idle(text: str, rule: IdleRule, shown: str) -> None:
    assert (parse_idle(text), idle_rule_text(rule)) == (rule, shown)
    assert parse_idle(shown) == rule


@pytest.mark.parametrize("text", ["-5m", "soon", "30m:kill", ":", "stop:30m", "", "5m:"])
def test_idle_that_is_not_understood(text: str) -> None:
    with pytest.raises(UsageError, match="--idle"):
        parse_idle(text)


@pytest.mark.parametrize(("given", "meant"), [("save", "save"), (True, "save"), ("Restart", "restart"), (False, "")])
def test_how_a_job_gives_way(given: str | bool, meant: str) -> None:
    """Files and Python may give true and false."""
    assert BY_NAME["preemptible"].parse(given) == meant


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("preemptible", "always"),
        ("save_signal", "KILL"),
        ("save_signal", "what"),
        ("save_exit", 256),
        ("save_exit", -2),
    ],
)
def test_mistakes_about_giving_way(name: str, value: str | int) -> None:
    with pytest.raises(UsageError, match=BY_NAME[name].flag):
        BY_NAME[name].parse(value)


def test_a_session_never_gives_way() -> None:
    """It could not go on, whatever the configuration says of jobs."""
    session = msgspec.structs.replace(CONTEXT, terminal="/dev/pts/1")
    assert spec_of(JobOptions(preemptible="save"), session).preemptible == ""
    assert spec_of(JobOptions(preemptible="save"), CONTEXT).preemptible == "save"
