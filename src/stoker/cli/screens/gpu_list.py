"""The devices with who is on them, as plain data; where no engine lives, the driver itself is asked."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec import Struct

from stoker import __version__
from stoker.cli.screens import engine_views
from stoker.cli.screens.device_lines import device_lines
from stoker.cli.screens.engine_views import Views
from stoker.cli.screens.knowing import known
from stoker.cli.screens.knowledge import Knowledge
from stoker.cli.screens.queue_scene import DeviceLine, exactly
from stoker.cli.screens.screen import host_name
from stoker.core.device import Snapshot
from stoker.core.errors import Impossible
from stoker.core.lease import Lease
from stoker.places import Places
from stoker.presence import QUEUE
from stoker.published import View
from stoker.words import text_for_json

SCHEMA = "stoker.gpus/1"


class Gpus(Struct, frozen=True):
    """The devices of this machine: `stoker gpus --json`."""

    schema: str
    at: datetime
    host: str
    simulated: bool
    engine_running: bool
    devices: list[DeviceLine]
    picked: list[str]
    """What CUDA_VISIBLE_DEVICES may be set to, where devices were to be picked."""
    notes: list[str]


@contextlib.contextmanager
def known_devices(places: Places, *, simulated: bool) -> Iterator[Knowledge]:
    """All that is known now of devices."""
    now = time.time()
    views = engine_views.look(places, now)
    if not views.lives and not views.runs:
        views = Views(_asked(places, views, now, simulated=simulated), lives=False)
    with known(places, simulated=simulated, views=views) as knowledge:
        yield knowledge


def gpus_of(knowledge: Knowledge, picked: Sequence[str] = ()) -> Gpus:
    """The devices as lines of a screen."""
    views = knowledge.views
    return Gpus(
        schema=SCHEMA,
        at=exactly(knowledge.now),
        host=text_for_json(host_name()),
        simulated=knowledge.simulated,
        engine_running=views.lives,
        devices=device_lines(knowledge),
        picked=[text_for_json(one) for one in picked],
        notes=list(dict.fromkeys(text_for_json(view.note) for view in views.current if view.note)),
    )


def _asked(places: Places, before: Views, now: float, *, simulated: bool) -> View | None:
    """What an engine would see if one were started now; what the last one saw where nobody can be asked."""
    try:
        snapshot = _simulated(places, now) if simulated else _from_driver(now)
    except Impossible as error:
        return _view(Snapshot(now, (), note=error.message), (), now)
    return before.queue if snapshot is None else _view(snapshot, _leases(places, simulated=simulated), now)


def _from_driver(now: float) -> Snapshot:
    from stoker.config import load_config
    from stoker.devices.detect import detect

    named = load_config(os.environ, None).engine.devices
    with contextlib.closing(detect(named.split(",") if named else [], now)) as devices:
        return devices.look(now)


def _simulated(places: Places, now: float) -> Snapshot | None:
    """Without a word on how many are simulated, nobody can tell."""
    from stoker.devices.detect import simulate

    spec = os.environ.get("STOKER_SIM")
    return simulate(spec, str(places.simulator), [], now).look(now) if spec else None


def _leases(places: Places, *, simulated: bool) -> tuple[Lease, ...]:
    from stoker.ledger import Ledger, find_ledger

    own = simulated and not os.environ.get("STOKER_LEDGER")
    path = places.state / "ledger" if own else find_ledger(os.environ)
    return tuple(Ledger(path).live().leases.values()) if path.exists() else ()


def _view(snapshot: Snapshot, leases: tuple[Lease, ...], now: float) -> View:
    return View(
        engine=QUEUE,
        label="",
        pid=0,
        version=__version__,
        since=now,
        at=now,
        waiting=0,
        parked=0,
        devices=snapshot.devices,
        readings=dict(snapshot.readings),
        note=snapshot.note,
        trouble="",
        draining=False,
        leases=leases,
        waits=(),
    )
