"""The order of waiting jobs within a priority: the smallest key goes first, and among equals the oldest job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
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
        self, policy: Policy, now: float, expects: Callable[[Job], float | None], running: Mapping[str, int]
    ) -> None:
        """`expects` gives the seconds that a job takes, where known; `running` how many jobs of each kind run."""
        self._policy = policy
        self._now = now
        self.expects = expects
        self._running = Counter(running)

    def key(self, job: Job) -> float:
        """The sort key of a job. In the course of a plan it never becomes smaller."""
        return self.key_for(job, self.work(job))

    def key_for(self, job: Job, work: float) -> float:
        """The sort key that a job has if it is this work."""
        match self._policy.order:
            case "age":
                return 0.0
            case "shortest":
                return job.submitted + work
            case "fair":
                waited = self._now - job.submitted
                return -inf if waited >= self._policy.overdue else -(waited + HEAD_START) / work

    def work(self, job: Job) -> float:
        """The GPU-seconds by which the order ranks a job.

        In the fair order they are multiplied by the number of jobs of its batch that would run with it, and rounded up
        to a power of two: jobs that take about the same go by age.
        """
        if self._policy.order == "age":
            return 0.0
        known = self.expects(job)
        seconds = (self._policy.unknown if known is None else known) * max(1, job.spec.resources.gpus)
        if self._policy.order == "shortest":
            return seconds
        return rounded_work(seconds * (1 + self._running[job.kind] if job.kind else 1))

    def running(self) -> dict[str, int]:
        """How many jobs of each kind run, without the starts to come."""
        return dict(self._running)

    def started(self, job: Job) -> None:
        self._running[job.kind] += 1


def rounded_work(seconds: float) -> float:
    """GPU-seconds within the bounds, rounded up to a power of two."""
    return 2.0 ** ceil(log2(min(max(seconds, LEAST_WORK), MOST_WORK)))
