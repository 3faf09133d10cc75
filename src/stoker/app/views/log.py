"""Parts of the logs of a job, for views that load a long log piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from stoker.core.errors import NoSuchJob
from stoker.core.job import Ended, Job, id_text
from stoker.core.launch import INHERIT
from stoker.core.text import outcome
from stoker.core.units import count_text
from stoker.store.logs import read_part, search_log
from stoker.store.reader import Reader
from stoker.store.schema import AttemptRow

SCHEMA = "stoker.log-part/1"
SEARCH_SCHEMA = "stoker.log-search/1"
LARGEST = 256 * 1024
"""Bytes of a part at most."""
Stream = Literal["out", "err"]


class LogText(Struct, frozen=True):
    """A part of a log: `/api/v1/jobs/ID/log`."""

    schema: str
    text: str
    """As the job wrote it, with escape sequences; bytes that are not UTF-8 are replaced."""
    offset: int
    """Of the first byte; 0 if the file was rewritten and is shorter than the offset that was asked for."""
    next: int
    """Where the next part begins."""
    size: int
    """Bytes of the file now."""
    attempt: int
    attempts: int
    stream: Stream
    streams: list[Stream]
    """`err` only if errors have a file of their own."""
    ended: bool
    """Whether the attempt is over, so that no more text comes."""


class LogSearch(Struct, frozen=True):
    """The lines of a log that contain a text: `/api/v1/jobs/ID/log/search`."""

    schema: str
    offsets: list[int]
    """Of their first bytes, the last line first."""
    start: int
    """Where the searched part begins: if it is not 0, search again before it."""
    size: int
    """Bytes of the file now."""


class LogFile(NamedTuple):
    """One of the log files of an attempt."""

    path: str
    attempt: int
    attempts: int
    stream: Stream
    streams: list[Stream]
    ended: bool


def streams_of(run: AttemptRow) -> dict[Stream, str]:
    """The log files of a run; the terminal of a foreground run is none."""
    named: dict[Stream, str] = {"out": run.log, "err": run.errors}
    return {stream: path for stream, path in named.items() if path and path != INHERIT}


def run_of(job: Job, runs: Sequence[AttemptRow], number: int | None) -> tuple[int, AttemptRow]:
    """A run and its number, default the last one."""
    shown = id_text(job)
    if not runs:
        if isinstance(job.state, Ended):
            raise NoSuchJob(f"{shown} never started ({outcome(job.state)})", f"see stoker status {shown}")
        raise NoSuchJob(f"{shown} has not started yet", f"to wait for it: stoker logs -f {shown}")
    if number is not None and not 0 < number <= len(runs):
        raise NoSuchJob(f"{shown} has no attempt {number}", f"it has {count_text(len(runs), 'attempt')} so far")
    number = number or len(runs)
    return number, runs[number - 1]


def log_file(store: Reader, job: Job, attempt: int | None = None, stream: Stream = "out") -> LogFile:
    """The log of an attempt, default the last one; errors are in the same file unless they have their own."""
    runs = store.runs(job.id)
    number, run = run_of(job, runs, attempt)
    files = streams_of(run)
    if not files:
        raise NoSuchJob(f"{id_text(job)} wrote its output to the terminal it was started from", "it has no log file")
    chosen = stream if stream in files else next(iter(files))
    return LogFile(files[chosen], number, len(runs), chosen, list(files), run.why is not None)


def read_log(file: LogFile, offset: int = 0, limit: int = LARGEST) -> LogText:
    """A part of a log; a negative offset counts from the end."""
    part = read_part(file.path, offset, min(limit, LARGEST))
    return LogText(
        SCHEMA,
        text=part.text,
        offset=part.offset,
        next=part.next,
        size=part.size,
        attempt=file.attempt,
        attempts=file.attempts,
        stream=file.stream,
        streams=file.streams,
        ended=file.ended,
    )


def search_in(file: LogFile, text: str, before: int | None = None) -> LogSearch:
    """The last lines of a log that contain a text, or the last before an offset."""
    return LogSearch(SEARCH_SCHEMA, *search_log(file.path, text, before))
