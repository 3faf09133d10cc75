"""Write the status file."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stoker import __version__
from stoker.core.settings import EngineSettings
from stoker.store.status_file import EngineStatus, Wait

if TYPE_CHECKING:
    from stoker.core.planner.forecast import Forecast
    from stoker.engine.loop import Engine


INTERVAL = 1.0
"""Seconds between two versions, unless somebody asks."""

FORECAST_INTERVAL = 10.0
"""Seconds between two forecasts, unless somebody asks: each costs dozens of plans."""


_encoder = msgspec.json.Encoder()


class StatusWriter:
    """Writes what an engine shows of itself, not too often."""

    def __init__(self, path: Path, *, stays: bool = True) -> None:
        """`stays` is whether it is left when the engine leaves: it tells what the machine has."""
        self.settings: EngineSettings | None = None
        """What was configured, to be shown with the rest."""
        self._path = path
        self._stays = stays
        self._due = 0.0
        self._since: float | None = None
        self._forecast: Forecast | None = None
        self._forecast_due = 0.0

    def hurry(self) -> None:
        """Somebody is looking: write at the next occasion."""
        self._due = 0.0
        self._forecast_due = min(self._forecast_due, self._forecast_due - FORECAST_INTERVAL + INTERVAL)

    def allocation(self, engine: Engine) -> None:
        """Write a new version, if it is time."""
        now = engine.now
        self._since = self._since or now
        if now < self._due:
            return
        self._due = now + INTERVAL
        if self._forecast is None or now >= self._forecast_due:
            self._forecast = engine.forecast()
            self._forecast_due = now + FORECAST_INTERVAL
        made = self._path.with_suffix(".view.new")
        with contextlib.suppress(OSError):  # a full disk must not keep jobs from running
            made.write_bytes(_encoder.encode(self._status(engine, self._since, self._forecast)))
            made.rename(self._path)

    def _status(self, engine: Engine, since: float, expected: Forecast) -> EngineStatus:
        return msgspec.structs.replace(engine_status(engine, since, expected), settings=self.settings)

    def close(self) -> None:
        """Nothing more is written."""
        if not self._stays:
            self._path.unlink(missing_ok=True)


def engine_status(engine: Engine, since: float, expected: Forecast) -> EngineStatus:
    """What an engine shows of itself now."""
    snapshot, plan = engine.snapshot, engine.last_plan
    reserved = plan.reserved if plan else None
    return EngineStatus(
        engine=engine.name,
        label=engine.label,
        pid=os.getpid(),
        version=__version__,
        since=since,
        at=engine.now,
        waiting=engine.waiting,
        blocked=engine.blocked,
        devices=snapshot.devices,
        readings=dict(snapshot.readings),
        note=snapshot.note,
        trouble=engine.trouble,
        draining=engine.draining,
        leases=tuple(engine.observation.leases),
        waits=tuple(Wait(shape, reason) for shape, reason in plan.waits.items()) if plan else (),
        reserved=reserved.job if reserved else None,
        starts=expected.starts,
        ends=expected.ends,
        empty=expected.empty,
        uses=engine.uses,
    )
