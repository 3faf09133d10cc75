"""The progress of a running job: what it reported, else what its log shows."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

from stoker.core.job import Job, Running, Stopping, started_at
from stoker.core.logs.progress import Progress, read_progress
from stoker.store.logs import read_tail
from stoker.store.reports import TAIL, ReportLine, read_reports

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
    if progress is None or progress.left is not None:
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
    first = next(one for one in reported if one.total == last.total)
    assert first.done is not None
    fraction = min(1.0, last.done / last.total)
    if last.at <= first.at or last.done <= first.done:
        return Progress(fraction)
    rate = (last.done - first.done) / (last.at - first.at)
    return Progress(fraction, max(0.0, (last.total - last.done) / rate - max(0.0, now - last.at)))


def _is_progress(report: ReportLine) -> bool:
    done, total = report.done, report.total
    return done is not None and total is not None and isfinite(done) and isfinite(total) and done >= 0 and total > 0
