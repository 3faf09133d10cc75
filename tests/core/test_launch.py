"""Command, variables and files of an attempt."""

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
    """Job 7 with a name, after this many attempts."""
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
            "SLURM_ARRAY_JOB_ID": "12",
            "SLURM_ARRAY_TASK_ID": "2",
        }

    def test_all_of_them(self) -> None:
        """CUDA_VISIBLE_DEVICES and the STOKER_ variables."""
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
        """The variables of the devices replace CUDA_VISIBLE_DEVICES; several values are a list."""
        devices = [structs.replace(device, variables=(("GPU", f"cuda{device.id}"),)) for device in declared("0", "3")]
        given = variables(named(""), devices, {})
        assert given["GPU"] == "cuda0,cuda3"
        assert "CUDA_VISIBLE_DEVICES" not in given

    def test_order_of_devices_is_the_users(self) -> None:
        """The user's CUDA_DEVICE_ORDER stays."""
        assert "CUDA_DEVICE_ORDER" not in variables(named(""), (), {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})

    def test_own_variables(self) -> None:
        """Variables given to the job win over ours, except for the devices."""
        spec = JobSpec(extra_env=(("CUDA_DEVICE_ORDER", "FASTEST_FIRST"), ("CUDA_VISIBLE_DEVICES", "9"), ("LR", "0.1")))
        given = variables(a_job(1, spec=spec), declared("0"), {})
        assert (given["CUDA_DEVICE_ORDER"], given["CUDA_VISIBLE_DEVICES"]) == ("FASTEST_FIRST", "0")
        assert given["LR"] == "0.1"

    def test_attempt_counts_those_that_ran(self) -> None:
        """STOKER_ATTEMPT counts the attempts that ran, failed or lost."""
        job = named("", tries=3)
        assert variables(job, (), {})["STOKER_ATTEMPT"] == "4"


