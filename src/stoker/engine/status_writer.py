"""Write the status file."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from stoker import __version__
from stoker.core.planner.forecast import Forecast
from stoker.core.settings import EngineSettings
from stoker.core.text import to_json
from stoker.engine.loop import Engine
from stoker.store.status_file import EngineStatus, Wait

INTERVAL = 1.0
"""Seconds between two versions, unless a front end asks."""

FORECAST_INTERVAL = 10.0
"""Seconds between two forecasts, unless a front end asks: each costs dozens of plans."""


class StatusWriter:
    """Writes what an engine shows of itself, once per interval."""

    def __init__(self, path: Path, *, stays: bool = True) -> None:
        """`stays` is whether the file is left when the engine leaves: it tells which devices there are."""
        self.settings: EngineSettings | None = None
        """The engine's configuration, which is shown too."""
        self._path = path
        self._stays = stays
        self._due = 0.0
        self._since: float | None = None
        self._forecast: Forecast | None = None
        self._forecast_due = 0.0

    def write_soon(self) -> None:
        """A front end asked: write at the next occasion."""
        self._due = 0.0
        self._forecast_due = min(self._forecast_due, self._forecast_due - FORECAST_INTERVAL + INTERVAL)

    def write(self, engine: Engine) -> EngineStatus | None:
        """Write a new version and return it, if it is time."""
        now = engine.now
        self._since = self._since or now
        if now < self._due:
            return None
        self._due = now + INTERVAL
        if self._forecast is None or now >= self._forecast_due:
            self._forecast = engine.site.forecast()
            self._forecast_due = now + FORECAST_INTERVAL
        status = engine_status(engine, self._since, self._forecast, self.settings)
        made = self._path.with_suffix(".status.new")
        with contextlib.suppress(OSError):  # a full disk must not keep jobs from running
            made.write_bytes(to_json(status))
            made.rename(self._path)
        return status

    def close(self) -> None:
        """Write nothing more."""
        if not self._stays:
            self._path.unlink(missing_ok=True)


def engine_status(
    engine: Engine, since: float, expected: Forecast, settings: EngineSettings | None = None
) -> EngineStatus:
    """The current status of an engine, for screens."""
    site = engine.site.status()
    return EngineStatus(
        engine=engine.name,
        label=engine.label,
        pid=os.getpid(),
        version=__version__,
        since=since,
        at=engine.now,
        waiting=engine.waiting,
        blocked=engine.blocked,
        devices=site.snapshot.devices,
        readings=dict(site.snapshot.readings),
        note=site.summary or site.snapshot.note,
        trouble=engine.trouble,
        draining=engine.draining,
        leases=tuple(site.leases),
        waits=tuple(Wait(key, reason) for key, reason in site.waits),
        reserved=site.reserved,
        order=tuple(site.order),
        starts=expected.starts,
        ends=expected.ends,
        places=expected.places,
        empty=expected.empty,
        uses=dict(site.uses),
        survivors=dict(site.survivors),
        handed_over=dict(site.handed_over),
        settings=settings,
        bookings=tuple(site.bookings),
    )
