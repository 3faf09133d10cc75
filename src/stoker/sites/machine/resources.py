"""Everything outside the engine that it works with."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

from stoker.devices.interface import Devices
from stoker.ledger import Ledger
from stoker.runner.local import LocalBackend
from stoker.store.writer import Store


def steady_clock() -> Callable[[], float]:
    """Seconds since the epoch as they were told once, which no later setting of the clock moves."""
    offset = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return lambda: offset + time.clock_gettime(time.CLOCK_BOOTTIME)


class EngineResources(Struct, frozen=True):
    """Everything outside the engine that it works with."""

    store: Store
    ledger: Ledger
    devices: Devices
    backend: LocalBackend
    user: str
    clock: Callable[[], float]
    report: Callable[[int], str]
    """Where a job may tell of itself, by its number."""
