"""Finds out which devices to work with: simulated ones, names the user gave, or what the driver knows."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping, Sequence

import msgspec

from stoker.core.device import Snapshot
from stoker.core.device_name import resolve
from stoker.core.errors import Impossible
from stoker.devices.declared import DeclaredDevices
from stoker.devices.kind import Devices
from stoker.devices.nvidia import NvidiaAbsent, NvidiaDevices
from stoker.devices.simulated import SimulatedDevices

FIRST_ANSWER_SECONDS = 20.0
"""A driver that was just loaded may take this long to answer for the first time."""


class NoDevices:
    """A machine without GPUs, for jobs that need none."""

    variables: Mapping[str, str] = {}

    def look(self, now: float, newer_than: float = 0.0) -> Snapshot:
        """Nothing, at every moment."""
        return Snapshot(now, ())

    def fileno(self) -> int:
        """There is never news."""
        return -1

    def close(self) -> None:
        """Nothing is held."""


class Subset:
    """Some of the devices of a kind, in the order the user named them."""

    def __init__(self, devices: Devices, ids: Sequence[str]) -> None:
        self._devices = devices
        self._ids = tuple(ids)
        self.variables = devices.variables

    def look(self, now: float, newer_than: float = 0.0) -> Snapshot:
        """The snapshot without the devices that were not named."""
        snapshot = self._devices.look(now, newer_than)
        known = {device.id: device for device in snapshot.devices}
        chosen = tuple(known[device_id] for device_id in self._ids if device_id in known)
        return msgspec.structs.replace(snapshot, devices=chosen)

    def fileno(self) -> int:
        """As the whole kind."""
        return self._devices.fileno()

    def close(self) -> None:
        """Close the whole kind."""
        self._devices.close()


def detect(named: Sequence[str], now: float) -> Devices:
    """The driver's devices, those of them that were named, or names alone where no driver knows better."""
    if named and not driver_library_loads():
        return DeclaredDevices(named)
    devices = NvidiaDevices()
    try:
        snapshot = devices.first(FIRST_ANSWER_SECONDS)
    except NvidiaAbsent as absent:
        devices.close()
        if named:
            return DeclaredDevices(named)
        raise no_gpu(str(absent)) from None
    except BaseException:
        devices.close()
        raise
    if not named:
        return devices
    if len(set(named)) == len(named):
        return Subset(devices, [resolve(snapshot, word) for word in named])
    devices.close()
    return DeclaredDevices(named, known_names(snapshot))


def simulate(spec: str, directory: str, named: Sequence[str], now: float) -> Devices:
    """Simulated devices, all of them or those that were named."""
    devices = SimulatedDevices(spec, directory)
    if not named:
        return devices
    snapshot = devices.look(now)
    return Subset(devices, [resolve(snapshot, word) for word in dict.fromkeys(named)])


def declare(words: Sequence[str]) -> DeclaredDevices:
    """Names as the user gave them; where a driver answers, they claim the devices that they mean."""
    if not driver_library_loads():
        return DeclaredDevices(words)
    devices = NvidiaDevices()
    try:
        return DeclaredDevices(words, known_names(devices.first(FIRST_ANSWER_SECONDS)))
    except NvidiaAbsent:
        return DeclaredDevices(words)
    finally:
        devices.close()


def found_by_driver() -> NvidiaDevices | None:
    """The driver's devices after a first look at them; None on a machine without a driver or without a GPU."""
    if not driver_library_loads():
        return None
    devices = NvidiaDevices()
    try:
        devices.first(FIRST_ANSWER_SECONDS)
    except NvidiaAbsent:
        return None
    except BaseException:
        devices.close()
        raise
    return devices


def known_names(snapshot: Snapshot) -> dict[str, str]:
    """Every way to name each device, except ambiguous beginnings of its UUID."""
    names = {device.label: device.id for device in snapshot.devices}
    for device in snapshot.devices:
        for length in range(len("GPU-") + 1, len(device.id) + 1):
            with contextlib.suppress(Impossible):
                names[device.id[:length]] = resolve(snapshot, device.id[:length])
    return names


def no_gpu(looked_for: str) -> Impossible:
    """What to type where there is no GPU."""
    return Impossible(
        f"no GPU found: {looked_for}",
        "name the devices yourself (--devices 0,1), try it on simulated ones (--sim 4x24G), "
        "or run jobs that need none (-G 0)",
    )


def driver_library_loads() -> bool:
    """Whether it is worth asking the driver at all; loading the library does not touch a GPU."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True
