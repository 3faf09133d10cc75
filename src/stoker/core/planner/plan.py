"""Plan: a start or a reason to wait for every group of waiting jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct, structs

from stoker.core.device import Device, Lease, Snapshot
from stoker.core.job import Job, limit_of
from stoker.core.learning import Learnt
from stoker.core.planner.fairshare import (
    NO_OTHER_ENGINES,
    FairShare,
    OwnDemand,
    Unserved,
    exceeds_limits,
    never_within_limits,
    own_demand,
)
from stoker.core.planner.occupancy import FOREVER, Occupancy, Room, Slot, View
from stoker.core.planner.order import Order
from stoker.core.planner.placement import (
    Offer,
    Prefetch,
    Reservation,
    choose,
    leaves_room,
    may_pass,
    most_at_once,
    never_fits,
    preference,
    reserve,
    suits,
)
from stoker.core.planner.queue import Shape, WaitingJobs, resolved, shape_of
from stoker.core.planner.reasons import (
    AtLimit,
    CapFull,
    Crowded,
    Drained,
    Draining,
    KeptFree,
    Leased,
    MaxUse,
    MemoryShort,
    MinFree,
    NeverFits,
    Occupied,
    QueuePaused,
    Reason,
    TooBusy,
    Unusable,
    Yields,
)
from stoker.core.settings import Policy
from stoker.core.spec import Resources, amount_on, load_on

Estimate = Callable[[Shape], Resources]
"""The resources to reserve for jobs of a shape."""

_NEVER_FREED: Mapping[str, float] = MappingProxyType({})

NOTHING_LEARNT = Learnt()


def nothing_learnt(shape: Shape) -> Resources:
    """The estimate without history: what the jobs ask for, and at least what earlier failures showed."""
    return resolved(shape, NOTHING_LEARNT, 0)


class Start(Struct, frozen=True):
    """Start the job on these devices; `behind` is the worker whose running attempt it follows, if prefetched."""

    job: Job
    devices: tuple[str, ...]
    behind: str = ""
    resources: Resources = Resources()
    """What is reserved on them: what the job asks for, completed by what was learnt."""


class Plan(Struct, frozen=True):
    """What to start now, and why each group of the others waits."""

    starts: tuple[Start, ...]
    waits: Mapping[Shape, Reason]
    """For every shape that still has waiting jobs."""
    reserved: Reservation | None = None
    own_demand: OwnDemand | None = None
    """What to publish to other engines."""

    def reason(self, job: Job) -> Reason | None:
        """Why a job waits; None when it starts or is not in the plan."""
        if any(start.job.id == job.id for start in self.starts):
            return None
        return self.waits.get(shape_of(job))


def plan(  # noqa: PLR0917 - a pure function takes all that the decision depends on
    waiting: WaitingJobs,
    slots: Sequence[Slot],
    snapshot: Snapshot,
    leases: Sequence[Lease],
    policy: Policy,
    now: float,
    freed: Mapping[str, float] = _NEVER_FREED,
    fair_share: FairShare = NO_OTHER_ENGINES,
    expects: Callable[[Job], float | None] = limit_of,
    estimate: Estimate = nothing_learnt,
) -> Plan:
    """Decide for every waiting job, by priority and then in the order of the policy.

    `leases` are those of other engines. `freed` is when our last attempt on each device ended. `expects` gives the
    seconds that a job takes, where a limit or history tells; `estimate` the resources to reserve. Only the head of each
    group is examined, and one more job per start: the head that cannot start gives the reason of its whole group.
    """
    occupancy = Occupancy(slots, snapshot, leases, policy=policy, now=now, freed=freed, left=fair_share.left)
    planner = _Planner(occupancy, slots, snapshot, policy, fair_share=fair_share, expects=expects)
    planner.serve(_heads(waiting, estimate, planner.order), planner.start_now)
    if planner.blocked and any(slot.room > 0 for slot in slots):
        planner.prefetch(Prefetch(slots, occupancy))
    waits = {head.shape: reason for head, reason in planner.blocked}
    return Plan(tuple(planner.starts), waits, planner.standing_reservation(), planner.own_demand(waiting))


class _Planner:
    """The state while a plan is made: every start changes what is open for the jobs after it."""

    def __init__(
        self,
        occupancy: Occupancy,
        slots: Sequence[Slot],
        snapshot: Snapshot,
        policy: Policy,
        *,
        fair_share: FairShare,
        expects: Callable[[Job], float | None],
    ) -> None:
        self.starts: list[Start] = []
        self.blocked: list[tuple[_Head, Reason]] = []
        """The head of each group that cannot start, and why."""
        self._occupancy = occupancy
        self._policy = policy
        self._fair_share = fair_share
        self._expects = expects
        self._is_limited = policy.max_use is not None or policy.min_free > 0
        self._excess: MaxUse | MinFree | None = None
        self.order = Order(policy, occupancy.now, expects, [slot.kind for slot in slots])
        self._running = len(slots)
        self._counts = Counter(cap.name for slot in slots for cap in slot.caps)
        self._prospects = Prospects(occupancy, snapshot, policy)
        self._reservation: Reservation | None = None
        self._stopped_by: KeptFree | None = None
        """The first blocked job, where the policy lets no job pass it."""

    def serve(self, heads: list[_Head], attempt: Callable[[_Head], Start | Reason]) -> None:
        """Try the jobs in order until each group is empty or blocked."""
        heapify(heads)
        self.blocked = []
        while heads:
            head = heads[0]
            key = self.order.key(head.job)
            if key > head.key:  # a job of the same kind has started meanwhile
                heapreplace(heads, head._replace(key=key))
                continue
            outcome = attempt(head)
            if not isinstance(outcome, Start):
                self.blocked.append((heappop(heads), outcome))
                continue
            self.starts.append(outcome)
            self.order.started(head.job)
            if job := next(head.later, None):
                heapreplace(heads, head._replace(key=self.order.key(job), job_id=job.id, job=job))
            else:
                heappop(heads)

    def start_now(self, head: _Head) -> Start | Reason:
        """Start the head on open devices, or say why not."""
        job, resources = head.job, head.resources
        if barrier := self._barrier(head.shape):
            return self._prospects.never(resources) or barrier
        if resources.gpus == 0:
            self._count(head.shape)
            return Start(job, (), resources=resources)
        if self._stopped_by is not None:
            return self._prospects.never(resources) or self._stopped_by
        offers = self._prospects.offers(resources)
        unreserved = self._unreserved(offers, job, resources)
        devices = choose(unreserved, resources.gpus, resources.required)
        if devices is None:
            return self._prospects.never(resources) or self._block(job, resources, offers)
        if self._is_limited and (excess := self._too_many(resources, devices)):
            devices = choose(self._in_use(unreserved), resources.gpus, resources.required)
            if devices is None:
                return excess
        device_ids = tuple([device.id for device in devices])
        self._count(head.shape)
        seconds = self._expects(job)
        self._prospects.hold(job.id, resources, device_ids, inf if seconds is None else self._occupancy.now + seconds)
        return Start(job, device_ids, resources=resources)

    def prefetch(self, room: Prefetch) -> None:
        """Let blocked jobs follow running attempts on the same worker."""
        reasons = {head.shape: reason for head, reason in self.blocked}

        def start_behind(head: _Head) -> Start | Reason:
            resources, reason = head.resources, reasons[head.shape]
            if slot := room.take(resources, head.shape.caps):
                return Start(head.job, slot.devices, slot.worker, resources)
            if isinstance(reason, AtLimit | CapFull | QueuePaused):  # the end of any attempt might let it start
                room.close_all()
            elif not isinstance(reason, NeverFits):
                room.close(resources)
            return reason

        self.serve([head for head, _ in self.blocked], start_behind)

    def own_demand(self, waiting: WaitingJobs) -> OwnDemand | None:
        """What to publish to other engines, if there are any."""
        if not self._fair_share.shared or not self.blocked:
            return None
        sizes = {group.shape: len(group) for group in waiting.groups()}
        sizes = Counter(sizes) - Counter(shape_of(start.job) for start in self.starts)
        unserved = [Unserved(head.job, head.resources, sizes[head.shape], why) for head, why in self.blocked]
        return own_demand(unserved, self._occupancy, self._policy, self._fair_share)

    def standing_reservation(self) -> Reservation | None:
        """The reservation, unless its job was prefetched after all."""
        reservation = self._reservation
        if reservation and any(start.job.id == reservation.job for start in self.starts):
            return None
        return reservation

    def _barrier(self, shape: Shape) -> AtLimit | CapFull | QueuePaused | None:
        """Limits that block a job whatever devices are free."""
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

    def _unreserved(self, offers: list[Offer], job: Job, resources: Resources) -> list[Offer]:
        """The offers that a job may take without delaying the job that has the reservation."""
        reservation, policy, occupancy = self._reservation, self._policy, self._occupancy
        if reservation is None or may_pass(self._expects(job), reservation, policy, occupancy.now):
            return offers
        return [
            offer
            for offer in offers
            if not _reserved(offer.device, reservation)
            or leaves_room(offer.device, resources, reservation, occupancy, policy=policy)
        ]

    def _too_many(self, resources: Resources, devices: Sequence[Device]) -> NeverFits | MaxUse | MinFree | None:
        """Why these devices exceed the user's limits. Later jobs may not take further devices either."""
        if self._occupancy.names_in_use.issuperset(name for device in devices for name in device.claims):
            return None
        if self._excess is None and (
            excess := exceeds_limits(devices, self._occupancy, self._policy, self._fair_share)
        ):
            if never := self._prospects.never(resources):
                return never
            self._excess = excess
        return self._excess

    def _in_use(self, offers: list[Offer]) -> list[Offer]:
        """The offers of devices that our attempts hold already: more jobs on them exceed no limit."""
        names = self._occupancy.names_in_use
        return [offer for offer in offers if names.issuperset(offer.device.claims)]

    def _block(self, job: Job, resources: Resources, offers: list[Offer]) -> Reason:
        if self._policy.passing == "never":
            self._stopped_by = KeptFree(job.id, resources.gpus)
        elif self._policy.passing == "reserved" and self._reservation is None:
            self._reservation = self._prospects.reserve(job, resources)
        elif self._reservation and choose(offers, resources.gpus, resources.required) is not None:
            return KeptFree(self._reservation.job, self._reservation.gpus)
        return self._prospects.why_blocked(resources)


