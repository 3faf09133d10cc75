"""Hooks: commands that are run on behalf of a job when it has ended."""

from __future__ import annotations

from stoker.core.attempt import array_variables
from stoker.core.job import Ended, Job, id_text
from stoker.core.submission import NewJob
from stoker.core.terms import Command, Need, Terms

LIMIT_SECONDS = 600.0
"""A hook that hangs must not keep the engine for ever."""


def hook_of(job: Job, log: str, line: str, shell: str, out: str) -> NewJob | None:
    """The job that runs a line on behalf of one that has ended; hooks have none of their own.

    What it is told stands in its command, so that the hooks of a batch share their terms.
    """
    if job.terms.role == "hook" or not isinstance(job.state, Ended):
        return None
    told = (
        f"STOKER_JOB_ID={job.id}",
        f"STOKER_JOB_NAME={job.name}",
        f"STOKER_RESULT={job.state.result}",
        f"STOKER_EXIT_CODE={'' if job.state.code is None else job.state.code}",
        f"STOKER_LOG={log}",
        *(f"{name}={value}" for name, value in array_variables(job).items()),
    )
    return NewJob(
        Command(("/usr/bin/env", *told, shell, "-c", line)), _terms(job.terms, out), f"on_finish {id_text(job)}"
    )


def _terms(ended: Terms, out: str) -> Terms:
    return Terms(
        need=Need(gpus=0),
        cwd=ended.cwd,
        environment=ended.environment,
        extra_env=ended.extra_env,
        umask=ended.umask,
        limit=LIMIT_SECONDS,
        out=out,
        role="hook",
    )
