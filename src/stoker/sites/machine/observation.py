"""Observation of devices, of foreign processes that only hold memory, and of the leases of other engines."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.booking import Booking
from stoker.core.device import Device, Drain, Process, Reading, Snapshot, with_drains
from stoker.core.idleness import IDLE_PERCENT
from stoker.core.lease import Lease
from stoker.core.planner.fairshare import Demand
from stoker.devices.interface import Devices
from stoker.ledger import Ledger

REFRESH_INTERVAL = 1.0
"""Seconds between two observations when nothing calls for one."""
LEASE_INTERVAL = 0.25
"""Seconds for which the leases of others count as current; a claim reads the ledger itself."""
SHORTEST_INTERVAL = 0.05
"""The same while this engine waits for others and attempts follow each other fast."""
_LONG_READ = 0.025
"""CPU seconds that no read of the ledger takes, unless a user has filled it with files."""
_REST = 20.0
"""Pause after such a read, in times its duration."""
_PART_OF_THE_WAIT = 0.05
"""Part of the time since our last attempt that a late observation may cost, while this engine waits for others."""


class Observation:
    """The newest snapshot and leases, and how old they may get."""

    def __init__(self, devices: Devices, ledger: Ledger, now: float) -> None:
        self._devices = devices
        self._ledger = ledger
        self._read_at = 0.0
        self._rest_until = 0.0
        self._known: dict[str, Device] = {}
        self.freed: dict[str, float] = {}
        """When our last attempt on a device ended."""
        self.leases: Sequence[Lease] = ()
        """Those that are not ours."""
        self.demands: Mapping[str, Demand] = {}
        """All of them, including our own."""
        self.bookings: Sequence[Booking] = ()
        """Those of all users, with their times by the clock of the engine."""
        self.warnings: tuple[str, ...] = ()
        self._drained: Mapping[str, Drain] = {}
        self._leased: frozenset[str] = frozenset()
        self._still = StillProcesses()
        self.snapshot = Snapshot(0.0, ())
        self._see(devices.snapshot(now))

    def due_in(self, now: float, interval: float = REFRESH_INTERVAL) -> float:
        """Seconds until the next observation is due; 0 or less when it is."""
        return max(self._read_at + interval, self._rest_until) - now

    def hurried_interval(self, now: float) -> float:
        """Seconds between two observations while this engine waits for others: shorter attempts, shorter interval."""
        waited = now - max(self.freed.values(), default=0.0)
        return min(LEASE_INTERVAL, max(SHORTEST_INTERVAL, _PART_OF_THE_WAIT * waited))

    def expire(self) -> None:
        """Something has changed: observe again at the next occasion."""
        self._read_at = 0.0

    def refresh(
        self, now: float, ours: Iterable[str], *, waiting: bool, interval: float = LEASE_INTERVAL, young: float = 0.0
    ) -> None:
        """Look at the devices and, when they are older than the interval, at the leases that are not ours.

        For waiting jobs, a device freed since the last snapshot needs a newer one to count as free. Telemetry needs one
        that is not much older than `young`.
        """
        newer_than = max(self.freed.values(), default=0.0) if waiting else 0.0
        snapshot = self._devices.snapshot(now, max(newer_than, young))
        if now - self._read_at >= min(interval, LEASE_INTERVAL) and now >= self._rest_until:
            began = time.thread_time()
            view = self._ledger.live()
            cost = time.thread_time() - began
            self._rest_until = now + _REST * cost if cost > _LONG_READ else 0.0
            names = set(ours)
            self.leases = tuple(lease for name, lease in view.leases.items() if name not in names)
            self.demands = view.demands
            self.bookings = _by_clock(view.bookings.values(), now - time.time()) if view.bookings else ()
            self.warnings = view.warnings
            self._drained = view.drained
            self._leased = frozenset(claim.name for lease in view.leases.values() for claim in lease.claims)
            self._read_at = now
        snapshot = self._still.marked(snapshot, self._leased)
        self._see(with_drains(snapshot, self._drained) if self._drained else snapshot)

    def leave(self, device_ids: Iterable[str], now: float) -> None:
        """Note that our attempt on these devices is over."""
        self.freed.update((device_id, now) for device_id in device_ids)

    def devices(self, device_ids: Sequence[str]) -> tuple[Device, ...]:
        """The devices with these ids, as far as they are known; one that has vanished stays known."""
        return tuple([self._known[device_id] for device_id in device_ids if device_id in self._known])

    def _see(self, snapshot: Snapshot) -> None:
        if snapshot.devices is not self.snapshot.devices:
            self._known.update((device.id, device) for device in snapshot.devices)
        self.snapshot = snapshot


def _by_clock(bookings: Iterable[Booking], ahead: float) -> list[Booking]:
    """The bookings, which are made by the clock on the wall, by a clock that never jumps."""
    return [replace(booking, since=booking.since + ahead, until=booking.until + ahead) for booking in bookings]


# -- foreign processes that only hold memory -----------------------------------------------------

SAME_BYTES = 64 * 2**20
"""Change of memory up to which a process counts as still."""
AFTER_JOBS = 5.0
"""Seconds after the end of a job for which the driver's utilisation, a mean of the last second, may still be of it."""


class _Still(Struct, frozen=True):
    since: float
    memory: int


class StillProcesses:
    """Since when each process on a GPU neither changed its memory nor computed."""

    def __init__(self) -> None:
        self._still: dict[tuple[str, int], _Still] = {}
        self._leased_at: dict[str, float] = {}

    def marked(self, snapshot: Snapshot, leased: Collection[str]) -> Snapshot:
        """The snapshot with the time since when all processes of a device are still.

        `leased` are ledger names of devices with jobs: their utilisation says nothing about foreign processes.
        """
        before, self._still = self._still, {}
        self._leased_at.update(dict.fromkeys(leased, snapshot.at))
        marks = {}
        for device in snapshot.devices:
            reading = snapshot.reading(device.id)
            alone = all(snapshot.at - self._leased_at.get(name, -inf) > AFTER_JOBS for name in device.claims)
            still = list(self._noted(device, reading, before, snapshot.at, alone=alone))
            if still and None not in still:
                marks[device.id] = replace(reading, still_since=max(since for since in still if since is not None))
        return replace(snapshot, readings={**snapshot.readings, **marks}) if marks else snapshot

    def _noted(
        self, device: Device, reading: Reading, before: dict[tuple[str, int], _Still], at: float, *, alone: bool
    ) -> Iterator[float | None]:
        """Since when each process that computes is still; None if its memory is unknown."""
        moves = alone and (reading.utilisation is None or reading.utilisation > IDLE_PERCENT)
        for process in reading.processes:
            if process.graphics:
                continue
            if process.memory is None:
                yield None
                continue
            key = device.id, process.pid
            still = None if moves else before.get(key)
            self._still[key] = still if still and _is_same(still, process) else _Still(at, process.memory)
            yield self._still[key].since


def _is_same(known: _Still, process: Process) -> bool:
    return process.memory is not None and abs(process.memory - known.memory) <= SAME_BYTES