class _Head(NamedTuple):
    """The next job of a group; sorts by priority, key, then age. Ids are unique."""

    precedence: int
    key: float
    job_id: int
    job: Job
    later: Iterator[Job]
    shape: Shape
    resources: Resources


def _heads(waiting: WaitingJobs, estimate: Estimate, order: Order) -> list[_Head]:
    heads = []
    for group in waiting.groups():
        jobs = iter(group)
        job = next(jobs)
        shape = group.shape
        heads.append(_Head(-shape.priority, order.key(job), job.id, job, jobs, shape, estimate(shape)))
    return heads


def _reserved(device: Device, reservation: Reservation) -> bool:
    return device.id in reservation.devices or not reservation.claims.isdisjoint(device.claims)


class Prospects:
    """Cached answers per resources. There are fewer of them than shapes, which also differ in priority and caps."""

    def __init__(self, occupancy: Occupancy, snapshot: Snapshot, policy: Policy) -> None:
        self._occupancy = occupancy
        self._policy = policy
        self._devices = snapshot.devices
        self._absence = "" if snapshot.devices else snapshot.note
        """Why there is no device at all, where known."""
        self._never: dict[Resources, NeverFits | None] = {}
        self._offers: dict[Resources, list[Offer]] = {}
        self._blocked: dict[Resources, Reason] = {}
        self._unreserved: set[Resources] = set()

    def hold(self, job_id: int, resources: Resources, device_ids: tuple[str, ...], until: float) -> None:
        """Give a job these devices, which changes the answers for all others."""
        self._occupancy.hold(job_id, resources, device_ids, until)
        self._offers.clear()
        self._blocked.clear()
        self._unreserved.clear()

    def never(self, resources: Resources) -> NeverFits | None:
        """Why the resources can never be met; None where they can."""
        if resources not in self._never:
            sentence = never_fits(resources, self._devices) or never_within_limits(
                resources.gpus, self._devices, self._policy
            )
            self._never[resources] = NeverFits(self._absence or sentence) if sentence else None
        return self._never[resources]

    def offers(self, resources: Resources) -> list[Offer]:
        """The devices that are open for the resources."""
        offers = self._offers.get(resources)
        if offers is None:
            offers = self._offers[resources] = self._find_offers(resources)
        return offers

    def why_blocked(self, resources: Resources) -> Reason:
        reason = self._blocked.get(resources)
        if reason is None:
            reason = self._blocked[resources] = why_blocked(resources, self._occupancy)
        return reason

    def reserve(self, job: Job, resources: Resources) -> Reservation | None:
        """The devices that will be open first for a job. Whether there are any depends only on its resources."""
        if resources in self._unreserved:
            return None
        reservation = reserve(job, resources, self._occupancy)
        if reservation is None:
            self._unreserved.add(resources)
        return reservation

    def _find_offers(self, resources: Resources) -> list[Offer]:
        offers = []
        for view in self._occupancy.views:
            if suits(view.device, resources) and (fit := self._occupancy.fit(view, resources)) is not None:
                rank = preference(view.device, resources), *self._occupancy.crowding(view, resources), fit
                offers.append(Offer(rank, view.order, view.device))
        return offers


