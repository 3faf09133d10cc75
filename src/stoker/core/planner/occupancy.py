"""The claims on every device while a plan is made, and the room that they leave."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Literal, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from stoker.core.booking import Booking, bookings_by_device, free_from
from stoker.core.device import Device, Reading, Snapshot, drained_for_all
from stoker.core.lease import OURS, Claim, Lease, compatible
from stoker.core.planner.queue import Cap
from stoker.core.planner.reasons import Booked, Drained, Draining, Occupied, Unusable, Yields
from stoker.core.settings import Policy
from stoker.core.spec import Resources, amount_on, load_on
from stoker.core.units import size_text

NOW = -inf
"""Before any of our attempts has ended, however overdue."""
FOREVER = inf
"""After all of our attempts have ended."""
ANY_NUMBER = 2**20
"""The share of a claim that reserves memory: memory limits the co-tenants, not their number."""
WHOLE_CARD = 2**62
"""The fit of a whole device: looser than any part of one."""
UNKNOWN_LOAD = 50
"""Percent that a co-tenant of unknown load counts when devices are compared: else new work would pile up on one."""
STALE_SECONDS = 600.0
"""Seconds that a foreign process must have been still before a job shares the device with it."""
STALE_PART = 0.125
"""Part of the device that such processes may hold: a larger one is rather a server than forgotten."""
UNKNOWN_USER = "an unknown user"
NOTHING_LEFT: Mapping[str, Yields] = MappingProxyType({})


class Preemption(Struct, frozen=True):
    """How a running attempt gives way, and what that costs its job."""

    mode: Literal["save", "restart"]
    """Whether it saves its state before it leaves, or starts from the beginning."""
    priority: int = 0
    """Of its job, which gives way to none of a lower one."""
    times: int = 0
    """How often the job gave way before."""
    done: float = 0.0
    """Seconds of work that the job has kept from earlier attempts."""
    remaining: float | None = None
    """Seconds that it is expected to run on, by its limit and by earlier runs of its kind; None if nothing tells."""
    save: float = 60.0
    """Seconds that it takes to save and leave."""
    start: float = 60.0
    """Seconds until it works again after its next start."""
    unsaved: float | None = None
    """Seconds of work that are lost if it leaves now; None is all of this attempt in mode restart, else nothing."""


class Slot(Struct, frozen=True):
    """A running attempt of ours and its worker."""

    worker: str
    job: int
    resources: Resources
    devices: tuple[str, ...]
    until: float | None = None
    """When it ends at the latest, if a limit or history tells."""
    room: int = 0
    """How many attempts with the same resources and caps may be prefetched behind the running one."""
    caps: tuple[Cap, ...] = ()
    """The limits that the running attempt counts towards."""
    since: float | None = None
    """When the running attempt started; None before that."""
    peak: int = 0
    """Most bytes measured on one of the devices; it may exceed the reservation."""
    kind: str = ""
    """The kind of work of the job."""
    preemption: Preemption | None = None
    """How it gives way to others; None if it does not, or is about to end."""


def claims_on(device: Device, resources: Resources) -> tuple[Claim, ...]:
    """The claims of an attempt on a device in the ledger."""
    return tuple([_claim(name, device, resources) for name in device.claims])


class Holding(NamedTuple):
    """A claim of one of our own attempts; `until` is infinity if its end is unknown."""

    device: str
    job: int
    claim: Claim
    until: float
    sure: bool
    """Whether a limit or history tells the end; else it is a guess."""


class Headroom(NamedTuple):
    """The part of a device that one more co-tenant may have."""

    memory: int
    load: int | None
    """Percent left until the device is too busy; None while it is empty, since any load is allowed then."""
    expected: int = 0
    """Percent of its load that is to be expected, with a guess for co-tenants whose load is not learnt yet."""


class DeviceView(Struct):
    """One device as this plan sees it, apart from its claims."""

    device: Device
    order: int
    closed: Unusable | Draining | Drained | Booked | Occupied | Yields | None = None
    """Why no job may use it."""
    gone: int = 0
    """Bytes in use beyond what is reserved."""
    stale: bool = False
    """Whether small foreign processes hold them that have long been still, beside which jobs that share may start."""
    who: str = UNKNOWN_USER
    """Owner of those bytes, if known."""
    open_whole: dict[float, bool] = field(default_factory=dict)
    """Cache: moment -> whether an exclusive job could have it then. Cleared when a claim is added."""
    room: dict[tuple[float, str], Headroom] = field(default_factory=dict)
    """Cache: moment and MPS server -> room for one more co-tenant. Cleared likewise."""


class Occupancy:
    """All claims on all devices: others' from the ledger, ours from the slots and the starts of this plan."""

    def __init__(
        self,
        slots: Sequence[Slot],
        snapshot: Snapshot,
        leases: Sequence[Lease],
        *,
        policy: Policy,
        now: float,
        freed: Mapping[str, float],
        left: Mapping[str, Yields] = NOTHING_LEFT,
        bookings: Sequence[Booking] = (),
    ) -> None:
        """`left` are ledger names of devices that are left to others, each with the reason.

        `bookings` are those of other users.
        """
        self.now = now
        self._reserve = policy.reserve
        self.busy = policy.busy
        self._ours: dict[str, list[Holding]] = {}
        self._others: dict[str, list[Claim]] = {}
        self._lessors: dict[str, list[Lease]] = {}
        self.views = _views(snapshot, policy, freed)
        self._by_id = {view.device.id: view for view in self.views}
        self._by_name: dict[str, list[DeviceView]] = {}
        for view in self.views:
            for name in _names(view.device):
                self._by_name.setdefault(name, []).append(view)
        for lease in leases:
            self._add_lease(lease)
        for slot in slots:
            until, sure = _end(slot, policy, now)
            self.assign(slot.job, slot.resources, slot.devices, until, sure=sure, peak=slot.peak)
        for view in self.views:
            if view.device.measured and view.closed is None:
                self._compare_reading(view, snapshot, policy, freed)
            elif view.closed is None and (problem := snapshot.reading(view.device.id).problem):
                view.closed = Unusable(view.device.label, problem)
        for name, reason in left.items():
            self._leave(name, reason)
        self._bookings = bookings_by_device(bookings)
        for view in self.views if bookings else ():
            view.closed = view.closed or self._booked_now(view)

    @property
    def is_booked(self) -> bool:
        """Whether other users have booked any device, now or for later."""
        return bool(self._bookings)

    def free_from(self, device: Device, moment: float, seconds: float) -> float:
        """The first moment from which a job that takes so long on the device meets no booking of another user."""
        before = None
        while moment != before:  # a device with several names is free when all of them are
            before = moment
            for name in device.claims:
                moment = free_from(self._bookings.get(name, ()), moment, seconds)
        return moment

    def booked(self, device: Device, until: float) -> Booked | None:
        """The first booking of a device by another user that begins before this moment."""
        bookings = [
            booking for name in device.claims for booking in self._bookings.get(name, ()) if booking.until > self.now
        ]
        first = min(bookings, key=lambda booking: booking.since, default=None)
        if first is None or first.since >= until:
            return None
        return Booked(device.label, first.owner, first.since, first.until, first.why, later=first.since > self.now)

    def _booked_now(self, view: DeviceView) -> Booked | None:
        booked = self.booked(view.device, inf)
        return None if booked is None or booked.later else booked

    def names_in_use(self, leaving: Collection[int] = ()) -> set[str]:
        """Ledger names of the devices that our attempts hold, without those of jobs that leave."""
        return {name for view in self.views for name in view.device.claims if self._is_held(name, leaving)}

    def untouched(self, leaving: Collection[int] = ()) -> set[str]:
        """Ledger names of usable devices without any claim but those of jobs that leave."""
        free = {name for view in self.views if view.closed is None for name in view.device.claims}
        return {name for name in free if not self._is_held(name, leaving) and not self._others.get(name)}

    def _is_held(self, name: str, leaving: Collection[int]) -> bool:
        return any(holding.job not in leaving for holding in self._ours.get(name, ()))

    def assign(
        self,
        job_id: int,
        resources: Resources,
        device_ids: Sequence[str],
        until: float,
        *,
        sure: bool | None = None,
        peak: int = 0,
    ) -> None:
        """Add the claims of an attempt of ours; `sure` defaults to whether `until` is finite."""
        sure = until != inf if sure is None else sure
        for device_id in device_ids:
            if view := self._by_id.get(device_id):
                for name in _names(view.device):
                    claim = _exceeded(_claim(name, view.device, resources), peak)
                    holding = Holding(device_id, job_id, claim, until, sure)
                    self._ours.setdefault(name, []).append(holding)
                    self._forget(name)

    def names_of(self, device_ids: Sequence[str]) -> set[str]:
        """The ids of devices, and their ledger names."""
        views = [self._by_id[device_id] for device_id in device_ids if device_id in self._by_id]
        return {name for view in views for name in (view.device.id, *view.device.claims)}

    def are_open(self, device_ids: Sequence[str], resources: Resources, at: float = NOW) -> bool:
        """Whether a job with these resources can have these devices at a moment."""
        return all(
            (view := self._by_id.get(device_id)) is not None and self.fit(view, resources, at) is not None
            for device_id in device_ids
        )

    def will_be_open(self, device_ids: Sequence[str], resources: Resources) -> bool:
        """Whether a job with these resources only waits for our attempts on the devices to end."""
        views = [self._by_id[device_id] for device_id in device_ids if device_id in self._by_id]
        if any(isinstance(view.closed, Booked) for view in views):
            return False
        return self.are_open(device_ids, resources, FOREVER) and not self.are_open(device_ids, resources)

    def fit(self, view: DeviceView, resources: Resources, at: float = NOW) -> int | None:
        """How tightly a job fits on a device at a moment, less being tighter; None if it does not fit."""
        if view.closed is not None and (at == NOW or not isinstance(view.closed, Draining | Booked)):
            return None
        amount = amount_on(resources, view.device) if resources.shares else None
        if amount is None:
            return WHOLE_CARD if self._is_open_whole(view, at) else None
        room = self.room(view, resources, at)
        if amount > room.memory or (room.load is not None and load_on(resources, view.device) > room.load):
            return None
        return room.memory

    def fit_both(self, device: Device, resources: Resources, other: Resources, at: float) -> bool:
        """Whether two sharing jobs would fit on a device together at a moment."""
        mine, theirs = amount_on(resources, device), amount_on(other, device)
        if mine is None or theirs is None or server_of(resources) != server_of(other):
            return False
        room = self.room(self._by_id[device.id], resources, at)
        memory = min(room.memory, (device.memory or 0) - self._reserve)
        load = self.busy if room.load is None else room.load
        return mine + theirs <= memory and load_on(resources, device) + load_on(other, device) <= load

    def ready(self, view: DeviceView, resources: Resources) -> float | None:
        """When a device will be open for resources: infinity if unknown, None if others block it."""
        if self.fit(view, resources) is not None:
            return NOW
        if self.fit(view, resources, FOREVER) is None:
            return None
        ends = {max(self.now, holding.until) for holding in self.holdings(view)}
        moments = sorted(ends | {self.now})
        return next((moment for moment in moments if self.fit(view, resources, moment) is not None), inf)

    def room(self, view: DeviceView, resources: Resources, at: float = NOW) -> Headroom:
        """The room for one more co-tenant; no memory on a device that is held exclusively."""
        key = at, server_of(resources)
        room = view.room.get(key)
        if room is None:
            room = view.room[key] = self._count_room(view, at, key[1])
        return room

    def crowding(self, view: DeviceView, resources: Resources) -> tuple[int, int]:
        """How busy a device is for a sharing job: empty ones first, then by the expected load of the co-tenants."""
        room = self.room(view, resources) if resources.shares else None
        if room is None or room.load is None:
            return int(view.stale), 0
        return 1, room.expected

    def holdings(self, view: DeviceView) -> Iterator[Holding]:
        """Our own claims on a device or on one that overlaps it."""
        return (holding for name in _names(view.device) for holding in self._ours.get(name, ()))

    def leases(self, view: DeviceView) -> list[Lease]:
        """The leases of other engines on the device."""
        return [lease for name in view.device.claims for lease in self._lessors.get(name, ())]

    def _held(self, name: str, at: float) -> list[Claim]:
        ours = self._ours.get(name, ())
        return [holding.claim for holding in ours if _stays(holding, at)] + self._others.get(name, [])

    def _held_on(self, view: DeviceView, at: float) -> list[Claim]:
        return [claim for name in _names(view.device) for claim in self._held(name, at)]

    def _is_open_whole(self, view: DeviceView, at: float) -> bool:
        is_open = view.open_whole.get(at)
        if is_open is None:
            is_open = view.open_whole[at] = self._would_be_open_whole(view, at)
        return is_open

    def _would_be_open_whole(self, view: DeviceView, at: float) -> bool:
        device = view.device
        if view.stale:
            return False
        if any(holding.device == device.id and _stays(holding, at) for holding in self.holdings(view)):
            return False
        for name in device.claims:
            held = self._held(name, at)
            if any(claim.memory is not None for claim in held):
                return False
            if not compatible(Claim(name, share=device.share), held):
                return False
        return True

    def _count_room(self, view: DeviceView, at: float, server: str) -> Headroom:
        held = self._held_on(view, at)
        load = self.busy - sum(claim.load for claim in held) if held else None
        expected = sum(claim.load or UNKNOWN_LOAD for claim in held)
        return Headroom(self._count_free(view, held, at, server), load, expected)

    def _count_free(self, view: DeviceView, held: list[Claim], at: float, server: str) -> int:
        memory = view.device.memory
        if memory is None or any(claim.memory is None for claim in held):
            return 0
        # Memory that our own attempts use beyond their reservations is free once the last of them ends.
        ours = list(self.holdings(view))
        gone = 0 if ours and not any(_stays(holding, at) for holding in ours) else view.gone
        if not held and not gone:
            return memory
        if not compatible(Claim(view.device.id, 0, ANY_NUMBER, mps=server), held):
            return 0
        return max(0, memory - self._reserve - gone - sum(claim.memory or 0 for claim in held))

    def _forget(self, name: str) -> None:
        for view in self._by_name[name]:
            view.open_whole.clear()
            view.room.clear()

    def _leave(self, name: str, reason: Yields) -> None:
        for view in self._by_name.get(name, ()):
            if view.closed is None and not any(self._ours.get(claim_name) for claim_name in _names(view.device)):
                view.closed = reason

    def _add_lease(self, lease: Lease) -> None:
        for claim in lease.claims:
            self._others.setdefault(claim.name, []).append(claim)
            self._lessors.setdefault(claim.name, []).append(lease)

    def _compare_reading(
        self, view: DeviceView, snapshot: Snapshot, policy: Policy, freed: Mapping[str, float]
    ) -> None:
        """Compare the reading of a device with the claims on it."""
        device = view.device
        reading = snapshot.readings.get(device.id)
        if reading is None:
            view.closed = Unusable(device.label, "its state could not be read")
        elif reading.problem:
            view.closed = Unusable(device.label, reading.problem)
        elif snapshot.at <= freed.get(device.id, -inf):
            view.closed = Draining(device.label)
        else:
            held = self._held_on(view, NOW)
            if not held and policy.strangers == "avoid":
                since = snapshot.at - freed[device.id] if device.id in freed else None
                view.closed = _foreign_process(device, reading, policy, since)
                if isinstance(view.closed, Occupied) and _is_stale(device, reading, snapshot.at):
                    view.closed, view.stale, view.gone, view.who = None, True, reading.used or 0, _owners(reading)
            else:
                beyond = (reading.used or 0) - sum(claim.memory or 0 for claim in held)
                view.gone = beyond if beyond > policy.tolerance else 0
                view.who = view.who if held else _owners(reading)


