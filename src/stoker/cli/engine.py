"""`stoker engine`: the machine room."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import click

from stoker.cli.options import option
from stoker.core.errors import StokerError
from stoker.places import Places
from stoker.presence import QUEUE, process_of
from stoker.words import printable

STOP_SECONDS = 10.0


@click.group(name="engine")
def command() -> None:
    """The engine in the background: it starts by itself with the first submit, and leaves when it is idle."""


def simulated(function: Any) -> Any:
    """Decorates a command with the choice of simulated GPUs."""
    return option("--sim", metavar="SPEC", help="Simulated GPUs, for example 4x24G.")(function)


@command.command()
@simulated
def start(sim: str | None) -> int:
    """Start the engine, if none runs."""
    from stoker.cli.background import start_engine

    places = places_for(sim)
    started = start_engine(places, sim)
    pid = process_of(places, QUEUE)
    print(f"the engine {'was started' if started else 'runs already'} (process {pid})", file=sys.stderr)
    return 0


@command.command()
@simulated
@click.option("--drain", is_flag=True, help="Start nothing more, and leave when nothing runs.")
@click.option("--jobs", is_flag=True, help="Stop all jobs too.")
def stop(sim: str | None, drain: bool, jobs: bool) -> int:
    """Stop the engine; what runs goes on, and its end is recorded by the next engine."""
    places = places_for(sim)
    pid = process_of(places, QUEUE)
    if pid is None:
        print("no engine runs", file=sys.stderr)
        return 0
    number = signal.SIGINT if jobs else signal.SIGHUP if drain else signal.SIGTERM
    os.kill(pid, number)
    if not drain:
        _wait_until_gone(places, STOP_SECONDS)
    return 0


@command.command(hidden=True)
@simulated
@click.option("--ready-fd", type=int, help="Descriptor to tell when it works.")
def run(sim: str | None, ready_fd: int | None) -> int:
    """Be the engine, in the foreground: what `start` and a systemd unit run."""
    from stoker.cli.background import serve_queue

    serve_queue(places_for(sim), sim, ready_fd)
    return 0


def places_for(sim: str | None) -> Places:
    """Where the state is, by whether GPUs are simulated."""
    import socket

    from stoker.places import find_places

    return find_places(os.environ, socket.gethostname(), simulated=bool(sim))


def _wait_until_gone(places: Places, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while process_of(places, QUEUE) is not None:
        if time.monotonic() > deadline:
            raise StokerError("the engine is still there", f"see {printable(str(Path(places.log)))}")
        time.sleep(0.02)
