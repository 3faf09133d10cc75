"""GPU-hours of this week, for the limit that the administrator set."""

from __future__ import annotations

import time
from collections.abc import Iterable

from stoker.core.planner.reasons import WeekUsed
from stoker.core.settings import LockedLimits
from stoker.sites.machine.allocations import Allocation
from stoker.sites.machine.fairshare import MOST_ROWS, count_gpus, written_gpus
from stoker.sites.machine.ref import is_nested
from stoker.store.writer import Store

READ_INTERVAL = 10.0
"""Seconds between two reads of the history."""
DAYS = 7


class WeekUsage:
    """GPU time of the user since Monday, in all engines of the queue."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read_at = float("-inf")
        self._ended = 0.0
        """GPU-seconds of attempts that are over."""

    def used(self, limits: LockedLimits, allocations: Iterable[Allocation], now: float) -> WeekUsed | None:
        """Why no job with GPUs may start; None if there is no such limit, or something is left."""
        if limits.gpu_hours is None:
            return None
        begin, end = week_around(now)
        if not 0 <= now - self._read_at < READ_INTERVAL or self._read_at < begin:
            self._read_at = now
            rows = self._store.spent(begin, "", MOST_ROWS)
            self._ended = sum(
                written_gpus(text) * max(0.0, ended - max(began, begin))
                for ref, text, began, ended in rows
                if not is_nested(ref)
            )
        running = sum(
            count_gpus(allocation.device_ids) * (now - max(begin, allocation.head_since))
            for allocation in allocations
            if allocation.jobs
        )
        hours = (self._ended + running) / 3600
        rule = limits.named("gpu_hours")
        return WeekUsed(limits.gpu_hours, round(hours, 1), end, rule) if hours >= limits.gpu_hours else None


def week_around(now: float) -> tuple[float, float]:
    """When this week began, on Monday in local time, and when the next begins."""
    today = time.localtime(now)
    begin, end = (
        time.mktime((today.tm_year, today.tm_mon, today.tm_mday - today.tm_wday + days, 0, 0, 0, 0, 0, -1))
        for days in (0, DAYS)
    )
    return begin, end
