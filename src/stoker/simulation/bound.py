"""The best that could be thought of, to see how much is left: no scheduler can have it."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from stoker.simulation.report import Life, Outcome
from stoker.simulation.workload import Work

AT_FULL_SPEED = 2
"""Jobs that share a GPU without slowing each other down: more than twice the work of one was never seen of pairs."""
CLOSE = 1e-6


def best_possible(works: Sequence[Work], gpus: int) -> Outcome:
    """Least remaining work first, stopped and moved at no cost, with all durations known beforehand."""
    return _Ideal(works, gpus).play()


class _Ideal:
    """A machine without friction."""

    def __init__(self, works: Sequence[Work], gpus: int) -> None:
        self._gpus = gpus
        self._arrivals = sorted(works, key=lambda work: (-work.arrival, -work.id))
        self._lives = {work.id: Life(work.id, work.arrival, work.gpus) for work in works}
        self._left: dict[int, float] = {}
        self._now = self._busy = self._shared = 0.0

    def play(self) -> Outcome:
        while self._arrivals or self._left:
            chosen = self._choose()
            arrival = self._arrivals[-1].arrival if self._arrivals else inf
            end = self._now + min((self._left[job_id] for job_id in chosen), default=inf)
            self._go_on(chosen, min(arrival, end))
            self._arrive()
        return Outcome(
            [self._lives[job_id] for job_id in sorted(self._lives)], (), self._gpus, self._busy, self._shared
        )

    def _choose(self) -> list[int]:
        """Those that run now, as many as there is room for."""
        room = self._gpus * AT_FULL_SPEED
        chosen = []
        for job_id in sorted(self._left, key=lambda job_id: self._left[job_id] * self._lives[job_id].gpus):
            if self._lives[job_id].gpus <= room:
                room -= self._lives[job_id].gpus
                chosen.append(job_id)
        return chosen

    def _go_on(self, chosen: Sequence[int], until: float) -> None:
        seconds = until - self._now
        in_use = sum(self._lives[job_id].gpus for job_id in chosen)
        self._busy += seconds * min(in_use, self._gpus)
        self._shared += seconds * max(0, in_use - self._gpus)
        for job_id in chosen:
            life = self._lives[job_id]
            life.start = self._now if life.start is None else life.start
            self._left[job_id] -= seconds
            if self._left[job_id] <= CLOSE:
                life.end = until
                del self._left[job_id]
        self._now = until

    def _arrive(self) -> None:
        while self._arrivals and self._arrivals[-1].arrival <= self._now:
            work = self._arrivals.pop()
            self._left[work.id] = work.seconds
