"""The policies of a replay: rules for the planner, the speeds of jobs that share a GPU, and references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from msgspec import Struct

from stoker.core.interference import slowdown
from stoker.core.settings import Policy
from stoker.features.simulate.workload import Life, ReplayOutcome, Work

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
    """The name of a model that was measured on this number of GPUs."""
    return f"{model} on {gpus}"


DEFAULT_SWITCH = 60.0


class Rules(Struct, frozen=True):
    """How a policy runs the machine."""

    policy: Policy = Policy()
    packing: bool = True
    """Whether jobs come with `--vram auto`, or take whole cards."""
    exact: bool = False
    """Whether durations are known beforehand, not learnt."""
    preemptible: float = 0.0
    """The share of the jobs that save their state and give way if they are asked."""
    switch: float = DEFAULT_SWITCH
    """Seconds that saving takes, and starting again as well."""


RULES: Mapping[str, Rules] = {
    "stoker": Rules(packing=False),
    "stoker-auto": Rules(),
    "age": Rules(Policy(order="age"), packing=False),
    "age-auto": Rules(Policy(order="age")),
    "shortest": Rules(Policy(order="shortest"), packing=False),
    "easy": Rules(Policy(order="age"), packing=False, exact=True),
    "packing": Rules(Policy(order="age", passing="freely")),
    "first-fit": Rules(Policy(order="age", passing="freely"), packing=False),
    "fifo": Rules(Policy(order="age", passing="never"), packing=False),
}
REFERENCES: Mapping[str, int] = {"srtf": 1, "srtf-packing": 2}
"""Policies that no machine can follow, and how many jobs run on a GPU at full speed in each."""

SENTENCES: Mapping[str, str] = {
    "stoker": "the default: whole GPUs in the fair order",
    "stoker-auto": "with --vram auto: the fair order, and jobs share GPUs by their learnt memory",
    "age": 'stoker with order = "age": the oldest first, and a blocked job has a reservation',
    "age-auto": 'stoker-auto with order = "age"',
    "shortest": 'stoker with order = "shortest": by submission plus expected work',
    "easy": "EASY backfilling: whole GPUs by age with a reservation, and all durations known",
    "packing": "first-fit, and jobs share GPUs by their learnt memory",
    "first-fit": "whole GPUs by age; jobs that fit overtake those that do not",
    "fifo": "whole GPUs by age; no job overtakes another",
    "srtf": "an unreachable reference: least remaining work first, all durations known, preemption is free",
    "srtf-packing": "the same, and two jobs on a GPU run at full speed",
}
POLICIES = (*RULES, *REFERENCES)
GIVING_WAY = ("stoker", "stoker-auto")
"""Policies that are also replayed with jobs that give way."""


class Variant(NamedTuple):
    """A policy, with this share of the jobs ready to give way."""

    policy: str
    preemptible: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.policy}+{self.preemptible:.0%}" if self.preemptible else self.policy

    @property
    def sentence(self) -> str:
        """Its description."""
        share = "all jobs" if self.preemptible == 1 else f"{self.preemptible:.0%} of the jobs"
        return f"{self.policy}, and {share} give way (--preemptible)" if self.preemptible else SENTENCES[self.policy]


_CLOSE_SECONDS = 1e-6


def shortest_remaining_first(works: Sequence[Work], gpus: int, per_gpu: int = 1) -> ReplayOutcome:
    """Least remaining work first, stopped and moved at no cost, with all durations known beforehand.

    It is a reference and no bound: three light jobs on a GPU can do more, and for wide jobs it is not optimal.
    """
    return _Ideal(works, gpus, per_gpu).play()


class _Ideal:
    """A machine on which stopping and moving a job costs nothing."""

    def __init__(self, works: Sequence[Work], gpus: int, per_gpu: int) -> None:
        self._gpus = gpus
        self._per_gpu = per_gpu
        self._arrivals = sorted(works, key=lambda work: (-work.arrival, -work.id))
        self._lives = {
            work.id: Life(work.id, work.arrival, work.gpus, work.seconds, session=work.session) for work in works
        }
        self._left: dict[int, float] = {}
        self._now = self._busy = self._shared = 0.0

    def play(self) -> ReplayOutcome:
        while self._arrivals or self._left:
            chosen = self._choose()
            arrival = self._arrivals[-1].arrival if self._arrivals else inf
            end = self._now + min((self._left[job_id] for job_id in chosen), default=inf)
            self._advance(chosen, min(arrival, end))
            while self._arrivals and self._arrivals[-1].arrival <= self._now:
                work = self._arrivals.pop()
                self._left[work.id] = work.seconds
        return ReplayOutcome(
            [self._lives[job_id] for job_id in sorted(self._lives)], (), self._gpus, self._busy, self._shared
        )

    def _choose(self) -> list[int]:
        """Jobs that run now, as many as fit."""
        room = self._gpus * self._per_gpu
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
            if self._left[job_id] <= _CLOSE_SECONDS:
                life.end = until
                del self._left[job_id]
        self._now = until
