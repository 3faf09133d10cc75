"""How the engine in the background is set up on this machine."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from stoker.config import Config, load_config
from stoker.core.errors import Impossible, StokerError
from stoker.core.settings import EngineSettings, policy_of
from stoker.devices.detect import detect, simulate
from stoker.devices.kind import Devices
from stoker.devices.late import LateDevices
from stoker.enginelog import log
from stoker.ledger import find_ledger, prepare_ledger
from stoker.options import current_user
from stoker.places import Places
from stoker.rereading import Rereading
from stoker.service import Duty, serve
from stoker.starting import ensure_engine, tell_failure, tell_ready

LABEL = "stoker"


def start_engine(places: Places, sim: str | None, arguments: Sequence[str] = ()) -> bool:
    """Start the engine of the queue unless it runs; True where it was started."""
    return ensure_engine(places, [*(["--sim", sim] if sim else []), *arguments], os.environ)


def serve_queue(
    places: Places,
    sim: str | None,
    ready: int | None,
    *,
    stay: bool = False,
    flags: Mapping[str, object] | None = None,
) -> None:
    """Be the engine of the queue; `flags` are settings that the command line has the last word on."""
    say = partial(log, places.log)
    if ready is not None:
        os.set_inheritable(ready, False)
    told = [ready]
    try:
        load = partial(load_config, os.environ, None, flags=flags)
        changes = Rereading(os.environ, load, say)
        config = load()
        with contextlib.closing(_devices(config.engine, places, sim, say)) as devices:
            duty = _duty(places, config, devices, sim, stay=stay)
            news = partial(_news, changes, duty, stay=stay)
            serve(duty, say, lambda: tell_ready(told.pop() if told else None), news)
    except StokerError as error:
        say(f"{error.message}; {error.hint}")
        if told:  # once told, the descriptor is somebody else's
            with contextlib.suppress(OSError):
                tell_failure(told.pop(), error)
        raise


def _duty(places: Places, config: Config, devices: Devices, sim: str | None, *, stay: bool) -> Duty:
    shared = not sim or os.environ.get("STOKER_LEDGER")
    return Duty(
        places=places,
        ledger=find_ledger(os.environ) if shared else prepare_ledger(places.state / "ledger"),
        devices=devices,
        user=current_user(),
        label=LABEL,
        **_rules(config.engine, stay=stay),
    )


def _rules(settings: EngineSettings, *, stay: bool) -> dict[str, Any]:
    """What an engine can go by at any time."""
    return {
        "policy": policy_of(settings, os.cpu_count() or 1),
        "idle_exit": None if stay else settings.idle_exit,
        "keep": settings.keep,
        "on_finish": settings.on_finish,
        "settings": settings,
    }


def _news(changes: Rereading, duty: Duty, *, stay: bool) -> Duty | None:
    """What to go by after a change of the configuration; the devices stay those that it began with."""
    if (config := changes.news()) is None:
        return None
    began_with = duty.settings.devices if duty.settings else ""
    settings = msgspec.structs.replace(config.engine, devices=began_with)
    return msgspec.structs.replace(duty, **_rules(settings, stay=stay))


def _devices(settings: EngineSettings, places: Places, sim: str | None, say: Callable[[str], None]) -> Devices:
    now = time.time()
    named = settings.devices.split(",") if settings.devices else []
    if sim:
        return simulate(sim, str(places.simulator), named, now)
    try:
        return detect(named, now)
    except Impossible as error:  # jobs that need no GPU can run all the same
        say(error.message)
        return LateDevices(named, error.message)
