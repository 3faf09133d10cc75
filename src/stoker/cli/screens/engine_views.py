"""What the living engines show of themselves, as new as it can be had without making anybody wait."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from stoker.core.device import Device, Reading
from stoker.core.lease import Lease
from stoker.core.reasons import Reason
from stoker.core.waiting import Shape
from stoker.places import Places
from stoker.presence import QUEUE, engine_lives, living_engines, ring
from stoker.published import View, read_view

OLD_SECONDS = 2.0
"""Age at which what an engine shows is asked for anew..."""
PATIENCE = 0.5
"""... and how many seconds it may take to show it."""
SILENT_SECONDS = 3.0
"""Age at which what an engine shows that does not answer is too old to pass for the truth."""
_STEP = 0.01


class Views(Struct, frozen=True):
    """The engine of the queue, whether or not it lives, and the foreground runs that do."""

    queue: View | None
    lives: bool
    runs: tuple[View, ...] = ()
    silence: float = 0.0
    """Seconds for which the engine of the queue has shown nothing, although it was asked; 0 where it answers."""

    def __iter__(self) -> Iterator[View]:
        """All of them, that of the queue first."""
        return iter(self.runs if self.queue is None else (self.queue, *self.runs))

    def of(self, engine: str) -> View | None:
        """What one engine shows."""
        return next((view for view in self if view.engine == engine), None)

    @property
    def current(self) -> list[View]:
        """Those of living engines; where none lives, what the last one showed."""
        living = [view for view in self if self.lives or view.engine != QUEUE]
        return living or list(self)

    @property
    def devices(self) -> dict[str, Device]:
        """All devices that anybody knows of."""
        return {device.id: device for view in self.current for device in view.devices}

    def reading(self, device_id: str) -> Reading:
        """The newest reading of a device."""
        newest = sorted(self.current, key=lambda view: -view.at)
        return next((view.readings[device_id] for view in newest if device_id in view.readings), Reading())

    @property
    def leases(self) -> tuple[Lease, ...]:
        """Those that the engines see of others, each once."""
        return tuple(dict.fromkeys(lease for view in self.current for lease in view.leases))

    def reasons(self) -> dict[tuple[str, Shape], Reason]:
        """Why jobs wait, by engine and shape."""
        return {(view.engine, wait.shape): wait.reason for view in self for wait in view.waits}


def look(places: Places, now: float) -> Views:
    """What engines show; one that lives and has not shown anything new for a while is asked to."""
    lives = engine_lives(places, QUEUE)
    path = places.bulletin(QUEUE)
    written, queue = _written(path), read_view(path)
    silence = 0.0
    if lives and (queue is None or now - queue.at > OLD_SECONDS) and ring(places, QUEUE):
        answers = _wait_until_newer(path, written)
        queue = read_view(path) or queue
        silence = now - queue.at if queue and not answers else 0.0
    others = (read_view(places.bulletin(name)) for name in living_engines(places) if name != QUEUE)
    runs = tuple(view for view in others if view is not None)
    return Views(queue, lives, runs, silence if silence > SILENT_SECONDS else 0.0)


def _wait_until_newer(path: Path, written: int) -> bool:
    deadline = time.monotonic() + PATIENCE
    while _written(path) == written and time.monotonic() < deadline:
        time.sleep(_STEP)
    return _written(path) != written


def _written(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime_ns
    return 0
