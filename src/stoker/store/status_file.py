"""The status file that an engine writes for front ends."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from stoker.core.booking import Booking
from stoker.core.device import Device, Reading, Snapshot
from stoker.core.learning import Live
from stoker.core.lease import Lease
from stoker.core.planner.order import QueuePosition
from stoker.core.planner.queue import ReasonKey
from stoker.core.planner.reasons import InCluster, Reason
from stoker.core.settings import EngineSettings
from stoker.store.paths import UNREADABLE


class Wait(NamedTuple):
    """Why the jobs wait that want the same."""

    key: ReasonKey
    reason: Reason


class EngineStatus(Struct, frozen=True):
    """The state of an engine at one moment. Reasons and forecasts are only here, jobs also in the store."""

    engine: str
    label: str
    pid: int
    version: str
    since: float
    """When the engine started."""
    at: float
    """When this was written."""
    waiting: int
    blocked: int
    devices: tuple[Device, ...]
    readings: dict[str, Reading]
    note: str
    """A notice about the readings."""
    trouble: str
    """The problem that keeps the engine from working; empty if there is none."""
    draining: bool
    leases: tuple[Lease, ...]
    """Leases of other engines."""
    waits: tuple[Wait, ...]
    reserved: int | None = None
    """The waiting job that has a reservation."""
    order: tuple[QueuePosition, ...] = ()
    """The first waiting jobs in the order of the plan, one for each array."""
    starts: dict[int, float] = {}
    """Expected starts of waiting jobs, if known."""
    ends: dict[int, float] = {}
    """Expected ends of running and waiting jobs, if known."""
    places: dict[int, tuple[str, ...]] = {}
    """Ids of the devices on which waiting jobs are expected to start."""
    empty: float | None = None
    """When the queue is expected to be empty."""
    uses: dict[int, Live] = {}
    """GPU use of running jobs."""
    survivors: dict[int, str] = {}
    """Active jobs that cannot end, because processes of theirs outlive their worker, each with the reason."""
    handed_over: dict[str, InCluster] = {}
    """Why jobs have not started that were handed over to a cluster, by the bundle that is a part of their ref."""
    settings: EngineSettings | None = None
    """Its settings; None for an engine without a configuration."""
    bookings: tuple[Booking, ...] = ()
    """Those of all users of the machine."""

    @property
    def snapshot(self) -> Snapshot:
        """The devices and readings of this moment."""
        return Snapshot(self.at, self.devices, self.readings, self.note)

    @property
    def nested(self) -> bool:
        """Whether the engine runs inside a job, so that it knows only that job's part of the GPUs."""
        return any(device.whole is not None for device in self.devices)


def read_status(path: Path) -> EngineStatus | None:
    """The latest status of an engine; None if there is none that this version can read."""
    with contextlib.suppress(*UNREADABLE):
        return msgspec.json.decode(path.read_bytes(), type=EngineStatus)
    return None


class Machine(Struct, frozen=True):
    """The devices as an engine saw them, and its settings: a part of its status that is fast to read."""

    at: float
    devices: tuple[Device, ...]
    note: str = ""
    """A notice about them, such as why there are none."""
    settings: EngineSettings | None = None

    @property
    def snapshot(self) -> Snapshot:
        """The devices, without readings."""
        return Snapshot(self.at, self.devices, note=self.note)


def read_machine(path: Path) -> Machine | None:
    """The devices in a status file; None if there is none that this version can read."""
    with contextlib.suppress(*UNREADABLE):
        return msgspec.json.decode(path.read_bytes(), type=Machine)
    return None
