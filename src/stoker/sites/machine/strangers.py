"""Find foreign processes that only hold memory: forgotten ones, which need not block a whole GPU."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.device import Device, Process, Reading, Snapshot

SAME_BYTES = 64 * 2**20
"""Change of memory up to which a process counts as still."""
IDLE_PERCENT = 5
"""Utilisation up to which a GPU counts as idle."""
AFTER_JOBS = 5.0
"""Seconds after the end of a job for which the driver's utilisation, a mean of the last second, may still be of it."""


class _Still(Struct, frozen=True):
    since: float
    memory: int


class StillProcesses:
    """Since when each process on a GPU neither changed its memory nor computed."""

    def __init__(self) -> None:
        self._still: dict[tuple[str, int], _Still] = {}
        self._leased_at: dict[str, float] = {}

    def marked(self, snapshot: Snapshot, leased: Collection[str]) -> Snapshot:
        """The snapshot with the time since when all processes of a device are still.

        `leased` are ledger names of devices with jobs: their utilisation says nothing about foreign processes.
        """
        before, self._still = self._still, {}
        self._leased_at.update(dict.fromkeys(leased, snapshot.at))
        marks = {}
        for device in snapshot.devices:
            reading = snapshot.reading(device.id)
            alone = all(snapshot.at - self._leased_at.get(name, -inf) > AFTER_JOBS for name in device.claims)
            still = list(self._noted(device, reading, before, snapshot.at, alone=alone))
            if still and None not in still:
                marks[device.id] = replace(reading, still_since=max(since for since in still if since is not None))
        return replace(snapshot, readings={**snapshot.readings, **marks}) if marks else snapshot

    def _noted(
        self, device: Device, reading: Reading, before: dict[tuple[str, int], _Still], at: float, *, alone: bool
    ) -> Iterator[float | None]:
        """Since when each process that computes is still; None where its memory is unknown."""
        moves = alone and (reading.utilisation is None or reading.utilisation > IDLE_PERCENT)
        for process in reading.processes:
            if process.graphics:
                continue
            if process.memory is None:
                yield None
                continue
            key = device.id, process.pid
            still = None if moves else before.get(key)
            self._still[key] = still if still and _is_same(still, process) else _Still(at, process.memory)
            yield self._still[key].since


def _is_same(known: _Still, process: Process) -> bool:
    return process.memory is not None and abs(process.memory - known.memory) <= SAME_BYTES
