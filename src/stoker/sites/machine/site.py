"""The site that is this server: its devices, workers, leases and telemetry."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.booking import Booking, of_others
from stoker.core.device import Device
from stoker.core.errors import StokerError
from stoker.core.job import Active, Displaced, Job, Running, Stopping, resources_of, slot_of
from stoker.core.launch import attempt_key
from stoker.core.planner.displacement import Handover
from stoker.core.planner.forecast import Forecast, Now, forecast
from stoker.core.planner.lanes import Lanes
from stoker.core.planner.occupancy import Slot
from stoker.core.planner.order import Order, QueuePosition
from stoker.core.planner.plan import Plan, Start, plan
from stoker.core.planner.queue import JobKind, WaitingJobs
from stoker.core.planner.reasons import Reason, Unclaimable
from stoker.core.settings import Policy
from stoker.core.spec import Resources
from stoker.devices.interface import Devices
from stoker.ledger import LedgerUnusable
from stoker.runner.forkserver_client import Forkserver
from stoker.runner.interface import (
    AttemptExited,
    AttemptReturned,
    AttemptStarted,
    ShortOfResources,
    WorkerLost,
)
from stoker.runner.local import LocalRunner
from stoker.sites.interface import RETRY_INTERVAL, SiteContext, SiteStatus
from stoker.sites.machine.allocations import Allocation, LeaseCheck
from stoker.sites.machine.context import MachineContext, machine_context
from stoker.sites.machine.dispatch import Dispatch
from stoker.sites.machine.fairshare import Notices, Sharing
from stoker.sites.machine.mps import POLL_INTERVAL
from stoker.sites.machine.observation import REFRESH_INTERVAL
from stoker.sites.machine.ref import adopted_lease, read_ref
from stoker.sites.machine.telemetry import ExpectedEnds, Learning
from stoker.sites.machine.week import WeekUsage
from stoker.sites.machine.worker_events import WorkerEvents
from stoker.store.engine_lock import leftover_workers

LISTED_JOBS = 200
"""Waiting jobs whose place in the order is shown: no screen lists more, unless it lists all."""
SOON = 0.01
"""Seconds after which to plan again when another engine claimed a device first."""
BOOKING_MARGIN, BOOKING_SECONDS = 1.5, 2.0
"""A job leaves a GPU that another user has booked so many times its time to save, and so many seconds, before."""
PREFETCHED_INTERVAL = 0.25
"""Seconds between two checks whether prefetched attempts wait behind a long one."""
STOP_WORKERS_SECONDS = 1.0
"""Seconds to wait at the end for idle workers to exit, so that nothing of them is left behind."""


class MachineConfig(Struct, frozen=True):
    """The configuration of the site of this machine."""

    ledger: Path
    devices: Devices
    user: str
    share_output: bool = False
    """Whether jobs may write to the engine's own standard output."""
    share_input: bool = False
    within: str = ""
    """The worker of the parent job, if the engine runs inside a job and the ledger is that job's."""
    forkserver: Forkserver | None = None
    """One that was started early, while the caller had other things to do."""
    tied_to: str = ""
    """The allocation of a cluster with which all jobs end; without it they outlive the engine."""

    def open(self, context: SiteContext) -> MachineSite:
        """Open the site, and remove the workers that dead engines left."""
        paths = context.paths
        runner = LocalRunner(
            paths.workers,
            context.instance,
            share_output=self.share_output,
            share_input=self.share_input,
            forkserver=self.forkserver,
            copies=paths.damaged_journals,
            tied_to=self.tied_to,
        )
        try:
            for worker in leftover_workers(paths, context.store):
                if runner.is_dead(worker):
                    runner.forget(worker)
            return MachineSite(machine_context(context, self.devices, runner, self.ledger, self.within), self.user)
        except BaseException:
            runner.close()
            raise


