"""What an engine shows of itself to every door: devices, who holds them, and why jobs wait."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import Struct

from stoker import __version__
from stoker.core.device import Device, Reading, Snapshot
from stoker.core.lease import Lease
from stoker.core.reasons import Reason
from stoker.core.settings import EngineSettings
from stoker.core.use import Live
from stoker.core.waiting import Shape

if TYPE_CHECKING:  # a door that only reads this need not load what an engine consists of
    from stoker.core.forecast import Forecast
    from stoker.engine import Engine

INTERVAL = 1.0
"""Seconds between two versions, unless somebody asks."""
FORECAST_INTERVAL = 10.0
"""Seconds between two forecasts, unless somebody asks: each costs dozens of plans."""


class Wait(NamedTuple):
    """Why the waiting jobs of one shape wait."""

    shape: Shape
    reason: Reason


class View(Struct, frozen=True):
    """An engine at one moment; what it says of jobs is also in the store, but for the reasons."""

    engine: str
    label: str
    pid: int
    version: str
    since: float
    """When the engine started."""
    at: float
    """When this was written."""
    waiting: int
    parked: int
    devices: tuple[Device, ...]
    readings: dict[str, Reading]
    note: str
    """What a person should know about the readings."""
    trouble: str
    """What keeps the engine from working, in words; empty when nothing does."""
    draining: bool
    leases: tuple[Lease, ...]
    """Those of other engines."""
    waits: tuple[Wait, ...]
    reserved: int | None = None
    """The waiting job that devices are being kept free for."""
    starts: dict[int, float] = {}
    """When jobs that wait are expected to start..."""
    ends: dict[int, float] = {}
    """... and jobs that run or wait to end, where that can be told."""
    empty: float | None = None
    """When all that waits for a device is expected to be over."""
    uses: dict[int, Live] = {}
    """What running jobs hold of their GPUs."""
    settings: EngineSettings | None = None
    """What it goes by, where it was configured at all."""

    @property
    def snapshot(self) -> Snapshot:
        """The devices as the engine saw them."""
        return Snapshot(self.at, self.devices, self.readings, self.note)

    def reason(self, shape: Shape) -> Reason | None:
        """Why jobs of a shape wait."""
        return next((wait.reason for wait in self.waits if wait.shape == shape), None)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(View)


class Bulletin:
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

    def post(self, engine: Engine) -> None:
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
            made.write_bytes(_encoder.encode(self._view(engine, self._since, self._forecast)))
            made.rename(self._path)

    def _view(self, engine: Engine, since: float, expected: Forecast) -> View:
        return msgspec.structs.replace(view_of(engine, since, expected), settings=self.settings)

    def close(self) -> None:
        """Nothing more is written."""
        if not self._stays:
            self._path.unlink(missing_ok=True)


def view_of(engine: Engine, since: float, expected: Forecast) -> View:
    """What an engine shows of itself now."""
    snapshot, plan = engine.snapshot, engine.last_plan
    reserved = plan.reserved if plan else None
    return View(
        engine=engine.name,
        label=engine.label,
        pid=os.getpid(),
        version=__version__,
        since=since,
        at=engine.now,
        waiting=engine.waiting,
        parked=engine.parked,
        devices=snapshot.devices,
        readings=dict(snapshot.readings),
        note=snapshot.note,
        trouble=engine.trouble,
        draining=engine.draining,
        leases=tuple(engine.sight.leases),
        waits=tuple(Wait(shape, reason) for shape, reason in plan.waits.items()) if plan else (),
        reserved=reserved.job if reserved else None,
        starts=expected.starts,
        ends=expected.ends,
        empty=expected.empty,
        uses=engine.uses,
    )


def read_view(path: Path) -> View | None:
    """What an engine wrote last; None where there is nothing, or nothing that this version understands."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return _decoder.decode(path.read_bytes())
    return None
