"""Plan: a start or a reason to wait for every lane of waiting jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.booking import LEARNT_FACTOR, LEARNT_SECONDS, UNKNOWN_SECONDS, Booking
from stoker.core.device import Device, Snapshot
from stoker.core.job import Job, limit_of
from stoker.core.learning import Learnt
from stoker.core.lease import Lease
from stoker.core.planner.displacement import (
    LEAST_RUN_SECONDS,
    RECHECK_SECONDS,
    Displacement,
    Handover,
    StartLimits,
    VainSearch,
    View,
    Waiter,
    displace,
    next_look,
)
from stoker.core.planner.fairshare import NO_OTHER_ENGINES, FairShare, OwnDemand, Unserved, exceeds_limits, own_demand
from stoker.core.planner.lanes import Estimate, LaneCursor, LaneKey, LaneRow, Lanes, reason_key
from stoker.core.planner.occupancy import Occupancy, Slot
from stoker.core.planner.order import Order
from stoker.core.planner.placement import (
    DeviceOffer,
    PlacementCache,
    Prefetch,
    Reservation,
    choose,
    leaves_room,
    may_pass,
)
from stoker.core.planner.queue import (
    Cap,
    JobKind,
    ReasonKey,
    WaitingGroup,
    WaitingJobs,
    job_kind_of,
    resolved,
    without_memory,
)
from stoker.core.planner.reasons import (
    AtLimit,
    Booked,
    CapFull,
    KeptFree,
    MaxUse,
    MinFree,
    NeverFits,
    OutOfResources,
    QueuePaused,
    Reason,
    Unclaimable,
    WeekUsed,
)
from stoker.core.settings import Policy
from stoker.core.spec import Resources

LISTED_LANES = 100
"""Lanes of a row whose reasons are shown."""

BACKFILL_DEPTH = 100
"""Groups of a lane that are examined for one short enough to pass the job that has the reservation."""

EXAMINED_IN_ROW = 32
"""Oldest jobs of a row for which running jobs may give way."""

_NEVER_FREED: Mapping[str, float] = MappingProxyType({})
_NONE_MORE: Mapping[str, int] = MappingProxyType({})
NOTHING_LEARNT = Learnt()

_Barrier = AtLimit | CapFull | QueuePaused | OutOfResources | Unclaimable | WeekUsed | KeptFree
"""Reasons that hold for a row whatever memory its jobs need."""


def nothing_learnt(job_kind: JobKind) -> Resources:
    """The estimate without history: what the jobs ask for, and at least what earlier failures showed."""
    return resolved(job_kind, NOTHING_LEARNT, 0)


class Start(Struct, frozen=True):
    """Start the job on these devices; `behind` is the worker whose running attempt it follows, if prefetched."""

    job: Job
    devices: tuple[str, ...]
    behind: str = ""
    resources: Resources = Resources()
    """Reserved on them: the resources of the spec, completed by what was learnt."""


class WaitReasons:
    """Why jobs wait: reasons of the jobs that were examined, and on demand those of jobs refused with their row."""

    def __init__(self, placement_cache: PlacementCache) -> None:
        self._placement_cache = placement_cache
        self._examined: dict[ReasonKey, Reason] = {}
        self._refused: dict[ReasonKey, _Barrier | None] = {}
        self._rows: list[LaneRow] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WaitReasons) and (self._examined, self._refused) == (other._examined, other._refused)

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return bool(self._examined or self._refused)

    def add(self, key: ReasonKey, reason: Reason) -> None:
        self._examined.setdefault(key, reason)

    def add_row(self, row: LaneRow, barrier: _Barrier | None) -> None:
        """Add a row that was refused because of a barrier, or because it finds no open device."""
        self._refused.setdefault(row.key.reason, barrier)
        self._rows.append(row)

    def of(self, key: ReasonKey) -> Reason | None:
        """Why such jobs wait; None if none waits."""
        reason = self._examined.get(key)
        if reason is not None:
            return reason
        rough = without_memory(key)
        if rough not in self._refused:
            return None
        never = self._placement_cache.never(key.resources)
        return never or self._refused[rough] or self._placement_cache.why_blocked(key.resources)

    def items(self) -> Iterator[tuple[ReasonKey, Reason]]:
        """Reasons to show: all of the jobs that were examined, and some of each row. Call it before the next plan."""
        yield from self._examined.items()
        listed = (lane for row in self._rows for lane in islice(row.lanes, LISTED_LANES))
        for key in dict.fromkeys(reason_key(lane.key) for lane in listed):
            if key not in self._examined and (reason := self.of(key)):
                yield key, reason


class Plan(Struct, frozen=True):
    """The jobs to start now, and the reasons of those that wait."""

    starts: tuple[Start, ...]
    waits: WaitReasons
    estimate: Estimate
    reserved: Reservation | None = None
    own_demand: OwnDemand | None = None
    """The demand to publish to other engines."""
    displacements: tuple[Displacement, ...] = ()
    """Running jobs to ask to give way."""
    handovers: tuple[Handover, ...] = ()
    """Those of `displacements`, and those given to the plan that still hold."""
    look_again: float | None = None
    """When to plan again even if nothing happens: a running job may give way then."""

    def reason(self, job: Job) -> Reason | None:
        """Why a job waits; None when it starts or is not in the plan."""
        if any(start.job.id == job.id for start in self.starts):
            return None
        job_kind = job_kind_of(job)
        return self.waits.of(ReasonKey(self.estimate(job_kind), job_kind.priority, job_kind.caps))


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
    lanes: Lanes | None = None,
    handovers: Sequence[Handover] = (),
    bookings: Sequence[Booking] = (),
) -> Plan:
    """Decide for every waiting job, by priority and then in the order of the policy.

    `leases` are those of other engines. `freed` is when our last attempt on each device ended. `expects` gives the
    seconds that a job takes, if a limit or history tells; `estimate` the resources to reserve. `lanes` hold the same
    waiting jobs, kept from plan to plan; without them all jobs are filed anew. Only the oldest job of each lane is
    examined, and one more per start: the job that cannot start gives the reason of its whole lane. `handovers` are
    devices that running jobs leave, or have left, for a waiting one. `bookings` are those of other users.
    """
    occupancy = Occupancy(
        slots, snapshot, leases, policy=policy, now=now, freed=freed, left=fair_share.left, bookings=bookings
    )
    order = Order(policy, now, expects, Counter(slot.kind for slot in slots))
    touched = {group.job_kind for group in waiting.groups()} if lanes is None else waiting.take_touched()
    lanes = Lanes(waiting, estimate) if lanes is None else lanes
    lanes.refresh(order, touched)
    placement_cache = PlacementCache(occupancy, snapshot, policy)
    planner = _Planner(
        occupancy, placement_cache, slots, lanes=lanes, order=order, policy=policy, fair_share=fair_share
    )
    if handovers:
        planner.hand_over(handovers, waiting)
    planner.serve([planner.head(row) for row in lanes.rows], planner.start_now, BACKFILL_DEPTH)
    if planner.blocked and policy.out_of_resources is None and any(slot.room > 0 for slot in slots):
        planner.prefetch(Prefetch(slots, occupancy))
    displacements: list[Displacement] = []
    look_again = None
    if planner.blocked and any(slot.preemption is not None for slot in slots):
        situation = (
            *map(_standing, slots),
            *leases,
            *handovers,
            *bookings,
            bool(planner.starts or planner.keeps_all()),
        )
        if lanes.vain is not None and lanes.vain.holds(situation, now):
            look_again = lanes.vain.until
        else:
            displacements = planner.displace(
                slots,
                [group for group in waiting.groups() if group.job_kind.urgent],
                lambda slots: Occupancy(
                    slots, snapshot, leases, policy=policy, now=0.0, freed=freed, bookings=timeless(bookings, now)
                ),
            )
            look_again = next_look(slots, now)
            until = min(now + RECHECK_SECONDS, inf if look_again is None else look_again)
            lanes.vain = None if displacements else VainSearch(situation, now, until)
    starts, waits = tuple(planner.starts), planner.waits()
    return Plan(
        starts,
        waits,
        estimate,
        planner.standing_reservation(),
        planner.own_demand(),
        tuple(displacements),
        (*planner.handovers, *(Handover(asked.for_job, asked.devices) for asked in displacements)),
        look_again,
    )


class _Head(NamedTuple):
    """The next job of a row or a lane; sorts by priority, key, then age. Ids are unique."""

    precedence: int
    key: float
    job_id: int
    job: Job
    source: LaneRow | LaneCursor


class _Blocked(NamedTuple):
    """A row, or the rest of a lane, that cannot start: its first job, and why. None is that no device is open."""

    source: LaneRow | LaneCursor
    job: Job
    resources: Resources
    reason: Reason | None


class _Planner:
    """The state while a plan is made: every start changes what is open for the jobs after it."""

    def __init__(
        self,
        occupancy: Occupancy,
        placement_cache: PlacementCache,
        slots: Sequence[Slot],
        *,
        lanes: Lanes,
        order: Order,
        policy: Policy,
        fair_share: FairShare,
    ) -> None:
        self.starts: list[Start] = []
        self.blocked: list[_Blocked] = []
        self._occupancy = occupancy
        self._placement_cache = placement_cache
        self._lanes = lanes
        self._order = order
        self._policy = policy
        self._fair_share = fair_share
        self._is_limited = policy.max_use is not None or policy.min_free > 0 or policy.locked.gpus is not None
        self._excess: MaxUse | MinFree | None = None
        self._running = len(slots)
        self._counts = Counter(cap.name for slot in slots for cap in slot.caps)
        self._reservation: Reservation | None = None
        self._stopped_by: KeptFree | None = None
        """The first blocked job, if the policy lets no job pass it."""
        self.handovers: list[Handover] = []
        self._handed_counts: Counter[str] = Counter()
        """How many of their jobs count towards each cap."""
        self._kept: dict[str, int] = {}
        """Ledger name or id of a device -> the job that it is kept for."""
        self._served: set[int] = set()
        """Jobs that have started on devices that were kept for them."""

    def head(self, source: LaneRow | LaneCursor) -> _Head:
        # The key by the work of the lane: if that of its first job has grown, the job must not hide those after it.
        job = source.job
        return _Head(-source.priority, self._order.key(job, source.key.work), job.id, job, source)

    def serve(self, heads: list[_Head], attempt: Callable[[Job, LaneKey], Start | Reason], depth: int = 0) -> None:
        """Try the jobs in order until each lane is empty or blocked; `depth` as in `_refuse`."""
        heapify(heads)
        self.blocked = []
        while heads:
            head = heads[0]
            job, source = head.job, head.source
            if isinstance(source, LaneRow):
                heappop(heads)
                is_moved = bool(self.starts) and self._order.work(job) != source.key.work
                is_moved = is_moved or job.id in self._served
                barrier = self._barrier(source.key.reason.caps) or self._closed()
                if not is_moved and self._refuses(source, job, barrier):
                    self.blocked.append(_Blocked(source, job, source.resources, barrier))
                else:
                    for lane in source.lanes:
                        heappush(heads, self.head(LaneCursor(lane.key, lane.groups)))
                continue
            if job.id in self._served:
                source.advance()
                self._go_on(source, heads)
                continue
            work = self._order.work(job)
            if work != source.key.work:  # a job of the same kind has started in this plan
                heapreplace(heads, self.head(source.split(work)))
                if source:
                    heappush(heads, self.head(source))
                continue
            outcome = attempt(job, source.key)
            if not isinstance(outcome, Start):
                heappop(heads)
                self._refuse(source, outcome, heads, depth)
                continue
            self.starts.append(outcome)
            self._order.started(job)
            source.advance()
            self._go_on(source, heads)

    def _go_on(self, source: LaneCursor, heads: list[_Head]) -> None:
        """Put the next job of a lane in the place of its first."""
        if source:
            heapreplace(heads, self.head(source))
        else:
            heappop(heads)

    def _refuse(self, lane: LaneCursor, reason: Reason, heads: list[_Head], depth: int) -> None:
        """Block a lane. If only the reservation blocks it, go on with its next job that ends early enough to pass.

        The jobs of a lane are about the same work, but do not take the same time; so many groups of them are examined.
        A job that may pass and still cannot start is blocked by devices that are kept for another, as all after it are.
        """
        job, blocked = lane.job, lane
        passes = self._passes(lane, reason) if depth > 0 else None
        if passes is not None:
            blocked = lane.split_until(passes, depth)
            if lane:
                heappush(heads, self.head(lane))
        self.blocked.append(_Blocked(blocked, job, lane.key.resources, reason))

    def _passes(self, lane: LaneCursor, reason: Reason) -> Callable[[Job], bool] | None:
        """Which jobs of a lane a reservation or booking does not stop, if one stops the first; else None."""
        reservation, resources = self._reservation, lane.key.resources
        if isinstance(reason, KeptFree):
            if reservation is None or self._may_pass(lane.job, reservation):
                return None
            if not self._occupancy.is_booked:
                return lambda job: self._may_pass(job, reservation)
        elif not (isinstance(reason, Booked) and reason.later):
            return None
        return lambda job: choose(self._available(job, resources), resources.gpus, resources.required) is not None

    def _may_pass(self, job: Job, reservation: Reservation) -> bool:
        return may_pass(self._order.expects(job), reservation, self._policy, self._occupancy.now)

    def start_now(self, job: Job, key: LaneKey) -> Start | Reason:
        """Start the job on open devices, or say why not."""
        resources = key.resources
        if barrier := self._barrier(key.caps):
            return self._placement_cache.never(resources) or barrier
        if resources.gpus == 0:
            self._count(key.caps)
            return Start(job, (), resources=resources)
        if unclaimable := self._fair_share.unclaimable:
            return self._placement_cache.never(resources) or unclaimable
        if closed := self._closed():
            return self._placement_cache.never(resources) or closed
        available = self._available(job, resources)
        devices = choose(available, resources.gpus, resources.required)
        if devices is None:
            return self._placement_cache.never(resources) or self._block(job, resources)
        if self._is_limited and (excess := self._too_many(resources, devices)):
            devices = choose(self._in_use(available), resources.gpus, resources.required)
            if devices is None:
                return excess
        device_ids = tuple([device.id for device in devices])
        self._count(key.caps)
        seconds = self._order.expects(job)
        self._placement_cache.assign(
            job.id, resources, device_ids, inf if seconds is None else self._occupancy.now + seconds
        )
        return Start(job, device_ids, resources=resources)

    def hand_over(self, handovers: Sequence[Handover], waiting: WaitingJobs) -> None:
        """Start the jobs for which others gave way, and keep devices that are not free yet."""
        for handover in handovers:
            job = waiting.get(handover.job)
            if job is None:
                continue
            job_kind = job_kind_of(job)
            resources = self._lanes.estimate(job_kind)
            device_ids = self._completed(handover.devices, job, resources)
            names = self._occupancy.names_of(device_ids)
            if self._occupancy.will_be_open(device_ids, resources):
                self.handovers.append(Handover(job.id, device_ids))
                self._handed_counts.update(cap.name for cap in job_kind.caps)
                self._kept.update(dict.fromkeys(names, job.id))
                continue
            outcome = self.start_now(job, LaneKey(job_kind.priority, job_kind.caps, 0.0, resources))
            if isinstance(outcome, Start):
                self.starts.append(outcome)
                self._order.started(job)
                self._served.add(job.id)

    def _completed(self, device_ids: tuple[str, ...], job: Job, resources: Resources) -> tuple[str, ...]:
        """The devices that others leave for a job, and open ones if it needs more and there are enough."""
        lacking = resources.gpus - len(device_ids)
        if lacking <= 0:
            return device_ids
        offers = [offer for offer in self._available(job, resources) if offer.device.id not in device_ids]
        return (*device_ids, *(device.id for device in choose(offers, lacking) or ()))

    def _available(self, job: Job, resources: Resources) -> list[DeviceOffer]:
        """The open devices that are neither booked nor kept for another."""
        offers = self._unbooked(self._placement_cache.offers(resources), job)
        return self._unreserved(self._unkept(offers, job), job, resources)

    def _unbooked(self, offers: list[DeviceOffer], job: Job) -> list[DeviceOffer]:
        """The offers of devices that no other user has booked for a time before the job may end."""
        if not self._occupancy.is_booked:
            return offers
        now, seconds = self._occupancy.now, self._seconds_beside_bookings(job)
        return [offer for offer in offers if self._occupancy.free_from(offer.device, now, seconds) <= now]

    def _seconds_beside_bookings(self, job: Job) -> float:
        """How long a job needs a device that is booked for later; a preemptible one leaves it in time."""
        expected, limit = self._order.expects(job), limit_of(job)
        seconds = UNKNOWN_SECONDS if expected is None else LEARNT_FACTOR * expected + LEARNT_SECONDS
        seconds = seconds if limit is None else min(seconds, limit)
        return min(seconds, LEAST_RUN_SECONDS + job.spec.save_time) if job.spec.preemptible else seconds

    def _booked(
        self, job: Job, resources: Resources, offers: list[DeviceOffer], unbooked: list[DeviceOffer]
    ) -> Booked | None:
        """The booking without which a job could start now."""
        if len(offers) == len(unbooked) or choose(offers, resources.gpus, resources.required) is None:
            return None
        if choose(unbooked, resources.gpus, resources.required) is not None:
            return None
        until = self._occupancy.now + self._seconds_beside_bookings(job)
        booked_devices = [self._occupancy.booked(offer.device, until) for offer in offers if offer not in unbooked]
        first = min(filter(None, booked_devices), key=lambda booked: booked.since, default=None)
        return first and replace(first, unlimited=self._order.expects(job) is None)

    def _unkept(self, offers: list[DeviceOffer], job: Job) -> list[DeviceOffer]:
        """The offers that are not kept for another job."""
        if not self._kept:
            return offers
        return [
            offer
            for offer in offers
            if all(self._kept.get(name, job.id) == job.id for name in (offer.device.id, *offer.device.claims))
        ]

    def keeps_all(self) -> bool:
        """Whether no job may have a device now, or what jobs leave might become another user's."""
        return self._closed() is not None or bool(self._fair_share.left)

    def displace(self, slots: Sequence[Slot], urgent: Sequence[WaitingGroup], view: View) -> list[Displacement]:
        """The running jobs that give way to blocked ones."""
        if self.keeps_all():
            return []
        kept = {device_id for handover in self.handovers for device_id in handover.devices}
        running = [slot if kept.isdisjoint(slot.devices) else replace(slot, preemption=None) for slot in slots]
        running += [Slot("", start.job.id, start.resources, start.devices) for start in self.starts if not start.behind]
        served = {start.job.id for start in self.starts} | {handover.job for handover in self.handovers}
        first = [waiter for group in urgent for waiter in self._urgent(group) if waiter.job.id not in served]
        waiters = partial(self._waiters_below, served)
        limits = StartLimits(self._may_start, self._may_use)
        return displace(lambda most: (*first, *waiters(most)), running, view, limits, self._policy, self._occupancy.now)

    def _may_start(self, waiter: Waiter, served: Sequence[Waiter]) -> bool:
        """Whether a job may start beside those for which others give way, or gave way before."""
        caps = job_kind_of(waiter.job).caps
        taken = [cap.name for other in served for cap in job_kind_of(other.job).caps] if caps else []
        return not caps or not self._barrier(caps, self._handed_counts + Counter(taken))

    def _may_use(self, waiter: Waiter, device_ids: Sequence[str], view: Occupancy, leaving: Collection[int]) -> bool:
        """Whether the limits of the user allow a job these devices once others have left."""
        devices = self._placement_cache.devices(device_ids)
        now, seconds = self._occupancy.now, self._seconds_beside_bookings(waiter.job)
        if any(self._occupancy.free_from(device, now, seconds) > now for device in devices):
            return False
        if not self._is_limited:
            return True
        if self._placement_cache.never(waiter.resources):
            return False
        names = {name for device in devices for name in device.claims}
        return names <= view.names_in_use(leaving) or not exceeds_limits(
            devices, view, self._policy, self._fair_share, leaving
        )

    def _urgent(self, group: WaitingGroup) -> Iterator[Waiter]:
        """The oldest jobs of an urgent kind, if they only wait for devices."""
        resources = self._lanes.estimate(group.job_kind)
        if resources.gpus and not self._barrier(group.job_kind.caps):
            for job in islice(group, EXAMINED_IN_ROW):
                yield Waiter(job, resources, self._seconds(job), is_first=True)

    def _seconds(self, job: Job) -> float:
        expected = self._order.expects(job)
        return self._policy.unknown if expected is None else expected

    def _waiters_below(self, served: Collection[int], most: float) -> Iterator[Waiter]:
        """The jobs that only wait for devices, and need fewer GPU-seconds than this."""
        for row in self._lanes.rows:
            if row.key.work > 2 * most or not row.resources.gpus or self._barrier(row.key.reason.caps):
                continue
            for job in row.oldest(EXAMINED_IN_ROW):
                resources = self._lanes.estimate(job_kind_of(job))
                seconds = self._seconds(job)
                if job.id not in served and not job.spec.urgent and seconds * resources.gpus < most:
                    limit = limit_of(job)
                    yield Waiter(job, resources, seconds, is_first=limit is not None and limit <= self._policy.short)

    def prefetch(self, room: Prefetch) -> None:
        """Let blocked jobs follow running attempts on the same worker."""
        reasons: dict[ReasonKey, Reason] = {}
        cursors = []
        for blocked in self.blocked:
            source = blocked.source
            if isinstance(source, LaneCursor):
                reasons.setdefault(reason_key(source.key), self._reason(source.key.resources, blocked.reason))
                cursors.append(source)
                continue
            for lane in source.lanes:
                reasons.setdefault(reason_key(lane.key), self._reason(lane.key.resources, blocked.reason))
                cursors.append(LaneCursor(lane.key, lane.groups))

        def start_behind(job: Job, key: LaneKey) -> Start | Reason:
            resources, reason = key.resources, reasons[reason_key(key)]
            if slot := room.take(resources, key.caps):
                return Start(job, slot.devices, slot.worker, resources)
            if isinstance(reason, AtLimit | CapFull | QueuePaused):  # the end of any attempt might let it start
                room.close_all()
            elif not isinstance(reason, NeverFits):
                room.close(resources)
            return reason

        self.serve([self.head(cursor) for cursor in cursors], start_behind)

    def waits(self) -> WaitReasons:
        """Why the jobs wait that do not start."""
        waits = WaitReasons(self._placement_cache)
        for source, _, _, reason in self.blocked:
            if isinstance(source, LaneCursor):
                assert reason is not None
                waits.add(reason_key(source.key), reason)
            else:
                assert reason is None or isinstance(reason, _Barrier)
                waits.add_row(source, reason)
        return waits

    def own_demand(self) -> OwnDemand | None:
        """The demand to publish to other engines, if there are any."""
        if not self._fair_share.shared or not self.blocked:
            return None
        unserved = [
            Unserved(job, resources, source.size, self._reason(resources, why))
            for source, job, resources, why in self.blocked
        ]
        return own_demand(unserved, self._occupancy, self._policy, self._fair_share)

    def _reason(self, resources: Resources, row_reason: Reason | None) -> Reason:
        """Why a blocked job waits, if only that of its row is known."""
        return self._placement_cache.never(resources) or row_reason or self._placement_cache.why_blocked(resources)

    def standing_reservation(self) -> Reservation | None:
        """The reservation, unless its job was prefetched after all."""
        reservation = self._reservation
        if reservation and any(start.job.id == reservation.job for start in self.starts):
            return None
        return reservation

    def _refuses(self, row: LaneRow, job: Job, barrier: _Barrier | None) -> bool:
        """Whether no job of a row can start, of which this is the oldest; if not, its lanes are examined one by one."""
        resources = row.resources
        if not resources.gpus or self._placement_cache.never(resources):
            return False
        if barrier is not None:
            return True
        least = self._lanes.least(row)
        if choose(self._placement_cache.offers(least), least.gpus, least.required) is not None:
            return False
        if self._policy.passing == "never":
            self._stopped_by = KeptFree(job.id, resources.gpus)
        elif self._policy.passing == "reserved" and self._reservation is None:
            self._reservation = self._reserve(job, resources)
            return self._reservation is not None or self._placement_cache.reserve(job, least) is None
        return True

    def _closed(self) -> Unclaimable | WeekUsed | KeptFree | None:
        """Why no job may have a device."""
        return self._fair_share.unclaimable or self._policy.week_used or self._stopped_by

    def _barrier(
        self, caps: tuple[Cap, ...], more: Mapping[str, int] = _NONE_MORE
    ) -> AtLimit | CapFull | QueuePaused | OutOfResources | None:
        """Limits that block a job whatever devices are free; `more` jobs than run count towards each cap."""
        policy = self._policy
        if policy.paused:
            return QueuePaused(policy.paused)
        if policy.out_of_resources is not None and (self.starts or not policy.probe):
            return policy.out_of_resources
        if policy.max_running is not None and self._running + len(self.starts) >= policy.max_running:
            return AtLimit(policy.max_running)
        for cap in caps:
            limit = policy.limits.get(cap.name) if cap.limit is None else cap.limit
            if limit is not None and self._counts[cap.name] + more.get(cap.name, 0) >= limit:
                return CapFull(cap.name, limit)
        return None

    def _count(self, caps: tuple[Cap, ...]) -> None:
        self._counts.update(cap.name for cap in caps)

    def _unreserved(self, offers: list[DeviceOffer], job: Job, resources: Resources) -> list[DeviceOffer]:
        """The offers that a job may take without delaying the job that has the reservation."""
        reservation = self._reservation
        if reservation is None or self._may_pass(job, reservation):
            return offers
        return [
            offer
            for offer in offers
            if not _reserved(offer.device, reservation)
            or leaves_room(offer.device, resources, reservation, self._occupancy, policy=self._policy)
        ]

    def _too_many(self, resources: Resources, devices: Sequence[Device]) -> NeverFits | MaxUse | MinFree | None:
        """Why these devices exceed the user's limits. Later jobs may not take further devices either."""
        if self._occupancy.names_in_use().issuperset(name for device in devices for name in device.claims):
            return None
        if self._excess is None and (
            excess := exceeds_limits(devices, self._occupancy, self._policy, self._fair_share)
        ):
            if never := self._placement_cache.never(resources):
                return never
            self._excess = excess
        return self._excess

    def _in_use(self, offers: list[DeviceOffer]) -> list[DeviceOffer]:
        """The offers of devices that our attempts hold already: more jobs on them exceed no limit."""
        names = self._occupancy.names_in_use()
        return [offer for offer in offers if names.issuperset(offer.device.claims)]

    def _reserve(self, job: Job, resources: Resources) -> Reservation | None:
        seconds = self._seconds_beside_bookings(job) if self._occupancy.is_booked else 0.0
        return self._placement_cache.reserve(job, resources, seconds)

    def _block(self, job: Job, resources: Resources) -> Reason:
        """Why a job that finds no devices waits; it gets the reservation if it is the first."""
        open_offers = self._placement_cache.offers(resources)
        offers = self._unbooked(open_offers, job)
        booked = self._booked(job, resources, open_offers, offers)
        keeper = self._keeper(job, resources, offers)
        if self._policy.passing == "never":
            self._stopped_by = KeptFree(job.id, resources.gpus)
        elif self._policy.passing == "reserved" and self._reservation is None:
            self._reservation = self._reserve(job, resources)
        elif keeper is None and self._reservation and choose(offers, resources.gpus, resources.required) is not None:
            moment = self._reservation.moment if self._reservation.sure else None
            return KeptFree(self._reservation.job, self._reservation.gpus, moment)
        return keeper or booked or self._placement_cache.why_blocked(resources)

    def _keeper(self, job: Job, resources: Resources, offers: list[DeviceOffer]) -> KeptFree | None:
        """The job for which open devices are kept; None if without it, too, the job could not start."""
        if not self._kept or choose(offers, resources.gpus, resources.required) is None:
            return None
        unkept = self._unkept(offers, job)
        kept = [offer.device.id for offer in offers if offer not in unkept]
        return KeptFree(self._kept[kept[0]], len(kept)) if len(unkept) < resources.gpus else None


def timeless(bookings: Sequence[Booking], now: float) -> list[Booking]:
    """Those that have begun, for a view of the machine in which no time passes."""
    return [replace(booking, since=-inf, until=inf) for booking in bookings if booking.since <= now < booking.until]


def _standing(slot: Slot) -> tuple[int, tuple[str, ...], int | None]:
    """The properties of a running attempt on which it depends who gives way, besides time."""
    return slot.job, slot.devices, None if slot.preemption is None else slot.preemption.times


def _reserved(device: Device, reservation: Reservation) -> bool:
    return device.id in reservation.devices or not reservation.claims.isdisjoint(device.claims)
