"""The outcome of a replay, and the figures that compare two of them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class Life(Struct):
    """The course of one job."""

    job: int
    arrival: float
    gpus: int
    start: float | None = None
    """When its first attempt started."""
    end: float | None = None
    shared_failures: int = 0
    """Attempts that ran out of memory."""


class Stay(Struct, frozen=True):
    """The time that one attempt had one device."""

    device: str
    job: int
    start: float
    end: float


class Outcome(Struct, frozen=True):
    """The outcome of all jobs, and the use of the GPUs."""

    lives: Sequence[Life]
    stays: Sequence[Stay]
    gpus: int
    busy: float
    """GPU-seconds with a job on the GPU..."""
    shared: float
    """... and with more than one."""
    plans: int = 0
    """How often the planner ran."""


class Figures(Struct, frozen=True):
    """What a replay is judged by; times in seconds, shares between 0 and 1."""

    jobs: int
    completion_mean: float
    completion_p95: float
    wait_mean: float
    makespan: float
    utilisation: float
    """Share of the GPU-time in which a GPU had a job."""
    packed: float
    """Share of that in which it had more than one."""
    out_of_memory: int
    """Attempts that ended so; each of them ran again."""
    lost: int
    """Jobs that never came to their end."""


def figures(outcome: Outcome) -> Figures:
    ended = [life for life in outcome.lives if life.end is not None]
    completions = completion_times(outcome)
    waits = [life.start - life.arrival for life in ended if life.start is not None]
    makespan = max((life.end for life in ended if life.end is not None), default=0.0)
    return Figures(
        jobs=len(outcome.lives),
        completion_mean=_mean(completions),
        completion_p95=percentile(completions, 0.95),
        wait_mean=_mean(waits),
        makespan=makespan,
        utilisation=outcome.busy / (outcome.gpus * makespan) if makespan else 0.0,
        packed=outcome.shared / outcome.busy if outcome.busy else 0.0,
        out_of_memory=sum(life.shared_failures for life in outcome.lives),
        lost=len(outcome.lives) - len(ended),
    )


def completion_times(outcome: Outcome) -> list[float]:
    """Seconds from arrival to end of each job, the shortest first."""
    return sorted(life.end - life.arrival for life in outcome.lives if life.end is not None)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which this share of the sorted values lies."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
