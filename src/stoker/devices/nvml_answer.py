"""What the process that asks the driver answers; it needs no driver library."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, structs

from stoker.core.device import Device, Reading, Snapshot

_NAMELESS = "nvidia:"


class Answer(Struct, frozen=True):
    """A snapshot, or the sentence that says why there is none."""

    snapshot: Snapshot | None = None
    absent: str = ""


def nameless(index: int) -> Device:
    """A GPU that the driver counts but does not identify."""
    name = f"{_NAMELESS}{index}"
    return Device(id=name, label=str(index), visible=str(index), claims=(name,), kind="nvidia")


def recalled(snapshot: Snapshot, earlier: Snapshot) -> Snapshot:
    """The snapshot with what an earlier one knew of the GPUs that are in trouble now."""
    present = {device.id for device in snapshot.devices}
    devices: list[Device] = []
    readings = dict(snapshot.readings)
    for device in snapshot.devices:
        reading = snapshot.reading(device.id)
        known = list(_known(device, earlier, present)) if reading.problem else []
        devices += known or [device]
        readings.update({found.id: reading for found in known})
    kept = {device.id: readings[device.id] for device in devices if device.id in readings}
    return structs.replace(snapshot, devices=tuple(devices), readings=kept)


def unknown(snapshot: Snapshot, problem: str) -> Snapshot:
    """The same devices, about which nothing is known now: none of them is free."""
    readings = {device.id: Reading(problem=problem) for device in snapshot.devices}
    return structs.replace(snapshot, readings=readings, note=problem)


def _known(device: Device, earlier: Snapshot, present: set[str]) -> Iterable[Device]:
    if not device.id.startswith(_NAMELESS):
        return [known for known in earlier.devices if known.id == device.id]
    # Indices can have moved, so one whose UUID is still reported elsewhere is not the one in trouble.
    return [known for known in earlier.devices if _board(known) == device.label and known.id not in present]


def _board(device: Device) -> str:
    """The index of the card that a GPU or a slice is on: `0` of both `0` and `0:1`."""
    return device.label.partition(":")[0]


# What fails in one of these ways is unknown, and the rest of the device is fine.
