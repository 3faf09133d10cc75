"""`stoker engine start`: start the engine in the background."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from stoker.cli.engine import places_for
from stoker.cli.options import option
from stoker.places import Places
from stoker.presence import QUEUE, process_of, version_notice
from stoker.words import printable

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
    places = places_for(sim)
    started, pid = _started(places, sim, [*(["--stay"] if stay else []), *_words(flags)])
    if pid is None:
        return _gone_again(places)
    print(f"the engine {'was started' if started else 'runs already'} (process {pid})", file=sys.stderr)
    if not started and (stay or any(value is not None for value in flags.values())):
        print("        it goes on as it was; stop it first to start it otherwise", file=sys.stderr)
    if notice := version_notice(places):
        print(notice, file=sys.stderr)
    return 0


def _started(places: Places, sim: str | None, words: list[str]) -> tuple[bool, int | None]:
    """Whether an engine had to be started, and its process; one that was dying just then is not taken for one."""
    from stoker.cli.room.background import start_engine

    started = start_engine(places, sim, words)
    if (pid := process_of(places, QUEUE)) is None:
        started = start_engine(places, sim, words)
        pid = process_of(places, QUEUE)
    return started, pid


def _gone_again(places: Places) -> int:
    """Tell of an engine that is not there any more: as it should be where it was not to wait for work at all."""
    from stoker.config import load_config
    from stoker.starting import EngineFailed

    idle_exit = load_config(os.environ, None).engine.idle_exit
    if idle_exit is None or idle_exit >= SHORTEST_STAY:
        raise EngineFailed("the engine was started, and is gone again", f"see {printable(str(places.log))}")
    print("the engine was started, and has left again, as idle_exit says", file=sys.stderr)
    return 0


def _words(flags: dict[str, int | None]) -> list[str]:
    given = {name: value for name, value in flags.items() if value is not None}
    return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
