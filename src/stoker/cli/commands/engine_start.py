"""`stoker engine start`: start the background engine."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import click
import msgspec

from stoker.cli.job_options import option
from stoker.core.errors import Impossible, StokerError
from stoker.core.settings import EngineSettings, policy_of
from stoker.core.text import printable
from stoker.devices.detect import LateDevices, detect, simulate
from stoker.devices.interface import Devices
from stoker.engine.background import ServiceConfig, serve
from stoker.ledger import find_ledger, prepare_ledger
from stoker.queue.config import Config, Rereading, load_config
from stoker.queue.engine_process import log, start_engine, tell_failure, tell_ready
from stoker.queue.options import current_user
from stoker.sites.machine.site import MachineConfig
from stoker.store.engine_lock import QUEUE, process_of, version_notice
from stoker.store.paths import Paths, paths_for

LABEL = "stoker"


def serve_queue(
    paths: Paths,
    sim: str | None,
    ready: int | None,
    *,
    stay: bool = False,
    flags: Mapping[str, object] | None = None,
) -> None:
    """Be the engine of the queue; `flags` are settings that the command line has the last word on."""
    say = partial(log, paths.log)
    if ready is not None:
        os.set_inheritable(ready, False)
    told = [ready]
    try:
        load = partial(load_config, os.environ, None, flags=flags)
        changes = Rereading(os.environ, load, say)
        config = load()
        with contextlib.closing(_devices(config.engine, paths, sim, say)) as devices:
            service = _service_config(paths, config, devices, sim, stay=stay)
            news = partial(_news, changes, service, stay=stay)
            serve(service, say, lambda: tell_ready(told.pop() if told else None), news)
    except StokerError as error:
        say(f"{error.message}; {error.hint}")
        if told:  # once told, the descriptor is somebody else's
            with contextlib.suppress(OSError):
                tell_failure(told.pop(), error)
        raise


def _service_config(paths: Paths, config: Config, devices: Devices, sim: str | None, *, stay: bool) -> ServiceConfig:
    shared = not sim or os.environ.get("STOKER_LEDGER")
    return ServiceConfig(
        paths=paths,
        site=MachineConfig(
            ledger=find_ledger(os.environ) if shared else prepare_ledger(paths.state / "ledger"),
            devices=devices,
            user=current_user(),
        ),
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


def _news(changes: Rereading, service: ServiceConfig, *, stay: bool) -> ServiceConfig | None:
    """What to go by after a change of the configuration; the devices stay those that it began with."""
    if (config := changes.news()) is None:
        return None
    began_with = service.settings.devices if service.settings else ""
    settings = msgspec.structs.replace(config.engine, devices=began_with)
    return msgspec.structs.replace(service, **_rules(settings, stay=stay))


def _devices(settings: EngineSettings, paths: Paths, sim: str | None, say: Callable[[str], None]) -> Devices:
    now = time.time()
    named = settings.devices.split(",") if settings.devices else []
    if sim:
        return simulate(sim, str(paths.simulator), named, now)
    try:
        return detect(named, now)
    except Impossible as error:  # jobs that need no GPU can run all the same
        say(error.message)
        return LateDevices(named, error.message)


Function = TypeVar("Function", bound=Callable[..., Any])

SHORTEST_STAY = 5.0
"""Seconds that an idle engine stays for at least, where it is expected to be there right after its start."""

_OPTIONS = [
    option("--sim", metavar="SPEC", help="Simulated GPUs, for example 4x24G."),
    click.option("--stay", is_flag=True, help="Do not leave when idle."),
    click.option("--max-use", type=int, metavar="N", help="Use at most N GPUs at once."),
    click.option("--min-free", type=int, metavar="N", help="Leave N GPUs free for others."),
]


def service_options(function: Function) -> Function:
    """Decorates a command with what an engine can be told at its start."""
    for decorate in reversed(_OPTIONS):
        function = decorate(function)
    return function


@click.command(name="start")
@service_options
def command(sim: str | None, stay: bool, **flags: int | None) -> int:
    """Start the engine, if none runs.

    There is no need to: the first submit does it. What is set here holds until the engine leaves; what shall hold
    always belongs into the configuration (stoker engine config).
    """
    paths = paths_for(sim)
    started, pid = _started(paths, sim, [*(["--stay"] if stay else []), *_words(flags)])
    if pid is None:
        return _gone_again(paths)
    print(f"the engine {'was started' if started else 'runs already'} (process {pid})", file=sys.stderr)
    if not started and (stay or any(value is not None for value in flags.values())):
        print("        it goes on as it was; stop it first to start it otherwise", file=sys.stderr)
    if notice := version_notice(paths):
        print(notice, file=sys.stderr)
    return 0


def _started(paths: Paths, sim: str | None, words: list[str]) -> tuple[bool, int | None]:
    """Whether an engine had to be started, and its process; one that was dying just then is not taken for one."""

    started = start_engine(paths, sim, words)
    if (pid := process_of(paths, QUEUE)) is None:
        started = start_engine(paths, sim, words)
        pid = process_of(paths, QUEUE)
    return started, pid


def _gone_again(paths: Paths) -> int:
    """Tell of an engine that is not there any more: as it should be where it was not to wait for work at all."""
    from stoker.queue.config import load_config
    from stoker.queue.engine_process import EngineFailed

    idle_exit = load_config(os.environ, None).engine.idle_exit
    if idle_exit is None or idle_exit >= SHORTEST_STAY:
        raise EngineFailed("the engine was started, and is gone again", f"see {printable(str(paths.log))}")
    print("the engine was started, and has left again, as idle_exit says", file=sys.stderr)
    return 0


def _words(flags: dict[str, int | None]) -> list[str]:
    given = {name: value for name, value in flags.items() if value is not None}
    return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
