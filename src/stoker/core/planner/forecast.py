"""When waiting jobs will start and end: the same plan, run into the future."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.booking import Booking
from stoker.core.device import Reading, Snapshot
from stoker.core.job import Job
from stoker.core.lease import Lease
from stoker.core.planner.lanes import Estimate, Lanes
from stoker.core.planner.occupancy import Slot
from stoker.core.planner.order import Order
from stoker.core.planner.plan import Plan, Start, nothing_learnt, plan
from stoker.core.planner.queue import WaitingJobs, caps_of
from stoker.core.settings import Policy

HORIZON = 64
"""Most jobs with a forecast: a screen shows no more, and every start costs a plan."""
Expects = Callable[[Job], float | None]


class Forecast(Struct, frozen=True):
    """Expected times by job, if known."""

    starts: dict[int, float] = {}
    ends: dict[int, float] = {}
    places: dict[int, tuple[str, ...]] = {}
    """Devices of the jobs in `starts`."""
    empty: float | None = None
    """When all waiting jobs will have ended."""


class Now(Struct, frozen=True):
    """The state that a forecast starts from."""

    waiting: WaitingJobs
    slots: Sequence[Slot]
    snapshot: Snapshot
    leases: Sequence[Lease]
    policy: Policy
    moment: float
    estimate: Estimate = nothing_learnt
    lanes: Lanes | None = None
    """The waiting jobs in lanes, if there are any yet."""
    bookings: Sequence[Booking] = ()
    """Those of other users."""


def forecast(now: Now, expects: Expects, horizon: int = HORIZON, typical: float | None = None) -> Forecast:
    """Let running jobs end as expected, and start what the plan would start then.

    A job that `expects` does not know is assumed to take `typical` seconds; its own end stays unknown, like that of a
    job that should have ended already.
    """
    ahead = _Ahead(now, expects, horizon, typical)
    ahead.play()
    return Forecast(ahead.starts, ahead.ends, ahead.places, _empty(ahead))


class _Ahead:
    """The simulated future so far."""

    def __init__(self, now: Now, expects: Expects, horizon: int, typical: float | None) -> None:
        self.now = now
        self.starts: dict[int, float] = {}
        self.places: dict[int, tuple[str, ...]] = {}
        self.ends = {slot.job: until for slot in now.slots if (until := slot.until) is not None and until >= now.moment}
        self.lanes = _lanes(now, expects)
        self.waiting = WaitingJobs()
        for row in self.lanes.rows:
            for job in row.oldest(horizon):
                self.waiting.add(job)
        self.moment = now.moment
        self._expects = expects
        self._horizon = horizon
        self._typical = typical
        self._slots = [replace(slot, room=0, until=self._until(slot), preemption=None) for slot in now.slots]
        self.played = [_Played(len(slot.devices), now.moment, slot.until) for slot in self._slots]

    @property
    def is_stuck(self) -> bool:
        """Whether a job waits for something whose end is unknown, such as a lease of another engine."""
        return len(self.waiting) > 0 and len(self.starts) < self._horizon

    def seconds(self, job: Job) -> float | None:
        """How long a job runs, if known or assumed."""
        expected = self._expects(job)
        return self._typical if expected is None else expected

    def play(self) -> None:
        """Step from end to end until the horizon, or until no further end is known."""
        while len(self.waiting) and len(self.starts) < self._horizon:
            for start in self._planned().starts:
                self._begin(start)
            ends = [slot.until for slot in self._slots if slot.until is not None]
            ends += [booking.until for booking in self.now.bookings if booking.until > self.moment]
            if not ends or not len(self.waiting) or len(self.starts) >= self._horizon:
                return
            self.moment = max(self.moment, min(ends))
            self._slots = [slot for slot in self._slots if slot.until is None or slot.until > self.moment]

    def _planned(self) -> Plan:
        now = self.now
        seen = now.snapshot if self.moment == now.moment else _vacated(now)
        policy = replace(now.policy, patience=0.0)
        return plan(
            self.waiting,
            self._slots,
            seen,
            now.leases,
            policy,
            self.moment,
            expects=self._expects,
            estimate=now.estimate,
            bookings=now.bookings,
        )

    def _begin(self, start: Start) -> None:
        job, seconds = start.job, self.seconds(start.job)
        self.waiting.remove(job.id)
        self.starts[job.id] = self.moment
        self.places[job.id] = tuple(start.devices)
        until = None if seconds is None else self.moment + seconds
        if until is not None and self._expects(job) is not None:
            self.ends[job.id] = until
        self.played.append(_Played(len(start.devices), self.moment, until))
        worker, caps, since = f"#{job.id}", caps_of(job), self.moment
        self._slots.append(
            Slot(worker, job.id, start.resources, start.devices, until, caps=caps, since=since, kind=job.kind)
        )

    def _until(self, slot: Slot) -> float | None:
        """When a running job frees its devices; one that is overdue is late by as much again, as for the plan."""
        now, until = self.now.moment, slot.until
        if until is None and self._typical is not None:
            until = (now if slot.since is None else slot.since) + self._typical
        return until if until is None or until >= now else now + (now - until)


class _Played(NamedTuple):
    """A job in the simulated future."""

    gpus: int
    begin: float
    end: float | None

    def work(self, until: float) -> float:
        """GPU-seconds up to a moment; a job without a GPU counts as if it had one."""
        assert self.end is not None
        return max(1, self.gpus) * max(0.0, min(self.end, until) - self.begin)


def _lanes(now: Now, expects: Expects) -> Lanes:
    order = Order(now.policy, now.moment, expects, Counter(slot.kind for slot in now.slots))
    if now.lanes is not None:
        now.lanes.refresh(order, now.waiting.take_touched())
        return now.lanes
    lanes = Lanes(now.waiting, now.estimate)
    lanes.refresh(order, [group.job_kind for group in now.waiting.groups()])
    return lanes


def _vacated(now: Now) -> Snapshot:
    """The snapshot once our running jobs have ended."""
    ours = {device_id for slot in now.slots for device_id in slot.devices}
    readings = {
        device.id: Reading(used=0) if device.id in ours else now.snapshot.reading(device.id)
        for device in now.snapshot.devices
    }
    return replace(now.snapshot, readings=readings)


def _empty(ahead: _Ahead) -> float | None:
    """The last end if all are known; else the remaining work at the speed of the simulated part."""
    now, running = ahead.now, len(ahead.now.slots)
    if len(ahead.starts) == len(now.waiting) and all(attempt.end is not None for attempt in ahead.played[running:]):
        return max((attempt.end for attempt in ahead.played if attempt.end is not None), default=None)
    if ahead.is_stuck or any(attempt.end is None for attempt in ahead.played):
        return None
    work = sum(attempt.work(inf) for attempt in ahead.played[:running])
    for lane in ahead.lanes:
        seconds = ahead.seconds(next(iter(lane.groups.first)))
        if seconds is None:
            return None
        work += lane.size * seconds * max(1, lane.key.resources.gpus)
    at_once = _gpus_at_once(ahead)
    last = max((attempt.end for attempt in ahead.played[:running] if attempt.end is not None), default=0.0)
    return max(last, now.moment + work / at_once) if at_once else None


def _gpus_at_once(ahead: _Ahead) -> float:
    """Average number of GPUs in use up to the last simulated start; a shared GPU counts once per job."""
    span = ahead.moment - ahead.now.moment
    if span <= 0:
        return float(sum(max(1, run.gpus) for run in ahead.played))
    return sum(run.work(ahead.moment) for run in ahead.played) / span
