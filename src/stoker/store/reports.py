"""Reports of jobs by `stoker.report()`, and their progress by reports or logs. The files are untrusted input."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from stoker.core.job import Job, Running, Stopping, started_at
from stoker.core.logs.progress import Progress, read_progress
from stoker.store.logs import read_tail
from stoker.store.paths import UNREADABLE

LARGEST = 64 * 2**20
"""Most bytes that are read, from the end of a file."""
TAIL = 16 * 1024


class ReportLine(Struct, frozen=True):
    """One line of the file."""

    at: float
    attempt: int = 1
    values: dict[str, Any] = {}
    done: float | None = None
    total: float | None = None
    saved: bool = False
    """Whether all work so far is saved."""

    def as_dict(self) -> dict[str, Any]:
        """The values, or `done` and `total`, or `saved`, with the time and the number of the attempt."""
        progress = {"done": self.done, "total": self.total} if self.total is not None else {}
        saved = {"saved": True} if self.saved else {}
        return {"at": self.at, "attempt": self.attempt, **progress, **saved, **self.values}


class Latest(Struct, frozen=True):
    """The newest word on each matter."""

    values: dict[str, Any] = {}
    done: float | None = None
    total: float | None = None


def read_reports(path: Path, most: int = LARGEST) -> list[ReportLine]:
    """All reports of a job, oldest first. Invalid lines are skipped."""
    return list(_lines(_end_of(path, most)))


def read_latest(path: Path, attempt: int | None = None) -> Latest | None:
    """The newest value of each name in the tail of the file, and the progress, of an attempt, default the last one.

    None without reports.
    """
    reports = read_reports(path, TAIL)
    number = reports[-1].attempt if reports and attempt is None else attempt
    last = [report for report in reports if report.attempt == number and not report.saved]
    if not last:
        return None
    values = {name: value for report in last for name, value in report.values.items()}
    progress = next((report for report in reversed(last) if report.total is not None), None)
    return Latest(values, progress.done, progress.total) if progress else Latest(values)


def latest_text(latest: Latest) -> str:
    """In a few words: `30% (3/10), step=3, loss=0.4`."""
    parts = []
    if latest.total and latest.done is not None:
        parts.append(f"{100 * latest.done / latest.total:.0f}% ({latest.done:g}/{latest.total:g})")
    return ", ".join([*parts, *(f"{name}={_shown(value)}" for name, value in latest.values.items())])


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _end_of(path: Path, most: int) -> bytes:
    """The last bytes, from the beginning of a line."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most))
        data = file.read(most)
        return data.partition(b"\n")[2] if size > most else data
    return b""


def _lines(data: bytes) -> Iterator[ReportLine]:
    decoder = msgspec.json.Decoder(ReportLine)
    for line in data.split(b"\n"):
        with contextlib.suppress(*UNREADABLE):
            yield decoder.decode(line)


# -- progress ----------------------------------------------------------------------------------

LOG_BYTES = 64 * 1024
LEAST_FRACTION = 0.005
"""The time left is not derived from less progress than this."""
LEAST_SECONDS = 2.0
"""The time left is not derived from a shorter time than this."""


def progress_of(job: Job, report: Path, now: float) -> Progress | None:
    """The progress of the attempt that runs, with the seconds that are left from now on; None if unknown."""
    started = started_at(job)
    if started is None or not isinstance(job.state, Running | Stopping):
        return None
    ran = max(0.0, now - started)
    reported = _reported(read_reports(report, TAIL), job.run, now)
    progress = reported or (read_progress(read_tail(job.state.log, LOG_BYTES), ran) if job.state.log else None)
    return None if progress is None else _with_left(progress, ran)


def _with_left(progress: Progress, ran: float) -> Progress:
    """With the time left by the rate since the start, if nothing better tells."""
    if progress.left is not None:
        return progress
    if progress.fraction < LEAST_FRACTION or ran < LEAST_SECONDS:
        return progress
    return progress._replace(left=ran * (1 - progress.fraction) / progress.fraction)


def _reported(reports: list[ReportLine], attempt: int, now: float) -> Progress | None:
    """The newest progress of an attempt; the time left by the rate since the first report that is known."""
    reported = [report for report in reports if report.attempt == attempt and _is_progress(report)]
    if not reported:
        return None
    last = reported[-1]
    assert last.done is not None
    assert last.total
    first = next(report for report in reported if report.total == last.total)
    assert first.done is not None
    fraction = min(1.0, last.done / last.total)
    if last.at <= first.at or last.done <= first.done:
        return Progress(fraction)
    rate = (last.done - first.done) / (last.at - first.at)
    return Progress(fraction, max(0.0, (last.total - last.done) / rate - max(0.0, now - last.at)))


def _is_progress(report: ReportLine) -> bool:
    done, total = report.done, report.total
    return done is not None and total is not None and isfinite(done) and isfinite(total) and done >= 0 and total > 0


# -- what a running job says of itself ----------------------------------------------------------

WORD_INTERVAL = 10.0
"""Seconds between two looks at the reports of a job."""


class OwnWord(NamedTuple):
    """The reports of a running job that matter when it may have to give way."""

    kept: float | None = None
    """Seconds of this run up to its last save (`stoker.saved()`)."""
    left: float | None = None
    """Seconds that it still needs (`stoker.progress()`). Progress bars in its log are only a hint and do not count."""


NO_WORD = OwnWord()


class OwnWords:
    """The reports of running jobs that can give way, read again after some seconds."""

    def __init__(self, report_of: Callable[[int], Path]) -> None:
        self._report_of = report_of
        self._seen: dict[int, tuple[float, str, OwnWord]] = {}
        """By job: when its reports were read, its run, and the answer."""

    def of(self, job: Job, now: float) -> OwnWord:
        if not job.spec.preemptible or not isinstance(job.state, Running):
            return NO_WORD
        run = f"{job.run} {job.state.since}"
        at, seen_run, word = self._seen.get(job.id, (0.0, "", NO_WORD))
        if seen_run != run or not 0 <= now - at < WORD_INTERVAL:
            word = own_word(read_reports(self._report_of(job.id), TAIL), job.run, job.state.since, now)
            self._seen[job.id] = now, run, word
        return word

    def kept_at_end(self, job: Job, now: float) -> float:
        """The seconds that a run saved which is over, and forget its reports; 0 without a save."""
        self._seen.pop(job.id, None)
        word = self.of(job, now) if job.spec.preemptible == "restart" else NO_WORD
        self._seen.pop(job.id, None)
        return word.kept or 0.0


def own_word(reports: list[ReportLine], run: int, since: float, now: float) -> OwnWord:
    """The word of a run that began at `since`."""
    saves = [report.at for report in reports if report.saved and report.attempt == run and since <= report.at <= now]
    progress = _reported(reports, run, now)
    left = None if progress is None else _with_left(progress, max(0.0, now - since)).left
    return OwnWord(max(saves) - since if saves else None, left)
