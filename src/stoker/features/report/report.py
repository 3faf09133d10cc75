"""Build the report about a run, a batch or a period: timeline, outcomes, slowest jobs, failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from stoker.app.jobs.local_time import to_datetime
from stoker.app.views.facts import QueueFacts, read_facts
from stoker.app.views.failure import last_lines
from stoker.app.views.job import PastLine, past_line
from stoker.app.views.timeline import Timeline, timeline_of
from stoker.app.views.usage import busy_seconds
from stoker.core.errors import NoSuchJob
from stoker.core.job import Ended, Job
from stoker.core.outcomes import FAILURES
from stoker.core.units import DAY
from stoker.store import queries
from stoker.store.past_attempts import attempts_of_jobs, spans_of_jobs
from stoker.store.paths import Paths, host_name
from stoker.store.queries import Past, Period

SCHEMA = "stoker.report/1"
MOST_JOBS = 10_000
"""Jobs that one report is about, the newest."""
SLOWEST = 10
MOST_FAILURES = 30
LAST_LINES = 20


class Failure(Struct, frozen=True):
    """A job that failed, and the end of its log."""

    job: PastLine
    lines: list[str]
    """Without colours, overwritten progress bars and control characters."""


class Report(Struct, frozen=True):
    """A report: `stoker report --json`."""

    schema: str
    at: datetime
    host: str
    simulated: bool
    title: str
    """The run, list or period."""
    since: datetime
    until: datetime
    outcomes: dict[str, int]
    open: int
    """Jobs that have not ended."""
    left_out: int
    """Older jobs of the period that it does not consider."""
    gpu_hours: float
    busy_gpu_hours: float
    """Time of GPUs with a job: jobs that share a GPU count once."""
    saved_gpu_hours: float
    """GPU time that sharing saved at most, against one job for each GPU."""
    jobs: list[PastLine]
    """All that ended, oldest first."""
    slowest: list[PastLine]
    failures: list[Failure]
    """The newest first."""
    more_failures: int
    timeline: Timeline


def report_of_jobs(paths: Paths, ids: Sequence[int], title: str) -> Report:
    """The report about some jobs."""
    with read_facts(paths) as facts:
        jobs = list(queries.jobs_of(facts.store, sorted(ids)))
        if not jobs:
            raise NoSuchJob("no such job", "list jobs with: stoker history")
        return _report(facts, jobs, title, None, left_out=0)


def report_of_period(paths: Paths, period: Period, title: str) -> Report:
    """The report about all jobs that ended in a period, or have not ended."""
    with read_facts(paths) as facts:
        past = queries.past(facts.store, period, MOST_JOBS)
        left_out = sum(queries.past_counts(facts.store, period).values()) - len(past)
        running = [owned.job for owned in facts.active if owned.job.spec.role != "hook"]
        return _report(facts, [*(line.job for line in reversed(past)), *running], title, period, left_out=left_out)


def batch_of(paths: Paths, job_id: int) -> tuple[list[int], str]:
    """The jobs that were submitted together with one, and what submitted them."""
    with read_facts(paths) as facts:
        job = facts.store.job(job_id)
        if job is None:
            raise NoSuchJob(f"no job {job_id}", "list jobs with: stoker history")
        jobs = [sibling.id for sibling in queries.jobs_of_batch(facts.store, job.batch)]
        return jobs, facts.store.batch_label(job.batch)


def _report(facts: QueueFacts, jobs: Sequence[Job], title: str, period: Period | None, *, left_out: int) -> Report:
    store, ids = facts.store, [job.id for job in jobs]
    ended = [_line(past, facts) for past in queries.past_of(store, [j.id for j in jobs if isinstance(j.state, Ended)])]
    ended.sort(key=lambda line: (line.ended, line.id))
    spans = spans_of_jobs(store, ids, facts.now)
    hours, busy = sum(span.seconds for span in spans) / 3600, busy_seconds(spans) / 3600
    since = _since(facts, jobs, period)
    until = None if len(ended) < len(jobs) or not ended else max(line.ended.timestamp() for line in ended)
    timeline = timeline_of(facts, Period(since), until, only=None if period else set(ids), trim=True)
    failed = [line for line in reversed(ended) if line.state in FAILURES]
    return Report(
        schema=SCHEMA,
        at=to_datetime(facts.now),
        host=host_name(),
        simulated=facts.simulated,
        title=title,
        since=to_datetime(since),
        until=to_datetime(facts.now if until is None else until),
        outcomes=dict(Counter(line.state for line in ended)),
        open=len(jobs) - len(ended),
        left_out=max(0, left_out),
        gpu_hours=round(hours, 4),
        busy_gpu_hours=round(busy, 4),
        saved_gpu_hours=round(max(0.0, hours - busy), 4),
        jobs=ended,
        slowest=sorted(ended, key=lambda line: -(line.run_seconds or 0.0))[:SLOWEST],
        failures=[Failure(line, last_lines(line.log, LAST_LINES)) for line in failed[:MOST_FAILURES]],
        more_failures=max(0, len(failed) - MOST_FAILURES),
        timeline=timeline,
    )


def _line(past: Past, facts: QueueFacts) -> PastLine:
    return past_line(past, facts.store, facts.devices)


def _since(facts: QueueFacts, jobs: Sequence[Job], period: Period | None) -> float:
    if period is not None and period.since:
        return period.since
    starts = [attempt.started for attempt in attempts_of_jobs(facts.store, [job.id for job in jobs])]
    return min([*starts, *(job.submitted for job in jobs)], default=facts.now - DAY)
