"""Bundle jobs for sbatch: what one sbatch takes, its options, and the limits of the queue and of Slurm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import heapify, heappop, heapreplace
from itertools import islice
from math import ceil
from typing import NamedTuple

from stoker.core.job import Job
from stoker.core.planner.queue import CPU_JOBS, caps_of
from stoker.core.planner.reasons import AtLimit, CapFull
from stoker.core.settings import ClusterSettings
from stoker.core.spec import JobSpec


class SbatchShape(NamedTuple):
    """The options that all jobs of one sbatch share."""

    gpus: int
    nodes: int
    model: str
    minutes: int | None
    """Time limit for Slurm; None is that of the partition."""
    array: int = 0
    """The array whose tasks are limited by `at_once`; 0 for all others."""
    at_once: int | None = None
    options: tuple[tuple[str, str], ...] = ()
    """More options for sbatch."""


class JobBundle(NamedTuple):
    """Jobs that are handed over by one sbatch."""

    shape: SbatchShape
    jobs: Sequence[Job]


def sbatch_shape(job: Job) -> SbatchShape:
    spec = job.spec
    limited = spec.at_once is not None
    return SbatchShape(
        spec.resources.gpus,
        spec.nodes,
        spec.resources.model,
        minutes_of(spec),
        job.array if limited else 0,
        spec.at_once,
        spec.slurm,
    )


def minutes_of(spec: JobSpec) -> int | None:
    """The limit for Slurm, which counts in minutes: the job's own limit ends it first, with its grace."""
    return None if spec.limit is None else ceil((spec.limit + spec.grace) / 60) + 1


def importance(job: Job) -> tuple[int, int]:
    """Sorts waiting jobs: the more important first, then the older."""
    return -job.spec.priority, job.id


def offer_in_order(groups: Iterable[Iterable[Job]], offer: Callable[[Job], bool]) -> None:
    """Offer waiting jobs, the more important and the older first; after a refusal no more of the same group.

    The jobs of a group are alike and sorted. So the cost depends on the jobs that are taken, not on those that wait.
    """
    heap = [(importance(job), job, jobs) for jobs in map(iter, groups) for job in islice(jobs, 1)]
    heapify(heap)
    while heap:
        _, job, jobs = heap[0]
        following = next(jobs, None) if offer(job) else None
        if following is None:
            heappop(heap)
        else:
            heapreplace(heap, (importance(following), following, jobs))


def cap_names(job: Job) -> tuple[str, ...]:
    """Names of the caps that a job counts towards; the empty one is that of all jobs."""
    return "", *(cap.name for cap in caps_of(job))


class Caps:
    """Whether a job may be handed over beside the active ones: -j, and the limits of groups and arrays."""

    def __init__(self, limits: Mapping[str, int], most: int | None, active: Callable[[], Counter[str]]) -> None:
        """`active` counts active jobs by `cap_names`; it is called at most once, and only if there is a limit."""
        self._limits = {name: limit for name, limit in limits.items() if name != CPU_JOBS.name}  # of this machine
        self._most = most
        self._count_active = active

    @cached_property
    def _counts(self) -> Counter[str]:
        return self._count_active()

    def left(self, job: Job) -> int | None:
        """How many more jobs like this one may be handed over; None is any number."""
        return min((limit - self._counts[name] for name, limit in self._limits_of(job)), default=None)

    def full(self, job: Job, *, arrays: bool = True) -> AtLimit | CapFull | None:
        """The limit that keeps a job from being handed over; `arrays` is whether that of its array counts."""
        for name, limit in self._limits_of(job, arrays=arrays):
            if self._counts[name] >= limit:
                return CapFull(name, limit) if name else AtLimit(limit)
        return None

    def take(self, job: Job) -> None:
        """Count a job that is handed over."""
        if names := [name for name, _ in self._limits_of(job)]:
            self._counts.update(names)

    def _limits_of(self, job: Job, *, arrays: bool = True) -> list[tuple[str, int]]:
        limits = [("", self._most)]
        for cap in caps_of(job):
            limits.append(
                (cap.name, self._limits.get(cap.name) if cap.limit is None else cap.limit if arrays else None)
            )
        return [(name, limit) for name, limit in limits if limit is not None]


