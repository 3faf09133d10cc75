"""What an attempt is given."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from stoker.core.device import Device
from stoker.core.job import Ended, Job, Running
from stoker.core.launch import attempt_key, fill, on_finish_job, order_of, output_paths, parse_key, variables
from stoker.core.spec import Command, JobSpec, Resources
from support.build import GIB, a_job, declared, simulated


def named(name: str, out: str = "", err: str = "", *, tries: int = 0) -> Job:
    """Job 7 with a name, after so many attempts that failed or were lost."""
    job = a_job(7, spec=JobSpec(out=out, err=err))
    return structs.replace(job, name=name, tries=tries, attempts=tries + 1)


@given(st.integers(1), st.integers(1))
def test_key_round_trip(job_id: int, number: int) -> None:
    """Job and number come back from a key."""
    assert parse_key(attempt_key(job_id, number)) == (job_id, number)


class TestVariables:
    """What is added to the environment."""

    def test_they_stay_the_same(self) -> None:
        """Exactly the variables of version 0.1.0, before the modules were moved: programs of users read them."""
        devices = tuple(
            Device(f"GPU-{i}", str(i), f"GPU-{i}", (f"GPU-{i}",), "nvidia", model="A100", memory=80 << 30)
            for i in (0, 3)
        )
        spec = JobSpec(
            resources=Resources(gpus=2, memory=20 << 30),
            cwd="/work",
            extra_env=(("SEED", "1"),),
            group="vision",
            cap=True,
        )
        job = structs.replace(a_job(14, spec=spec), name="vit b", attempts=3, tries=2, array=12, task=2)
        assert variables(job, devices, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}) == {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "SEED": "1",
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,per_process_memory_fraction:0.2500",
            "CUDA_VISIBLE_DEVICES": "GPU-0,GPU-3",
            "STOKER_JOB_ID": "14",
            "STOKER_JOB_NAME": "vit b",
            "STOKER_ATTEMPT": "3",
            "STOKER_GPU_IDS": "0,3",
            "STOKER_WORK_DIR": "/work",
            "STOKER_GROUP": "vision",
            "STOKER_VRAM": "21474836480",
            "STOKER_ARRAY_ID": "12",
            "STOKER_ARRAY_INDEX": "2",
        }

    def test_all_of_them(self) -> None:
        """The devices are exported as CUDA wants them, the job's own facts under our name."""
        assert variables(named("train"), declared("0", "3"), {}) == {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": "0,3",
            "STOKER_JOB_ID": "7",
            "STOKER_JOB_NAME": "train",
            "STOKER_ATTEMPT": "1",
            "STOKER_GPU_IDS": "0,3",
            "STOKER_WORK_DIR": "/",
        }

    def test_no_devices(self) -> None:
        """A job without devices sees no GPU."""
        assert variables(named(""), (), {})["CUDA_VISIBLE_DEVICES"] == ""

    def test_devices_with_variables_of_their_own(self) -> None:
        """Such devices are found under their own names, several as a list, and CUDA_VISIBLE_DEVICES is left alone."""
        devices = [structs.replace(device, variables=(("GPU", f"cuda{device.id}"),)) for device in declared("0", "3")]
        given = variables(named(""), devices, {})
        assert given["GPU"] == "cuda0,cuda3"
        assert "CUDA_VISIBLE_DEVICES" not in given

    def test_order_of_devices_is_the_users(self) -> None:
        """Who has chosen an order of devices keeps it."""
        assert "CUDA_DEVICE_ORDER" not in variables(named(""), (), {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})

    def test_own_variables(self) -> None:
        """Variables given to the job win over ours, except for the devices."""
        spec = JobSpec(extra_env=(("CUDA_DEVICE_ORDER", "FASTEST_FIRST"), ("CUDA_VISIBLE_DEVICES", "9"), ("LR", "0.1")))
        given = variables(a_job(1, spec=spec), declared("0"), {})
        assert (given["CUDA_DEVICE_ORDER"], given["CUDA_VISIBLE_DEVICES"]) == ("FASTEST_FIRST", "0")
        assert given["LR"] == "0.1"

    def test_attempt_counts_those_that_ran(self) -> None:
        """The attempt's number tells how often the job really ran, be it failed or lost."""
        job = named("", tries=3)
        assert variables(job, (), {})["STOKER_ATTEMPT"] == "4"


