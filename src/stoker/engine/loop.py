"""The engine's loop: accept jobs, handle requests, let the site place and run them, record what happened."""

from __future__ import annotations

import contextlib
import selectors
from collections.abc import Callable, Collection, Mapping
from typing import Any

from stoker.core.device import Snapshot
from stoker.core.errors import StokerError
from stoker.core.idleness import Idleness
from stoker.core.job import (
    Active,
    Cancelled,
    Idled,
    Job,
    JobEvent,
    Queued,
    Running,
    Stopping,
    is_delegated,
    start_limit,
)
from stoker.core.learning import Live
from stoker.core.outcomes import AskedResult
from stoker.core.planner.queue import WaitingGroup
from stoker.core.planner.reasons import Reason
from stoker.core.settings import Policy
from stoker.core.units import watch_text
from stoker.engine.giving_way import Displacements
from stoker.engine.job_table import Jobs
from stoker.engine.recorder import FollowUp
from stoker.engine.requests import RequestReader, handle
from stoker.engine.sampler import Sampler
from stoker.sites.interface import (
    RETRY_INTERVAL,
    HasSources,
    Measures,
    Recalls,
    SeesIdleJobs,
    SeesProcesses,
    SetsLimits,
    Site,
)

ACCEPT_LIMIT = 2000
"""Rows of jobs read from the store in one turn, so that running ones do not have to wait."""
REQUEST_LIMIT = 2000
"""Rows of jobs for which requests are handled in one turn, likewise."""
IDLE_INTERVAL = 1.0
"""Seconds between two looks for jobs whose GPUs are idle."""
OTHERS_INTERVAL = 1.0
"""Seconds between two checks whether jobs of other engines ended that ours depend on."""


