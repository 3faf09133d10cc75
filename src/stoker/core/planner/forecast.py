"""When waiting jobs will start and end: the same plan, run into the future."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.device import Reading, Snapshot
from stoker.core.job import Job
from stoker.core.lease import Lease
from stoker.core.planner.occupancy import Slot
from stoker.core.planner.plan import Estimate, Plan, Start, nothing_learnt, plan
from stoker.core.planner.policy import Policy
from stoker.core.planner.queue import WaitingJobs, caps_of

HORIZON = 64
"""Most jobs with a forecast: a screen shows no more, and every start costs a plan."""

Expects = Callable[[Job], float | None]


class Forecast(Struct, frozen=True):
    """Expected times by job, where known."""

    starts: dict[int, float] = {}
    ends: dict[int, float] = {}
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


def forecast(now: Now, expects: Expects, horizon: int = HORIZON) -> Forecast:
    """Let running jobs end as expected, and start what the plan would start then."""
    ahead = _Ahead(now, expects, horizon)
    ahead.play()
    return Forecast(ahead.starts, ahead.ends, _empty(now, expects, ahead))


class _Ahead:
    """The simulated future so far."""

    def __init__(self, now: Now, expects: Expects, horizon: int) -> None:
        self.starts: dict[int, float] = {}
        self.ends = {slot.job: slot.until for slot in now.slots if slot.until is not None}
        self.waiting = _nearest(now.waiting, horizon)
        self._now = now
        self._expects = expects
        self._horizon = horizon
        self._slots = [replace(slot, room=0) for slot in now.slots]
        self._moment = now.moment

    def play(self) -> None:
        """Step from end to end until the horizon, or until no further end is known."""
        while len(self.waiting) and len(self.starts) < self._horizon:
            for start in self._planned().starts:
                self._begin(start)
            ends = [slot.until for slot in self._slots if slot.until is not None]
            if not ends:
                return
            self._moment = max(self._moment, min(ends))
            self._slots = [slot for slot in self._slots if slot.until is None or slot.until > self._moment]

    def _planned(self) -> Plan:
        now = self._now
        seen = now.snapshot if self._moment == now.moment else _vacated(now)
        policy = replace(now.policy, patience=0.0)
        return plan(
            self.waiting,
            self._slots,
            seen,
            now.leases,
            policy,
            self._moment,
            expects=self._expects,
            estimate=now.estimate,
        )

    def _begin(self, start: Start) -> None:
        job, seconds = start.job, self._expects(start.job)
        self.waiting.remove(job.id)
        self.starts[job.id] = self._moment
        until = None if seconds is None else self._moment + seconds
        if until is not None:
            self.ends[job.id] = until
        self._slots.append(Slot(f"#{job.id}", job.id, start.resources, start.devices, until, caps=caps_of(job)))


def _nearest(waiting: WaitingJobs, horizon: int) -> WaitingJobs:
    """The first jobs of each group; further ones cannot start within the horizon."""
    nearest = WaitingJobs()
    for group in waiting.groups():
        for job in islice(group, horizon):
            nearest.add(job)
    return nearest


def _vacated(now: Now) -> Snapshot:
    """The snapshot once our running jobs have ended."""
    ours = {device_id for slot in now.slots for device_id in slot.devices}
    readings = {
        device.id: Reading(used=0) if device.id in ours else now.snapshot.reading(device.id)
        for device in now.snapshot.devices
    }
    return replace(now.snapshot, readings=readings)


def _empty(now: Now, expects: Expects, ahead: _Ahead) -> float | None:
    """The last end where all are known; else the remaining work spread evenly over the devices."""
    if len(ahead.starts) == len(now.waiting) and all(job_id in ahead.ends for job_id in ahead.starts):
        return max(ahead.ends.values(), default=None)
    work = 0.0
    for group in now.waiting.groups():
        seconds = expects(next(iter(group)))
        if seconds is None or not now.snapshot.devices:
            return None
        work += len(group) * seconds * group.shape.resources.gpus
    running = [slot.until for slot in now.slots]
    if any(until is None for until in running):
        return None
    left = sum(max(0.0, until - now.moment) * len(slot.devices) for slot in now.slots if (until := slot.until))
    return now.moment + (work + left) / len(now.snapshot.devices)
