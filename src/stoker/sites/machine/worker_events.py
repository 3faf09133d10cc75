"""Apply what workers report: start, exit, return and loss of attempts, with the cause of a failure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from stoker.core.device import Device
from stoker.core.job import (
    Active,
    Cause,
    Exited,
    Job,
    Lost,
    Placed,
    Returned,
    Running,
    Started,
    Waiting,
    resources_of,
    slot_of,
    started_at,
    state_word,
)
from stoker.core.launch import INHERIT
from stoker.core.logs.oom import OutOfMemory, find_fault, find_oom, floor_after, is_own_fault
from stoker.core.spec import amount_on
from stoker.core.text import shortened
from stoker.core.units import size_text
from stoker.runner.interface import AttemptExited, AttemptReturned, AttemptStarted
from stoker.sites.machine.allocations import Allocation
from stoker.sites.machine.context import MachineContext
from stoker.sites.machine.ref import read_ref
from stoker.store.logs import LONGEST_SAID, last_line, read_tail

REFUSED = 126
"""Exit code of a program that exists and cannot be run."""


class WorkerEvents:
    """Applies each event once; one that was reported before changes nothing."""

    def __init__(self, context: MachineContext) -> None:
        self._jobs = context.jobs
        self._allocations = context.allocations
        self._observation = context.observation
        self._usage = context.usage
        self._history = context.history
        self._telemetry = context.telemetry
        self._shortages = context.shortages
        self._words = context.words

    def on_started(self, worker: str, event: AttemptStarted) -> None:
        """The worker is about to start the process of an attempt."""
        job = self._job(worker, event.attempt)
        if job is None or started_at(job) is not None:  # a journal is reported from its beginning to a new engine
            return
        self._allocations[worker].head_since = self._jobs.clock()
        self._jobs.apply(job, Started(job.attempts, event.at))

    def on_exited(self, worker: str, event: AttemptExited) -> None:
        """No process of an attempt is left: diagnose, apply, learn, and free its place."""
        job = self._job(worker, event.attempt)
        if job is None:
            return
        began, allocation = started_at(job), self._allocations[worker]
        diagnosis = self._diagnosed(job, event, allocation)
        kept = self._words.kept_at_end(job, event.at)
        shared = allocation.shared or diagnosis.shared
        after = self._jobs.apply(job, _exited(job, event, diagnosis, shared=shared, kept=kept))
        if began is not None:
            self._learn(job, after, diagnosis, allocation, seconds=event.at - began)
            self._usage.spent(allocation.device_ids, began, event.at)
            self._telemetry.end(job, after, shared=allocation.shared, now=self._jobs.clock())
        self.leave_allocation(worker, job)

    def _diagnosed(self, job: Job, event: AttemptExited, allocation: Allocation) -> Diagnosis:
        """Diagnose an attempt that failed by itself, by its log."""
        if event.code == 0 or event.why != "exited":
            return NOTHING
        if allocation.shares and not allocation.shared:
            self._allocations.refresh_sharing()
        seen = AttemptUse(self._telemetry.peak(job), self._telemetry.processes(job), allocation.shared)
        return diagnose(job, allocation.devices, seen)

    def _learn(self, job: Job, after: Job, diagnosis: Diagnosis, allocation: Allocation, *, seconds: float) -> None:
        self._allocations.learn(allocation.resources, seconds)
        if state_word(after) == "done":
            self._jobs.learn(self._history.learn(job, job.kept_seconds + seconds))
        way = after.state.gave_way if isinstance(after.state, Waiting) else None
        if way is not None and job.spec.preemptible == "save" and isinstance(job.state, Running):
            self._jobs.learn(self._history.learn_save(job, self._jobs.clock() - way.since))
        if diagnosis.needs is not None:
            models = [device.model for device in allocation.devices]
            self._jobs.learn(self._history.learn_use(job, models, peak=diagnosis.needs))

    def on_returned(self, worker: str, event: AttemptReturned) -> None:
        """The worker gave an attempt back that has no process."""
        job = self._job(worker, event.attempt)
        if job is None:
            return
        if event.errno:
            self._shortages.return_attempt(job, event)
        elif started_at(job) is None:
            self._jobs.apply(job, Returned(job.attempts, event.at))
        else:  # the journal contradicts what it said to an earlier engine
            return
        self.leave_allocation(worker, job)

    def _job(self, worker: str, attempt: str) -> Job | None:
        """The job of an attempt that this worker has, unless it is known to be over; a damaged journal may lie."""
        job = self._jobs.attempt(attempt)
        return job if job is not None and isinstance(job.state, Active) and slot_of(job.state.ref) == worker else None

    def refuse(self, worker: str, job: Job, note: str) -> None:
        """End an attempt that was not sent, because something is missing that it needs."""
        now = self._jobs.clock()
        started = self._jobs.apply(job, Started(job.attempts, now))
        self._jobs.apply(started, Exited(job.attempts, REFUSED, 0, now, why="refused", note=note))
        self.leave_allocation(worker, job)

    def on_worker_lost(self, worker: str, *, damaged: bool = False) -> bool:
        """The worker is dead and its journal is read: what it had started is lost, the rest never started.

        If the journal is damaged, all that it did not report to be over may have been started.
        True if it had attempts and started none of them.
        """
        allocation = self._allocations.lose(worker)
        if allocation is None:
            return False
        now = self._jobs.clock()
        held = [job for job_id in allocation.jobs if (job := self._jobs.active(job_id))]
        for job in held:
            started = damaged or started_at(job) is not None
            self._jobs.apply(job, Lost(job.attempts, now) if started else Returned(job.attempts, now))
        self._observation.leave(allocation.device_ids, now)
        self._jobs.plan_due = True
        return bool(held) and not damaged and all(started_at(job) is None for job in held)

    def leave_allocation(self, worker: str, job: Job) -> None:
        """Free the place of an attempt that is over or was returned."""
        now = self._jobs.clock()
        allocation = self._allocations[worker]
        allocation.finish(job.id, now)
        self._jobs.plan_due = True
        if not allocation.jobs:
            self._observation.leave(allocation.device_ids, now)


def _exited(job: Job, event: AttemptExited, diagnosis: Diagnosis, *, shared: bool, kept: float) -> Exited:
    why: Any = event.why
    note = "; ".join(filter(None, (diagnosis.note, event.note)))
    return Exited(
        job.attempts,
        event.code,
        event.signal,
        event.at,
        why=why,
        peak_memory=event.peak,
        note=note,
        cause=diagnosis.cause,
        shared=shared,
        floor=diagnosis.floor,
        said=_said(job) if event.code and event.why not in ("stopped", "preempted") and not note else "",
        kept=kept,
    )


def _said(job: Job) -> str:
    log = job.state.log if isinstance(job.state, Active) else INHERIT
    return "" if log == INHERIT else shortened(last_line(log), LONGEST_SAID)


# -- the cause of a failure --------------------------------------------------------------------


class Diagnosis(NamedTuple):
    """The cause of a failure, as far as its log tells."""

    cause: Cause = ""
    floor: int = 0
    """Bytes that it needs at least, if it used more than was reserved for it."""
    needs: int | None = None
    """Bytes that it had and asked for, if the log tells."""
    note: str = ""
    shared: bool = False


NOTHING = Diagnosis()


class AttemptUse(NamedTuple):
    """Measurements of an attempt while it ran."""

    peak: int | None = None
    processes: Collection[int] = ()
    shared: bool = False
    """Whether it shared its devices."""


def diagnose(job: Job, devices: Sequence[Device], seen: AttemptUse) -> Diagnosis:
    """Why an attempt that had these devices failed."""
    if not devices or not isinstance(job.state, Placed):
        return NOTHING
    text = read_tail(job.state.log, since=read_ref(job.state.ref).log_start)
    if oom := find_oom(text):
        foreign = any(pid not in seen.processes for pid, _ in oom.co_tenants)
        shared = seen.shared or foreign or (oom.capped and resources_of(job).shares)
        return _out_of_memory(oom, job, devices, seen.peak, shared=shared)
    if seen.shared and resources_of(job).mps is not None and (fault := find_fault(text)):
        return Diagnosis("fault", note=f"failed while sharing a GPU through MPS: {fault}", shared=True)
    return NOTHING


def _out_of_memory(
    oom: OutOfMemory, job: Job, devices: Sequence[Device], seen_peak: int | None, *, shared: bool
) -> Diagnosis:
    resources = resources_of(job)
    reserved = min((amount for device in devices if (amount := amount_on(resources, device)) is not None), default=None)
    if not shared:
        return Diagnosis("oom", 0, _needs(oom), f"{_why_exclusive(oom, devices)}: {oom.text}")
    if not is_own_fault(oom, reserved, seen_peak):
        return Diagnosis("oom", 0, None, f"out of GPU memory, taken by other processes on the GPU: {oom.text}", shared)
    floor = floor_after(oom, reserved, seen_peak)
    why = "exceeded its GPU memory cap" if oom.capped else "out of GPU memory while sharing"
    return Diagnosis("oom", floor, _needs(oom), f"{why}: {oom.text}", shared)


def _why_exclusive(oom: OutOfMemory, devices: Sequence[Device]) -> str:
    if oom.capped:
        return "exceeded the GPU memory limit set in its environment"
    total = max((device.memory or 0 for device in devices), default=0)
    return "needs more than a whole GPU" + (f" ({size_text(total)})" if total else "")


def _needs(oom: OutOfMemory) -> int | None:
    return None if oom.own is None else oom.own + (oom.wanted or 0)
