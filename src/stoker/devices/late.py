"""GPUs of a machine whose driver was not there at first: after a boot it may be loaded late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from stoker.core.device import Snapshot
from stoker.core.device_name import resolve
from stoker.core.errors import Impossible
from stoker.devices.detect import driver_library_loads, no_gpu
from stoker.devices.nvidia import NvidiaDevices

SOONEST = 2.0
"""Seconds between two looks for a driver right after the start..."""
LATEST = 30.0
"""... and at last, when it has not come for long; in between it is a quarter of the time since the start."""


class LateDevices:
    """No GPUs, until a driver shows some; then those, as far as they were named."""

    variables: Mapping[str, str] = {}

    def __init__(self, named: Sequence[str], reason: str, soonest: float = SOONEST) -> None:
        """`reason` says why there are none at first."""
        self._named = tuple(named)
        self._reason = reason
        self._soonest = soonest
        self._driver = NvidiaDevices(restart_after=soonest)
        self._since: float | None = None
        self._looked_at: float | None = None
        self._loads = False

    def look(self, now: float, newer_than: float = 0.0) -> Snapshot:
        """What the driver shows, or nothing and why."""
        self._since = now if self._since is None else self._since
        self._driver.restart_after = max(self._soonest, min(LATEST, (now - self._since) / 4))
        if not self._worth_asking(now):
            return Snapshot(now, (), note=self._reason)
        snapshot = self._driver.look(now, newer_than)
        if snapshot.devices:
            return self._chosen(snapshot)
        if snapshot.note:
            self._reason = no_gpu(snapshot.note).message
        return Snapshot(now, (), note=self._reason)

    def fileno(self) -> int:
        """Readable when the driver has answered."""
        return self._driver.fileno()

    def close(self) -> None:
        """Ask no more."""
        self._driver.close()

    def _worth_asking(self, now: float) -> bool:
        """Whether there is a library now; tried now and then only, and then believed."""
        if not self._loads and (self._looked_at is None or abs(now - self._looked_at) >= self._driver.restart_after):
            self._looked_at = now
            self._loads = driver_library_loads()
        return self._loads

    def _chosen(self, snapshot: Snapshot) -> Snapshot:
        if not self._named:
            return snapshot
        try:
            ids = [resolve(snapshot, word) for word in self._named]
        except Impossible as error:
            return Snapshot(snapshot.at, (), note=f"{error.message}; {error.hint}")
        known = {device.id: device for device in snapshot.devices}
        return msgspec.structs.replace(snapshot, devices=tuple(known[device_id] for device_id in ids))
