"""Choose the devices of an engine: declared by name, simulated, NVIDIA, or none yet."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from stoker.core.device import Device, Snapshot, resolve
from stoker.core.errors import Impossible, UsageError
from stoker.devices.interface import Devices
from stoker.devices.nvidia import NvidiaAbsent, NvidiaDevices
from stoker.devices.simulated import SimulatedDevices

FIRST_ANSWER_SECONDS = 20.0
"""A driver that was just loaded may take this long to answer for the first time."""
SOONEST = 2.0
"""Seconds between two searches for a driver right after the start. Later it is a quarter of the time since the
start."""
LATEST = 30.0
"""Seconds between two searches at most."""
NO_GPU = "none"
"""Id of the slot whose word is empty: its jobs see no GPU."""


class DeclaredDevices:
    """One device per listed slot word, in the listed order, for as long as the engine runs."""

    variables: Mapping[str, str] = {}

    def __init__(self, words: Sequence[str], uuids: Mapping[str, str] | None = None) -> None:
        """`uuids` maps an index, a UUID or a prefix of one to the UUID, if a driver knows it."""
        if not words:
            raise UsageError("no devices are named", "name at least one, for example 0 or 0,1")
        self._devices = tuple(_devices(words, uuids or {}))

    def snapshot(self, now: float, newer_than: float = 0.0) -> Snapshot:
        return Snapshot(now, self._devices)

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        pass


def _devices(words: Sequence[str], uuids: Mapping[str, str]) -> Iterator[Device]:
    claims = [_claims(word, uuids) for word in words]
    for word, device_id, own in zip(words, _unique_ids(words), claims, strict=True):
        listed = [sum(claim in other for other in claims) for claim in own]
        share = max(listed, default=1)
        yield Device(device_id, label=word, visible=word, claims=own, kind="declared", share=share)


def _claims(word: str, uuids: Mapping[str, str]) -> tuple[str, ...]:
    parts = [part.strip() for part in word.split(",")]
    names = [uuids.get(part, f"name:{part}") for part in parts if part]
    return tuple(dict.fromkeys(names))


def _unique_ids(words: Sequence[str]) -> list[str]:
    # A word such as "0#2" may be the user's own, so counted ids keep clear of all words.
    ids: list[str] = []
    for word in words:
        name, candidate, count = word or NO_GPU, word or NO_GPU, 1
        while candidate in ids or (count > 1 and candidate in words):
            count += 1
            candidate = f"{name}#{count}"
        ids.append(candidate)
    return ids


class NoDevices:
    """A machine without GPUs, for jobs that need none."""

    variables: Mapping[str, str] = {}

    def snapshot(self, now: float, newer_than: float = 0.0) -> Snapshot:
        return Snapshot(now, ())

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        pass


class Subset:
    """Some of the devices of a kind, in the order the user named them."""

    def __init__(self, devices: Devices, ids: Sequence[str]) -> None:
        self._devices = devices
        self._ids = tuple(ids)
        self.variables = devices.variables

    def snapshot(self, now: float, newer_than: float = 0.0) -> Snapshot:
        return _only(self._devices.snapshot(now, newer_than), self._ids)

    def fileno(self) -> int:
        return self._devices.fileno()

    def close(self) -> None:
        self._devices.close()


def detect(named: Sequence[str], now: float) -> Devices:
    """The driver's devices, the named ones of them, or only names if there is no driver."""
    if len(set(named)) < len(named):
        return declare(named)
    if named and not driver_library_loads():
        return DeclaredDevices(named)
    devices = NvidiaDevices()
    try:
        snapshot = devices.first(FIRST_ANSWER_SECONDS)
        return Subset(devices, [resolve(snapshot, word) for word in named]) if named else devices
    except NvidiaAbsent as absent:
        if named:
            return DeclaredDevices(named)
        raise no_gpu(str(absent)) from None
    except BaseException:
        devices.close()
        raise


def simulate(spec: str, directory: str, named: Sequence[str], now: float) -> Devices:
    """Simulated devices, all of them or those that were named."""
    devices = SimulatedDevices(spec, directory)
    if not named:
        return devices
    snapshot = devices.snapshot(now)
    return Subset(devices, [resolve(snapshot, word) for word in dict.fromkeys(named)])


def declare(words: Sequence[str]) -> DeclaredDevices:
    """Devices as the user named them; if a driver answers, they claim the GPUs that the names mean."""
    driver = found_by_driver()
    if driver is None:
        return DeclaredDevices(words)
    driver.close()
    return DeclaredDevices(words, known_names(driver.seen))


def found_by_driver() -> NvidiaDevices | None:
    """The driver's devices after their first snapshot; None on a machine without a driver or without a GPU."""
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
    """Every way to name each device, except ambiguous prefixes of its UUID."""
    names = {device.label: device.id for device in snapshot.devices}
    for device in snapshot.devices:
        for length in range(len("GPU-") + 1, len(device.id) + 1):
            with contextlib.suppress(Impossible):
                names[device.id[:length]] = resolve(snapshot, device.id[:length])
    return names


def no_gpu(looked_for: str) -> Impossible:
    """The error for a machine without a GPU, with what to type."""
    return Impossible(
        f"no GPU found: {looked_for}",
        "name the devices yourself (--devices 0,1), try it on simulated ones (--sim 4x24G), "
        "or run jobs that need none (-G 0)",
    )


def driver_library_loads() -> bool:
    """Whether the driver's library is installed; loading it does not touch a GPU."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


class LateDevices:
    """No GPUs until a driver shows some; then those, or the named ones of them."""

    variables: Mapping[str, str] = {}

    def __init__(self, named: Sequence[str], reason: str, soonest: float = SOONEST) -> None:
        """`reason` says why there are none at first."""
        self._named = tuple(named)
        self._reason = reason
        self._soonest = soonest
        self._driver = NvidiaDevices(restart_after=soonest)
        self._since: float | None = None
        self._searched_at: float | None = None
        self._loads = False

    def snapshot(self, now: float, newer_than: float = 0.0) -> Snapshot:
        """The devices of the driver, or no device and a note why."""
        self._since = now if self._since is None else self._since
        self._driver.restart_after = max(self._soonest, min(LATEST, (now - self._since) / 4))
        if not self._has_library(now):
            return Snapshot(now, (), note=self._reason)
        snapshot = self._driver.snapshot(now, newer_than)
        if snapshot.devices:
            return self._chosen(snapshot)
        if snapshot.note:
            self._reason = no_gpu(snapshot.note).message
        return Snapshot(now, (), note=self._reason)

    def fileno(self) -> int:
        return self._driver.fileno()

    def close(self) -> None:
        self._driver.close()

    def _has_library(self, now: float) -> bool:
        """Whether the library is there; searched at intervals until it is found."""
        if not self._loads and (
            self._searched_at is None or abs(now - self._searched_at) >= self._driver.restart_after
        ):
            self._searched_at = now
            self._loads = driver_library_loads()
        return self._loads

    def _chosen(self, snapshot: Snapshot) -> Snapshot:
        if not self._named:
            return snapshot
        try:
            ids = [resolve(snapshot, word) for word in self._named]
        except Impossible as error:
            return Snapshot(snapshot.at, (), note=str(error))
        return _only(snapshot, ids)


def _only(snapshot: Snapshot, ids: Sequence[str]) -> Snapshot:
    by_id = {device.id: device for device in snapshot.devices}
    chosen = tuple(by_id[device_id] for device_id in ids if device_id in by_id)
    return msgspec.structs.replace(snapshot, devices=chosen)
