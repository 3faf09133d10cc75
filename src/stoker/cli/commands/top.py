"""`stoker top`: GPUs and jobs on a full screen that follows the queue."""

from __future__ import annotations

import click

from stoker.cli.options import StokerCommand, sim_option
from stoker.cli.top import show_top
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