class TestCap:
    """The memory limit for PyTorch's allocator."""

    @staticmethod
    def allocator(base: dict[str, str], *extra: tuple[str, str], resources: Resources | None = None) -> dict[str, str]:
        spec = JobSpec(resources=resources or Resources(memory=8 * GIB), extra_env=extra, cap=True)
        given = variables(a_job(1, spec=spec), simulated(24, 48), base)
        return {name: value for name, value in given.items() if name.startswith("PYTORCH")}

    def test_without_settings_of_the_user(self) -> None:
        """The fraction is that of the smallest part, rounded down."""
        assert self.allocator({}) == {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.1666"}

    @pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
    def test_beside_the_users_own(self, name: str) -> None:
        """The user's settings stay, under the same name, from the environment or --env."""
        extended = {name: "expandable_segments:True,per_process_memory_fraction:0.1666"}
        assert self.allocator({name: "expandable_segments:True"}) == extended
        assert self.allocator({}, (name, "expandable_segments:True")) == extended
        assert self.allocator({name: "max_split_size_mb:64"}, (name, "expandable_segments:True, ")) == extended
        assert self.allocator({name: ""}) == {name: "per_process_memory_fraction:0.1666"}

    def test_under_both_names(self) -> None:
        """Both variables get the limit, since the precedence depends on the version."""
        given = self.allocator({"PYTORCH_CUDA_ALLOC_CONF": "a:1"}, ("PYTORCH_ALLOC_CONF", "b:2"))
        assert given == {
            "PYTORCH_CUDA_ALLOC_CONF": "a:1,per_process_memory_fraction:0.1666",
            "PYTORCH_ALLOC_CONF": "b:2,per_process_memory_fraction:0.1666",
        }

    def test_the_users_own_limit_wins(self) -> None:
        """A limit of the user is not changed, under either name."""
        own = {"PYTORCH_ALLOC_CONF": "per_process_memory_fraction: 0.5"}
        assert self.allocator(own) == {}
        assert self.allocator({"PYTORCH_CUDA_ALLOC_CONF": "a:1", **own}) == {}
        assert self.allocator({}, *own.items()) == own

    def test_a_whole_card(self) -> None:
        """Without a smaller reservation on every GPU there is no limit."""
        assert self.allocator({}, resources=Resources(auto=True)) == {}
        assert self.allocator({}, resources=Resources(memory=30 * GIB)) == {}
        assert (
            variables(a_job(1, spec=JobSpec(resources=Resources(gpus=0), cap=True)), (), {})
            .keys()
            .isdisjoint({"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"})
        )

    def test_the_smallest(self) -> None:
        """The limit is never zero."""
        given = self.allocator({}, resources=Resources(memory=2**20))
        assert given == {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.0001"}

    def test_not_asked_for(self) -> None:
        """Without --cap there is no limit."""
        given = variables(a_job(1, Resources(memory=GIB)), simulated(24), {})
        assert "PYTORCH_CUDA_ALLOC_CONF" not in given


class TestOutputPaths:
    """The output files of an attempt."""

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
        """Slurm's placeholders are replaced, and nothing else."""
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
        """A job name cannot leave the directory, hide a file or add control characters."""
        assert output_paths(named(name, out="%x"), "ada") == (safe, safe)

    def test_separate_errors(self) -> None:
        """Standard error has a separate file where a pattern is given."""
        assert output_paths(named("", out="%j.out", err="%j.err"), "ada") == ("7.out", "7.err")

    def test_retries(self) -> None:
        """Retries get separate files, unless the output is a device or the terminal."""
        job = named("", tries=2, out="%j.out", err="/dev/null")
        assert output_paths(job, "ada") == ("7.out.2", "/dev/null")
        assert output_paths(named("", tries=1, out="-"), "ada") == ("-", "-")


def test_order() -> None:
    """An order has the job's spec, files and variables."""
    spec = JobSpec(cwd="/there", environment="digest", umask=0o077, limit=60.0, grace=5.0, out="%j", err="%j.err")
    job = structs.replace(a_job(3, spec=spec), attempts=2)
    order = order_of(job, ("3", "3.err"), {"STOKER_SIM": "1x8G"})
    assert (order.attempt, order.words, order.shell) == ("3.2", ("true",), "")
    assert (order.cwd, order.environment, order.umask) == ("/there", "digest", 0o077)
    assert (order.limit, order.grace, order.out, order.err) == (60.0, 5.0, "3", "3.err")
    assert order.extra == {"STOKER_SIM": "1x8G"}


def test_words_that_stand_for_a_device() -> None:
    """A word of the command that the first device defines is replaced as a whole."""
    devices = [structs.replace(device, words=(("__num__", f"36{device.id}0"),)) for device in declared("1", "2")]
    job = structs.replace(a_job(1), command=Command(("serve", "__num__", "x__num__")))
    assert order_of(job, ("-", "-"), {}, devices).words == ("serve", "3610", "x__num__")


QUIET = settings(max_examples=100, derandomize=True)
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
    """Anywhere in a word; a shell's variable of the same name and other braces stay."""
    assert fill([word], VALUES) == (filled,)


def test_placeholders_in_values_are_not_replaced() -> None:
    """Braces and backslashes in values stay."""
    assert fill(["{name}", "x"], VALUES) == ("vit {i} $& \\1", "x")


def test_only_placeholders_with_a_value() -> None:
    """{i} is replaced only in arrays, and nothing without values."""
    assert fill(["{i}", "{id}"], {"id": "3"}) == ("{i}", "3")
    assert fill(["{i}", "{id}"], {}) == ("{i}", "{id}")


@QUIET
@given(st.lists(st.text(alphabet="{}i$x")), st.text(alphabet="{}ix$"))
def test_no_placeholder_is_left(words: list[str], value: str) -> None:
    """Filling twice changes nothing, and the number of words stays the same."""
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
    """Id, name, result, exit code and log of the job are variables of the on-finish job."""
    made = on_finish_job(ENDED, "/logs/12.log", "notify", "/bin/sh", "/logs/%j.log")
    assert made is not None
    assert made.command.words[1:7] == (
        "STOKER_JOB_ID=12",
        "STOKER_JOB_IDS=12",
        "STOKER_JOB_NAME=vit b",
        "STOKER_RESULT=failed",
        "STOKER_EXIT_CODE=7",
        "STOKER_LOG=/logs/12.log",
    )
    assert made.command.words[7:] == ("/bin/sh", "-c", "notify")


def test_on_finish_job_of_a_task() -> None:
    """The on-finish job has the array variables of the task."""
    made = on_finish_job(msgspec.structs.replace(ENDED, array=11, task=1), "", "notify", "/bin/sh", "")
    assert made is not None
    assert made.name == "on_finish 11.1"
    assert {"STOKER_JOB_ID=12", "STOKER_ARRAY_ID=11", "STOKER_ARRAY_INDEX=1"} <= set(made.command.words)


def test_on_finish_job_of_tasks_that_ended_together() -> None:
    """One job is told of all of them."""
    tasks = msgspec.structs.replace(ENDED, array=11, task=1, count=3)
    made = on_finish_job(tasks, "", "notify", "/bin/sh", "")
    assert made is not None
    assert made.name == "on_finish 11.[1-3]"
    assert {"STOKER_JOB_ID=12", "STOKER_JOB_IDS=12-14", "STOKER_ARRAY_INDEX=1"} <= set(made.command.words)


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
    ids=["on-finish job", "running job"],
)
def test_only_an_ended_job_has_an_on_finish_job(job: Job) -> None:
    """An on-finish job has none itself, and none runs before the end."""
    assert on_finish_job(job, "", "notify", "/bin/sh", "") is None


def test_on_finish_job_of_a_job_that_never_ran() -> None:
    """STOKER_EXIT_CODE is set and empty."""
    made = on_finish_job(msgspec.structs.replace(ENDED, state=Ended("skipped", 5.0)), "", "notify", "/bin/sh", "")
    assert made is not None
    assert "STOKER_EXIT_CODE=" in made.command.words
