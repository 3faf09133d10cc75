"""The roster: every job an engine has, in the place that its state says."""

from __future__ import annotations

import msgspec

from stoker.core.attempt import parse_key
from stoker.core.gate import Hindrance
from stoker.core.job import Active, Job, Waiting
from stoker.core.reservation import waiting_since
from stoker.core.waiting import WaitingJobs
from stoker.parked import Parked


class Roster:
    """Jobs that wait, are parked or at work, and guests: jobs of dead engines, of which only the end matters."""

    def __init__(self) -> None:
        self.waiting = WaitingJobs()
        self.parked = Parked()
        self._active: dict[int, Job] = {}
        self._guests: set[int] = set()

    def place(self, job: Job) -> None:
        """Put a job where it now belongs; what is over is forgotten, and so is a guest that would wait."""
        if isinstance(job.state, Active):
            self._active[job.id] = job
            return
        self._active.pop(job.id, None)
        self.withdraw(job.id)
        if isinstance(job.state, Waiting) and job.id not in self._guests:
            self.waiting.add(job)
        self._guests.discard(job.id)

    def park(self, job: Job, why: Hindrance) -> None:
        """Put a job aside that waits for no device; a guest that would wait is forgotten."""
        self._active.pop(job.id, None)
        self.withdraw(job.id)
        if job.id not in self._guests:
            self.parked.add(job, why)
        self._guests.discard(job.id)

    def withdraw(self, job_id: int) -> Job | None:
        """Take a job out of the queue, whatever it waits for."""
        return self.waiting.remove(job_id) or self.parked.remove(job_id)

    def queued(self, job_id: int) -> Job | None:
        """A job that no keeper holds, or None."""
        return self.waiting.get(job_id) or self.parked.get(job_id)

    def knows(self, job_id: int) -> bool:
        """Whether a job is here and not over."""
        return job_id in self._active or job_id in self.waiting or job_id in self.parked

    def welcome(self, job: Job) -> None:
        """From now on the job is a guest."""
        self._guests.add(job.id)

    def promote(self, job_id: int, batch: int) -> bool:
        """Make a guest one of ours, in a batch of ours; False where no keeper holds it any more."""
        job = self._active.get(job_id)
        if job is None:
            return False
        self._guests.discard(job_id)
        self._active[job_id] = msgspec.structs.replace(job, batch=batch)
        return True

    def is_guest(self, job_id: int) -> bool:
        """Whether a job is not ours to start or stop."""
        return job_id in self._guests

    def active(self, job_id: int) -> Job | None:
        """A job that a keeper holds, or None."""
        return self._active.get(job_id)

    def attempt(self, key: str) -> Job | None:
        """The job of an attempt, unless that attempt is known to be over (a journal may be read twice)."""
        job_id, number = parse_key(key)
        job = self._active.get(job_id)
        return job if job is not None and job.attempts == number else None

    @property
    def ours(self) -> list[Job]:
        """Our jobs that keepers hold."""
        return [job for job in self._active.values() if job.id not in self._guests]

    @property
    def at_work(self) -> bool:
        """Whether a keeper holds anything, be it a guest."""
        return bool(self._active)

    @property
    def at_our_work(self) -> bool:
        """Whether a keeper holds a job of ours."""
        return len(self._active) > len(self._guests)

    @property
    def waiting_since(self) -> float:
        """Since when the oldest waiting job waits."""
        return min(waiting_since(next(iter(group))) for group in self.waiting.groups())

    @property
    def next_waiting(self) -> Job | None:
        """The job that has waited longest among the most important ones."""
        heads = [next(iter(group)) for group in self.waiting.groups()]
        return min(heads, key=lambda job: (-job.terms.priority, job.id), default=None)
