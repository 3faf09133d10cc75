"""`stoker engine status`: process, devices, jobs and problems of the engine."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec
from msgspec import Struct

from stoker import __version__
from stoker.cli.commands.engine import of_simulated
from stoker.cli.output_options import wants_json
from stoker.core.errors import StokerError
from stoker.core.settings import KEYS, EngineSettings
from stoker.core.text import printable, text_for_json
from stoker.core.units import count_text, duration_text, size_text
from stoker.queue.config import load_config
from stoker.store import queries
from stoker.store.engine_lock import QUEUE, process_of, version_notice, version_of, wake
from stoker.store.paths import Paths, paths_for
from stoker.store.queries import paused_key
from stoker.store.status_file import EngineStatus as Published
from stoker.store.status_file import read_status
from stoker.store.writer import open_store

_OF_DOORS = {"secrets"}
"""What no engine goes by."""


def not_in_force(settings: EngineSettings, view: Published | None) -> str:
    """A sentence on settings that the engine of a view does not go by; empty where there are none.

    It reads changed files again, but keeps its devices, and what flags and variables said when it was started.
    """
    if view is None or view.settings is None:
        return ""
    others = [key for key in KEYS if key not in _OF_DOORS and getattr(settings, key) != getattr(view.settings, key)]
    if not others:
        return ""
    verb = "takes" if len(others) == 1 else "take"
    return f"the engine was started with other settings: {', '.join(others)} {verb} effect after stoker engine stop"


ANSWER_SECONDS = 3.0
"""How long a living engine may take to show something new before it counts as silent."""


class EngineDevice(Struct, frozen=True):
    """A device as the engine sees it."""

    label: str
    id: str
    model: str
    memory_bytes: int | None
    problem: str


class EngineStatus(Struct, frozen=True):
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


@click.command(name="status")
@of_simulated
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value instead.")
def command(sim: bool, as_json: bool) -> int:
    """Show the engine: its process, devices and jobs, and what troubles it.

    Exit code 3 where none runs, or it does not answer.
    """
    paths = paths_for(sim)
    found = engine_status(paths)
    if notice := version_notice(paths):
        print(notice, file=sys.stderr)
    if wants_json(as_json):
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    else:
        for name, value in _lines(found):
            print(f"{name + ':':10}{printable(value)}")
    return 0 if found.answers else 3


def engine_status(paths: Paths) -> EngineStatus:
    """All that can be told of the engine, whether or not it lives."""
    pid = process_of(paths, QUEUE)
    answers = pid is not None and ask_for_news(paths, ANSWER_SECONDS)
    view = read_status(paths.status_file(QUEUE))
    alive = view if pid is not None and view is not None and view.pid == pid else None
    with contextlib.closing(open_store(paths)) as store:
        load, settings = queries.loads(store).get(QUEUE), store.settings()
    blocked = alive.blocked if alive else load.held if load else 0
    return EngineStatus(
        schema="stoker.engine-status/1",
        running=pid is not None,
        answers=answers,
        pid=pid,
        version=version_of(paths, QUEUE),
        since=_iso(alive.since) if alive else None,
        draining=alive.draining if alive else False,
        paused=settings.get(paused_key(QUEUE), {}).get("note", ""),
        trouble=alive.trouble if alive else "",
        devices=_devices(alive) if alive else [],
        devices_note=alive.note if alive else "",
        active=load.active if load else 0,
        waiting=load.open - load.active - blocked if load else 0,
        parked=blocked,
        state=text_for_json(str(paths.state)),
        log=text_for_json(str(paths.log)),
        not_in_force=_not_in_force(alive),
    )


def _not_in_force(view: Published | None) -> str:
    with contextlib.suppress(StokerError):  # what is wrong with a file is told by engine config
        return not_in_force(load_config(os.environ, None).engine, view)
    return ""


def ask_for_news(paths: Paths, seconds: float) -> bool:
    """Whether a living engine shows something new when it is asked to."""
    path = paths.status_file(QUEUE)
    before = _written(path)
    if not wake(paths, QUEUE):
        return False
    deadline = time.monotonic() + seconds
    while _written(path) == before:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _written(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


def _devices(view: Published) -> list[EngineDevice]:
    problems = {device_id: reading.problem for device_id, reading in view.readings.items()}
    return [
        EngineDevice(
            text_for_json(each.label), text_for_json(each.id), each.model, each.memory, problems.get(each.id) or ""
        )
        for each in view.devices
    ]


def _lines(found: EngineStatus) -> Iterator[tuple[str, str]]:
    yield "engine", _engine(found)
    if found.since:
        since = datetime.fromisoformat(found.since)
        up = duration_text((datetime.now(UTC) - since).total_seconds())
        yield "since", f"{since.astimezone():%Y-%m-%d %H:%M:%S} ({up} ago)"
    if found.running:
        yield "devices", found.devices_note or count_text(len(found.devices), "device")
    for device in found.devices:
        yield f"  {device.label}", _device(device)
    yield "jobs", f"{found.active} running, {found.waiting} waiting, {found.parked} blocked"
    if found.paused:
        yield "queue", found.paused
    if found.trouble:
        yield "trouble", found.trouble
    if found.not_in_force:
        yield "settings", found.not_in_force
    yield "state", found.state
    yield "log", found.log


def _engine(found: EngineStatus) -> str:
    if not found.running:
        return "none runs; it starts with the next submit, or with stoker engine start"
    version = f", version {found.version}" if found.version not in ("", __version__) else f", {__version__}"
    how = ", starts nothing more" if found.draining else ""
    silence = "" if found.answers else ", but does not answer: see its log; stoker engine stop --force, and jobs go on"
    return f"runs (process {found.pid}{version}{how}){silence}"


def _device(device: EngineDevice) -> str:
    memory = size_text(device.memory_bytes) if device.memory_bytes is not None else ""
    return " ".join(filter(None, (device.model, memory, device.problem and f"({device.problem})"))) or device.id


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
