"""`stoker preempt`: let running jobs give way."""

from __future__ import annotations

import click

from stoker.app.control.actions import preempt
from stoker.app.control.requests import opened
from stoker.app.jobs.select import find, find_queued, jobs_in_order
from stoker.cli.console import say, say_progress
from stoker.cli.options import StokerCommand, complete_jobs, controlling, filter_options
from stoker.cli.screens.changes import report
from stoker.core.errors import UsageError
from stoker.core.job import Running
from stoker.store.filters import NO_FILTER, Filter
from stoker.store.paths import Paths


@click.command(name="preempt", cls=StokerCommand)
@click.argument("ids", nargs=-1, metavar="[ID...]", shell_complete=complete_jobs)
@filter_options
@click.option("--for", "target", metavar="ID", help="The waiting job that gets the GPUs; default is the next.")
@click.option("--dry-run", is_flag=True, help="Show what would happen; change nothing.")
@controlling
def command(
    *, ids: tuple[str, ...], chosen: Filter, target: str | None, dry_run: bool, as_json: bool, paths: Paths
) -> int:
    """Let running jobs give way to one that waits; they return to the queue and go on later.

    Only jobs submitted with --preemptible, or edited to that, can give way. With `save` a job gets its signal and up
    to --save-time to save its state and exit; if it stays, it runs on and is not asked again. With `restart` it is
    stopped, and begins again later.

    \b
      stoker preempt 12             job 12 saves and leaves; the next job gets its GPUs
      stoker preempt 12 --for 15    the same for job 15
    """
    if not ids and chosen == NO_FILTER:
        raise UsageError("no jobs given", "name them, or choose them by --name, --tag, --group or --state")
    with opened(paths, say_progress) as control:
        waiting = [] if target is None else find_queued(control.store, [target])
        jobs = jobs_in_order(control.store, find(control.store, ids, chosen=chosen))
        jobs = [job for job in jobs if isinstance(job.state, Running) or not (chosen != NO_FILTER or "all" in ids)]
        if not jobs:
            say("no job runs" if chosen == NO_FILTER else "no job matches")
        to = waiting[0].id if waiting else None
        return report("preempt", preempt(control, jobs, to, dry_run=dry_run), as_json=as_json, dry_run=dry_run)
