"""Why a job finds no devices: of all that stands in its way, what tells a person most."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from msgspec import structs

from stoker.core.fit import most_at_once, suits
from stoker.core.occupancy import FOREVER, Occupancy, Room, View
from stoker.core.reasons import Crowded, Drained, Draining, GivesWay, Leased, MemoryShort, Occupied, TooBusy, Unusable
from stoker.core.terms import Need, amount_on, load_on

Outside = Leased | GivesWay | Occupied | Drained | Unusable | Draining
_MOST_TELLING_FIRST = (GivesWay, Leased, Occupied, Drained, Unusable, Draining)


def why_blocked(need: Need, occupancy: Occupancy) -> Crowded | MemoryShort | TooBusy | Outside:
    """What keeps a need waiting that the machine could meet."""
    if need.required and not _required_open(need, occupancy):
        required = structs.replace(need, gpus=len(need.required), allowed=need.required, required=())
        return why_blocked(required, occupancy)
    suited = [view for view in occupancy.views if suits(view.device, need)]
    outside = [blame for view in suited if (blame := _outside(view, need, occupancy)) is not None]
    if outside and len(suited) - len(outside) < need.gpus:
        blame = _counted(min(outside, key=lambda blame: _MOST_TELLING_FIRST.index(type(blame))), outside)
        return _detailed(blame, need, suited, occupancy) if isinstance(blame, Leased) and need.shares else blame
    if need.shares and (short := _short_of_room(need, suited, occupancy)):
        return short
    return _crowded(need, suited, occupancy)


def _counted(blame: Outside, outside: Sequence[Outside]) -> Outside:
    """One who holds several devices is told with their number."""
    if not isinstance(blame, Leased):
        return blame
    alike = sum(isinstance(one, Leased) and (one.owner, one.what) == (blame.owner, blame.what) for one in outside)
    return structs.replace(blame, gpus=alike)


def _detailed(blame: Leased, need: Need, suited: Sequence[View], occupancy: Occupancy) -> Leased:
    """What a job is short of beside others' jobs; no end of ours would help it."""
    short = _short_of_room(need, suited, occupancy)
    return structs.replace(blame, short=short and structs.replace(short, first_to_end=None))


def _required_open(need: Need, occupancy: Occupancy) -> bool:
    required = [view for view in occupancy.views if view.device.id in need.required]
    return all(occupancy.fit(view, need) is not None for view in required)


def _outside(view: View, need: Need, occupancy: Occupancy) -> Outside | None:
    """What would keep the job off a device even if none of our own jobs ran."""
    if view.closed is not None:
        return view.closed
    if occupancy.fit(view, need, FOREVER) is not None:
        return None
    if lease := occupancy.lease(view):
        return Leased(view.device.label, lease.owner, lease.what)
    return Occupied(view.device.label, view.who, view.gone)


def _short_of_room(need: Need, suited: Sequence[View], occupancy: Occupancy) -> MemoryShort | TooBusy | None:
    """Where the job could share a device, but there is too little memory left on it, or too much going on."""
    rooms = [
        (occupancy.room(view, need), amount, view)
        for view in suited
        if view.closed is None and (amount := amount_on(need, view.device)) is not None
    ]
    if not rooms:
        return None
    first = _first_to_end(suited, occupancy)
    room, amount, view = max(rooms, key=lambda one: one[0].memory - one[1])
    if amount <= room.memory:
        return _too_busy(room, need, view, occupancy, first)
    return MemoryShort(amount, room.memory, view.device.label, first) if room.memory > 0 else None


def _too_busy(room: Room, need: Need, view: View, occupancy: Occupancy, first: int | None) -> TooBusy | None:
    load = load_on(need, view.device)
    if room.load is None or load <= room.load:
        return None
    return TooBusy(view.device.label, occupancy.busy - room.load + load, occupancy.busy, first)


def _crowded(need: Need, suited: Sequence[View], occupancy: Occupancy) -> Crowded:
    free = most_at_once(view.device for view in suited if occupancy.fit(view, need) is not None)
    return Crowded(need.gpus, free, _first_to_end(suited, occupancy), _is_unmeasured(need, suited))


def _is_unmeasured(need: Need, suited: Sequence[View]) -> bool:
    """Whether a job has GPUs to itself only this time, since nobody knows how much it takes of them."""
    known = dict(need.predicted)
    return need.auto and all(view.device.memory and view.device.model not in known for view in suited)


def _first_to_end(suited: Sequence[View], occupancy: Occupancy) -> int | None:
    holdings = [holding for view in suited for holding in occupancy.holdings(view) if holding.sure]
    ends = [(holding.until, holding.job) for holding in holdings]
    until, job_id = min(ends, default=(inf, 0))
    return None if until == inf else job_id
