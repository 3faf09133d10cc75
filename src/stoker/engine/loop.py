"""The loop: see, plan, act, record. The only place that knows every adapter."""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Callable
from typing import Any

from stoker.core.device import Snapshot
from stoker.core.errors import StokerError
from stoker.core.job import Active, Cancelled, Job, JobEvent, Queued, Stopping, resources_of, slot_of
from stoker.core.launch import attempt_key
from stoker.core.learning import Live
from stoker.core.planner.forecast import Forecast, Now, forecast
from stoker.core.planner.plan import Plan, Start, plan
from stoker.core.planner.policy import Policy
from stoker.core.planner.queue import Shape, WaitingJobs
from stoker.core.planner.reasons import Reason
from stoker.core.spec import Resources
from stoker.engine.job_table import JobBook
from stoker.engine.recorder import FollowUp
from stoker.engine.requests import RequestReader, answer
from stoker.runner import journal
from stoker.runner.local import WorkerLost
from stoker.sites.machine.allocations import Allocation, Allocations, LeaseCheck
from stoker.sites.machine.dispatch import Dispatch
from stoker.sites.machine.fairshare import Sharing, Usage
from stoker.sites.machine.learning import Learning
from stoker.sites.machine.mps import POLL_INTERVAL
from stoker.sites.machine.observation import LOOK_INTERVAL, Observation
from stoker.sites.machine.ref import read_ref
from stoker.sites.machine.resources import EngineResources
from stoker.sites.machine.telemetry import Measuring
from stoker.sites.machine.worker_events import WorkerEvents
from stoker.store.history import RunHistory

RETRY_INTERVAL = 1.0
"""Seconds after which a write that failed is tried again."""
SOON = 0.01
ACCEPT_LIMIT = 2000
"""Jobs read from the store in one turn, so that running ones are not left waiting."""


