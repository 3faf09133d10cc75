"""Devices, their readings, and how users name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from stoker.core.errors import Impossible

DeviceKind = Literal["nvidia", "declared", "simulated"]


class Device(Struct, frozen=True):
    """One GPU, MIG slice or named slot that whole jobs hold one at a time."""

    id: str
    """Unique in its snapshot: the UUID where the driver knows one, else the user's own word."""
    label: str
    """What people call it: the index, or the user's own word."""
    visible: str
    """What a job finds in CUDA_VISIBLE_DEVICES."""
    claims: tuple[str, ...]
    """Its names in the ledger; a slot of several GPUs has several."""
    kind: DeviceKind
    share: int = 1
    """How many leases one of its claims may carry at once when whole jobs hold it (listed several times)."""
    model: str = ""
    memory: int | None = None
    """Bytes in all; None where nobody can tell, and then nothing is packed on it."""
    near: tuple[str, ...] = ()
    """Ids of the other devices, closest first, where the topology is known."""
    variables: tuple[tuple[str, str], ...] = ()
    """By which a job finds it in place of CUDA_VISIBLE_DEVICES; the values of several devices make a list."""
    words: tuple[tuple[str, str], ...] = ()
    """Words of a command that stand for something about it, and what; of several devices the first one speaks."""

    @property
    def measured(self) -> bool:
        """Whether readings exist that show what really happens on the device."""
        return self.kind != "declared"

    @property
    def supports_mps(self) -> bool:
        """Whether an NVIDIA MPS daemon can serve it; the simulator runs one as if it had a GPU."""
        return self.kind in ("nvidia", "simulated")


class Process(Struct, frozen=True):
    """A process that the driver reports on a device."""

    pid: int
    memory: int | None
    owner: str
    command: str = ""
    graphics: bool = False
    """It only draws: a desktop keeps nobody from computing."""


class Account(Struct, frozen=True):
    """What the driver's accounting keeps of one process on a device, also after its end."""

    pid: int
    peak: int
    """The most bytes that it ever held."""
    utilisation: int | None = None
    """The mean of the device while the process had it, in percent."""
    running: bool = True


class Reading(Struct, frozen=True):
    """The state of one device; None is "not supported" or "not permitted", never zero."""

    used: int | None = None
    utilisation: int | None = None
    temperature: int | None = None
    power: float | None = None
    processes: tuple[Process, ...] = ()
    problem: str = ""
    """Why the device cannot be used now, in words; empty when it can."""
    accounts: tuple[Account, ...] | None = None
    """Of the processes that run on it and of those that ended lately; None where accounting is off."""


class Snapshot(Struct, frozen=True):
    """What was seen of all devices at one moment (seconds since the epoch)."""

    at: float
    devices: tuple[Device, ...]
    readings: Mapping[str, Reading] = {}
    note: str = ""
    """What a person should know about the probe itself: stale, partly forbidden."""

    def reading(self, device_id: str) -> Reading:
        """The reading of a device, an empty one where there is none."""
        return self.readings.get(device_id, NO_READING)


NO_READING = Reading()


def resolve(snapshot: Snapshot, word: str) -> str:
    """The id of the device that a label, an id or the beginning of an id means."""
    wanted = word.strip()
    for device in snapshot.devices:
        if wanted in (device.label, device.id):
            return device.id
    starting = [device.id for device in snapshot.devices if wanted and device.id.startswith(wanted)]
    if len(starting) == 1:
        return starting[0]
    labels = ", ".join(device.label for device in snapshot.devices)
    what = "more than one device begins with" if starting else "no device"
    raise Impossible(
        f"{what} {word!r} on this machine", f"there are {labels}" if labels else "there are no devices for this run"
    )
