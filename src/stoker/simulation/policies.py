"""The policies of a replay: rules for the planner, the speeds of jobs that share a GPU, and a bound for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

from msgspec import Struct

from stoker.core.interference import slowdown
from stoker.core.settings import Policy
from stoker.simulation.workload import Life, Outcome, Work

Pairs = Mapping[tuple[str, str], float]
Speeds = Callable[[Work, Sequence[Work]], float]
"""The speed of a job on a GPU with these jobs, itself included, as a share of its speed alone."""


def by_pairs(pairs: Pairs) -> Speeds:
    """Measured speeds for these pairs, and the law of interference for all others."""

    def speed(work: Work, members: Sequence[Work]) -> float:
        if len(members) == 2:
            other = members[0] if members[1] is work else members[1]
            measured = pairs.get((scaled_name(work.model, work.gpus), scaled_name(other.model, other.gpus)))
            if measured is not None:
                return measured
        return slowdown(work.load, sum(member.load for member in members), len(members))

    return speed


def scaled_name(model: str, gpus: int) -> str:
    """The name of a model on so many GPUs, which was measured apart."""
    return f"{model} on {gpus}"


class Rules(Struct, frozen=True):
    """How a policy runs the machine."""

    policy: Policy = Policy()
    packing: bool = True
    """Whether jobs come with `--vram auto`, or take whole cards."""
    exact: bool = False
    """Whether durations are known beforehand, not learnt."""


RULES: Mapping[str, Rules] = {
    "stoker": Rules(),
    "shortest": Rules(Policy(order="shortest")),
    "packing": Rules(Policy(order="age", passing="freely")),
    "first-fit": Rules(Policy(order="age", passing="freely"), packing=False),
    "fifo": Rules(Policy(order="age", passing="never"), packing=False),
}

BOUND = "bound"
"""What no policy can do better; no machine can be run so."""

SENTENCES: Mapping[str, str] = {
    "stoker": "what Stoker does unless it is told otherwise: by age, no job is delayed for long, packed",
    "shortest": 'the same with order = "shortest"',
    "packing": "first-fit, and jobs share GPUs by what was learnt of them",
    "first-fit": "whole GPUs by age, and jobs that find room pass those that do not",
    "fifo": "whole GPUs by age, and no job passes another",
    BOUND: "not reachable: all is known beforehand, stopping is free, and two jobs on a GPU run at full speed",
}

AT_FULL_SPEED = 2
"""Jobs that share a GPU without slowing each other down: no measured pair did more than twice the work of one."""
_CLOSE = 1e-6


def best_possible(works: Sequence[Work], gpus: int) -> Outcome:
    """Least remaining work first, stopped and moved at no cost, with all durations known beforehand."""
    return _Ideal(works, gpus).play()


class _Ideal:
    """A machine on which stopping and moving a job costs nothing."""

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
            self._advance(chosen, min(arrival, end))
            while self._arrivals and self._arrivals[-1].arrival <= self._now:
                work = self._arrivals.pop()
                self._left[work.id] = work.seconds
        return Outcome(
            [self._lives[job_id] for job_id in sorted(self._lives)], (), self._gpus, self._busy, self._shared
        )

    def _choose(self) -> list[int]:
        """Jobs that run now, as many as fit."""
        room = self._gpus * AT_FULL_SPEED
        chosen = []
        for job_id in sorted(self._left, key=lambda job_id: self._left[job_id] * self._lives[job_id].gpus):
            if self._lives[job_id].gpus <= room:
                room -= self._lives[job_id].gpus
                chosen.append(job_id)
        return chosen

    def _advance(self, chosen: Sequence[int], until: float) -> None:
        seconds = until - self._now
        in_use = sum(self._lives[job_id].gpus for job_id in chosen)
        self._busy += seconds * min(in_use, self._gpus)
        self._shared += seconds * max(0, in_use - self._gpus)
        for job_id in chosen:
            life = self._lives[job_id]
            life.start = self._now if life.start is None else life.start
            self._left[job_id] -= seconds
            if self._left[job_id] <= _CLOSE:
                life.end = until
                del self._left[job_id]
        self._now = until
