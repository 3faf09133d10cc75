"""Read from the log of an ended job why it failed, in one line, or its last lines."""

from __future__ import annotations

from stoker.core.job import Ended, Job
from stoker.core.launch import INHERIT
from stoker.core.logs.text import without_colours
from stoker.core.outcomes import FAILURES
from stoker.core.text import printable, shortened
from stoker.store.logs import LONGEST_SAID, last_line, read_tail
from stoker.store.reader import Reader

LONGEST_LINE = 400
LOG_BYTES = 16 * 1024


def failure_text(store: Reader, job: Job) -> str:
    """The note of the worker or the engine about the end of a job, else the telling line of its log.

    Empty for a job that did not fail, and where its log is gone or is a terminal.
    """
    if not isinstance(job.state, Ended) or job.state.result not in FAILURES:
        return ""
    return said_at_end(job.state.note or job.state.said, newest_log(store, job.id))


def said_at_end(note: str, log: str) -> str:
    """The note about an end, else the telling line of the log as it is now; safe for a terminal."""
    return shortened(printable(note) or (last_line(log) if log else ""), LONGEST_SAID)


def newest_log(store: Reader, job_id: int) -> str:
    """Path of the job's last log; empty if it wrote to a terminal or never ran."""
    log = next((attempt.errors or attempt.log for attempt in store.attempts(job_id)[-1:]), "")
    return "" if log == INHERIT else log


def last_lines(log: str | None, most: int) -> list[str]:
    """The end of a log for people: no colours, no overwritten progress bars, no control characters."""
    if not log or log == INHERIT:
        return []
    lines = [
        line.rstrip("\r").rpartition("\r")[2]
        for line in without_colours(read_tail(log, LOG_BYTES)).rstrip().split("\n")
    ]
    return [printable(line.replace("\t", "    "))[:LONGEST_LINE] for line in lines[-most:] if line.strip()]
