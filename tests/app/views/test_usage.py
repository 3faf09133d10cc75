"""Totals of a period: GPU-hours, outcomes, times and memory."""

from __future__ import annotations

import time

from stoker.app.jobs.local_time import midnight
from stoker.app.views.usage import busy_seconds, days_of, usage_of
from stoker.store.past_jobs import GpuSpan, Period
from support.build import GIB
from support.past import NOW, PastQueue

HOUR = 3600.0


def test_sharing_saves_gpu_time(queue: PastQueue) -> None:
    """Hours count for each job, and once for each GPU; the difference is what sharing saved at most."""
    queue.ran("a", "0", -4 * HOUR, -2 * HOUR, gib=6, group="vision")
    queue.ran("b", "0", -3 * HOUR, -1 * HOUR, code=1, gib=6)
    queue.ran("now", "1", -1 * HOUR, None)
    usage = usage_of(queue.facts(), Period(NOW - 24 * HOUR))
    assert (usage.gpu_hours, usage.busy_gpu_hours, usage.saved_gpu_hours) == (5.0, 4.0, 1.0)
    assert usage.outcomes == {"done": 1, "failed": 1}
    assert [(line.group, line.gpu_hours, line.outcomes) for line in usage.groups] == [
        ("", 3.0, {"failed": 1}),
        ("vision", 2.0, {"done": 1}),
    ]
    first, second = usage.jobs
    assert (first.title, first.wait_seconds, first.run_seconds, first.reserved_bytes) == ("a", 10.0, 7200.0, 6 * GIB)
    assert (second.title, second.state) == ("b", "failed")


def test_only_the_period_counts(queue: PastQueue) -> None:
    """Of an attempt that began before it, the part within."""
    queue.ran("across", "0", -4 * HOUR, -1 * HOUR)
    assert usage_of(queue.facts(), Period(NOW - 2 * HOUR)).gpu_hours == 1.0
    assert usage_of(queue.facts(), Period(NOW - HOUR / 2)).jobs == []


def test_days_are_local() -> None:
    """A span that passes midnight counts for both days."""
    day = midnight(NOW)
    spans = [GpuSpan("a", "0", day - HOUR, day + 2 * HOUR), GpuSpan("", "0", day + HOUR, day + 2 * HOUR)]
    today, yesterday = (time.strftime("%Y-%m-%d", time.localtime(at)) for at in (day, day - HOUR))
    assert [(line.day, line.group, line.gpu_hours) for line in days_of(spans)] == [
        (yesterday, "a", 1.0),
        (today, "", 1.0),
        (today, "a", 2.0),
    ]


def test_busy_time_is_a_union() -> None:
    """Within each GPU, overlaps count once."""
    spans = [GpuSpan("", "0", 0, 10), GpuSpan("", "0", 2, 5), GpuSpan("", "0", 20, 30), GpuSpan("", "1", 0, 10)]
    assert busy_seconds(spans) == 30
