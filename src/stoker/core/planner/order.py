"""The order of waiting jobs within a priority: the smallest key goes first, and among equals the oldest job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from math import ceil, inf, log2

from msgspec import Struct

from stoker.core.job import Job
from stoker.core.planner.queue import returned_at
from stoker.core.planner.reasons import Outranked
from stoker.core.settings import Policy

LEAST_GPU_SECONDS = 60.0
"""GPU-seconds; a job that takes less counts as this."""
MOST_GPU_SECONDS = 4 * 86400.0
"""GPU-seconds; a job that takes more counts as this, so that it is not passed for ever."""
HEAD_START_SECONDS = 60.0
"""Seconds added to the waiting time, so that among new jobs the short ones go first."""

LEAST_RATIO = 0.1
"""Smaller ratios are not shown: the jobs are so new that only their work decides."""


class QueuePosition(Struct, frozen=True, array_like=True):
    """The figures that decide on the place of a waiting job, or of the first task of an array."""

    job: int
    tasks: int
    """How many tasks it stands for."""
    priority: int
    submitted: float
    """Or when it gave way, if it did."""
    seconds: float
    """How long it is expected to run."""
    is_expected: bool
    """Whether `seconds` comes from a limit or from history, and is not a default."""
    gpus: int
    batch: int = 0
    """How many jobs of its batch are running."""

    @property
    def work(self) -> float:
        """GPU-seconds that count: its own, once for itself and once for each running job of its batch."""
        return self.seconds * max(1, self.gpus) * (1 + self.batch)


class Order:
    """The keys of one plan. The starts of the plan count, since they change the share of their batch."""

    def __init__(
        self, policy: Policy, now: float, expects: Callable[[Job], float | None], running: Mapping[str, int]
    ) -> None:
        """`expects` gives the seconds that a job takes, if known; `running` how many jobs of each kind run."""
        self._policy = policy
        self._now = now
        self.expects = expects
        self._running = Counter(running)

    def key(self, job: Job, work: float | None = None) -> float:
        """The sort key of a job, whose work may be known already. In the course of a plan it never becomes smaller."""
        if self._policy.order == "age":
            return 0.0
        work = self.work(job) if work is None else work
        if self._policy.order == "shortest":
            return job.submitted + work
        if self._now - job.submitted >= self._policy.overdue:
            return -inf
        return -(self._now - _counted_from(job) + HEAD_START_SECONDS) / work

    def work(self, job: Job) -> float:
        """The GPU-seconds by which the order ranks a job.

        In the fair order they are multiplied by the number of jobs of its batch that would run with it, and rounded up
        to a power of two: jobs that take about the same go by age.
        """
        if self._policy.order == "age":
            return 0.0
        expected = self.expects(job)
        seconds = (self._policy.unknown if expected is None else expected) * max(1, job.spec.resources.gpus)
        if self._policy.order == "shortest":
            return seconds
        return rounded_work(seconds * (1 + self._running[job.kind] if job.kind else 1))

    def standing(self, job: Job, tasks: int = 1) -> QueuePosition:
        """The figures of a job, or of an array by its first task."""
        expected = self.expects(job)
        return QueuePosition(
            job.id,
            tasks,
            job.spec.priority,
            _counted_from(job),
            round(self._policy.unknown if expected is None else expected, 1),
            expected is not None,
            job.spec.resources.gpus,
            self._running[job.kind] if job.kind else 0,
        )

    def running(self) -> dict[str, int]:
        """How many jobs of each kind run, without the starts to come."""
        return dict(self._running)

    def started(self, job: Job) -> None:
        self._running[job.kind] += 1


def _counted_from(job: Job) -> float:
    """Since when the waiting time of a job counts: else one that gave way would soon be the first again."""
    returned = returned_at(job)
    return job.submitted if returned is None else returned


def rounded_work(seconds: float) -> float:
    """GPU-seconds within the bounds, rounded up to a power of two."""
    return 2.0 ** ceil(log2(min(max(seconds, LEAST_GPU_SECONDS), MOST_GPU_SECONDS)))


def times_waited(position: QueuePosition, now: float) -> float:
    """The waiting time of a job as a multiple of its work."""
    return max(0.0, now - position.submitted) / max(position.work, LEAST_GPU_SECONDS)


def overtaken_by(ours: QueuePosition, first: QueuePosition, policy: Policy, now: float) -> Outranked:
    """Why another waiting job goes before ours."""
    if first.priority != ours.priority:
        return Outranked(first.job, "priority", first.priority, ours.priority)
    if policy.order == "age":
        return Outranked(first.job, "older")
    if policy.order == "shortest":
        return Outranked(first.job, "shorter")
    if now - first.submitted >= policy.overdue:
        return Outranked(first.job, "overdue", policy.overdue)
    theirs, own = rounded_work(first.work), rounded_work(ours.work)
    if theirs == own:
        return Outranked(first.job, "alike")
    ratios = times_waited(first, now), times_waited(ours, now)
    if ratios[0] <= ratios[1]:  # rounding decided, or the head start of new jobs
        ratios = (
            (now - first.submitted + HEAD_START_SECONDS) / theirs,
            (now - ours.submitted + HEAD_START_SECONDS) / own,
        )
    if ratios[0] < LEAST_RATIO:
        return Outranked(first.job, "smaller")
    decides = ratios[1] * (1 + ours.batch) >= ratios[0]
    return Outranked(first.job, "waited", *ratios, batch=ours.batch if decides else 0)