class TestCap:
    """What PyTorch's allocator is told of a limit."""

    @staticmethod
    def told(base: dict[str, str], *extra: tuple[str, str], resources: Resources | None = None) -> dict[str, str]:
        spec = JobSpec(resources=resources or Resources(memory=8 * GIB), extra_env=extra, cap=True)
        given = variables(a_job(1, spec=spec), simulated(24, 48), base)
        return {name: value for name, value in given.items() if name.startswith("PYTORCH")}

    def test_alone(self) -> None:
        """It is the part of the smallest share, rounded down."""
        assert self.told({}) == {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.1666"}

    @pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
    def test_beside_the_users_own(self, name: str) -> None:
        """His settings stay, under the name that he chose, be they from his environment or from --env."""
        extended = {name: "expandable_segments:True,per_process_memory_fraction:0.1666"}
        assert self.told({name: "expandable_segments:True"}) == extended
        assert self.told({}, (name, "expandable_segments:True")) == extended
        assert self.told({name: "max_split_size_mb:64"}, (name, "expandable_segments:True, ")) == extended
        assert self.told({name: ""}) == {name: "per_process_memory_fraction:0.1666"}

    def test_under_both_names(self) -> None:
        """Which of them counts depends on the version."""
        told = self.told({"PYTORCH_CUDA_ALLOC_CONF": "a:1"}, ("PYTORCH_ALLOC_CONF", "b:2"))
        assert told == {
            "PYTORCH_CUDA_ALLOC_CONF": "a:1,per_process_memory_fraction:0.1666",
            "PYTORCH_ALLOC_CONF": "b:2,per_process_memory_fraction:0.1666",
        }

    def test_the_users_own_limit_wins(self) -> None:
        """Nothing is added to it, not even under the other name."""
        own = {"PYTORCH_ALLOC_CONF": "per_process_memory_fraction: 0.5"}
        assert self.told(own) == {}
        assert self.told({"PYTORCH_CUDA_ALLOC_CONF": "a:1", **own}) == {}
        assert self.told({}, *own.items()) == own

    def test_a_whole_card(self) -> None:
        """Where nothing less is set aside, be it on one of several GPUs, there is no limit."""
        assert self.told({}, resources=Resources(auto=True)) == {}
        assert self.told({}, resources=Resources(memory=30 * GIB)) == {}
        assert (
            variables(a_job(1, spec=JobSpec(resources=Resources(gpus=0), cap=True)), (), {})
            .keys()
            .isdisjoint({"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"})
        )

    def test_the_smallest(self) -> None:
        """However little it is, it is no limit of nothing."""
        told = self.told({}, resources=Resources(memory=2**20))
        assert told == {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.0001"}

    def test_not_asked_for(self) -> None:
        """Without the wish PyTorch is left alone."""
        given = variables(a_job(1, Resources(memory=GIB)), simulated(24), {})
        assert "PYTORCH_CUDA_ALLOC_CONF" not in given


class TestOutputPaths:
    """Where an attempt writes."""

    @pytest.mark.parametrize(
        ("pattern", "path"),
        [
            ("logs/%j.out", "logs/7.out"),
            ("%A_%a", "7_0"),
            ("%x-%u.log", "train-ada.log"),
            ("100%%", "100%"),
            ("%%j", "%j"),
            ("%q %", "%q %"),
            ("-", "-"),
            ("/dev/null", "/dev/null"),
        ],
    )
    def test_pattern(self, pattern: str, path: str) -> None:
        """Marks as in Slurm's patterns are filled in, and nothing else is touched."""
        assert output_paths(named("train", out=pattern), "ada") == (path, path)

    @pytest.mark.parametrize(
        ("name", "safe"),
        [
            ("lr=0.1,bs=8", "lr=0.1,bs=8"),
            ("a/b c", "a_b_c"),
            ("../../etc/passwd", "_.._etc_passwd"),
            ("..", "job"),
            ("", "job"),
            ("straße", "straße"),
            ("\udcff\n\x1b", "___"),
            ("x" * 200, "x" * 120),
        ],
    )
    def test_name_in_a_path(self, name: str, safe: str) -> None:
        """A name cannot lead out of its directory, hide a file or put control characters into a name."""
        assert output_paths(named(name, out="%x"), "ada") == (safe, safe)

    def test_separate_errors(self) -> None:
        """Standard error has a file of its own where a pattern is given for it."""
        assert output_paths(named("", out="%j.out", err="%j.err"), "ada") == ("7.out", "7.err")

    def test_retries(self) -> None:
        """Retries get files of their own, unless the output is not a file of ours."""
        job = named("", tries=2, out="%j.out", err="/dev/null")
        assert output_paths(job, "ada") == ("7.out.2", "/dev/null")
        assert output_paths(named("", tries=1, out="-"), "ada") == ("-", "-")


def test_order() -> None:
    """An order has all of the job's terms, the files and the variables."""
    spec = JobSpec(cwd="/there", environment="digest", umask=0o077, limit=60.0, grace=5.0, out="%j", err="%j.err")
    job = structs.replace(a_job(3, spec=spec), attempts=2)
    order = order_of(job, ("3", "3.err"), {"STOKER_SIM": "1x8G"})
    assert (order.attempt, order.words, order.shell) == ("3.2", ("true",), "")
    assert (order.cwd, order.environment, order.umask) == ("/there", "digest", 0o077)
    assert (order.limit, order.grace, order.out, order.err) == (60.0, 5.0, "3", "3.err")
    assert order.extra == {"STOKER_SIM": "1x8G"}


def test_words_that_stand_for_a_device() -> None:
    """A word of the command that means something on a device is replaced as a whole; the first device speaks."""
    devices = [structs.replace(device, words=(("__num__", f"36{device.id}0"),)) for device in declared("1", "2")]
    job = structs.replace(a_job(1), command=Command(("serve", "__num__", "x__num__")))
    assert order_of(job, ("-", "-"), {}, devices).words == ("serve", "3610", "x__num__")


QUIET = settings(max_examples=100, derandomize=True, deadline=None)
VALUES = {"i": "7", "id": "31", "gpu": "0,2", "name": "vit {i} $& \\1"}


@pytest.mark.parametrize(
    ("word", "filled"),
    [
        ("{i}", "7"),
        ("--out=run-{id}/{i}.txt", "--out=run-31/7.txt"),
        ("{i}{i}", "77"),
        ("cuda:{gpu}", "cuda:0,2"),
        ("${i}", "${i}"),
        ("$${i}", "$${i}"),
        ("{I} { i } {lr} {} {i {0}", "{I} { i } {lr} {} {i {0}"),
        ('{"i": {i}, "id": "{id}"}', '{"i": 7, "id": "31"}'),
        ("{{i}}", "{7}"),
        ("${x:-{i}}", "${x:-7}"),
    ],
)
def test_known_placeholders_are_replaced(word: str, filled: str) -> None:
    """Anywhere in a word; a shell's variable of the same name and other braces are not touched."""
    assert fill([word], VALUES) == (filled,)


def test_placeholders_in_values_are_not_replaced() -> None:
    """Braces and backslashes that a value brings in stay as they are."""
    assert fill(["{name}", "x"], VALUES) == ("vit {i} $& \\1", "x")


def test_only_placeholders_with_a_value() -> None:
    """Outside an array {i} means nothing, and without any value nothing does."""
    assert fill(["{i}", "{id}"], {"id": "3"}) == ("{i}", "3")
    assert fill(["{i}", "{id}"], {}) == ("{i}", "{id}")


@QUIET
@given(st.lists(st.text(alphabet="{}i$x")), st.text(alphabet="{}ix$"))
def test_no_placeholder_is_left(words: list[str], value: str) -> None:
    """With a harmless value nothing is left to replace; any value leaves the number of words as it was."""
    assert fill(fill(words, {"i": "v"}), {"i": "w"}) == fill(words, {"i": "v"})
    assert len(fill(words, {"i": value})) == len(words)


ENDED = Job(
    id=12,
    batch=1,
    command=Command(("false",)),
    spec=JobSpec(cwd="/work", environment="abc", extra_env=(("SEED", "1"),)),
    state=Ended("failed", 5.0, code=7),
    submitted=1.0,
    name="vit b",
)


def test_on_finish_job_knows_what_happened() -> None:
    """Id, name, result, exit code and log of the job are variables of the made."""
    made = on_finish_job(ENDED, "/logs/12.log", "notify", "/bin/sh", "/logs/%j.log")
    assert made is not None
    assert made.command.words[1:6] == (
        "STOKER_JOB_ID=12",
        "STOKER_JOB_NAME=vit b",
        "STOKER_RESULT=failed",
        "STOKER_EXIT_CODE=7",
        "STOKER_LOG=/logs/12.log",
    )
    assert made.command.words[6:] == ("/bin/sh", "-c", "notify")


def test_on_finish_job_of_a_task() -> None:
    """The hook sees which task it was by the variables that the task had itself."""
    made = on_finish_job(msgspec.structs.replace(ENDED, array=11, task=1), "", "notify", "/bin/sh", "")
    assert made is not None
    assert made.name == "on_finish 11.1"
    assert {"STOKER_JOB_ID=12", "STOKER_ARRAY_ID=11", "STOKER_ARRAY_INDEX=1"} <= set(made.command.words)


def test_on_finish_job_runs_where_the_job_ran_without_a_gpu() -> None:
    """Directory and environment are the job's; it needs no device and has a limit."""
    made = on_finish_job(ENDED, "", "notify", "/bin/sh", "/logs/%j.log")
    assert made is not None
    assert (made.spec.role, made.spec.resources, made.spec.out) == ("hook", Resources(gpus=0), "/logs/%j.log")
    assert (made.spec.cwd, made.spec.environment, made.spec.extra_env) == ("/work", "abc", (("SEED", "1"),))
    assert made.spec.limit


@pytest.mark.parametrize(
    "job",
    [
        msgspec.structs.replace(ENDED, spec=msgspec.structs.replace(ENDED.spec, role="hook")),
        msgspec.structs.replace(ENDED, state=Running(1, "worker", (), 2.0)),
    ],
    ids=["a hook", "a job that runs"],
)
def test_only_an_ended_job_has_an_on_finish_job(job: Job) -> None:
    """Hooks trigger no hooks, and nothing is run before the end."""
    assert on_finish_job(job, "", "notify", "/bin/sh", "") is None


def test_on_finish_job_of_a_job_that_never_ran() -> None:
    """The variable is there all the same, and empty."""
    made = on_finish_job(msgspec.structs.replace(ENDED, state=Ended("skipped", 5.0)), "", "notify", "/bin/sh", "")
    assert made is not None
    assert "STOKER_EXIT_CODE=" in made.command.words
