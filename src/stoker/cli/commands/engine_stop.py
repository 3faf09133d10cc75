"""`stoker engine stop`: let the engine leave, with or without its jobs."""

from __future__ import annotations

import signal
import sys
import time

import click

from stoker.cli.commands.engine import of_simulated
from stoker.core.errors import StokerError, UsageError
from stoker.core.text import printable
from stoker.store.engine_lock import QUEUE, process_of, signal_engine
from stoker.store.paths import Paths, paths_for

STOP_SECONDS = 10.0
"""How long an engine may take to leave."""


@click.command(name="stop")
@of_simulated
@click.option("--drain", is_flag=True, help="Start nothing more, and leave when nothing runs.")
@click.option("--force", is_flag=True, help="Kill an engine that does not leave; jobs go on.")
@click.option("--jobs", is_flag=True, help="End all running jobs too: TERM, and KILL after the grace of each.")
def command(sim: bool, drain: bool, force: bool, jobs: bool) -> int:
    """Stop the engine; what runs goes on, and its end is recorded by the next engine.

    \b
      stoker engine stop           leave now; jobs go on
      stoker engine stop --drain   start nothing more, leave when the last job is over
      stoker engine stop --jobs    end the jobs too
      stoker engine stop --force   end an engine that does not answer; jobs go on
    """
    if drain and jobs:
        raise UsageError("--drain lets jobs finish, --jobs ends them", "give one of them")
    if force and (drain or jobs):
        raise UsageError("an engine that is killed does nothing about its jobs", "give --force alone")
    paths = paths_for(sim)
    number = signal.SIGINT if jobs else signal.SIGHUP if drain else signal.SIGTERM
    pid = signal_engine(paths, QUEUE, number)
    if pid is None:
        print("no engine runs", file=sys.stderr)
    elif drain:
        print("the engine starts nothing more, and leaves when nothing runs", file=sys.stderr)
    else:
        _see_off(paths, pid, patient=jobs, force=force)
    return 0


def _see_off(paths: Paths, pid: int, *, patient: bool, force: bool) -> None:
    """Wait until the engine is gone; jobs may take as long as their grace is."""
    if _wait_gone(paths, pid):
        print("the engine has left", file=sys.stderr)
    elif patient:
        print("jobs are still ending; the engine leaves when the last is over", file=sys.stderr)
    elif force and signal_engine(paths, QUEUE, signal.SIGKILL) and _wait_gone(paths, pid):
        print("the engine did not leave, and was killed; jobs go on", file=sys.stderr)
    else:
        raise StokerError(
            f"the engine (process {pid}) is still there after {STOP_SECONDS:g} s",
            f"see {printable(str(paths.log))}; stoker engine stop --force (or kill -9 {pid}) ends it: "
            "jobs go on, and the next engine records their ends",
        )


def _wait_gone(paths: Paths, pid: int) -> bool:
    deadline = time.monotonic() + STOP_SECONDS
    while process_of(paths, QUEUE) == pid:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
