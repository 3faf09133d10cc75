"""Queued jobs that no device could help: held by somebody, too early, or behind other jobs."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from stoker.core.dependency import Dependency
from stoker.core.gate import Hindrance
from stoker.core.job import Job
from stoker.core.reasons import Behind, NotBefore


class Parked:
    """Such jobs, each with what it waits for, found by that when it comes."""

    def __init__(self) -> None:
        self._jobs: dict[int, tuple[Job, Hindrance]] = {}
        self._begins: list[tuple[float, int]] = []
        self._behind: dict[Dependency, set[int]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._jobs

    def add(self, job: Job, why: Hindrance) -> None:
        """Park a job; it stays until it is removed."""
        self.remove(job.id)
        self._jobs[job.id] = job, why
        if isinstance(why, NotBefore):
            heappush(self._begins, (why.at, job.id))
        elif isinstance(why, Behind):
            for dependency in why.dependencies:
                self._behind.setdefault(dependency, set()).add(job.id)

    def remove(self, job_id: int) -> Job | None:
        """Take a job out, if it is parked here."""
        job, why = self._jobs.pop(job_id, (None, None))
        for dependency in why.dependencies if isinstance(why, Behind) else ():
            waiting = self._behind[dependency]
            waiting.discard(job_id)
            if not waiting:
                del self._behind[dependency]
        return job

    def get(self, job_id: int) -> Job | None:
        """A parked job, or None."""
        return self._jobs.get(job_id, (None, None))[0]

    def reason(self, job_id: int) -> Hindrance | None:
        """What a job waits for."""
        return self._jobs.get(job_id, (None, None))[1]

    @property
    def next_begin(self) -> float | None:
        """When the next job that was too early may begin."""
        while self._begins and not self._is_too_early(*self._begins[0]):
            heappop(self._begins)
        return self._begins[0][0] if self._begins else None

    def due(self, now: float) -> Iterator[Job]:
        """Jobs that are no longer too early."""
        while (begin := self.next_begin) is not None and begin <= now:
            yield self._jobs[heappop(self._begins)[1]][0]

    @property
    def targets(self) -> list[Dependency]:
        """All that jobs are behind of."""
        return list(self._behind)

    def behind(self, dependency: Dependency) -> list[Job]:
        """The jobs that wait for this, in the order of their ids."""
        return [self._jobs[job_id][0] for job_id in sorted(self._behind.get(dependency, ()))]

    def _is_too_early(self, begin: float, job_id: int) -> bool:
        return self._jobs.get(job_id, (None, None))[1] == NotBefore(begin)
