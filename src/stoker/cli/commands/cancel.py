"""`stoker cancel`: take jobs out of the queue, and stop those that run."""

from __future__ import annotations

import click

from stoker.app.control.actions import CANCELLED, cancel
from stoker.app.control.requests import opened
from stoker.app.jobs.option_values import parse_grace, parse_signal
from stoker.app.jobs.select import find
from stoker.cli.console import say, say_progress
from stoker.cli.options import StokerCommand, complete_jobs, controlling, filter_options
from stoker.cli.screens.changes import report
from stoker.core.errors import UsageError
from stoker.core.requests import Cancel
from stoker.store.filters import NO_FILTER, Filter
from stoker.store.paths import Paths
from stoker.store.queries import jobs_by_state


@click.command(name="cancel", cls=StokerCommand)
@click.argument("ids", nargs=-1, metavar="[ID...]", shell_complete=complete_jobs)
@filter_options
@click.option("--signal", "number", metavar="NAME", help="First signal to send, default TERM, for example INT.")
@click.option("--grace", metavar="DUR", help="Time from the first signal to KILL; overrides the job's --grace.")
@click.option("--dry-run", is_flag=True, help="Show what would happen; change nothing.")
@controlling
def command(
    *,
    ids: tuple[str, ...],
    chosen: Filter,
    number: str | None,
    grace: str | None,
    dry_run: bool,
    as_json: bool,
    paths: Paths,
) -> int:
    """Cancel waiting jobs and stop running ones (TERM, then KILL after the grace time).

    `all` means every job that has not ended, also those of foreground runs. Filters choose among the jobs named, or
    among all. A second cancel may shorten the grace.

    \b
      stoker cancel 12              job 12, or all tasks of array 12
      stoker cancel '12.[3-7,9]'    tasks of array 12
      stoker cancel arr.3 'vit-*'   a task of array arr, and jobs by their name
      stoker cancel --tag sweep=3 --state queued
      stoker cancel last --signal INT --grace 2m
    """
    if not ids and chosen == NO_FILTER:
        raise UsageError("no jobs given", "name them, or choose them by --name, --tag, --group or --state")
    request = Cancel(
        0, CANCELLED, None if grace is None else parse_grace(grace), 0 if number is None else parse_signal(number)
    )
    with opened(paths, say_progress) as control:
        jobs = list(jobs_by_state(control.store, find(control.store, ids, chosen=chosen)))
        if not jobs:
            say("no job to cancel" if chosen == NO_FILTER else "no job matches")
        return report("cancel", cancel(control, jobs, request, dry_run=dry_run), as_json=as_json, dry_run=dry_run)
