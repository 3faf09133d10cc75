"""Build the totals of a period: GPU-hours, outcomes, waiting and running times, memory."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby
from statistics import median

import msgspec
from msgspec import Struct

from stoker.app.jobs.local_time import midnight, to_datetime, to_datetime_or_none
from stoker.app.views.facts import QueueFacts, read_facts
from stoker.app.views.job import past_line
from stoker.app.views.model import UserLine
from stoker.app.views.summary import ledger_here, user_lines
from stoker.core.amounts import VramMode
from stoker.core.chart import colours_of
from stoker.core.outcomes import JobStateName
from stoker.core.units import DAY
from stoker.store import past_jobs
from stoker.store.filters import groups_in_order
from stoker.store.past_jobs import GpuSpan, Period, gpu_spans
from stoker.store.paths import Paths, host_name

SCHEMA = "stoker.usage/1"
MOST_JOBS = 1000
"""Ended jobs that are listed one by one, the newest."""
MOST_SPANS = 200_000
"""Attempts that are added up, those of the newest jobs."""


class DayUsage(Struct, frozen=True):
    """Usage of the jobs of a group on one day."""

    day: str
    """`2026-11-17`, local time."""
    group: str
    """Empty for jobs without a group."""
    gpu_hours: float


class GroupUsage(Struct, frozen=True):
    """Usage of the jobs of a group in the period."""

    group: str
    gpu_hours: float
    outcomes: dict[str, int]
    """How its listed jobs ended."""
    median_wait_seconds: float | None
    median_run_seconds: float | None


class JobUsage(Struct, frozen=True):
    """One ended job, for charts of times and memory."""

    id: int
    label: str
    title: str
    group: str
    state: JobStateName
    gpus: int
    ended: datetime
    wait_seconds: float | None
    run_seconds: float | None
    gpu_hours: float
    vram_mode: VramMode
    reserved_bytes: int | None
    """On each GPU; null is all of it."""
    peak_vram_bytes: int | None
    note: str
    """Why it failed."""


class Usage(Struct, frozen=True):
    """The totals of a period. A queue belongs to one user, so that they are this user's."""

    schema: str
    at: datetime
    host: str
    simulated: bool
    user: str
    since: datetime | None
    gpu_hours: float
    """Of all attempts; if several share a GPU, of each of them."""
    busy_gpu_hours: float
    """Of all attempts; the time of several that share a GPU counts once."""
    saved_gpu_hours: float
    """The difference: what sharing saved at most against one job for each GPU."""
    outcomes: dict[str, int]
    days: list[DayUsage]
    groups: list[GroupUsage]
    jobs: list[JobUsage]
    """Oldest first."""
    hidden: int
    """Jobs of the period that are not listed, since they are older."""
    users: list[UserLine]
    """All users of this machine now; what others used is known only as far as the fair share needs it."""
    colours: dict[str, int]
    """Numbers of the colours of groups."""


def read_usage(paths: Paths, period: Period) -> Usage:
    """The totals of the jobs that ended in a period, and of those that run."""
    with read_facts(paths) as facts:
        return usage_of(facts, period, user_lines(facts, ledger_here(paths).live()))


def usage_of(facts: QueueFacts, period: Period, users: Sequence[UserLine] = ()) -> Usage:
    store, devices = facts.store, facts.devices
    spans = gpu_spans(store, period, facts.now, MOST_SPANS)
    ended = [past_line(past, store, devices) for past in reversed(past_jobs.past(store, period, MOST_JOBS))]
    listed = msgspec.convert(ended, list[JobUsage], from_attributes=True)
    outcomes = past_jobs.past_counts(store, period)
    hours, busy = sum(span.seconds for span in spans) / 3600, busy_seconds(spans) / 3600
    return Usage(
        schema=SCHEMA,
        at=to_datetime(facts.now),
        host=host_name(),
        simulated=facts.simulated,
        user=facts.user,
        since=to_datetime_or_none(period.since or None),
        gpu_hours=round(hours, 4),
        busy_gpu_hours=round(busy, 4),
        saved_gpu_hours=round(max(0.0, hours - busy), 4),
        outcomes=outcomes,
        days=days_of(spans),
        groups=groups_of(spans, listed),
        jobs=listed,
        hidden=max(0, sum(outcomes.values()) - len(listed)),
        users=list(users),
        colours=colours_of(groups_in_order(store)),
    )


def busy_seconds(spans: Iterable[GpuSpan]) -> float:
    """The time in which GPUs were in use, however many attempts shared one."""
    busy = 0.0
    by_device = sorted(spans, key=lambda span: (span.device, span.started))
    for _, on_device in groupby(by_device, key=lambda span: span.device):
        until = 0.0
        for span in on_device:
            busy += max(0.0, span.ended - max(until, span.started))
            until = max(until, span.ended)
    return busy


def days_of(spans: Iterable[GpuSpan]) -> list[DayUsage]:
    """GPU-hours by day and group; a span that passes midnight counts for both days."""
    seconds: dict[tuple[float, str], float] = {}
    for span in spans:
        for day, part in days_between(span.started, span.ended):
            seconds[day, span.group] = seconds.get((day, span.group), 0.0) + part
    return [
        DayUsage(time.strftime("%Y-%m-%d", time.localtime(day)), group, round(used / 3600, 4))
        for (day, group), used in sorted(seconds.items())
    ]


def days_between(started: float, ended: float) -> Iterator[tuple[float, float]]:
    """The days of a period, each with the seconds of the period that are in it."""
    day = midnight(started)
    while day < ended:
        after = midnight(day + 1.5 * DAY)  # a day has 23 to 25 hours
        yield day, min(ended, after) - max(started, day)
        day = after


def groups_of(spans: Iterable[GpuSpan], jobs: Sequence[JobUsage]) -> list[GroupUsage]:
    """The groups with the most GPU-hours first."""
    seconds: dict[str, float] = {job.group: 0.0 for job in jobs}
    for span in spans:
        group = span.group
        seconds[group] = seconds.get(group, 0.0) + span.seconds
    by_group: dict[str, list[JobUsage]] = {group: [] for group in seconds}
    for job in jobs:
        by_group[job.group].append(job)
    lines = [
        GroupUsage(
            group=group,
            gpu_hours=round(seconds[group] / 3600, 4),
            outcomes=dict(Counter(job.state for job in of_group)),
            median_wait_seconds=_median(job.wait_seconds for job in of_group),
            median_run_seconds=_median(job.run_seconds for job in of_group),
        )
        for group, of_group in by_group.items()
    ]
    return sorted(lines, key=lambda line: (-line.gpu_hours, line.group))


def _median(values: Iterable[float | None]) -> float | None:
    known_values = [value for value in values if value is not None]
    return round(median(known_values), 3) if known_values else None