class Engine:
    """Runs the jobs it owns until told otherwise."""

    def __init__(
        self,
        name: str,
        engine_resources: EngineResources,
        policy: Policy,
        tell: Callable[[JobEvent], None],
        *,
        label: str = "stoker",
        heartbeat: float | None = None,
        follow_up: FollowUp | None = None,
    ) -> None:
        """`heartbeat` is how many idle seconds pass before it looks for itself whether there is work."""
        self.name = name
        self.label = label
        self.policy = policy
        self._trouble = ""
        self.draining = False
        self._stopping: tuple[float | None, str] | None = None
        """Once everything has to stop: the grace and the reason."""
        self.observation = Observation(engine_resources.devices, engine_resources.ledger, engine_resources.clock())
        self.last_plan: Plan | None = None
        self._engine_resources = engine_resources
        self._book = JobBook(engine_resources.store, self.observation, engine_resources.clock, tell, follow_up)
        self._table = self._book.table
        self._recorder = self._book.changes
        self._run_history = RunHistory(engine_resources.store)
        self._allocations = Allocations(
            engine_resources.backend, engine_resources.ledger, label, self._run_history.expected
        )
        self._lease_check = LeaseCheck(self._allocations, engine_resources.backend, engine_resources.ledger, label)
        self._usage = Usage(engine_resources.store, name)
        self._sharing = Sharing(engine_resources.ledger, self._usage, label)
        self._measuring = Measuring(self._allocations, engine_resources.backend, self._table, engine_resources.store)
        self._learning = Learning(self._measuring, self._run_history, self._recorder)
        self._worker_events = WorkerEvents(
            self._book,
            self._allocations,
            self.observation,
            usage=self._usage,
            run_history=self._run_history,
            measuring=self._measuring,
        )
        self._request_reader = RequestReader(engine_resources.store, name)
        self._heartbeat = heartbeat
        self._dispatch = Dispatch(
            self._book, self._allocations, self.observation, self._worker_events, engine_resources
        )
        self._cleaned_up: list[str] = []
        self._last_accepted = 0
        self._accept_due = True
        self._retry_at: float | None = None
        self._plan_after = 0.0
        self._selector = selectors.DefaultSelector()
        self._selector.register(engine_resources.backend, selectors.EVENT_READ, self._nothing)
        if engine_resources.devices.fileno() >= 0:
            self._selector.register(engine_resources.devices, selectors.EVENT_READ, self.observation.expire)

    # -- what doors use --------------------------------------------------------------------------

    def watch(self, source: Any, callback: Callable[[], None]) -> None:
        """Call back from a turn whenever the source is readable."""
        self._selector.register(source, selectors.EVENT_READ, callback)

    def unwatch(self, source: Any) -> None:
        """Stop watching a source."""
        self._selector.unregister(source)

    def poke(self) -> None:
        """There may be new jobs or requests in the store."""
        self._accept_due = True
        self._request_reader.due = True

    def govern(self, policy: Policy, follow_up: FollowUp | None) -> None:
        """Go by something else from now on; what users have paused or drained stays so."""
        self.policy = self._request_reader.overlaid(policy)
        self._recorder.follow_up = follow_up
        self._book.plan_due = True

    @property
    def trouble(self) -> str:
        """What keeps the engine from working, in words; empty when nothing does."""
        return self._trouble or self._dispatch.trouble

    @trouble.setter
    def trouble(self, words: str) -> None:
        self._trouble = words

    @property
    def now(self) -> float:
        """The moment by the engine's own clock."""
        return self._now()

    @property
    def waiting(self) -> int:
        """How many jobs wait for a device."""
        return len(self._table.waiting)

    @property
    def blocked(self) -> int:
        """How many jobs wait for something else."""
        return len(self._table.blocked)

    @property
    def held(self) -> list[Job]:
        """Our jobs that have devices."""
        return self._table.ours

    @property
    def next_waiting(self) -> Job | None:
        """The job that has waited longest among the most important ones."""
        return self._table.next_waiting

    @property
    def at_rest(self) -> bool:
        """Whether nothing of ours runs and all that happened is recorded."""
        return not self._table.at_our_work and not self._recorder

    @property
    def idle(self) -> bool:
        """Whether everything that was given to the engine is over and recorded."""
        return self.at_rest and not self.waiting and not self.blocked and not self._accept_due

    @property
    def snapshot(self) -> Snapshot:
        """The devices as they were seen last."""
        return self.observation.snapshot

    def reason(self, job: Job) -> Reason | None:
        """Why a job waits, as the plan said."""
        if why := self._table.blocked.reason(job.id):
            return why
        return self.last_plan.reason(job) if self.last_plan else None

    def forecast(self, typical: float | None = None) -> Forecast:
        """When jobs are expected to start and end; `typical` are the seconds of a job of which nothing is known."""
        now, observation = self._now(), self.observation
        waiting = WaitingJobs() if self.draining else self._table.waiting
        slots = self._allocations.slots(self._table.active, 0.0, now)
        present = Now(waiting, slots, observation.snapshot, observation.leases, self.policy, now, self._estimate)
        return forecast(present, self._run_history.expected, typical=typical)

    @property
    def uses(self) -> dict[int, Live]:
        """What the running attempts hold of their GPUs, by job."""
        return self._measuring.live()

    def drain(self) -> None:
        """Start nothing more; what runs may finish, what was handed over ahead comes back."""
        self.draining = True
        for allocation in self._allocations:
            self._allocations.recall(allocation)

    def stop(self, grace: float | None, note: str) -> None:
        """Stop all that runs: TERM, and KILL after each job's grace or the one given. What did not start waits on."""
        self.drain()
        self._stopping = (grace, note)
        for job_id in [allocation.jobs[0] for allocation in self._allocations if allocation.jobs]:
            if not self._table.is_adopted(job_id):
                self.cancel(job_id, grace, note)

    def cancel(self, job_id: int, grace: float | None, note: str, number: int = 0) -> None:
        """End one job, whatever it is doing; a signal's number is sent in place of TERM."""
        job = self._table.active(job_id)
        if job is None:
            waiting = self._table.withdraw(job_id)
            if waiting is not None:
                self._book.apply(waiting, Cancelled(self._now(), note))
            return
        assert isinstance(job.state, Active)
        if not isinstance(job.state, Stopping):
            self._book.apply(job, Cancelled(self._now(), note))
        self._stop_attempt(job, grace, number)

    def worker_is_dead(self, job: Job) -> bool:
        """Whether nobody runs the job any more, so that its end can be told."""
        return isinstance(job.state, Active) and self._engine_resources.backend.is_dead(slot_of(job.state.ref))

    def own(self, job_id: int, batch: int) -> bool:
        """Make a guest one of ours; False where it is over by now."""
        return self._table.own(job_id, batch)

    def adopt(self, job: Job, *, adopted: bool) -> None:
        """Take over a job of a dead engine; if it had been given to a worker, that one's journal tells the rest."""
        self._book.settle(job)
        if not isinstance(job.state, Active):
            return
        if adopted:
            self._table.adopt(job)
        worker, lease_name, _ = read_ref(job.state.ref)
        if worker not in self._allocations:
            devices = self.observation.devices(job.state.devices)
            lease = str(self._engine_resources.ledger.path / lease_name) if lease_name else ""
            self._allocations.occupy(Allocation(worker, resources_of(job), devices, lease, adopted=True))
            if not self._engine_resources.backend.adopt(worker):
                self._allocations[worker].take(job.id, self._now())
                self._worker_lost(worker)
                return
        self._allocations[worker].take(job.id, self._now())
        self._allocations[worker].recognise(self.observation.devices(job.state.devices))
        if isinstance(job.state, Stopping):  # whoever wanted that may have died before he said so
            self._stop_attempt(job, None)
        # An engine that died between the record and the order left an attempt that no worker has heard of.
        self._engine_resources.backend.account(worker, attempt_key(job.id, job.attempts))

    def close(self) -> None:
        """Leave: idle workers are sent away, busy ones go on without us."""
        self._learning.finish()
        with contextlib.suppress(StokerError):
            self._recorder.write()
        self._sharing.withdraw()
        self._dispatch.close()
        self._see_off(self._allocations.stop_idle_workers())
        self._selector.close()

    # -- the turn --------------------------------------------------------------------------------

    def turn(self, timeout: float | None = None) -> None:
        """One round of the loop."""
        self._listen(timeout)
        self._accept()
        self._obey()
        self._hear()
        self._look()
        self._decide()
        self._record()
        self._book.release()
        self._hand_over()
        self._tidy()

    def _listen(self, timeout: float | None) -> None:
        patience = self._patience()
        if timeout is not None:
            patience = timeout if patience is None else min(timeout, patience)
        for key, _ in self._selector.select(patience):
            key.data()

    def _patience(self) -> float | None:
        """Seconds to wait for something to happen, None for ever."""
        now = self._now()
        if self._accept_due or (self._recorder and self._retry_at is None):
            return 0.0
        moments = [self._retry_at - now] if self._retry_at is not None else []
        if self._book.plan_due and self.waiting and not self.draining and self._retry_at is None:
            moments.append(self._plan_after - now)
        if self._allocations.ahead:
            moments.append(0.25)
        if self._dispatch.waits:
            moments.append(POLL_INTERVAL)
        if (cleanup := self._engine_resources.backend.next_cleanup) is not None:
            moments.append(cleanup)
        if (begin := self._table.blocked.next_begin) is not None:
            moments.append(begin - now)
        if self.waiting or self._table.at_work or self._measuring.waits:
            moments.append(self.observation.due_in(now, self._look_interval))
        elif self._heartbeat is not None:
            moments.append(self._heartbeat)
        return max(0.0, min(moments)) if moments else None

    def _accept(self) -> None:
        """Take new jobs that doors have put into the store for us."""
        if self._request_reader.has_come(self._now()):
            self._accept_due = True
        if not self._accept_due:
            return
        jobs = self._engine_resources.store.open_jobs(self.name, self._last_accepted, ACCEPT_LIMIT)
        for job in jobs:
            if isinstance(job.state, Queued):
                self._book.settle(job)
            self._last_accepted = job.id
        self._accept_due = len(jobs) == ACCEPT_LIMIT

    def _obey(self) -> None:
        """Do what doors have asked for; what is asked of a job that was not yet accepted comes after that."""
        if self._accept_due or not self._request_reader.due:
            return
        self.policy = self._request_reader.overlaid(self.policy)
        for number, request in self._request_reader.requests():
            answer(request, self, self._book)
            self._recorder.answer(number)
        self._book.plan_due = True

    def _hear(self) -> None:
        """Read what workers wrote into their journals."""
        for worker, record in self._engine_resources.backend.poll():
            match record:
                case WorkerLost():
                    self._worker_lost(worker)
                case journal.AttemptStarted():
                    self._stop_latecomer(self._worker_events.began(worker, record))
                case journal.AttemptExited():
                    self._worker_events.over(worker, record)
                case journal.AttemptReturned():
                    self._worker_events.back(worker, record)

    def _look(self) -> None:
        """See what devices and ledger look like, when it matters or when it is time."""
        now = self._now()
        interval = self._look_interval
        due = self.observation.due_in(now, interval) <= 0
        if self._book.plan_due or due:
            young = now - interval if interval < LOOK_INTERVAL else 0.0
            self.observation.look(
                now, self._allocations.leases, waiting=bool(self.waiting), interval=interval, young=young
            )
            self._recognise_devices()
            self._book.plan_due = True
        self._book.free_those_due(now)
        if due:
            self._book.free_those_behind_others()
            self._allocations.note_sharing(self.observation.leases)
        self._measuring.look(self.observation.snapshot, now)
        self._learning.draw(self.observation.snapshot, now)
        if self._lease_check.check(now):
            self.trouble = self._lease_check.trouble

    def _recognise_devices(self) -> None:
        """An engine may come up before the driver does: then it hears only later on what adopted attempts run."""
        for allocation in self._allocations.adopted:
            job = self._table.active(allocation.jobs[0]) if allocation.jobs else None
            if job is not None and isinstance(job.state, Active) and len(allocation.devices) < len(job.state.devices):
                allocation.recognise(self.observation.devices(job.state.devices))

    def _decide(self) -> None:
        """Plan, and assign what the plan starts."""
        now = self._now()
        if not self._book.plan_due or self.draining or self._retry_at is not None or now < self._plan_after:
            return
        if not self._request_reader.opened:  # an earlier engine may have died before it heard of a cancel or a pause
            return
        self._book.plan_due = False
        if not self.waiting:
            return
        self.trouble = self._lease_check.trouble
        self.last_plan = self._planned(now)
        try:
            for start in self.last_plan.starts:
                self._assign(start)
            self._sharing.tell(self.last_plan.own_demand, self._allocations, now)
        except StokerError as error:  # the ledger or the disk, not the job: it waits until they are well again
            self.trouble = f"{error.message}; {error.hint}"
            self._plan_after = now + RETRY_INTERVAL

    def _planned(self, now: float) -> Plan:
        waiting, observation = self._table.waiting, self.observation
        fair_share = self._sharing.consider(observation, self._allocations, lambda: self._table.waiting_since, now)
        slots = self._allocations.slots(self._table.active, self.policy.ahead, now, self._sharing.is_promised)
        known = self._run_history.expected, self._estimate
        return plan(
            waiting,
            slots,
            observation.snapshot,
            observation.leases,
            self.policy,
            now,
            observation.freed,
            fair_share,
            *known,
        )

    def _estimate(self, shape: Shape) -> Resources:
        return self._run_history.estimate(shape, self.policy.margin)

    def _record(self) -> None:
        """Write what happened, all in one transaction; where that fails, keep it and try again later."""
        if self._retry_at is not None and self._now() < self._retry_at:
            return
        try:
            self._recorder.write()
        except StokerError as error:
            self.trouble = f"{error.message}; {error.hint}"
            self._retry_at = self._now() + RETRY_INTERVAL
            return
        self._retry_at = None
        if self._recorder.follow_ups_written:
            self._accept_due, self._recorder.follow_ups_written = True, False
        for worker in self._cleaned_up:
            self._engine_resources.backend.forget(worker)
        self._cleaned_up.clear()

    def _hand_over(self) -> None:
        """Give recorded assignments to their workers, never before they are recorded."""
        if self._retry_at is None:
            self._dispatch.hand_over(draining=self.draining, exclusive=self.policy.mps_exclusive)

    def _tidy(self) -> None:
        """Give back what is not used: leases of idle posts, attempts stuck behind a long one."""
        now = self._now()
        self._allocations.spread(now, self._sharing.is_promised)
        self._allocations.close_idle()
        if self.draining or not self.waiting:
            self._sharing.withdraw()

    # -- inside ----------------------------------------------------------------------------------

    def _assign(self, start: Start) -> None:
        if not self._dispatch.assign(start, self._now()):  # look at the ledger again, and plan with that
            self.observation.expire()
            self._book.plan_due, self._plan_after = True, self._now() + SOON

    def _stop_latecomer(self, job: Job | None) -> None:
        """Stop what slipped in before it was called back."""
        if job is not None and self._stopping is not None and not self._table.is_adopted(job.id):
            self.cancel(job.id, *self._stopping)

    def _worker_lost(self, worker: str) -> None:
        self._cleaned_up.append(worker)
        if self._worker_events.gone(worker):
            self.trouble = "a worker died before it could start anything; trying again"
            self._plan_after = self._now() + RETRY_INTERVAL

    def _stop_attempt(self, job: Job, grace: float | None, number: int = 0) -> None:
        assert isinstance(job.state, Active)
        patience = job.spec.grace if grace is None else grace
        self._engine_resources.backend.stop(
            slot_of(job.state.ref), attempt_key(job.id, job.state.attempt), patience, number
        )

    def _nothing(self) -> None:
        """The backend is read in a step of its own."""

    def _see_off(self, leaving: set[str]) -> None:
        """Wait a moment for dismissed workers, so that nothing of them is left behind."""
        deadline = time.monotonic() + 1.0
        while leaving and time.monotonic() < deadline:
            for worker, record in self._engine_resources.backend.poll():
                if isinstance(record, WorkerLost):
                    leaving.discard(worker)
                    if not self._recorder:  # else its journal may be all there is of an end
                        self._engine_resources.backend.forget(worker)
            if not leaving:
                return
            cleanup = self._engine_resources.backend.next_cleanup
            with contextlib.suppress(InterruptedError):
                self._selector.select(SOON if cleanup is None else min(SOON, cleanup))

    @property
    def _look_interval(self) -> float:
        now = self._now()
        usual = self.observation.hurried_interval(now) if self._sharing.waits else LOOK_INTERVAL
        return self._measuring.interval(now, usual)

    def _now(self) -> float:
        return self._engine_resources.clock()
