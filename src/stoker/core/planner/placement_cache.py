"""Which devices are open for resources, and why they are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf

from msgspec import structs

from stoker.core.device import Snapshot
from stoker.core.job import Job
from stoker.core.planner.fairshare import never_within_limits
from stoker.core.planner.occupancy import FOREVER, DeviceView, Headroom, Occupancy
from stoker.core.planner.placement import (
    DeviceOffer,
    Reservation,
    most_at_once,
    never_fits,
    preference,
    reserve,
)
from stoker.core.planner.reasons import (
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
)
from stoker.core.settings import Policy
from stoker.core.spec import Resources, amount_on, load_on, suits


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

    def assign(self, job_id: int, resources: Resources, device_ids: tuple[str, ...], until: float) -> None:
        """Give a job these devices, which changes the answers for all others."""
        self._occupancy.assign(job_id, resources, device_ids, until)
        self._offers.clear()
        self._blocked.clear()
        self._unreserved.clear()

    def never(self, resources: Resources) -> NeverFits | None:
        """Why the resources can never be met; None if they can."""
        if resources not in self._never:
            sentence = never_fits(resources, self._devices) or never_within_limits(
                resources.gpus, self._devices, self._policy
            )
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

    def reserve(self, job: Job, resources: Resources) -> Reservation | None:
        """The devices that will be open first for a job. Whether there are any depends only on its resources."""
        if resources in self._unreserved:
            return None
        reservation = reserve(job, resources, self._occupancy)
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
