"""What is run on behalf of a job that has ended."""

from __future__ import annotations

import msgspec
import pytest

from stoker.core.job import Ended, Job, Running
from stoker.core.launch import on_finish_job
from stoker.core.spec import Command, JobSpec, Resources

ENDED = Job(
    id=12,
    batch=1,
    command=Command(("false",)),
    spec=JobSpec(cwd="/work", environment="abc", extra_env=(("SEED", "1"),)),
    state=Ended("failed", 5.0, code=7),
    submitted=1.0,
    name="vit b",
)


def test_it_is_told_what_happened() -> None:
    """Id, name, result, exit code and log of the job are variables of the hook."""
    hook = on_finish_job(ENDED, "/logs/12.log", "notify", "/bin/sh", "/logs/%j.log")
    assert hook is not None
    assert hook.command.words[1:6] == (
        "STOKER_JOB_ID=12",
        "STOKER_JOB_NAME=vit b",
        "STOKER_RESULT=failed",
        "STOKER_EXIT_CODE=7",
        "STOKER_LOG=/logs/12.log",
    )
    assert hook.command.words[6:] == ("/bin/sh", "-c", "notify")


def test_a_task_of_an_array() -> None:
    """The hook sees which task it was by the variables that the task had itself."""
    hook = on_finish_job(msgspec.structs.replace(ENDED, array=11, task=1), "", "notify", "/bin/sh", "")
    assert hook is not None
    assert hook.name == "on_finish 11.1"
    assert {"STOKER_JOB_ID=12", "STOKER_ARRAY_ID=11", "STOKER_ARRAY_INDEX=1"} <= set(hook.command.words)


def test_it_runs_where_the_job_ran_without_a_gpu() -> None:
    """Directory and environment are the job's; it needs no device and has a limit."""
    hook = on_finish_job(ENDED, "", "notify", "/bin/sh", "/logs/%j.log")
    assert hook is not None
    assert (hook.spec.role, hook.spec.resources, hook.spec.out) == ("hook", Resources(gpus=0), "/logs/%j.log")
    assert (hook.spec.cwd, hook.spec.environment, hook.spec.extra_env) == ("/work", "abc", (("SEED", "1"),))
    assert hook.spec.limit


@pytest.mark.parametrize(
    "job",
    [
        msgspec.structs.replace(ENDED, spec=msgspec.structs.replace(ENDED.spec, role="hook")),
        msgspec.structs.replace(ENDED, state=Running(1, "worker", (), 2.0)),
    ],
    ids=["a hook", "a job that runs"],
)
def test_only_the_end_of_a_job_has_one(job: Job) -> None:
    """Hooks trigger no hooks, and nothing is run before the end."""
    assert on_finish_job(job, "", "notify", "/bin/sh", "") is None


def test_a_job_that_never_ran_has_no_exit_code() -> None:
    """The variable is there all the same, and empty."""
    hook = on_finish_job(msgspec.structs.replace(ENDED, state=Ended("skipped", 5.0)), "", "notify", "/bin/sh", "")
    assert hook is not None
    assert "STOKER_EXIT_CODE=" in hook.command.words
