"""Running jobs that were asked to leave their devices, and what becomes of those that stay."""

from __future__ import annotations

from stoker.core.job import Displaced, Job, Running, Stayed
from stoker.engine.job_table import Jobs
from stoker.sites.interface import GivesWay, Site

ANSWER_SECONDS = 5.0
"""Seconds after the time to save until a job that still runs is said to stay: the worker reports an end meanwhile."""
CLUSTER_SECONDS = 60.0
"""The same on a cluster, where a report comes through a shared directory, and its pilot says first that a job stays."""


class Displacements:
    """Asks jobs of an engine to leave, and lets those stay that did not in time."""

    def __init__(self, jobs: Jobs, site: Site) -> None:
        self._jobs = jobs
        self._site = site
        self._asked: dict[int, float] = {}
        """When this engine asked jobs; the clock of an earlier one, which asked them first, may have been wrong."""

    @property
    def next_check(self) -> float | None:
        """When to look for jobs that stay."""
        return min((self._until(job) for job in self._leaving()), default=None)

    def displace(self, job: Job, to: int, note: str) -> bool:
        """Ask a job to leave; False if it cannot be asked, or was asked already."""
        site = self._site
        if not isinstance(job.state, Running) or job.state.giving_way or not job.spec.preemptible:
            return False
        if not isinstance(site, GivesWay) or self._jobs.table.is_adopted(job.id) or not site.can_give_way(job):
            return False
        self.ask(self._jobs.apply(job, Displaced(self._jobs.clock(), to, note)))
        return True

    def ask(self, job: Job) -> None:
        """Send the order, if the job has to leave; again for one that a dead engine had asked."""
        if isinstance(self._site, GivesWay) and isinstance(job.state, Running) and job.state.giving_way is not None:
            self._asked[job.id] = self._jobs.clock()
            self._site.give_way(job)

    def check(self, now: float) -> None:
        """Let the jobs stay whose time to save is over."""
        leaving = self._leaving()
        self._asked = {job.id: self._asked[job.id] for job in leaving if job.id in self._asked}
        for job in leaving:
            if self._until(job) <= now:
                self._jobs.apply(job, Stayed(now))

    def next_waiting(self, job: Job) -> int:
        """The waiting job that goes first and needs a GPU, for which another can give way; 0 if there is none."""
        order = self._site.status().order
        return next((position.job for position in order if position.gpus and position.job != job.id), 0)

    def _leaving(self) -> list[Job]:
        """The jobs that may save and leave, or stay; any other is killed."""
        table = self._jobs.table
        jobs = [table.active(job_id) for job_id in table.leaving if not table.is_adopted(job_id)]
        return [job for job in jobs if job is not None and job.spec.preemptible != "restart"]

    def _until(self, job: Job) -> float:
        assert isinstance(job.state, Running)
        assert job.state.giving_way is not None
        seconds = CLUSTER_SECONDS if job.spec.cluster else ANSWER_SECONDS
        return self._asked.get(job.id, job.state.giving_way.since) + job.spec.save_time + seconds
