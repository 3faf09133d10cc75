"""Why a job failed, in one line."""

from __future__ import annotations

from stoker.core.job import Ended, Job
from stoker.core.launch import INHERIT
from stoker.core.text import printable, shortened
from stoker.store.logs import last_line
from stoker.store.reader import Reader

LONGEST = 200
"""Characters of a log line that are shown."""
NOT_FAILED = ("done", "cancelled", "stopped", "skipped")


def failure_text(store: Reader, job: Job) -> str:
    """What the worker or the engine noted about the end of a job, else the telling line of its log.

    Empty for a job that did not fail, and where its log is gone or is a terminal.
    """
    if not isinstance(job.state, Ended) or job.state.result in NOT_FAILED:
        return ""
    return said_at_end(job.state.note, newest_log(store, job.id))


def said_at_end(note: str, log: str) -> str:
    """The note about an end, else the telling line of the log; safe for a terminal."""
    return shortened(printable(note) or (last_line(log) if log else ""), LONGEST)


def newest_log(store: Reader, job_id: int) -> str:
    """Path of the job's last log; empty if it wrote to a terminal or never ran."""
    log = next((one.errors or one.log for one in store.attempts(job_id)[-1:]), "")
    return "" if log == INHERIT else log
