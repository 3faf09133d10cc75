"""The decision for every waiting job: start it here, or wait because of this."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct

from stoker.core.courtesy import ALONE, Courtesy, Longing, Unserved, immodest, longing
from stoker.core.device import Device, Snapshot
from stoker.core.fit import Offer, choose, never_fits
from stoker.core.foresight import resolved
from stoker.core.handover import HandOver
from stoker.core.job import Job, limit_of
from stoker.core.lease import Lease
from stoker.core.memory import Learnt
from stoker.core.occupancy import Occupancy, Slot
from stoker.core.policy import Policy
from stoker.core.prospects import Prospects
from stoker.core.reasons import AtLimit, CapFull, KeptFree, MaxUse, MinFree, NeverFits, QueuePaused, Reason
from stoker.core.reservation import Reservation, leaves_room, may_pass
from stoker.core.terms import Need
from stoker.core.waiting import Shape, WaitingJobs, shape_of

__all__ = ["Plan", "Policy", "Reservation", "Slot", "Start", "never_fits", "plan", "resolved"]

Foresee = Callable[[Shape], Need]
"""What has to be set aside for jobs of a shape."""
_NEVER_FREED: Mapping[str, float] = MappingProxyType({})
NOTHING_LEARNT = Learnt()


def nothing_learnt(shape: Shape) -> Need:
    """What jobs of a shape ask for themselves, and what those that have come to grief need at least."""
    return resolved(shape, NOTHING_LEARNT, 0)


class Start(Struct, frozen=True):
    """Start the job on these devices; `behind` names a keeper whose running attempt it follows."""

    job: Job
    devices: tuple[str, ...]
    behind: str = ""
    need: Need = Need()
    """What is set aside on them: what the job asks for, with what was learnt of such work."""


class Plan(Struct, frozen=True):
    """What to start now, and why each group of the others waits."""

    starts: tuple[Start, ...]
    waits: Mapping[Shape, Reason]
    """For every shape that has waiting jobs left; a job's place in its group tells how many come first."""
    reserved: Reservation | None = None
    longing: Longing | None = None
    """What other engines should know that we wait for."""

    def reason(self, job: Job) -> Reason | None:
        """Why a job waits; None when it starts or is none of the planned ones."""
        if any(start.job.id == job.id for start in self.starts):
            return None
        return self.waits.get(shape_of(job))


def plan(  # noqa: PLR0917 - what the decision depends on is all that a pure function has
    waiting: WaitingJobs,
    slots: Sequence[Slot],
    snapshot: Snapshot,
    leases: Sequence[Lease],
    policy: Policy,
    now: float,
    freed: Mapping[str, float] = _NEVER_FREED,
    courtesy: Courtesy = ALONE,
    expects: Callable[[Job], float | None] = limit_of,
    foresee: Foresee = nothing_learnt,
) -> Plan:
    """Decide for every waiting job, by priority and then by age, or by how much work it is expected to be.

    `leases` are those of other engines; `freed` tells when our last attempt on a device ended, and `expects` how
    many seconds a job will take at most, where a limit or experience tells, `foresee` what to set aside. Only the heads
    of the groups are looked at, and as many jobs as start: the head that finds no place speaks for its group.
    """
    occupancy = Occupancy(slots, snapshot, leases, policy=policy, now=now, freed=freed, left=courtesy.left)
    turn = _Turn(occupancy, slots, snapshot, policy, courtesy=courtesy, expects=expects)
    turn.serve(_heads(waiting, foresee, turn.due), turn.start_now)
    if turn.blocked and any(slot.room > 0 for slot in slots):
        turn.hand_over(HandOver(slots, occupancy))
    waits = {head.shape: reason for head, reason in turn.blocked}
    return Plan(tuple(turn.starts), waits, turn.standing_reservation(), turn.longing(waiting))


class _Head(NamedTuple):
    """The first job of a group that is still to be served; sorts by priority, its due, then age. Ids are unique."""

    precedence: int
    due: float
    job_id: int
    job: Job
    later: Iterator[Job]
    shape: Shape
    need: Need


def _heads(waiting: WaitingJobs, foresee: Foresee, due: Callable[[Job], float]) -> list[_Head]:
    heads = []
    for group in waiting.groups():
        jobs = iter(group)
        job = next(jobs)
        shape = group.shape
        heads.append(_Head(-shape.priority, due(job), job.id, job, jobs, shape, foresee(shape)))
    return heads