class MachineSite:
    """Places jobs on the devices of this server and runs them through workers; a `Site`."""

    def __init__(self, context: MachineContext, user: str) -> None:
        self._jobs = jobs = context.jobs
        self._runner = runner = context.runner
        self._device_source = context.devices
        self._ledger = ledger = context.ledger
        self._observation = context.observation
        self._history = context.history
        self._allocations = context.allocations
        self._telemetry = context.telemetry
        self._shortages = context.shortages
        self._within = context.within
        self._lease_check = LeaseCheck(self._allocations, runner, ledger, context.label)
        self._sharing = Sharing(ledger, context.usage, context.label)
        self._week = WeekUsage(context.store)
        self._notices = Notices(ledger, runner, jobs.active)
        self._learning = Learning(self._telemetry, self._history, jobs)
        self._ends = ExpectedEnds(jobs.active, context.paths.report)
        self._worker_events = WorkerEvents(context)
        self._dispatch = Dispatch(context, self._worker_events, user)
        self._policy = Policy()
        self._lanes = self._new_lanes()
        self._draining = False
        self._trouble = ""
        self._last_plan: Plan | None = None
        self._expected_ends: Mapping[int, float] = {}
        """By job, as the last forecast told."""
        self._plan_after = 0.0
        self._refusal: LedgerUnusable | None = None
        """Why the last claim failed; no other is made before `_claim_after`."""
        self._claim_after = 0.0
        self._lost_workers: list[str] = []
        """Workers whose folders are removed once their events are recorded."""

    @property
    def cluster(self) -> str:
        return ""

    # -- when to be called ------------------------------------------------------------------------

    def sources(self) -> Sequence[tuple[Any, Callable[[], None]]]:
        sources: list[tuple[Any, Callable[[], None]]] = [(self._runner, lambda: None)]  # `poll` reads the runner
        if self._device_source.fileno() >= 0:
            sources.append((self._device_source, self._observation.expire))
        return sources

    def due_in(self, now: float, *, placing: bool) -> float | None:
        moments = []
        if placing and self._jobs.plan_due and self._jobs.waiting:
            moments.append(self._plan_after - now)
        if placing and (next_try := self._shortages.due_in(now)) is not None:
            moments.append(next_try)
        if self._allocations.any_prefetched:
            moments.append(PREFETCHED_INTERVAL)
        if self._dispatch.waits:
            moments.append(POLL_INTERVAL)
        if (cleanup := self._runner.next_cleanup) is not None:
            moments.append(cleanup)
        if self._jobs.waiting or self._allocations.any_busy or self._telemetry.waits:
            moments.append(self._observation.due_in(now, self._refresh_interval(now)))
        return min(moments, default=None)

    def _refresh_interval(self, now: float) -> float:
        usual = self._observation.hurried_interval(now) if self._sharing.waits else REFRESH_INTERVAL
        return self._telemetry.interval(now, usual)

    # -- the turn ---------------------------------------------------------------------------------

    def poll(self) -> None:
        self._read_events()
        self._shortages.check(self._jobs.clock())
        self._observe(self._jobs.clock())  # later than the events: a device counts as free once it was seen after them

    def _read_events(self) -> None:
        for worker, event in self._runner.poll():
            match event:
                case WorkerLost():
                    self._worker_lost(worker, event)
                case AttemptStarted():
                    self._worker_events.on_started(worker, event)
                case AttemptExited():
                    self._worker_events.on_exited(worker, event)
                case AttemptReturned():
                    self._worker_events.on_returned(worker, event)

    def _observe(self, now: float) -> None:
        """Look at devices and ledger, when a plan needs it or when it is time."""
        interval = self._refresh_interval(now)
        due = self._observation.due_in(now, interval) <= 0
        if self._jobs.plan_due or due:
            young = now - interval if interval < REFRESH_INTERVAL else 0.0
            waiting = bool(self._jobs.waiting)
            self._observation.refresh(now, self._allocations.leases, waiting=waiting, interval=interval, young=young)
            self._recognise_devices()
            self._jobs.plan_due = True
        if due:
            self._allocations.note_sharing(self._observation.leases)
            self._notices.publish(self._allocations, len(self._jobs.waiting), now, self._expected_ends)
        self._telemetry.refresh(self._observation.snapshot, now)
        self._learning.learn(self._observation.snapshot, now)
        if self._lease_check.check(now):
            self._trouble = self._lease_check.trouble

    def place(self, now: float, policy: Policy) -> None:
        if policy != self._policy:
            self._policy, self._lanes = policy, self._new_lanes()
        if not self._jobs.plan_due or now < self._plan_after:
            return
        self._jobs.plan_due = False
        if not self._jobs.waiting:
            self._relieve_others(now)
            return
        if now >= self._claim_after:
            self._refusal = None
        self._trouble = str(self._refusal) if self._refusal else self._lease_check.trouble
        try:
            self._carry_out_plan(now)
        except ShortOfResources as error:
            self._shortages.no_worker(str(error))
            self._last_plan = self._plan(now)  # which says why nothing starts
        except StokerError as error:  # the disk, not the job: it waits until that works again
            self._trouble = str(error)
            self._plan_after = now + RETRY_INTERVAL

    def _carry_out_plan(self, now: float) -> None:
        self._last_plan = self._plan(now)
        try:
            for start in self._last_plan.starts:
                self._assign(start)
            self._displace(self._last_plan, now)
        except LedgerUnusable as error:  # plan again without claims: jobs that need no GPU do not depend on the ledger
            self._refusal, self._claim_after, self._trouble = error, now + RETRY_INTERVAL, str(error)
            self._carry_out_plan(now)
            return
        try:
            self._sharing.publish(self._last_plan.own_demand, self._allocations, now)
        except LedgerUnusable as error:
            self._trouble = str(error)

    def _plan(self, now: float) -> Plan:
        jobs, observation = self._jobs, self._observation
        for kind in self._history.take_learnt():
            self._lanes.learnt(kind)
        fair_share = self._sharing.consider(observation, self._allocations, lambda: jobs.waiting_since, now)
        if self._refusal:
            fair_share = replace(fair_share, unclaimable=Unclaimable(self._refusal.message))
        slots = self._slots(now)
        self._give_up(slots, now)
        return plan(
            jobs.waiting,
            [self._for_own_jobs(slot) for slot in slots],
            observation.snapshot,
            observation.leases,
            self._governed(now),
            now,
            observation.freed,
            fair_share,
            self._history.expected,
            self._estimate,
            self._lanes,
            self._handed_over(),
            self._bookings(),
        )

    def _governed(self, now: float) -> Policy:
        """The policy with what keeps jobs from starting at the moment."""
        policy = self._shortages.governed(self._policy, now)
        used = self._week.used(policy.locked, self._allocations, now)
        return policy if used is None else replace(policy, week_used=used)

    def _bookings(self) -> list[Booking]:
        """Those of other users."""
        return of_others(self._observation.bookings, os.geteuid())

    def _relieve_others(self, now: float) -> None:
        """Though no job of ours waits, running ones may have to give way to other engines."""
        slots = self._slots(now) if self._observation.demands or self._observation.bookings else []
        if any(slot.preemption for slot in slots):
            self._sharing.consider(self._observation, self._allocations, lambda: now, now)
            self._give_up(slots, now)

    def _slots(self, now: float) -> list[Slot]:
        return self._allocations.slots(self._jobs.active, self._policy.ahead, now, self._sharing.is_promised)

    def _for_own_jobs(self, slot: Slot) -> Slot:
        """The slot, which does not give way to our jobs while it leaves for another engine, or one waits for it."""
        if slot.job in self._jobs.leaving:
            return replace(slot, preemption=None, room=0)  # what is prefetched behind it would take its place
        is_promised = slot.preemption is not None and self._sharing.is_promised(self._allocations[slot.worker])
        return replace(slot, preemption=None) if is_promised else slot

    def _give_up(self, slots: Sequence[Slot], now: float) -> None:
        """Let running jobs give way to other engines, as fair share demands."""
        leaving = [
            *self._leave_booked(slots, now),
            *self._sharing.give_up(slots, self._allocations, self._jobs.leaving, now),
        ]
        for job_id, why in leaving:
            self._ask_to_leave(job_id, Displaced(now, note=why))

    def _leave_booked(self, slots: Sequence[Slot], now: float) -> Iterator[tuple[int, str]]:
        """The jobs that give way on devices that another user has booked, early enough to save before."""
        bookings = self._bookings()
        for slot in slots if bookings else ():
            if slot.preemption is None:
                continue
            names = {claim.name for claim in self._allocations[slot.worker].claims}
            soon = now + BOOKING_MARGIN * slot.preemption.save + BOOKING_SECONDS
            for booking in bookings:
                if booking.since <= soon and now < booking.until and not names.isdisjoint(booking.claims):
                    yield slot.job, f"for {booking.owner}, who has booked its GPU"
                    break

    def _ask_to_leave(self, job_id: int, event: Displaced) -> None:
        job = self._jobs.active(job_id)
        if job is not None and isinstance(job.state, Running) and job.state.giving_way is None:
            self.give_way(self._jobs.apply(job, event))

    def _handed_over(self) -> list[Handover]:
        """The devices that running jobs leave for others, or have left."""
        before = self._last_plan.handovers if self._last_plan else ()
        states = [job.state for job_id in self._jobs.leaving if (job := self._jobs.active(job_id))]
        ways = [state.giving_way for state in states if isinstance(state, Running)]
        kept = {handover.job: handover.devices for handover in before}
        for way in filter(None, ways):
            if way.to and set(way.devices).isdisjoint(kept.get(way.to, ())):
                kept[way.to] = (*kept.get(way.to, ()), *way.devices)
        return [Handover(job_id, device_ids) for job_id, device_ids in kept.items()]

    def _displace(self, decided: Plan, now: float) -> None:
        """Ask the jobs to give way for which the plan has decided so."""
        for displacement in decided.displacements:
            for job_id in displacement.victims:
                self._ask_to_leave(job_id, Displaced(now, displacement.for_job))

    def _new_lanes(self) -> Lanes:
        """Lanes of all waiting jobs, for a new policy."""
        self._jobs.waiting.touch_all()
        return Lanes(self._jobs.waiting, self._estimate)

    def _assign(self, start: Start) -> None:
        now = self._jobs.clock()
        if reason := self._dispatch.obstacle(start):
            self._dispatch.hold(start, reason, now)
        elif not self._dispatch.assign(
            start, now
        ):  # another engine was faster: read the ledger again and plan with that
            self._observation.expire()
            self._jobs.plan_due, self._plan_after = True, now + SOON
        elif (job := self._jobs.active(start.job.id)) is not None:
            self._shortages.assigned(job)

    def dispatch(self, *, recorded: bool) -> None:
        if recorded:
            for worker in self._lost_workers:
                self._runner.forget(worker)
            self._lost_workers.clear()
            self._dispatch.send(draining=self._draining, mps_exclusive=self._policy.mps_exclusive)
        self._allocations.spread(self._jobs.clock(), self._sharing.is_promised)
        self._allocations.close_idle()
        if self._draining or not self._jobs.waiting:
            self._sharing.withdraw()
        if not self._jobs.waiting and not self._allocations.any_busy:
            self._notices.withdraw()

    # -- single jobs ------------------------------------------------------------------------------

    def adopt(self, job: Job) -> None:
        """The worker's journal tells the rest."""
        assert isinstance(job.state, Active)
        now, devices = self._jobs.clock(), self._observation.devices(job.state.devices)
        worker, lease_name, _ = read_ref(job.state.ref)
        if worker not in self._allocations:
            name = adopted_lease(lease_name, self._within)
            lease = str(self._ledger.path / name) if name else ""
            self._allocations.occupy(Allocation(worker, resources_of(job), devices, lease, adopted=True))
            if not self._runner.adopt(worker):
                self._allocations[worker].take(job.id, now)
                self._worker_lost(worker, WorkerLost())
                return
        self._allocations[worker].take(job.id, now)
        self._allocations[worker].recognise(devices)
        if isinstance(job.state, Stopping):  # the engine may have died before it told the worker
            self.stop(job, None)
        else:  # or of a new limit
            self.set_limit(job)
        # An engine that died between recording and sending left an attempt that the worker does not know.
        self._runner.account(worker, attempt_key(job.id, job.attempts))

    def is_gone(self, job: Job) -> bool:
        worker = slot_of(job.state.ref) if isinstance(job.state, Active) else job.spec.parent
        return bool(worker) and self._runner.is_dead(worker)

    def stop(self, job: Job, grace: float | None, signal_number: int = 0) -> None:
        assert isinstance(job.state, Active)
        seconds = job.spec.grace if grace is None else grace
        self._runner.stop(slot_of(job.state.ref), attempt_key(job.id, job.state.attempt), seconds, signal_number)

    def can_give_way(self, job: Job) -> bool:
        return True

    def give_way(self, job: Job) -> None:
        assert isinstance(job.state, Active)
        worker, spec = slot_of(job.state.ref), job.spec
        self._allocations.recall(self._allocations[worker])  # what is prefetched behind it would take its place
        saves = spec.preemptible == "save"
        number = signal.Signals[f"SIG{spec.save_signal}"] if saves else signal.SIGTERM
        seconds = spec.save_time if saves else spec.grace
        self._runner.give_way(worker, attempt_key(job.id, job.state.attempt), number, seconds, saves=saves)

    def set_limit(self, job: Job) -> bool:
        assert isinstance(job.state, Active)
        worker, key = slot_of(job.state.ref), attempt_key(job.id, job.state.attempt)
        self._runner.set_limits(worker, key, job.spec)
        return True

    def process_of(self, job: Job) -> int | None:
        if not isinstance(job.state, Active):
            return None
        return self._runner.process_of(slot_of(job.state.ref), attempt_key(job.id, job.state.attempt))

    def _worker_lost(self, worker: str, event: WorkerLost) -> None:
        self._lost_workers.append(worker)
        never_started = self._worker_events.on_worker_lost(worker, damaged=event.damaged)
        if event.errno:
            self._shortages.no_worker(f"cannot start a worker: {os.strerror(event.errno)}")
        elif never_started and not event.warm:
            self._trouble = "a worker died before it started a job; retrying"
            self._plan_after = self._jobs.clock() + RETRY_INTERVAL

    def _recognise_devices(self) -> None:
        """Find the devices of adopted attempts that were unknown at first: an engine may start before the driver."""
        for allocation in self._allocations.adopted:
            job = self._jobs.active(allocation.jobs[0]) if allocation.jobs else None
            if job is not None and isinstance(job.state, Active) and len(allocation.devices) < len(job.state.devices):
                allocation.recognise(self._observation.devices(job.state.devices))

    # -- what it shows ----------------------------------------------------------------------------

    def devices(self, device_ids: Sequence[str]) -> tuple[Device, ...]:
        return self._observation.devices(device_ids)

    def reason(self, job: Job) -> Reason | None:
        return self._last_plan.reason(job) if self._last_plan else None

    def status(self) -> SiteStatus:
        observation, last = self._observation, self._last_plan
        return SiteStatus(
            observation.snapshot,
            observation.leases,
            tuple(last.waits.items()) if last else (),
            last.reserved.job if last and last.reserved else None,
            self._telemetry.live(),
            "; ".join(filter(None, (self._shortages.trouble or self._trouble, self._runner.trouble)))
            or self._dispatch.trouble,
            observation.warnings,
            self._runner.survivors,
            () if self._draining else self._standings(),
            bookings=observation.bookings,
        )

    def _standings(self) -> Sequence[QueuePosition]:
        now = self._jobs.clock()
        slots = self._allocations.slots(self._jobs.active, 0.0, now)
        order = Order(self._policy, now, self._history.expected, Counter(slot.kind for slot in slots))
        self._lanes.refresh(order, self._jobs.waiting.take_touched())
        return self._lanes.standings(order, LISTED_JOBS)

    def forecast(self, typical: float | None = None) -> Forecast:
        now, observation = self._jobs.clock(), self._observation
        waiting = WaitingJobs() if self._draining else self._jobs.waiting
        slots = self._allocations.slots(self._jobs.active, 0.0, now)
        slots = self._ends.applied(slots, now)
        lanes = None if self._draining else self._lanes
        seen, leases = observation.snapshot, observation.leases
        present = Now(waiting, slots, seen, leases, self._policy, now, self._estimate, lanes, self._bookings())
        expected = forecast(present, self._history.expected, typical=typical)
        self._expected_ends = expected.ends
        return expected

    def _estimate(self, job_kind: JobKind) -> Resources:
        return self._history.estimate(job_kind, self._policy.margin)

    # -- the end ----------------------------------------------------------------------------------

    def drain(self) -> None:
        self._draining = True
        for allocation in self._allocations:
            self._allocations.recall(allocation)

    def idle_since(self) -> Mapping[int, float | None]:
        return self._telemetry.idle_since()

    def finish(self) -> None:
        self._learning.finish()

    def close(self, *, recorded: bool) -> None:
        """Idle workers exit, busy ones go on."""
        self._sharing.withdraw()
        self._notices.withdraw()
        self._dispatch.close()
        self._wait_for_workers(self._allocations.stop_idle_workers(), recorded=recorded)
        self._runner.close()

    def _wait_for_workers(self, leaving: set[str], *, recorded: bool) -> None:
        deadline = time.monotonic() + STOP_WORKERS_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._runner, selectors.EVENT_READ)
            while leaving and time.monotonic() < deadline:
                for worker, event in self._runner.poll():
                    if isinstance(event, WorkerLost):
                        leaving.discard(worker)
                        if recorded:  # else only its journal may tell of an end
                            self._runner.forget(worker)
                if leaving:
                    cleanup = self._runner.next_cleanup
                    selector.select(SOON if cleanup is None else min(SOON, cleanup))
