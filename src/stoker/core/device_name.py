"""Devices as people name them."""

from __future__ import annotations

from stoker.core.device import Snapshot
from stoker.core.errors import Impossible


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
