"""Running jobs that were asked to leave their devices, and what becomes of those that stay."""

from __future__ import annotations

from stoker.core.job import Displaced, Job, Running, Stayed
from stoker.engine.job_table import Jobs
from stoker.sites.interface import GivesWay, Site

ANSWER_SECONDS = 5.0
"""Seconds after the time to save until a job that still runs is said to stay: the worker reports an end meanwhile."""


class Displacements:
    """Asks jobs of an engine to leave, and lets those stay that did not in time."""

    def __init__(self, jobs: Jobs, site: Site) -> None:
        self._jobs = jobs
        self._site = site
        self._until: dict[int, float] = {}

    @property
    def next_check(self) -> float | None:
        """When to look for jobs that stay."""
        return min(self._until.values(), default=None)

    def displace(self, job: Job, to: int, note: str) -> bool:
        """Ask a job to leave; False if it cannot be asked, or was asked already."""
        can_leave = isinstance(self._site, GivesWay) and not self._jobs.table.is_adopted(job.id)
        if not can_leave or not isinstance(job.state, Running) or job.state.giving_way or not job.spec.preemptible:
            return False
        self.ask(self._jobs.apply(job, Displaced(self._jobs.clock(), to or self._next_waiting(job), note)))
        return True

    def ask(self, job: Job) -> None:
        """Send the order; again for a job that a dead engine had asked."""
        assert isinstance(job.state, Running)
        if (way := job.state.giving_way) is None or not isinstance(self._site, GivesWay):
            return
        if job.spec.preemptible == "save":  # any other is killed
            self._until[job.id] = way.since + job.spec.save_time + ANSWER_SECONDS
        self._site.give_way(job)

    def check(self, now: float) -> None:
        """Let the jobs stay whose time to save is over."""
        for job_id in [job_id for job_id, until in self._until.items() if until <= now]:
            del self._until[job_id]
            job = self._jobs.active(job_id)
            if job is not None and isinstance(job.state, Running) and job.state.giving_way is not None:
                self._jobs.apply(job, Stayed(now))

    def _next_waiting(self, job: Job) -> int:
        """The waiting job that goes first and needs a GPU; 0 if there is none."""
        order = self._site.status().order
        return next((position.job for position in order if position.gpus and position.job != job.id), 0)