class SlurmRoom:
    """How many more jobs may wait in Slurm."""

    def __init__(self, count: int, most: int, active: Callable[[int], int]) -> None:
        """`most` is the largest bundle; `active` tells how many tasks of an array are handed over already."""
        self._count = count
        self._most = most
        self._active = active
        self._arrays: dict[int, int] = {}

    def take(self, job: Job) -> bool:
        """Take the room of one job, if there is any.

        A limited array has one bundle at a time, whose limit Slurm keeps; beside it no more follow than may run.
        """
        limit = job.spec.at_once
        if limit is not None and job.array not in self._arrays:
            before = self._active(job.array)
            self._arrays[job.array] = limit - before if before else self._most
        if self._count <= 0 or (limit is not None and self._arrays[job.array] <= 0):
            return False
        self._count -= 1
        if limit is not None:
            self._arrays[job.array] -= 1
        return True


LIMIT_PAUSE = 5.0
LONGEST_LIMIT_PAUSE = 60.0
"""Seconds before more tasks are tried than a submit limit allowed: the first time, and at most."""


class SubmitLimit:
    """How many of our tasks Slurm takes at once, learnt from its refusals; other jobs of the user count there too."""

    def __init__(self) -> None:
        self.words = ""
        """For the user, while there is a limit."""
        self.retry_at = 0.0
        """When one may try to submit more."""
        self._most: int | None = None
        self._step = 1
        self._pause = LIMIT_PAUSE

    def refused(self, tasks: int, others: int, name: str, now: float) -> None:
        """Slurm refused `tasks` tasks beside `others` of ours: half of them may fit."""
        self.words = f"your submit limit in Slurm is reached{f' ({name})' if name else ''}; it goes on as jobs end"
        self._most, self._step = others + tasks // 2, 1
        if now >= self.retry_at:  # else the last refusal has begun a pause, in which the right number is looked for
            self.retry_at, self._pause = now + self._pause, min(2 * self._pause, LONGEST_LIMIT_PAUSE)

    def accepted(self, total: int, now: float) -> None:
        """Slurm has `total` of our tasks now; if that is more than before, try still more at once."""
        if self._most is not None and total > self._most:
            self._most, self._step, self.retry_at, self._pause = total, 2 * self._step, now, LIMIT_PAUSE

    def most(self, now: float) -> int | None:
        """How many of our tasks may be in Slurm; None is any number."""
        if self._most is None:
            return None
        return self._most + (self._step if now >= self.retry_at else 0)


def bundles(jobs: Iterable[Job], most: int) -> Iterator[JobBundle]:
    """Bundle jobs by shape, in their order; `most` is the largest bundle."""
    by_shape: dict[SbatchShape, list[Job]] = {}
    for job in jobs:
        by_shape.setdefault(sbatch_shape(job), []).append(job)
    for shape, alike in by_shape.items():
        for first in range(0, len(alike), most):
            yield JobBundle(shape, alike[first : first + most])


def sbatch_words(shape: SbatchShape, count: int, settings: ClusterSettings) -> list[str]:
    """The options for sbatch that follow from the jobs and the settings of the cluster; of two, the last one counts."""
    words = settings_words(settings)
    if shape.gpus:
        kind = f"gpu:{shape.model}" if shape.model else "gpu"
        words.append(f"--gres={kind}:{shape.gpus // shape.nodes}")
    if shape.nodes > 1:
        words.append(f"--nodes={shape.nodes}")
        own_tasks = any(name.startswith("ntasks") for name, _ in shape.options)
        words += [] if own_tasks else [f"--ntasks={shape.nodes}", "--ntasks-per-node=1"]
    if shape.minutes is not None:
        words.append(f"--time={shape.minutes}")
    if count > 1:
        limit = f"%{shape.at_once}" if shape.at_once is not None else ""
        words.append(f"--array=0-{count - 1}{limit}")
    own = [f"--{name}={value}" if value else f"--{name}" for name, value in shape.options]
    return [*words, *settings.options, *own]


def settings_words(settings: ClusterSettings) -> list[str]:
    """The options for sbatch that tell where a job runs, and on whose account."""
    names = {"partition": settings.partition, "account": settings.account, "qos": settings.qos}
    return [f"--{name}={value}" for name, value in names.items() if value]