Outside = Leased | Yields | Occupied | Drained | Unusable | Draining
"""Reasons of a device that remain when all our own jobs have ended."""

_MOST_TELLING_FIRST = (Yields, Leased, Occupied, Drained, Unusable, Draining)


def why_blocked(resources: Resources, occupancy: Occupancy) -> Crowded | MemoryShort | TooBusy | Outside:
    """Why resources that the machine has are not free."""
    if resources.required and not _required_open(resources, occupancy):
        required = structs.replace(resources, gpus=len(resources.required), allowed=resources.required, required=())
        return why_blocked(required, occupancy)
    suited = [view for view in occupancy.views if suits(view.device, resources)]
    outside = [blame for view in suited if (blame := _outside(view, resources, occupancy)) is not None]
    if outside and len(suited) - len(outside) < resources.gpus:
        blame = _counted(min(outside, key=lambda blame: _MOST_TELLING_FIRST.index(type(blame))), outside)
        return (
            _detailed(blame, resources, suited, occupancy) if isinstance(blame, Leased) and resources.shares else blame
        )
    if resources.shares and (short := _short_of_room(resources, suited, occupancy)):
        return short
    return _crowded(resources, suited, occupancy)


def _counted(blame: Outside, outside: Sequence[Outside]) -> Outside:
    """Add the number of devices that the same lease owner holds."""
    if not isinstance(blame, Leased):
        return blame
    alike = sum(isinstance(one, Leased) and (one.owner, one.what) == (blame.owner, blame.what) for one in outside)
    return structs.replace(blame, gpus=alike)


