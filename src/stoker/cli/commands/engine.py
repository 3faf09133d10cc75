"""`stoker engine`: the machine room, one module for each of its verbs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from stoker.cli.lazy import LazyGroup

Function = TypeVar("Function", bound=Callable[..., Any])

ROOMS = {
    "start": "Start the engine, if none runs.",
    "stop": "Stop the engine; what runs goes on, and its end is recorded by the next engine.",
    "status": "Show the engine: its process, devices and jobs, and what troubles it.",
    "check": "Tell what is wrong with this machine, and what to do about it.",
    "config": "Show every setting with its value and its origin.",
    "install": "Let systemd start the engine with the machine.",
    "completion": "Let a shell complete verbs, options, ids and names.",
}


@click.group(name="engine", cls=LazyGroup, sentences=ROOMS, hidden=("run",), modules="stoker.cli.commands.engine_")
def command() -> None:
    """The engine in the background: it starts by itself with the first submit, and leaves when it is idle.

    \b
      stoker engine status     is there one, and is it well?
      stoker engine check      what is wrong with this machine, and what to do
      stoker engine install    let systemd start it with the machine
    """


def of_simulated(function: Function) -> Function:
    """Decorates a command that is about a queue with the choice of the simulated one."""
    return click.option("--sim", is_flag=True, help="The queue of the simulated GPUs.")(function)
