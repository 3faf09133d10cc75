"""The order of waiting jobs within a priority: the smallest key goes first, and among equals the oldest job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from math import ceil, inf, log2

from stoker.core.job import Job
from stoker.core.settings import Policy

LEAST_WORK = 60.0
"""GPU-seconds; a job that takes less counts as this."""
MOST_WORK = 4 * 86400.0
"""GPU-seconds; a job that takes more counts as this, so that it is not passed for ever."""
HEAD_START = 60.0
"""Seconds added to the waiting time, so that among new jobs the short ones go first."""


class Order:
    """The keys of one plan. The starts of the plan count, since they change the share of their batch."""

    def __init__(
        self, policy: Policy, now: float, expects: Callable[[Job], float | None], running: Iterable[str]
    ) -> None:
        """`expects` gives the seconds that a job takes, where known; `running` the kinds of all running jobs."""
        self._policy = policy
        self._now = now
        self._expects = expects
        self._running = Counter(running)

    def key(self, job: Job) -> float:
        """The sort key of a job. In the course of a plan it never becomes smaller."""
        match self._policy.order:
            case "age":
                return 0.0
            case "shortest":
                return job.submitted + self._seconds(job) * max(1, job.spec.resources.gpus)
            case "fair":
                waited = self._now - job.submitted
                return -inf if waited >= self._policy.overdue else -(waited + HEAD_START) / self.work(job)

    def work(self, job: Job) -> float:
        """What a job takes in GPU-seconds, times the number of jobs of its batch that would run with it.

        It is rounded up to a power of two: jobs that take about the same go by age.
        """
        seconds = self._seconds(job) * max(1, job.spec.resources.gpus)
        batch = 1 + self._running[job.kind] if job.kind else 1
        return rounded_work(seconds * batch)

    def started(self, job: Job) -> None:
        self._running[job.kind] += 1

    def _seconds(self, job: Job) -> float:
        seconds = self._expects(job)
        return self._policy.unknown if seconds is None else seconds


def rounded_work(seconds: float) -> float:
    """GPU-seconds within the bounds, rounded up to a power of two."""
    return 2.0 ** ceil(log2(min(max(seconds, LEAST_WORK), MOST_WORK)))
