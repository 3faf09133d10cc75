"""Devices, what was measured on them, and the leases that engines hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.errors import Impossible

DeviceKind = Literal["nvidia", "declared", "simulated"]


class Device(Struct, frozen=True):
    """One GPU, MIG slice or named slot."""

    id: str
    """Unique in its snapshot: the UUID if the driver knows one, else the user's name for it."""
    label: str
    """The user's word for it: the index, or a name of their own."""
    visible: str
    """Its entry in CUDA_VISIBLE_DEVICES."""
    claims: tuple[str, ...]
    """Its ledger names; a slot of several GPUs has several."""
    kind: DeviceKind
    share: int = 1
    """How many exclusive leases a claim may have at once (a device that is listed several times)."""
    model: str = ""
    memory: int | None = None
    """Total bytes; None if unknown, and then jobs do not share it."""
    near: tuple[str, ...] = ()
    """Ids of the other devices, closest first, if the topology is known."""
    variables: tuple[tuple[str, str], ...] = ()
    """Set in place of CUDA_VISIBLE_DEVICES; the values of several devices are joined by commas."""
    words: tuple[tuple[str, str], ...] = ()
    """Words of a command that are replaced, and their values; those of the first device count."""
    whole: int | None = None
    """Total bytes of the GPU where `memory` is the part of it that a parent job has; None outside of jobs."""

    @property
    def measured(self) -> bool:
        """Whether the device has readings."""
        return self.kind != "declared"

    @property
    def supports_mps(self) -> bool:
        """Whether an NVIDIA MPS daemon can serve it; the simulator runs one as if it had a GPU."""
        return self.kind in ("nvidia", "simulated")


class NodeGpu(NamedTuple):
    """A GPU of a node of a cluster."""

    cluster: str
    node: str
    gpu: str
    """Its label on the node."""

    @property
    def id(self) -> str:
        """Its id as a device of a job, which users see: `lab:n3 0`."""
        return f"{self.cluster}:{self.node} {self.gpu}"


def node_gpu(device_id: str) -> NodeGpu | None:
    """The GPU of a node with this id; None for a device of this machine."""
    place, _, gpu = device_id.partition(" ")
    cluster, _, node = place.partition(":")
    return NodeGpu(cluster, node, gpu) if node and gpu else None


class Process(Struct, frozen=True):
    """A process that the driver reports on a device."""

    pid: int
    memory: int | None
    owner: str
    command: str = ""
    graphics: bool = False
    """It only draws, as a desktop does, and does not block the device."""
    load: int | None = None
    """Percent of the device that it kept busy since the last snapshot; None if the driver does not tell."""


class Account(Struct, frozen=True):
    """The driver's accounting of one process on a device, also after its end."""

    pid: int
    peak: int
    """Most bytes that it held."""
    utilisation: int | None = None
    """Mean utilisation of the device during the process, in percent."""
    running: bool = True


class Reading(Struct, frozen=True):
    """The state of one device; None is "not supported" or "not permitted", never zero."""

    used: int | None = None
    utilisation: int | None = None
    temperature: int | None = None
    power: float | None = None
    processes: tuple[Process, ...] = ()
    problem: str = ""
    """Why the device cannot be used now; empty when it can."""
    accounts: tuple[Account, ...] | None = None
    """Running and recently ended processes; None where accounting is off."""
    drained_at: float | None = None
    """When root or a coordinator drained the device for all users."""
    drained_by: str = "root"
    still_since: float | None = None
    """Since when its processes neither computed nor changed their memory; None if one is not known to be still."""


class Snapshot(Struct, frozen=True):
    """The state of all devices at one moment (seconds since the epoch)."""

    at: float
    devices: tuple[Device, ...]
    readings: Mapping[str, Reading] = {}
    note: str = ""
    """A notice about the probe itself: stale, partly forbidden."""

    def reading(self, device_id: str) -> Reading:
        """The reading of a device; an empty one if there is none."""
        return self.readings.get(device_id, NO_READING)


NO_READING = Reading()

DRAINED_FOR_ALL = "drained for all"


class Drain(NamedTuple):
    """A device that is drained for all users: since when, and who did it."""

    since: float
    by: str


def drained_for_all(reading: Reading) -> str:
    """The note of a device that is drained for all users."""
    return f"{DRAINED_FOR_ALL} by {reading.drained_by}"


def with_drains(snapshot: Snapshot, drained: Mapping[str, Drain]) -> Snapshot:
    """The snapshot with the devices marked that are drained for all users, by their ledger names."""
    closed = {device.id: drained[name] for device in snapshot.devices for name in device.claims if name in drained}
    if not closed:
        return snapshot
    marked = {
        device_id: replace(snapshot.reading(device_id), drained_at=drain.since, drained_by=drain.by)
        for device_id, drain in closed.items()
    }
    return replace(snapshot, readings={**snapshot.readings, **marked})


def resolve(snapshot: Snapshot, word: str) -> str:
    """The id of the device with this label, id or beginning of an id."""
    wanted = word.strip()
    for device in snapshot.devices:
        if wanted in (device.label, device.id):
            return device.id
    starting = [device.id for device in snapshot.devices if wanted and device.id.startswith(wanted)]
    if len(starting) == 1:
        return starting[0]
    labels = ", ".join(device.label for device in snapshot.devices)
    what = "more than one device starts with" if starting else "no device"
    raise Impossible(
        f"{what} {word!r} on this machine", f"known devices: {labels}" if labels else "this run has no devices"
    )
