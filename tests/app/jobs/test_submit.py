"""One builder makes the jobs of runs, of the queue and of Python programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.app.jobs.context import SubmitContext
from stoker.app.jobs.job_files import COMMAND_LINE, ParsedJob
from stoker.app.jobs.options import JobOptions
from stoker.app.jobs.submit import MEMORY_UNKNOWN, JobBuilder, new_log_directory
from stoker.core.device import Device, Snapshot
from stoker.core.errors import Impossible, UsageError
from stoker.core.settings import Policy
from stoker.core.spec import Command

CONTEXT = SubmitContext(cwd="/w", umask=0o022, environment="abc", default_out="/logs/%j.log", resolve=str)
TRUE = Command(("true",))


def builder(options: JobOptions, said: list[str] | None = None, command: Command | None = None) -> JobBuilder:
    say = pytest.fail if said is None else said.append
    return JobBuilder(options, CONTEXT, os.environ, say, policy=Policy(max_use=3), command=command)


def devices(count: int) -> Snapshot:
    """Devices of which only the names are known."""
    names = [str(number) for number in range(count)]
    return Snapshot(0.0, tuple(Device(name, name, name, (name,), "declared") for name in names))


def listed(line: int, **options: object) -> ParsedJob:
    return ParsedJob(TRUE, f"jobs.jsonl line {line}", JobOptions(**options))  # type: ignore[arg-type]


def test_jobs_without_options_of_their_own_share_a_spec() -> None:
    """Most jobs of a list do, which keeps large lists cheap."""
    built = builder(JobOptions(priority=3, name="batch"))
    first, second = built.make(ParsedJob(TRUE, "line 1")), built.make(ParsedJob(TRUE, "line 2"))
    assert first.spec is second.spec
    assert (first.spec.priority, first.name, first.command) == (3, "batch", TRUE)


def test_options_of_a_job_override_those_of_its_batch() -> None:
    """What it does not give comes from the batch; its task and array stay."""
    item = ParsedJob(TRUE, "line 1", JobOptions(priority=5, name="own"), task=2, array=1)
    job = builder(JobOptions(priority=3, retries=1, name="batch")).make(item)
    assert (job.spec.priority, job.spec.retries, job.name, job.task, job.array) == (5, 1, "own", 2, 1)


def test_an_error_names_the_first_job_with_those_options() -> None:
    """An error about options of the batch names no job."""
    items = [listed(1), listed(2, vram="lots"), listed(3, vram="lots")]
    with pytest.raises(UsageError, match=r"^jobs.jsonl line 2: 'lots' is not a size"):
        builder(JobOptions()).check(items)
    with pytest.raises(UsageError, match=r"^'lots' is not a size"):
        builder(JobOptions(vram="lots")).check([listed(1)])


def test_what_can_never_run_is_refused_once_the_devices_are_known() -> None:
    """Before that, any number of GPUs may be asked for."""
    built = builder(JobOptions(gpus=3))
    built.check([ParsedJob(TRUE, COMMAND_LINE)])
    built.know(devices(2))
    with pytest.raises(Impossible, match="this machine has 2") as refused:
        built.check([ParsedJob(TRUE, COMMAND_LINE)])
    assert refused.value.hint == "request less; the GPUs are 0, 1"


def test_limits_of_the_user_hold() -> None:
    """--max-use refuses what the devices could run."""
    built = builder(JobOptions(gpus=4))
    built.know(devices(8))
    with pytest.raises(Impossible, match="--max-use allows 3"):
        built.check([ParsedJob(TRUE, COMMAND_LINE)])


def test_unknown_memory_is_said_once() -> None:
    """Jobs that would share GPUs do not where nothing is known of their memory."""
    said: list[str] = []
    built = builder(JobOptions(vram="4G"), said)
    built.know(devices(1))
    built.check([listed(1), listed(2, priority=1)])
    assert said == [MEMORY_UNKNOWN]


def test_facts_that_come_later_count() -> None:
    """A log directory that is made after the check is in the spec."""
    built = builder(JobOptions())
    assert built.make(ParsedJob(TRUE, "line 1")).spec.out == "/logs/%j.log"
    built.know(None, default_out="/other/%j.log")
    assert built.make(ParsedJob(TRUE, "line 1")).spec.out == "/other/%j.log"


def test_the_copy_of_a_script_runs_in_its_place() -> None:
    """The command of the item names the script itself."""
    copy = Command(("sh", "/state/scripts/x/job.sh"))
    assert builder(JobOptions(), command=copy).make(ParsedJob(TRUE, COMMAND_LINE)).command == copy


def test_log_directories_do_not_meet(tmp_path: Path) -> None:
    """Two of one second have different names."""
    parent = tmp_path / "runs"
    assert len({new_log_directory(parent) for _ in range(3)}) == 3
