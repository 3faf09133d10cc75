"""What all verbs that change jobs share: where the queue is, and how a wish gets to the engine and is heard."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import click

from stoker.core.errors import StokerError
from stoker.core.request import Request
from stoker.places import Places
from stoker.presence import QUEUE, engine_lives
from stoker.store import Store, choosing

ANSWER_SECONDS = 2.0
"""How long a verb waits for the engine's answer..."""
ANSWERS_PER_SECOND = 2000
"""... and more, where it asks for much at once."""

Function = TypeVar("Function", bound=Callable[..., Any])


class Unheard(StokerError):
    """A wish is recorded, but there is no engine that carries it out now."""

    exit_code = 3


class Control(NamedTuple):
    """The queue, and how to start its engine."""

    places: Places
    store: Store
    sim: str | None


def controlling(function: Function) -> Function:
    """Decorates a verb with the options that all of them have."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Tell it as one JSON value.")
    simulated = click.option("--sim", is_flag=True, help="The queue of the simulated GPUs.")
    return as_json(simulated(function))


def wants_json(as_json: bool) -> bool:
    """Whether the answer is to be JSON, by the option or for all verbs."""
    return as_json or os.environ.get("STOKER_OUTPUT") == "json"


@contextlib.contextmanager
def opened(sim: bool) -> Iterator[Control]:
    """The queue of this user, or that of the simulated GPUs."""
    from stoker.cli.engine import places_for
    from stoker.queue import open_store

    given = os.environ.get("STOKER_SIM")
    simulated = sim or bool(given)
    places = places_for("simulated" if simulated else None)
    with contextlib.closing(open_store(places)) as store:
        yield Control(places, store, (given or _sim_before(places)) if simulated else None)


def carry_out(control: Control, requests: Sequence[Request]) -> None:
    """Leave the requests, and wait until the engines have answered them; one for the queue is started if needed."""
    from stoker.queue import ask

    if not requests:
        return
    numbers = ask(control.places, control.store, requests, time.time())
    if choosing.is_expected(control.store, QUEUE):
        start_for(control, "your wish is recorded and will be carried out by the next engine")
    _wait_answered(control.store, numbers)


def start_for(control: Control, otherwise: str) -> None:
    """Start the engine of the queue unless it lives; `otherwise` is what to know where it cannot be started."""
    if engine_lives(control.places, QUEUE):
        return
    from stoker.cli.room.background import start_engine

    try:
        start_engine(control.places, control.sim)
    except StokerError as error:
        raise Unheard(f"{error.message}; {otherwise}", error.hint) from error


def warn(text: str) -> None:
    """A word beside the data."""
    print(f"stoker: {text}", file=sys.stderr, flush=True)


def _wait_answered(store: Store, numbers: Sequence[int]) -> None:
    deadline = time.monotonic() + ANSWER_SECONDS + len(numbers) / ANSWERS_PER_SECOND
    pause = 0.002
    while choosing.unanswered(store, numbers):
        if time.monotonic() > deadline:
            raise Unheard(
                "the engine has not answered yet; your wish is recorded and will be carried out",
                "see stoker engine status",
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _sim_before(places: Places) -> str:
    """The simulated GPUs that the last engine had."""
    from stoker.published import read_view

    view = read_view(places.bulletin(QUEUE))
    sizes = [device.memory for device in view.devices if device.memory] if view else []
    return ",".join(f"1x{size // 2**20}M" for size in sizes) or "1x24G"
