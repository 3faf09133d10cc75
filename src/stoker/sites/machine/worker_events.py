"""What workers say in their journals, and what it means for jobs, posts and what is known of them."""

from __future__ import annotations

from typing import Any

from stoker.core.job import Exited, Job, Lost, Returned, Started, started_at, state_word
from stoker.engine.job_table import JobBook
from stoker.runner import journal
from stoker.sites.machine.allocations import Allocation, Allocations
from stoker.sites.machine.diagnosis import NOTHING, Diagnosis, Seen, diagnose
from stoker.sites.machine.fairshare import Usage
from stoker.sites.machine.observation import Observation
from stoker.sites.machine.telemetry import Measuring
from stoker.store.history import RunHistory

REFUSED = 126
"""The code of what was found and cannot be run."""


class WorkerEvents:
    """Takes in each record of a journal; one that was heard before says nothing new."""

    def __init__(
        self,
        book: JobBook,
        allocations: Allocations,
        observation: Observation,
        *,
        usage: Usage,
        run_history: RunHistory,
        measuring: Measuring,
    ) -> None:
        self._book = book
        self._allocations = allocations
        self._observation = observation
        self._usage = usage
        self._run_history = run_history
        self._measuring = measuring

    def began(self, worker: str, record: journal.AttemptStarted) -> Job | None:
        """An attempt has a process; the job, if that is news."""
        job = self._book.table.attempt(record.attempt)
        if job is None or started_at(job) is not None:  # a journal is told from its start to a new engine
            return None
        self._allocations[worker].head_since = self._book.clock()
        return self._book.apply(job, Started(job.attempts, record.at))

    def over(self, worker: str, record: journal.AttemptExited) -> None:
        """Nothing of an attempt is left."""
        job = self._book.table.attempt(record.attempt)
        if job is None:
            return
        began, allocation = started_at(job), self._allocations[worker]
        diagnosis = self._diagnosed(job, record, allocation)
        after = self._book.apply(job, _exited(job, record, diagnosis, shared=allocation.shared or diagnosis.shared))
        if began is not None:
            seconds = record.at - began
            self._allocations.learn(allocation.resources, seconds)
            self._usage.spent(allocation.device_ids, began, record.at)
            if state_word(after) == "done":
                self._book.changes.learn(self._run_history.learn(job, seconds))
            if diagnosis.needs is not None:
                models = [device.model for device in allocation.devices]
                self._book.changes.learn(self._run_history.learn_use(job, models, peak=diagnosis.needs))
            self._measuring.end(job, after, shared=allocation.shared, now=self._book.clock())
        self.leave_allocation(worker, job)

    def _diagnosed(self, job: Job, record: journal.AttemptExited, allocation: Allocation) -> Diagnosis:
        """What the log of an attempt says that failed by itself."""
        if record.code == 0 or record.why != "exited":
            return NOTHING
        if allocation.shares and not allocation.shared:
            self._allocations.meet()
        seen = Seen(self._measuring.peak(job), self._measuring.processes(job), allocation.shared)
        return diagnose(job, allocation.devices, seen)

    def back(self, worker: str, record: journal.AttemptReturned) -> None:
        """The worker gave an attempt back that it had not started."""
        job = self._book.table.attempt(record.attempt)
        if job is not None:
            self._book.apply(job, Returned(job.attempts, record.at))
            self.leave_allocation(worker, job)

    def refuse(self, worker: str, job: Job, note: str) -> None:
        """An attempt ends before any worker heard of it, because something is missing that it cannot do without."""
        now = self._book.clock()
        started = self._book.apply(job, Started(job.attempts, now))
        self._book.apply(started, Exited(job.attempts, REFUSED, 0, now, why="refused", note=note))
        self.leave_allocation(worker, job)

    def gone(self, worker: str) -> bool:
        """The worker is dead and said all it had to say: what it had started is lost, the rest never started.

        True where it had work and could start none of it.
        """
        allocation = self._allocations.lose(worker)
        if allocation is None:
            return False
        now = self._book.clock()
        held = [job for job_id in allocation.jobs if (job := self._book.table.active(job_id))]
        for job in held:
            started = started_at(job) is not None
            self._book.apply(job, Lost(job.attempts, now) if started else Returned(job.attempts, now))
        self._observation.leave(allocation.device_ids, now)
        self._book.plan_due = True
        return bool(held) and all(started_at(job) is None for job in held)

    def leave_allocation(self, worker: str, job: Job) -> None:
        """An attempt is over or came back: its place is free."""
        now = self._book.clock()
        allocation = self._allocations[worker]
        allocation.finish(job.id, now)
        self._book.plan_due = True
        if not allocation.jobs:
            self._observation.leave(allocation.device_ids, now)


def _exited(job: Job, record: journal.AttemptExited, diagnosis: Diagnosis, *, shared: bool) -> Exited:
    why: Any = record.why
    return Exited(
        job.attempts,
        record.code,
        record.signal,
        record.at,
        why=why,
        peak_memory=record.peak,
        note="; ".join(filter(None, (diagnosis.note, record.note))),
        cause=diagnosis.cause,
        shared=shared,
        floor=diagnosis.floor,
    )
