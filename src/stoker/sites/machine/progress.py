"""When running jobs will end, by the progress that they report or that their logs show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from stoker.core.job import Job
from stoker.core.planner.occupancy import Slot
from stoker.store.reports import progress_of

INTERVAL = 10.0
"""Seconds between two looks at the log of a job: each takes about a millisecond."""
MOST_LOGS = 64
"""Logs that are read for one forecast."""


class _Seen(NamedTuple):
    at: float
    until: float | None


class ExpectedEnds:
    """Ends of running attempts for the forecast. The plan does not use them: logs are only a hint."""

    def __init__(self, active: Callable[[int], Job | None], report_of: Callable[[int], Path]) -> None:
        self._active = active
        self._report_of = report_of
        self._seen: dict[int, _Seen] = {}

    def applied(self, slots: Sequence[Slot], now: float) -> list[Slot]:
        """The slots with the ends that progress tells, in place of those by limit and history."""
        self._seen = {slot.job: self._looked(slot.job, now) for slot in slots[:MOST_LOGS]}
        ends = {job: seen.until for job, seen in self._seen.items() if seen.until is not None}
        return [replace(slot, until=max(now, ends[slot.job])) if slot.job in ends else slot for slot in slots]

    def _looked(self, job_id: int, now: float) -> _Seen:
        seen, job = self._seen.get(job_id), self._active(job_id)
        if seen is not None and now - seen.at < INTERVAL:
            return seen
        progress = None if job is None else progress_of(job, self._report_of(job_id), now)
        return _Seen(now, None if progress is None or progress.left is None else now + progress.left)
