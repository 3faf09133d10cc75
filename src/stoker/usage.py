"""How much of the machine a user has had lately, told by the store and by what an engine sees itself."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable

from stoker.core.share import HALF_LIFE, decayed, usage_of
from stoker.devices.declared import NO_GPU
from stoker.store import Store

MEMORY = 6 * HALF_LIFE
"""Seconds after which what was used is forgotten."""
MOST_ROWS = 20_000
"""How many attempts are read at most, the newest ones, so that a queue with a long history starts as fast."""
READ_INTERVAL = 5.0
"""Seconds between looks at what other engines of the same user have recorded."""


class Usage:
    """One number that ages; attempts are added to it when they are over."""

    def __init__(self, store: Store, engine: str) -> None:
        self._store = store
        self._engine = engine
        self._total = 0.0
        self._at = 0.0
        self._read_at: float | None = None
        """When others' attempts were last read; None where nothing was read because nobody asked yet."""

    def spent(self, devices: tuple[str, ...], began: float, ended: float) -> None:
        """An attempt of this engine is over."""
        if self._read_at is not None:
            self._age(max(self._at, ended))
            self._total += usage_of([(_gpus(devices), began, ended)], self._at)

    def until(self, now: float, running: Iterable[tuple[tuple[str, ...], float]]) -> float:
        """GPU-seconds up to now, with those of attempts that still run (devices and beginning)."""
        self._read(now)
        self._age(now)
        return self._total + usage_of([(_gpus(devices), began, None) for devices, began in running], now)

    def _read(self, now: float) -> None:
        if self._read_at is None:  # until now the store knows of ours as well
            rows = self._store.spent(now - MEMORY, "", MOST_ROWS)
        elif now - self._read_at >= READ_INTERVAL:
            rows = self._store.spent(self._read_at, self._engine, MOST_ROWS)
        else:
            return
        self._read_at = now
        self._age(now)
        self._total += usage_of([(_written_gpus(text), began, ended) for text, began, ended in rows], now)

    def _age(self, now: float) -> None:
        self._total, self._at = decayed(self._total, now - self._at), now


def _gpus(devices: Iterable[str]) -> int:
    """How many devices are GPUs: slots without one are not what users compete for."""
    return sum(device.partition("#")[0] != NO_GPU for device in devices)


@functools.lru_cache(maxsize=1024)
def _written_gpus(text: str) -> int:
    return _gpus(json.loads(text))
