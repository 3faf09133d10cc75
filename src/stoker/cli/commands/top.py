"""`stoker top`: GPUs and jobs on a full screen that follows the queue."""

from __future__ import annotations

import contextlib
import os
import sys

import click

from stoker.cli.options import StokerCommand, sim_option
from stoker.core.errors import UsageError
from stoker.store.filters import NO_FILTER, Filter
from stoker.store.paths import Paths


@click.command(name="top", cls=StokerCommand)
@click.option("--readonly", is_flag=True, help="Only show; no key changes a job.")
@sim_option
def command(*, readonly: bool, paths: Paths) -> int:
    """Show GPUs, jobs, a timeline and the history live in the terminal.

    Press ? for the keys. It changes nothing unless you press a key that does, and asks before it stops a job.
    Quitting it leaves all jobs as they are.

    \b
      stoker top               follow the queue; same as: stoker status -w
      stoker top --readonly    the same for a screen on the wall
    """
    return show_top(paths, readonly=readonly)


def show_top(paths: Paths, *, readonly: bool = False, chosen: Filter = NO_FILTER) -> int:
    """The live view until the user leaves it."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the live view needs a terminal", "for programs: stoker status --json")
    if os.environ.get("TERM", "") in ("", "dumb"):
        raise UsageError("the live view needs a terminal that can move its cursor (TERM)", "instead: stoker status")
    from stoker.cli.top.app import Top
    from stoker.cli.top.source import QueueReader

    with contextlib.closing(QueueReader(paths, chosen)) as source:
        source.start()
        view = Top(source, readonly=readonly, chosen=chosen)
        view.run()
    return view.return_code or 0
