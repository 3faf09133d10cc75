"""The engine of the queue as data: its process, devices, jobs and problems."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from msgspec import Struct

from stoker.app.control.engine_process import restart_killed, start_engine
from stoker.app.jobs.config import load_config
from stoker.app.jobs.local_time import to_datetime
from stoker.core.errors import StokerError
from stoker.core.settings import KEYS, EngineSettings
from stoker.store import queries
from stoker.store.engine_lock import QUEUE, cluster_of, engine_lives, process_of, version_of, wake
from stoker.store.paths import Paths, write_problem
from stoker.store.status_file import EngineStatus, read_status
from stoker.store.waiting import wait_until
from stoker.store.writer import open_store

ANSWER_SECONDS = 3.0
"""How long a living engine may take to show something new before it counts as silent."""
_NOT_OF_ENGINES = {"secrets"}
"""Settings that engines do not use."""


class EngineDevice(Struct, frozen=True):
    """A device as the engine sees it."""

    label: str
    id: str
    model: str
    memory_bytes: int | None
    problem: str


class EngineOverview(Struct, frozen=True):
    """The engine of the queue: `stoker engine status --json`. What only a living engine knows is null without one."""

    schema: str
    running: bool
    answers: bool
    pid: int | None
    version: str
    since: str | None
    draining: bool
    paused: str
    trouble: str
    devices: list[EngineDevice]
    devices_note: str
    active: int
    waiting: int
    parked: int
    state: str
    log: str
    not_in_force: str = ""
    """Which settings the engine does not go by, since it was started with others."""


def engine_status(paths: Paths) -> EngineOverview:
    """All that is known of the engine, whether or not it lives."""
    pid = process_of(paths, QUEUE)
    answers = pid is not None and engine_answers(paths)
    view = read_status(paths.status_file(QUEUE))
    alive = view if pid is not None and view is not None and view.pid == pid else None
    with contextlib.closing(open_store(paths)) as store:
        load, settings = queries.loads(store).get(QUEUE), store.settings()
    blocked = alive.blocked if alive else load.held if load else 0
    return EngineOverview(
        schema="stoker.engine-status/1",
        running=pid is not None,
        answers=answers,
        pid=pid,
        version=version_of(paths, QUEUE),
        since=to_datetime(alive.since).isoformat(timespec="seconds") if alive else None,
        draining=alive.draining if alive else False,
        paused=settings.get(queries.paused_key(QUEUE), {}).get("note", ""),
        trouble=(alive.trouble if alive else "") if answers or pid is None else write_problem(paths.engines),
        devices=_devices(alive) if alive else [],
        devices_note=alive.note if alive else "",
        active=load.active if load else 0,
        waiting=load.open - load.active - blocked if load else 0,
        parked=blocked,
        state=str(paths.state),
        log=str(paths.log),
        not_in_force=_not_in_force(alive),
    )


def not_in_force(settings: EngineSettings, view: EngineStatus | None) -> str:
    """A sentence on settings that the engine of a view does not use; empty where there are none.

    An engine reads changed files again, but keeps its devices, and the flags and variables that it was started with.
    """
    if view is None or view.settings is None:
        return ""
    keys = [key for key in KEYS if key not in _NOT_OF_ENGINES]
    others = [key for key in keys if getattr(settings, key) != getattr(view.settings, key)]
    if not others:
        return ""
    verb = "takes" if len(others) == 1 else "take"
    return f"the engine was started with other settings: {', '.join(others)} {verb} effect after stoker engine restart"


def not_in_force_now(settings: EngineSettings, paths: Paths) -> str:
    """The same for the living engine, which first has to read what was just written."""
    pid = process_of(paths, QUEUE)
    if pid is None or not engine_answers(paths):
        return ""
    view = read_status(paths.status_file(QUEUE))
    return not_in_force(settings, view if view and view.pid == pid else None)


def revive(paths: Paths) -> str:
    """Start engines that were killed, and let them record what ended meanwhile; a notice of that, or of a failure.

    The engine of a cluster needs no record of its start: it is started wherever its cluster has jobs.
    """
    try:
        for cluster in clusters_without_engine(paths):
            start_engine(paths, cluster)
        if not restart_killed(paths):
            return ""
    except StokerError as error:
        return str(error)
    except OSError as error:
        return f"the engine was killed and cannot be restarted: {error.strerror} ({error.filename})"
    engine_answers(paths)
    return "the engine had been killed; restarted it"


def clusters_without_engine(paths: Paths) -> list[str]:
    """Clusters that have jobs or requests, and no engine that looks after them."""
    if len(paths.everywhere) == 1:  # most users have none
        return []
    with contextlib.closing(open_store(paths)) as store:
        engines = [engine for engine in queries.expected_engines(store) if cluster_of(engine)]
    return [cluster_of(engine) for engine in engines if not engine_lives(paths, engine)]


def engine_answers(paths: Paths) -> bool:
    """Whether a living engine writes a new status when it is woken."""
    path = paths.status_file(QUEUE)
    before = _written(path)
    if not wake(paths, QUEUE):
        return False
    return wait_until(lambda: _written(path) != before, ANSWER_SECONDS)


def _written(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


def _devices(view: EngineStatus) -> list[EngineDevice]:
    problems = {device_id: reading.problem for device_id, reading in view.readings.items()}
    return [
        EngineDevice(device.label, device.id, device.model, device.memory, problems.get(device.id) or "")
        for device in view.devices
    ]


def _not_in_force(view: EngineStatus | None) -> str:
    with contextlib.suppress(StokerError):  # `stoker engine config` says what is wrong with a file
        return not_in_force(load_config(os.environ, None).engine, view)
    return ""
