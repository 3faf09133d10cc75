"""`stoker engine stop`: let the engine leave, with or without its jobs."""

from __future__ import annotations

import signal
import sys
import time

import click

from stoker.cli.engine import of_simulated, places_for
from stoker.core.errors import StokerError, UsageError
from stoker.places import Places
from stoker.presence import QUEUE, process_of, signal_engine
from stoker.words import printable

STOP_SECONDS = 10.0
"""How long an engine may take to leave."""


@click.command(name="stop")
@of_simulated
@click.option("--drain", is_flag=True, help="Start nothing more, and leave when nothing runs.")
@click.option("--jobs", is_flag=True, help="End all running jobs too: TERM, and KILL after the grace of each.")
def command(sim: bool, drain: bool, jobs: bool) -> int:
    """Stop the engine; what runs goes on, and its end is recorded by the next engine.

    \b
      stoker engine stop           leave now; jobs go on
      stoker engine stop --drain   start nothing more, leave when the last job is over
      stoker engine stop --jobs    end the jobs too
    """
    if drain and jobs:
        raise UsageError("--drain lets jobs finish, --jobs ends them", "give one of them")
    places = places_for(sim)
    number = signal.SIGINT if jobs else signal.SIGHUP if drain else signal.SIGTERM
    pid = signal_engine(places, QUEUE, number)
    if pid is None:
        print("no engine runs", file=sys.stderr)
    elif drain:
        print("the engine starts nothing more, and leaves when nothing runs", file=sys.stderr)
    else:
        _see_off(places, pid, patient=jobs)
    return 0


def _see_off(places: Places, pid: int, *, patient: bool) -> None:
    """Wait until the engine is gone; jobs may take as long as their grace is."""
    if _wait_gone(places, pid):
        print("the engine has left", file=sys.stderr)
    elif patient:
        print("jobs are still ending; the engine leaves when the last is over", file=sys.stderr)
    else:
        raise StokerError(f"the engine (process {pid}) is still there", f"see {printable(str(places.log))}")


def _wait_gone(places: Places, pid: int) -> bool:
    deadline = time.monotonic() + STOP_SECONDS
    while process_of(places, QUEUE) == pid:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
