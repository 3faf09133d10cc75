"""The places of waiting jobs: in which order they will start, and why another one goes first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from math import inf

from stoker.core.job import Job
from stoker.core.planner.order import QueuePosition, overtaken_by
from stoker.core.planner.reasons import Outranked
from stoker.core.settings import Policy
from stoker.store import queries
from stoker.store.reader import Reader
from stoker.store.status_file import EngineStatus


class QueuePositions:
    """The first waiting jobs of living engines, in the order in which they will start, as far as is known.

    Jobs with a forecast come first, by their expected start; the others follow in the order of the plan.
    """

    def __init__(self, store: Reader, statuses: Iterable[EngineStatus], now: float) -> None:
        self._store = store
        self._now = now
        self._statuses = {status.engine: status for status in statuses}
        self._standings = {
            engine: {one.job: one for one in _by_start(status)} for engine, status in self._statuses.items()
        }
        self._places = {engine: dict(_numbered(known.values())) for engine, known in self._standings.items()}

    def first(self, engine: str) -> list[int]:
        """The ids of the first jobs of an engine, one for each array."""
        return list(self._standings.get(engine, {}))

    def standing(self, job: Job, engine: str) -> QueuePosition | None:
        """The figures that decide on a job's place, if its engine published them; all tasks of an array share them."""
        known = self._standings.get(engine, {})
        if job.id in known or not job.array:
            return known.get(job.id)
        return next((one for one in known.values() if job.array <= one.job < job.id and one.tasks > 1), None)

    def place(self, job: Job, engine: str) -> int | None:
        """How many waiting jobs of its engine start before a job, plus one; None where unknown."""
        standing = self.standing(job, engine)
        if standing is None:
            return None
        place = self._places[engine][standing.job]
        if standing.job == job.id:
            return place
        return place + queries.count_waiting(self._store, engine, standing.job, job.id)

    def overtaken_by(self, job: Job, engine: str) -> Outranked | None:
        """The job that goes before this one, and why; None for the first in the order of the plan.

        Jobs with and without GPUs do not compete.
        """
        standing = self.standing(job, engine)
        if standing is None:
            return None
        status = self._statuses[engine]
        policy = Policy(order=status.settings.order) if status.settings else Policy()
        first = next(rival for rival in status.order if bool(rival.gpus) == bool(standing.gpus))
        return None if first.job == standing.job else overtaken_by(standing, first, policy, self._now)


def _by_start(status: EngineStatus) -> list[QueuePosition]:
    return sorted(status.order, key=lambda one: status.starts.get(one.job, inf))


def _numbered(standings: Iterable[QueuePosition]) -> Iterator[tuple[int, int]]:
    """Ids with their places: every task counts."""
    known = list(standings)
    return zip([one.job for one in known], accumulate([one.tasks for one in known], initial=1), strict=False)