class Engine:
    """Runs the jobs it owns at its site."""

    def __init__(
        self,
        name: str,
        jobs: Jobs,
        site: Site,
        policy: Policy,
        *,
        notify: Callable[[JobEvent], None] = lambda _: None,
        label: str = "stoker",
        heartbeat: float | None = None,
    ) -> None:
        """`notify` gets each recorded event; after `heartbeat` seconds an idle engine checks for work."""
        self.name = name
        self.label = label
        self.policy = policy
        self.site = site
        self.draining = False
        self.before_dispatch: Callable[[], None] = lambda: None
        """Called in each turn after events are recorded and before the site starts anything."""
        self._jobs = jobs
        self._table = jobs.table
        self._notify = notify
        self._heartbeat = heartbeat
        self._requests = RequestReader(jobs.store, name)
        self._trouble = ""
        self._stopping: tuple[float | None, str] | None = None
        """Once everything has to stop: the grace and the reason."""
        self._last_accepted = 0
        self._accept_due = True
        self._others_due = 0.0
        self._retry_at: float | None = None
        """When to write again after a failure; until then nothing is placed or dispatched."""
        self._selector = selectors.DefaultSelector()
        self._displacements = Displacements(jobs, site)
        self.watches_idle_jobs = True
        self._idle_due = 0.0
        jobs.find_devices = site.devices
        for source, callback in site.sources() if isinstance(site, HasSources) else ():
            self.watch(source, callback)

    # -- what front ends use ----------------------------------------------------------------------

    def watch(self, source: Any, callback: Callable[[], None]) -> None:
        """Call back from a turn whenever the source is readable."""
        self._selector.register(source, selectors.EVENT_READ, callback)

    def unwatch(self, source: Any) -> None:
        """Stop watching a source."""
        self._selector.unregister(source)

    def wake(self) -> None:
        """Look for new jobs and requests in the store."""
        self._accept_due = True
        self._requests.due = True

    def set_policy(self, policy: Policy, follow_up: FollowUp | None) -> None:
        """Use another policy from now on; what users have paused or drained stays so."""
        self.policy = self._requests.overlaid(policy)
        self._jobs.recorder.follow_up = follow_up
        self._jobs.plan_due = True

    @property
    def trouble(self) -> str:
        """The problem that keeps the engine from working, for the user; empty if there is none."""
        return self._trouble or self.site.status().trouble

    @trouble.setter
    def trouble(self, text: str) -> None:
        self._trouble = text

    @property
    def now(self) -> float:
        """The time by the engine's own clock."""
        return self._jobs.clock()

    @property
    def waiting(self) -> int:
        """Number of jobs that wait for a device."""
        return len(self._table.waiting)

    @property
    def waiting_groups(self) -> Collection[WaitingGroup]:
        """The jobs that wait for a device, by kind."""
        return self._table.waiting.groups()

    @property
    def blocked(self) -> int:
        """Number of jobs that wait for something else."""
        return len(self._table.blocked)

    @property
    def active_jobs(self) -> list[Job]:
        """The engine's own jobs that have devices."""
        return self._table.ours

    @property
    def next_waiting(self) -> Job | None:
        """The oldest of the waiting jobs with the highest priority."""
        return self._table.next_waiting

    @property
    def next_queued(self) -> Job | None:
        """The next waiting job or, if none waits for a device, the first that is blocked."""
        return self.next_waiting or self._table.blocked.first

    @property
    def at_rest(self) -> bool:
        """Whether none of our jobs is active and all events are recorded."""
        return not self._table.any_of_ours and not self._jobs.recorder

    @property
    def idle(self) -> bool:
        """Whether all jobs of the engine are over and recorded."""
        work = self.waiting or self.blocked or self._accept_due or self._requests.pending
        return self.at_rest and not work

    @property
    def snapshot(self) -> Snapshot:
        """The site's devices as they were seen last."""
        return self.site.status().snapshot

    @property
    def uses(self) -> Mapping[int, Live]:
        """GPU memory and load of the running jobs, by job."""
        return self.site.status().uses

    def take_sample(self, sampler: Sampler, snapshot: Snapshot) -> None:
        """Let a sampler see the devices; what it returns is written with the next transaction."""
        self._jobs.recorder.sample(sampler.note(snapshot, self._table.all_active, self.now))

    def reason(self, job: Job) -> Reason | None:
        """Why a job waits."""
        return self._table.blocked.reason(job.id) or self.site.reason(job)

    def run_once(self) -> None:
        """Run one attempt of each job: another engine decides about the next, as soon as this one is reported."""
        self._jobs.queues_again = False

    def drain(self) -> None:
        """Start nothing more; what runs may finish, what has not started goes back to the queue."""
        self.draining = True
        self.site.drain()

    def stop(self, grace: float | None, note: str) -> None:
        """Stop all running jobs; `grace` replaces that of each job. Jobs that have not started stay queued."""
        self.drain()
        self._stopping = (grace, note)
        for job in self._table.heads:
            self.cancel(job.id, grace, note)

    def cancel(self, job_id: int, grace: float | None, note: str, signal_number: int = 0) -> None:
        """End a job, if it is one of this engine, whatever its state."""
        if (job := self._table.get(job_id)) is not None:
            self.cancel_job(job, grace, note, signal_number)

    def cancel_job(
        self, job: Job, grace: float | None, note: str, signal_number: int = 0, result: AskedResult = "cancelled"
    ) -> None:
        """End a job of this engine, or several that it stands for; the signal with this number replaces TERM."""
        if isinstance(job.state, Queued):
            self._jobs.apply(job, Cancelled(self.now, note, result))
            return
        if not isinstance(job.state, Stopping):
            job = self._jobs.apply(job, Cancelled(self.now, note, result))
        self.site.stop(job, grace, signal_number)

    def is_queued(self, job_id: int) -> bool:
        """Whether a job of this engine waits."""
        job = self._table.get(job_id)
        return job is not None and isinstance(job.state, Queued)

    @property
    def idle_since(self) -> Mapping[int, float | None]:
        """Since when the GPUs of running jobs have not been used; None for those that are, empty if it is not seen."""
        return self.site.idle_since() if isinstance(self.site, SeesIdleJobs) else {}

    def recall(self, job_id: int) -> None:
        """Return an active job to the queue that has not started, if the site can do that at once."""
        if isinstance(self.site, Recalls) and (job := self._table.active(job_id)) is not None:
            self.site.recall(job)

    def displace(self, job: Job, to: int | None, note: str) -> bool:
        """Let a running job of this engine give way to another, None is the next that waits; False if it cannot."""
        return self._displacements.displace(job, self._displacements.next_waiting(job) if to is None else to, note)

    def set_limit(self, job: Job) -> bool:
        """Give an active job the time limit of its spec; False if its site cannot."""
        return isinstance(self.site, SetsLimits) and self.site.set_limit(job)

    def process_of(self, job: Job) -> int | None:
        """The process of a running job, which leads a group of its own; None if it is not known, or elsewhere."""
        return self.site.process_of(job) if isinstance(self.site, SeesProcesses) else None

    def is_gone(self, job: Job) -> bool:
        """Whether a job that a dead engine left can be judged: a cluster tells of any, a machine of dead workers."""
        return not isinstance(self.site, SeesProcesses) or self.site.is_gone(job)

    def own(self, job_id: int, batch: int) -> bool:
        """Make an adopted job one of ours; False if it is over."""
        return self._table.own(job_id, batch)

    def adopt(self, job: Job, *, adopted: bool) -> None:
        """Take over a job of a dead engine. Of one marked as adopted only the end is recorded; others are now ours."""
        self._jobs.admit(job)
        if isinstance(job.state, Active):
            if adopted:
                self._table.adopt(job)
            self.site.adopt(job)
            if not adopted:
                self._displacements.ask(job)

    def close(self) -> None:
        """Leave; what runs goes on."""
        if isinstance(self.site, Measures):
            self.site.finish()
        with contextlib.suppress(StokerError):
            self._write()
        self.site.close(recorded=not self._jobs.recorder)
        self._selector.close()

    # -- the turn ---------------------------------------------------------------------------------

    def turn(self, timeout: float | None = None) -> None:
        """One round of the loop."""
        self._wait(timeout)
        self._accept()
        self._handle_requests()
        self._unblock()
        self.site.poll()
        self._displacements.check(self.now)
        self._watch_idle_jobs()
        self._stop_late_starters()
        self._place()
        self._record()
        self._jobs.unblock_behind_ended()
        self.before_dispatch()
        self.site.dispatch(recorded=self._retry_at is None)

    def _wait(self, timeout: float | None) -> None:
        due = self._due_in()
        if timeout is not None:
            due = timeout if due is None else min(timeout, due)
        for key, _ in self._selector.select(due):
            key.data()

    def _due_in(self) -> float | None:
        """Seconds until the next turn is due though nothing calls for it; None is never."""
        now, writes = self.now, self._retry_at is None
        if self._accept_due or self._requests.pending or (self._jobs.recorder and writes):
            return 0.0
        moments = [] if self._retry_at is None else [self._retry_at - now]
        late_at = self._jobs.next_start_limit if writes and not self.draining else None
        for moment in (self._table.blocked.next_begin, self._displacements.next_check, late_at):
            moments += [] if moment is None else [moment - now]
        if (due := self.site.due_in(now, placing=writes and not self.draining)) is not None:
            moments.append(due)
        elif self._heartbeat is not None:
            moments.append(self._heartbeat)
        return max(0.0, min(moments)) if moments else None

    def _accept(self) -> None:
        """Read new jobs of this engine from the store."""
        if self._requests.has_come(self.now):
            self._accept_due = True
        if not self._accept_due:
            return
        jobs = self._jobs.store.open_jobs(self.name, self._last_accepted, ACCEPT_LIMIT)
        for job in jobs:
            if isinstance(job.state, Queued):
                self._jobs.admit(job)
            self._last_accepted = job.last
        self._jobs.accepted_at = self.now
        self._accept_due = len(jobs) == ACCEPT_LIMIT

    def _handle_requests(self) -> None:
        """Handle requests of front ends, once all jobs are accepted that they may be about."""
        if self._accept_due or not (self._requests.due or self._requests.pending):
            return
        if self._requests.due:
            self.policy = self._requests.overlaid(self.policy)
            self._requests.read()
        for number, request, rest in self._requests.take(REQUEST_LIMIT):
            handle(request, self, self._jobs)
            self._jobs.recorder.handled(number, rest)
        self._jobs.plan_due = True

    def _unblock(self) -> None:
        """Let blocked jobs go on whose time has come, or whose dependency ended under another engine."""
        now = self.now
        self._jobs.unblock_due(now)
        if now >= self._others_due:
            self._others_due = now + OTHERS_INTERVAL
            self._jobs.unblock_behind_others()

    def _watch_idle_jobs(self) -> None:
        """Report jobs whose GPUs are idle, once; stop them or let them give way if their rule says so."""
        now, site = self.now, self.site
        if now < self._idle_due or not self.watches_idle_jobs:
            return
        self._idle_due = now + IDLE_INTERVAL
        for job_id, since in self.idle_since.items():
            job = self._table.active(job_id)
            if job is None or not isinstance(job.state, Running) or job.spec.terminal:
                continue
            idle = Idleness(job, job.state, since)
            if idle.is_over:
                self._jobs.apply(job, Idled(now))
            elif idle.is_due(now):
                note = idle.text(now, [device.label for device in site.devices(job.state.devices)])
                if job.state.idle_since is None:
                    job = self._jobs.apply(job, Idled(now, since, note))
                if job.spec.idle.action == "stop":
                    self.cancel_job(job, None, note, result="idle")
                elif job.spec.idle.action == "preempt" and self._has_use_for_gpus:
                    self.displace(job, 0, note)

    @property
    def _has_use_for_gpus(self) -> bool:
        """Whether a job waits, here or in the queue of a cluster."""
        return bool(self.waiting) or any(map(is_delegated, self._table.ours))

    def _stop_late_starters(self) -> None:
        """While everything has to stop: stop jobs that started before they could be called back."""
        if self._stopping is not None:
            for job in self._table.ours:
                if isinstance(job.state, Running):
                    self.cancel(job.id, *self._stopping)

    def _place(self) -> None:
        """Let the site assign waiting jobs."""
        if self.draining or self._retry_at is not None or self._requests.pending:
            return  # the rest of a request may cancel or hold what would start
        if self._requests.opened:  # an earlier engine may have died before it read a cancel or a pause
            self.site.place(self.now, self.policy)
            self._give_up_late()

    def _give_up_late(self) -> None:
        """End jobs that have not started in time, now that those are placed that could be."""
        for job in self._jobs.late(self.now):
            seconds = start_limit(job)
            note = f"did not start within {watch_text(seconds)}" if seconds else "would have had to wait"
            self.cancel_job(job, None, note, result="expired")

    def _record(self) -> None:
        """Write what happened, all in one transaction; if that fails, keep it and try again later."""
        if self._retry_at is not None and self.now < self._retry_at:
            return
        try:
            self._write()
        except StokerError as error:
            self.trouble = str(error)
            self._retry_at = self.now + RETRY_INTERVAL
            return
        if self._retry_at is not None:
            self._retry_at, self.trouble = None, ""
        if self._jobs.recorder.follow_ups_written:
            self._accept_due, self._jobs.recorder.follow_ups_written = True, False

    def _write(self) -> None:
        for job_event in self._jobs.record():
            self._notify(job_event)