def _end(slot: Slot, policy: Policy, now: float) -> tuple[float, bool]:
    """When an attempt will end, and whether that is more than a guess.

    A late attempt is expected to be late by as much again: few runs that are hours late end within minutes, and a job
    that waits for one need not keep devices idle meanwhile.
    """
    if slot.until is None and slot.since is None:
        return inf, False
    until = slot.until if slot.until is not None else (slot.since or 0.0) + policy.unknown
    late = now - until
    return (now + late, False) if late > 0 and slot.since is not None else (until, slot.until is not None)


def _names(device: Device) -> tuple[str, ...]:
    # A slot without GPUs has no name in the ledger; its id stands in for it.
    return device.claims or (device.id,)


def server_of(resources: Resources) -> str:
    """The MPS server that a job with these resources is a client of."""
    return "" if resources.mps is None else OURS


def _claim(name: str, device: Device, resources: Resources) -> Claim:
    amount = amount_on(resources, device) if resources.shares else None
    if amount is None:
        return Claim(name, share=device.share, mps=server_of(resources))
    return Claim(name, amount, ANY_NUMBER, load_on(resources, device), server_of(resources))


def _exceeded(claim: Claim, peak: int) -> Claim:
    """The claim, raised to the measured peak if that is more: the job may reach it again."""
    return claim if claim.memory is None or peak <= claim.memory else replace(claim, memory=peak)


