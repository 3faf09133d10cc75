"""The status file that an engine writes for front ends."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from stoker.core.device import Device, Reading, Snapshot
from stoker.core.learning import Live
from stoker.core.lease import Lease
from stoker.core.planner.queue import Shape
from stoker.core.planner.reasons import Reason
from stoker.core.settings import EngineSettings


class Wait(NamedTuple):
    """Why the waiting jobs of one shape wait."""

    shape: Shape
    reason: Reason


class EngineStatus(Struct, frozen=True):
    """An engine at one moment; what it says of jobs is also in the store, but for the reasons."""

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
    """What a person should know about the readings."""
    trouble: str
    """What keeps the engine from working, in words; empty when nothing does."""
    draining: bool
    leases: tuple[Lease, ...]
    """Those of other engines."""
    waits: tuple[Wait, ...]
    reserved: int | None = None
    """The waiting job that devices are being kept free for."""
    starts: dict[int, float] = {}
    """When jobs that wait are expected to start..."""
    ends: dict[int, float] = {}
    """... and jobs that run or wait to end, where that can be told."""
    empty: float | None = None
    """When all that waits for a device is expected to be over."""
    uses: dict[int, Live] = {}
    """What running jobs hold of their GPUs."""
    settings: EngineSettings | None = None
    """What it goes by, where it was configured at all."""

    @property
    def snapshot(self) -> Snapshot:
        """The devices as the engine saw them."""
        return Snapshot(self.at, self.devices, self.readings, self.note)

    def reason(self, shape: Shape) -> Reason | None:
        """Why jobs of a shape wait."""
        return next((wait.reason for wait in self.waits if wait.shape == shape), None)


_decoder = msgspec.json.Decoder(EngineStatus)


def read_status(path: Path) -> EngineStatus | None:
    """What an engine wrote last; None where there is nothing, or nothing that this version understands."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return _decoder.decode(path.read_bytes())
    return None


class Machine(Struct, frozen=True):
    """The devices as an engine saw them."""

    at: float
    devices: tuple[Device, ...]
    note: str = ""
    """What a person should know about them; why there are none."""

    @property
    def snapshot(self) -> Snapshot:
        """The devices, without readings."""
        return Snapshot(self.at, self.devices, note=self.note)


def read_machine(path: Path) -> Machine | None:
    """What an engine wrote last; None where there is nothing, or nothing that this version understands."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(path.read_bytes(), type=Machine)
    return None