def _detailed(blame: Leased, resources: Resources, suited: Sequence[View], occupancy: Occupancy) -> Leased:
    """Add what the job is short of beside the leases of others. The end of our own jobs would not help it."""
    short = _short_of_room(resources, suited, occupancy)
    return structs.replace(blame, short=short and structs.replace(short, first_to_end=None))


def _required_open(resources: Resources, occupancy: Occupancy) -> bool:
    required = [view for view in occupancy.views if view.device.id in resources.required]
    return all(occupancy.fit(view, resources) is not None for view in required)


def _outside(view: View, resources: Resources, occupancy: Occupancy) -> Outside | None:
    """What would block a device even if none of our own jobs ran."""
    if view.closed is not None:
        return view.closed
    if occupancy.fit(view, resources, FOREVER) is not None:
        return None
    if lease := occupancy.lease(view):
        return Leased(view.device.label, lease.owner, lease.what)
    return Occupied(view.device.label, view.who, view.gone)


def _short_of_room(resources: Resources, suited: Sequence[View], occupancy: Occupancy) -> MemoryShort | TooBusy | None:
    """What is missing on the device with the most memory to spare, where the job could share one."""
    rooms = [
        (occupancy.room(view, resources), amount, view)
        for view in suited
        if view.closed is None and (amount := amount_on(resources, view.device)) is not None
    ]
    if not rooms:
        return None
    first = _first_to_end(suited, occupancy)
    room, amount, view = max(rooms, key=lambda one: one[0].memory - one[1])
    if amount <= room.memory:
        return _too_busy(room, resources, view, occupancy, first)
    return MemoryShort(amount, room.memory, view.device.label, first) if room.memory > 0 else None


def _too_busy(room: Room, resources: Resources, view: View, occupancy: Occupancy, first: int | None) -> TooBusy | None:
    load = load_on(resources, view.device)
    if room.load is None or load <= room.load:
        return None
    return TooBusy(view.device.label, occupancy.busy - room.load + load, occupancy.busy, first)


def _crowded(resources: Resources, suited: Sequence[View], occupancy: Occupancy) -> Crowded:
    free = most_at_once(view.device for view in suited if occupancy.fit(view, resources) is not None)
    return Crowded(resources.gpus, free, _first_to_end(suited, occupancy), _is_unmeasured(resources, suited))


def _is_unmeasured(resources: Resources, suited: Sequence[View]) -> bool:
    """Whether the job needs exclusive GPUs only for its first run, which measures its memory."""
    known = dict(resources.predicted)
    return resources.auto and all(view.device.memory and view.device.model not in known for view in suited)


def _first_to_end(suited: Sequence[View], occupancy: Occupancy) -> int | None:
    holdings = [holding for view in suited for holding in occupancy.holdings(view) if holding.sure]
    ends = [(holding.until, holding.job) for holding in holdings]
    until, job_id = min(ends, default=(inf, 0))
    return None if until == inf else job_id