def _stays(holding: Holding, at: float) -> bool:
    return at == NOW or holding.until > at


def _views(snapshot: Snapshot, policy: Policy, freed: Mapping[str, float]) -> list[DeviceView]:
    """The devices in the order in which equal ones are used."""
    devices = list(snapshot.devices)
    if policy.newest_first:
        devices.reverse()
        devices.sort(key=lambda device: -freed.get(device.id, -inf))
    return [DeviceView(device, order, _drained(device, snapshot, policy)) for order, device in enumerate(devices)]


def _drained(device: Device, snapshot: Snapshot, policy: Policy) -> Drained | None:
    reading = snapshot.reading(device.id)
    if reading.drained_at is not None:
        return Drained(device.label, drained_for_all(reading))
    note = policy.closed.get(device.id)
    return None if note is None else Drained(device.label, note)


def _foreign_process(
    device: Device, reading: Reading, policy: Policy, since_ours: float | None
) -> Draining | Unusable | Occupied | None:
    """Why a device without claims is not free; `since_ours` are the seconds since our last attempt there ended."""
    computing = [process for process in reading.processes if not process.graphics]
    if not computing and (reading.used or 0) <= policy.tolerance:
        return None
    if since_ours is not None and not reading.processes:
        return _remains(device, reading, expected=since_ours < policy.quarantine)
    return Occupied(device.label, _owners(reading), reading.used)


def _is_stale(device: Device, reading: Reading, at: float) -> bool:
    """Whether foreign processes hold little and have done nothing for long, as forgotten ones do."""
    is_small = device.memory is not None and (reading.used or 0) <= device.memory * STALE_PART
    return is_small and reading.still_since is not None and at - reading.still_since >= STALE_SECONDS


def _owners(reading: Reading) -> str:
    return ", ".join(sorted({process.owner for process in reading.processes if process.owner})) or UNKNOWN_USER


def _remains(device: Device, reading: Reading, *, expected: bool) -> Draining | Unusable:
    """Memory after the end of our job: the driver frees it soon, or something is wrong."""
    if expected:
        return Draining(device.label)
    return Unusable(device.label, f"{size_text(reading.used)} still in use, but no process is visible")
