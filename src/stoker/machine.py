"""What this machine has, read from what the engine shows of itself; a part of that, because the whole takes long."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
from msgspec import Struct

from stoker.core.device import Device, Snapshot


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