class _Turn:
    """One planning under way: every start changes what is open for the jobs after it."""

    def __init__(
        self,
        occupancy: Occupancy,
        slots: Sequence[Slot],
        snapshot: Snapshot,
        policy: Policy,
        *,
        courtesy: Courtesy,
        expects: Callable[[Job], float | None],
    ) -> None:
        self.starts: list[Start] = []
        self.blocked: list[tuple[_Head, Reason]] = []
        """The head that closed each group, and why."""
        self._occupancy = occupancy
        self._policy = policy
        self._courtesy = courtesy
        self._expects = expects
        self._modest = policy.max_use is not None or policy.min_free > 0
        self._excess: MaxUse | MinFree | None = None
        self._running = len(slots)
        self._counts = Counter(cap.name for slot in slots for cap in slot.caps)
        self._prospects = Prospects(occupancy, snapshot, policy)
        self._reservation: Reservation | None = None
        self._stopped_by: KeptFree | None = None
        """The first that is blocked, where nobody may pass it."""

    def due(self, job: Job) -> float:
        """What orders jobs of one priority before their age does.

        A moment that stays as it is: with time nobody but those who came soon enough after a job can go before it.
        """
        if self._policy.order == "age":
            return 0.0
        seconds = self._expects(job)
        return job.submitted + (self._policy.unknown if seconds is None else seconds) * max(1, job.terms.need.gpus)

    def serve(self, heads: list[_Head], attempt: Callable[[_Head], Start | Reason]) -> None:
        """Let the jobs try in order until each group is used up or closed."""
        heapify(heads)
        self.blocked = []
        while heads:
            head = heads[0]
            outcome = attempt(head)
            if not isinstance(outcome, Start):
                self.blocked.append((heappop(heads), outcome))
                continue
            self.starts.append(outcome)
            if job := next(head.later, None):
                heapreplace(heads, head._replace(due=self.due(job), job_id=job.id, job=job))
            else:
                heappop(heads)

    def hand_over(self, room: HandOver) -> None:
        """Let those that found nothing open wait behind running attempts."""
        reasons = {head.shape: reason for head, reason in self.blocked}

        def start_behind(head: _Head) -> Start | Reason:
            need, reason = head.need, reasons[head.shape]
            if slot := room.take(need, head.shape.caps):
                return Start(head.job, slot.devices, slot.keeper, need)
            if isinstance(reason, AtLimit | CapFull | QueuePaused):  # any end at all might let it start
                room.close_all()
            elif not isinstance(reason, NeverFits):
                room.close(need)
            return reason

        self.serve([head for head, _ in self.blocked], start_behind)

    def start_now(self, head: _Head) -> Start | Reason:
        """A start on devices that are open, or the reason why there is none."""
        job, need = head.job, head.need
        if barrier := self._barrier(head.shape):
            return self._prospects.never(need) or barrier
        if need.gpus == 0:
            self._count(head.shape)
            return Start(job, (), need=need)
        if self._stopped_by is not None:
            return self._prospects.never(need) or self._stopped_by
        offers = self._prospects.offers(need)
        devices = choose(self._unreserved(offers, job, need), need.gpus, need.required)
        if devices is None:
            return self._prospects.never(need) or self._block(job, need, offers)
        if self._modest and (excess := self._too_many(need, devices)):
            return excess
        device_ids = tuple([device.id for device in devices])
        self._count(head.shape)
        seconds = self._expects(job)
        self._prospects.hold(job.id, need, device_ids, inf if seconds is None else self._occupancy.now + seconds)
        return Start(job, device_ids, need=need)

    def longing(self, waiting: WaitingJobs) -> Longing | None:
        """What to tell others that we wait for, if there are any."""
        if not self._courtesy.company or not self.blocked:
            return None
        sizes = {group.shape: len(group) for group in waiting.groups()}
        sizes = Counter(sizes) - Counter(shape_of(start.job) for start in self.starts)
        unserved = [Unserved(head.job, head.need, sizes[head.shape], why) for head, why in self.blocked]
        return longing(unserved, self._occupancy, self._policy, self._courtesy)

    def standing_reservation(self) -> Reservation | None:
        """The reservation, unless its job was handed over after all."""
        reservation = self._reservation
        if reservation and any(start.job.id == reservation.job for start in self.starts):
            return None
        return reservation

    def _barrier(self, shape: Shape) -> AtLimit | CapFull | QueuePaused | None:
        """What keeps a job from starting whatever is free."""
        policy = self._policy
        if policy.paused:
            return QueuePaused(policy.paused)
        if policy.max_running is not None and self._running + len(self.starts) >= policy.max_running:
            return AtLimit(policy.max_running)
        for cap in shape.caps:
            limit = policy.limits.get(cap.name) if cap.limit is None else cap.limit
            if limit is not None and self._counts[cap.name] >= limit:
                return CapFull(cap.name, limit)
        return None

    def _count(self, shape: Shape) -> None:
        self._counts.update(cap.name for cap in shape.caps)

    def _unreserved(self, offers: list[Offer], job: Job, need: Need) -> list[Offer]:
        """The devices that a job may have without delaying the one that they are reserved for."""
        reservation, policy, occupancy = self._reservation, self._policy, self._occupancy
        if reservation is None or may_pass(self._expects(job), reservation, policy, occupancy.now):
            return offers
        return [
            offer
            for offer in offers
            if not _reserved(offer.device, reservation)
            or leaves_room(offer.device, need, reservation, occupancy, policy=policy)
        ]

    def _too_many(self, need: Need, devices: Sequence[Device]) -> NeverFits | MaxUse | MinFree | None:
        """Why these devices are more than the user wants; then none of the later jobs may have another one either."""
        if self._occupancy.names_in_use.issuperset(name for device in devices for name in device.claims):
            return None
        if self._excess is None and (excess := immodest(devices, self._occupancy, self._policy, self._courtesy)):
            if never := self._prospects.never(need):
                return never
            self._excess = excess
        return self._excess

    def _block(self, job: Job, need: Need, offers: list[Offer]) -> Reason:
        if self._policy.passing == "never":
            self._stopped_by = KeptFree(job.id, need.gpus)
        elif self._policy.passing == "reserved" and self._reservation is None:
            self._reservation = self._prospects.reserve(job, need)
        elif self._reservation and choose(offers, need.gpus, need.required) is not None:
            return KeptFree(self._reservation.job, self._reservation.gpus)
        return self._prospects.why_blocked(need)


def _reserved(device: Device, reservation: Reservation) -> bool:
    return device.id in reservation.devices or not reservation.claims.isdisjoint(device.claims)
