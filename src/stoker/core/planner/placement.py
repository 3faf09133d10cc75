"""Which devices a job gets, what a blocked job reserves, and which jobs are prefetched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from heapq import heapify, heappop, heapreplace
from math import inf
from typing import NamedTuple

from msgspec import Struct, structs

from stoker.core.device import Device, Snapshot
from stoker.core.job import Job, Waiting
from stoker.core.planner.occupancy import FOREVER, NOW, DeviceView, Headroom, Occupancy, Slot
from stoker.core.planner.queue import Cap
from stoker.core.planner.reasons import (
    Booked,
    Crowded,
    Drained,
    Draining,
    Leased,
    MemoryShort,
    NeverFits,
    Occupied,
    Reason,
    TooBusy,
    Unusable,
    Yields,
    most_at_once,
    never_fits,
)
from stoker.core.settings import Policy, beyond_rules
from stoker.core.spec import Resources, amount_on, load_on, suits


class DeviceOffer(NamedTuple):
    """A device that a job could have. Smaller rank, then smaller order, is better; orders are unique."""

    rank: tuple[float, ...]
    order: int
    device: Device


def preference(device: Device, resources: Resources) -> int:
    """The rank of a device among the required and preferred ones; all others come after them."""
    wanted = resources.required + resources.preferred
    return wanted.index(device.id) if device.id in wanted else len(wanted)


def choose(offers: list[DeviceOffer], count: int, required: Sequence[str] = ()) -> tuple[Device, ...] | None:
    """The best `count` devices without a common claim: the required ones, and near each other among equals."""
    if len(offers) < count or (required and not {offer.device.id for offer in offers}.issuperset(required)):
        return None
    if count == 1:
        return (min(offers).device,)
    offers = sorted(offers)
    equals = [offer for offer in offers if offer.rank == offers[0].rank]
    seeds = equals if any(offer.device.near for offer in equals) else equals[:1]
    sets = [*(_grow(seed, offers, count) for seed in seeds), _most(offers, count)]
    best = min((chosen for chosen in sets if len(chosen) == count), key=_badness, default=None)
    return tuple(offer.device for offer in sorted(best)) if best else None


def _most(offers: Sequence[DeviceOffer], count: int) -> list[DeviceOffer]:
    """Devices with fewest claims first, since a slot of several GPUs competes with single ones."""
    fewest_claims_first = sorted(offers, key=lambda offer: (len(offer.device.claims), offer))
    chosen: list[DeviceOffer] = []
    claimed: set[str] = set()
    for offer in fewest_claims_first:
        if len(chosen) < count and claimed.isdisjoint(offer.device.claims):
            chosen.append(offer)
            claimed.update(offer.device.claims)
    return chosen


def _grow(seed: DeviceOffer, offers: Sequence[DeviceOffer], count: int) -> list[DeviceOffer]:
    """Add the best remaining offer to the seed until there are enough, or none is left that fits."""
    chosen = [seed]
    left = list(offers)
    while len(chosen) < count:
        newest = chosen[-1]
        left = [offer for offer in left if offer is not newest and _apart(offer.device, newest.device)]
        if not left:
            break
        chosen.append(min(left, key=lambda offer: (offer.rank, _distance(offer, chosen), offer.order)))
    return chosen


def _apart(device: Device, other: Device) -> bool:
    return not any(claim in other.claims for claim in device.claims)


def _badness(chosen: list[DeviceOffer]) -> tuple[list[tuple[float, ...]], int]:
    return sorted(offer.rank for offer in chosen), sum(_distance(offer, chosen) for offer in chosen)


def _distance(offer: DeviceOffer, others: Sequence[DeviceOffer]) -> int:
    near = offer.device.near
    return sum(near.index(other.device.id) if other.device.id in near else len(near) for other in others)


class Prefetch:
    """Distributes jobs evenly behind running attempts, and none on a device that an earlier job waits for.

    That keeps the order of the queue: a prefetched job gets the device before any other job can.
    """

    def __init__(self, slots: Sequence[Slot], occupancy: Occupancy) -> None:
        self._occupancy = occupancy
        self._wanted: set[str] = set()
        self._roomy: dict[tuple[Resources, tuple[Cap, ...]], list[tuple[int, float, int, Slot]]] = {}
        sound = {view.device.id for view in occupancy.views if not isinstance(view.closed, Unusable | Drained | Booked)}
        for index, slot in enumerate(slots):
            if slot.room > 0 and sound.issuperset(slot.devices):
                since = inf if slot.since is None else slot.since
                self._roomy.setdefault((slot.resources, slot.caps), []).append((-slot.room, since, index, slot))
        for line in self._roomy.values():
            heapify(line)

    def take(self, resources: Resources, caps: tuple[Cap, ...]) -> Slot | None:
        """The slot with the most room among those that run the same resources, and of equals the one that runs longest.

        Where attempts take about the same time, slots so get jobs in the order in which they become free.
        A prefetched attempt counts towards the same limits and runs after the other, so no limit is exceeded.
        """
        line = self._roomy.get((resources, caps), [])
        while line and not self._wanted.isdisjoint(line[0][-1].devices):
            heappop(line)
        if not line:
            return None
        minus_room, since, index, slot = line[0]
        if minus_room == -1:
            heappop(line)
        else:
            heapreplace(line, (minus_room + 1, since, index, slot))
        return slot

    def close_all(self) -> None:
        """Keep later jobs from every slot."""
        self._roomy.clear()

    def close(self, resources: Resources) -> None:
        """Keep later jobs from every device that a job with these resources waits for."""
        if resources.gpus:
            self._wanted.update(view.device.id for view in self._occupancy.views if suits(view.device, resources))


class Reservation(Struct, frozen=True):
    """The devices that a blocked job can have first."""

    job: int
    gpus: int
    since: float
    """Since when the job waits."""
    devices: tuple[str, ...]
    claims: frozenset[str]
    """All ledger names of the devices: a device that shares a name with them is reserved, too."""
    moment: float | None
    """When the last of the devices will be open, if known or guessed."""
    sure: bool = True
    """Whether limits and history tell the moment; else it is a guess."""
    resources: Resources = Resources()
    """The resources that the job will use on them."""


def reserve(job: Job, resources: Resources, occupancy: Occupancy, seconds: float = 0.0) -> Reservation | None:
    """The devices that will be open first for a job; None where our own ends do not free enough.

    `seconds` is how long the job needs a device that others have booked for later.
    """
    offers: list[DeviceOffer] = []
    moments: dict[str, float] = {}
    unsure: set[str] = set()
    for view in occupancy.views:
        if suits(view.device, resources) and (ready := occupancy.ready(view, resources)) is not None:
            if occupancy.is_booked:
                ready = _unbooked_from(view, ready, seconds, occupancy)
            moments[view.device.id] = ready
            if not all(holding.sure for holding in occupancy.holdings(view)):
                unsure.add(view.device.id)
            first = NOW if view.device.id in resources.required else ready
            offers.append(DeviceOffer((first, preference(view.device, resources)), view.order, view.device))
    devices = choose(offers, resources.gpus, resources.required)
    if devices is None:
        return None
    last = max(moments[device.id] for device in devices)
    return Reservation(
        job=job.id,
        gpus=resources.gpus,
        since=waiting_since(job),
        devices=tuple(device.id for device in devices),
        claims=frozenset(claim for device in devices for claim in device.claims),
        moment=None if last == inf else max(last, occupancy.now),
        sure=unsure.isdisjoint(device.id for device in devices),
        resources=resources,
    )


def _unbooked_from(view: DeviceView, ready: float, seconds: float, occupancy: Occupancy) -> float:
    begin = max(ready, occupancy.now)
    free = occupancy.free_from(view.device, begin, seconds)
    return ready if free == begin else free


def leaves_room(
    device: Device, resources: Resources, reservation: Reservation, occupancy: Occupancy, *, policy: Policy
) -> bool:
    """Whether a later job may share a reserved device however long it takes: there is room for both.

    Where the moment is a guess, only for a limited time, since each new guess may be wrong again.
    """
    if reservation.moment is None or device.id not in reservation.devices:
        return False
    waited = occupancy.now - reservation.since
    if not reservation.sure and waited > policy.lenience * reservation.gpus:
        return False
    return occupancy.fit_both(device, resources, reservation.resources, reservation.moment)


def may_pass(seconds: float | None, reservation: Reservation, policy: Policy, now: float) -> bool:
    """Whether a later job of this duration may use a reserved device: it ends in time, or patience lasts.

    Where the moment of the reservation is a guess, a job of unknown duration may pass, too; but only for a limited
    time, since each new guess may be wrong again.
    """
    if not reservation.sure:
        waited = now - reservation.since
        if waited < policy.patience:
            return True
        if waited > policy.lenience * reservation.gpus:
            return False
        seconds = policy.unknown if seconds is None else seconds
    return seconds is not None and reservation.moment is not None and now + seconds <= reservation.moment


def waiting_since(job: Job) -> float:
    """Since when a job waits; its submission if the state does not tell."""
    return job.state.since if isinstance(job.state, Waiting) else job.submitted


# -- what is open, and why not -----------------------------------------------------------------


class PlacementCache:
    """Caches answers per resources. There are fewer resources than kinds of jobs, which also differ in priority."""

    def __init__(self, occupancy: Occupancy, snapshot: Snapshot, policy: Policy) -> None:
        self._occupancy = occupancy
        self._policy = policy
        self._devices = snapshot.devices
        self._absence = "" if snapshot.devices else snapshot.note
        """Why there is no device at all, if known."""
        self._never: dict[Resources, NeverFits | None] = {}
        self._offers: dict[Resources, list[DeviceOffer]] = {}
        self._blocked: dict[Resources, Reason] = {}
        self._unreserved: set[Resources] = set()

    def devices(self, device_ids: Collection[str]) -> list[Device]:
        return [device for device in self._devices if device.id in device_ids]

    def assign(self, job_id: int, resources: Resources, device_ids: tuple[str, ...], until: float) -> None:
        """Give a job these devices, which changes the answers for all others."""
        self._occupancy.assign(job_id, resources, device_ids, until)
        self._offers.clear()
        self._blocked.clear()
        self._unreserved.clear()

    def never(self, resources: Resources) -> NeverFits | None:
        """Why the resources can never be met; None if they can."""
        if resources not in self._never:
            sentence = never_fits(resources, self._devices, self._policy.max_use, self._policy.min_free)
            sentence = sentence or beyond_rules(resources, self._policy.locked)
            self._never[resources] = NeverFits(self._absence or sentence) if sentence else None
        return self._never[resources]

    def offers(self, resources: Resources) -> list[DeviceOffer]:
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

    def reserve(self, job: Job, resources: Resources, seconds: float = 0.0) -> Reservation | None:
        """The devices that will be open first for a job. Whether there are any depends only on its resources."""
        if resources in self._unreserved:
            return None
        reservation = reserve(job, resources, self._occupancy, seconds)
        if reservation is None:
            self._unreserved.add(resources)
        return reservation

    def _find_offers(self, resources: Resources) -> list[DeviceOffer]:
        offers = []
        for view in self._occupancy.views:
            if suits(view.device, resources) and (fit := self._occupancy.fit(view, resources)) is not None:
                rank = preference(view.device, resources), *self._occupancy.crowding(view, resources), fit
                offers.append(DeviceOffer(rank, view.order, view.device))
        return offers


Outside = Leased | Booked | Yields | Occupied | Drained | Unusable | Draining
"""Reasons of a device that remain when all our own jobs have ended."""

_MOST_TELLING_FIRST = (Yields, Leased, Booked, Occupied, Drained, Unusable, Draining)


def why_blocked(resources: Resources, occupancy: Occupancy) -> Crowded | MemoryShort | TooBusy | Outside:
    """Why resources that the machine has are not free."""
    if resources.required and not _required_open(resources, occupancy):
        required = structs.replace(resources, gpus=len(resources.required), allowed=resources.required, required=())
        return why_blocked(required, occupancy)
    suited = [view for view in occupancy.views if suits(view.device, resources)]
    outside = [blame for view in suited if (blame := _outside(view, resources, occupancy)) is not None]
    if outside and len(suited) - len(outside) < resources.gpus:
        blame = _of_all_holders(min(outside, key=lambda blame: _MOST_TELLING_FIRST.index(type(blame))), outside)
        return (
            _detailed(blame, resources, suited, occupancy) if isinstance(blame, Leased) and resources.shares else blame
        )
    if resources.shares and (short := _short_of_room(resources, suited, occupancy)):
        return short
    return _crowded(resources, suited, occupancy)


def _of_all_holders(blame: Outside, outside: Sequence[Outside]) -> Outside:
    """Add how many devices each other user holds, and when the first of them is free at the latest."""
    if not isinstance(blame, Leased):
        return blame
    leased = [reason for reason in outside if isinstance(reason, Leased)]
    owners = Counter(reason.owner for reason in leased)
    return structs.replace(
        blame,
        what=blame.what if len({reason.what for reason in leased}) == 1 else "",
        gpus=len(leased),
        owners=tuple(owners.most_common()) if len(owners) > 1 else (),
        until=min((reason.until for reason in leased if reason.until is not None), default=None),
    )


def _detailed(blame: Leased, resources: Resources, suited: Sequence[DeviceView], occupancy: Occupancy) -> Leased:
    """Add what the job is short of beside the leases of others. The end of our own jobs would not help it."""
    short = _short_of_room(resources, suited, occupancy)
    return structs.replace(blame, short=short and structs.replace(short, first_to_end=None))


def _required_open(resources: Resources, occupancy: Occupancy) -> bool:
    required = [view for view in occupancy.views if view.device.id in resources.required]
    return all(occupancy.fit(view, resources) is not None for view in required)


def _outside(view: DeviceView, resources: Resources, occupancy: Occupancy) -> Outside | None:
    """Why a device would be blocked even if none of our own jobs ran; None if it would be free."""
    if view.closed is not None:
        return view.closed
    if occupancy.fit(view, resources, FOREVER) is not None:
        return None
    if leases := occupancy.leases(view):
        ends = [lease.until for lease in leases if lease.until is not None]
        until = max(ends) if len(ends) == len(leases) else None
        return Leased(view.device.label, leases[0].owner, leases[0].what, until=until)
    return Occupied(view.device.label, view.who, view.gone, stale=view.stale and not resources.shares)


def _short_of_room(
    resources: Resources, suited: Sequence[DeviceView], occupancy: Occupancy
) -> MemoryShort | TooBusy | None:
    """Why the device with the most memory to spare is still too small or busy, if the job could share one."""
    rooms = [
        (occupancy.room(view, resources), amount, view)
        for view in suited
        if view.closed is None and (amount := amount_on(resources, view.device)) is not None
    ]
    if not rooms:
        return None
    first = _first_to_end(suited, occupancy)
    room, amount, view = max(rooms, key=lambda entry: entry[0].memory - entry[1])
    if amount <= room.memory:
        return _too_busy(room, resources, view, occupancy, first)
    return MemoryShort(amount, room.memory, view.device.label, first) if room.memory > 0 else None


def _too_busy(
    room: Headroom, resources: Resources, view: DeviceView, occupancy: Occupancy, first: int | None
) -> TooBusy | None:
    load = load_on(resources, view.device)
    if room.load is None or load <= room.load:
        return None
    return TooBusy(view.device.label, occupancy.busy - room.load + load, occupancy.busy, first)


def _crowded(resources: Resources, suited: Sequence[DeviceView], occupancy: Occupancy) -> Crowded:
    free = most_at_once(view.device for view in suited if occupancy.fit(view, resources) is not None)
    return Crowded(resources.gpus, free, _first_to_end(suited, occupancy), _is_unmeasured(resources, suited))


def _is_unmeasured(resources: Resources, suited: Sequence[DeviceView]) -> bool:
    """Whether the job needs exclusive GPUs only for its first run, which measures its memory."""
    predicted = dict(resources.predicted)
    return resources.auto and all(view.device.memory and view.device.model not in predicted for view in suited)


def _first_to_end(suited: Sequence[DeviceView], occupancy: Occupancy) -> int | None:
    holdings = [holding for view in suited for holding in occupancy.holdings(view) if holding.sure]
    ends = [(holding.until, holding.job) for holding in holdings]
    until, job_id = min(ends, default=(inf, 0))
    return None if until == inf else job_id
