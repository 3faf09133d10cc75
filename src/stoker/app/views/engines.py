"""The engines of a queue as their status files show them: devices, leases and why jobs wait."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from stoker.core.booking import Booking
from stoker.core.device import Device, Reading
from stoker.core.learning import Live
from stoker.core.lease import Lease
from stoker.core.planner.queue import ReasonKey, without_memory
from stoker.core.planner.reasons import Reason
from stoker.core.settings import Policy
from stoker.store.engine_lock import QUEUE, engine_lives, living_engines, wake
from stoker.store.paths import Paths, write_problem
from stoker.store.status_file import EngineStatus, read_status
from stoker.store.waiting import wait_until

OLD_SECONDS = 2.0
"""Age of a status file from which on its engine is asked for a new one."""
PATIENCE_SECONDS = 0.5
"""How long an engine may take to write a new status file."""
SILENT_SECONDS = 3.0
"""Age from which on the status of an engine that does not answer is reported as old."""


class EngineStatuses(Struct, frozen=True):
    """The last status of the queue's engine, dead or alive, and those of the living foreground runs."""

    queue: EngineStatus | None
    lives: bool
    runs: tuple[EngineStatus, ...] = ()
    silence: float = 0.0
    """Seconds since the queue's engine wrote its status, if it does not answer; 0 if it does."""
    problem: str = ""
    """Why the engine cannot write its status, as on a full disk; empty if that is unknown."""
    probe: EngineStatus | None = None
    """The status that driver and ledger give now, if no engine lives and a screen asked them."""

    def __iter__(self) -> Iterator[EngineStatus]:
        """Yield all of them, that of the queue first."""
        return iter(self.runs if self.queue is None else (self.queue, *self.runs))

    def of(self, engine: str) -> EngineStatus | None:
        return next((status for status in self if status.engine == engine), None)

    @property
    def current(self) -> list[EngineStatus]:
        """Those of living engines; if none lives, what was asked instead, or the last one of the queue."""
        living = [status for status in self if self.lives or status.engine != QUEUE]
        return living or ([self.probe] if self.probe else list(self))

    @property
    def devices(self) -> dict[str, Device]:
        devices: dict[str, Device] = {}
        for device in (device for status in self.current for device in status.devices):
            if device.id not in devices or device.whole is None:  # the whole GPU rather than a parent job's part of it
                devices[device.id] = device
        return devices

    def reading(self, device_id: str) -> Reading:
        newest = sorted(self.current, key=lambda status: (status.nested, -status.at))
        return next((status.readings[device_id] for status in newest if device_id in status.readings), Reading())

    def live(self, job_id: int) -> Live | None:
        """The measured use of a running job."""
        return next((status.uses[job_id] for status in self if job_id in status.uses), None)

    def tolerance(self, device_id: str) -> int:
        """Bytes that an idle device may show as used, by the settings of the engine that has it."""
        configured = (
            status.settings.tolerance
            for status in self.current
            if status.settings and any(device.id == device_id for device in status.devices)
        )
        return next(configured, Policy().tolerance)

    @property
    def living(self) -> set[str]:
        """Names of the living engines."""
        return {status.engine for status in self.runs} | ({QUEUE} if self.lives else set())

    @property
    def leases(self) -> tuple[Lease, ...]:
        return tuple(dict.fromkeys(lease for status in self.current for lease in status.leases))

    @property
    def bookings(self) -> tuple[Booking, ...]:
        return tuple(dict.fromkeys(booking for status in self.current for booking in status.bookings))

    def reasons(self) -> dict[tuple[str, ReasonKey], Reason]:
        """Why jobs wait, by engine and reason key, and by the key without memory for jobs that are not listed."""
        waits = [(status.engine, wait) for status in self for wait in status.waits]
        rough = {(engine, without_memory(wait.key)): wait.reason for engine, wait in reversed(waits)}
        return rough | {(engine, wait.key): wait.reason for engine, wait in waits}


def read_statuses(paths: Paths, now: float) -> EngineStatuses:
    """Read the status files; ask the queue's engine for a new one if its file is old."""
    lives = engine_lives(paths, QUEUE)
    path = paths.status_file(QUEUE)
    written, queue = _written(path), read_status(path)
    silence = 0.0
    if lives and (queue is None or now - queue.at > OLD_SECONDS) and wake(paths, QUEUE):
        answers = wait_until(lambda: _written(path) != written, PATIENCE_SECONDS)
        queue = read_status(path) or queue
        silence = now - queue.at if queue and not answers else 0.0
    others = (read_status(paths.status_file(name)) for name in living_engines(paths) if name != QUEUE)
    runs = tuple(status for status in others if status is not None)
    silence = silence if silence > SILENT_SECONDS else 0.0
    return EngineStatuses(queue, lives, runs, silence, write_problem(paths.engines) if silence else "")


def _written(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime_ns
    return 0
