"""`stoker retry`: run jobs again that are over."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

import click

from stoker.app.control.requests import Control, opened
from stoker.app.control.retry import PresentCode, planned_retries, refuse_unfinished, retry, without_good_members
from stoker.app.jobs.local_time import LocalZone
from stoker.app.jobs.select import find, jobs_in_order
from stoker.cli.console import say, say_progress
from stoker.cli.options import StokerCommand, complete_jobs, controlling, filter_options, wants_json
from stoker.cli.screens.changes import report
from stoker.core.errors import UsageError
from stoker.core.job import Ended, Job, id_text, ids_of, single
from stoker.core.text import title
from stoker.core.units import count_text, parse_since
from stoker.store import queries
from stoker.store.engine_lock import QUEUE
from stoker.store.filters import NO_FILTER, Filter, ids_matching
from stoker.store.paths import Paths

DAY = 86400.0
UNASKED = 5
"""Jobs that --failed retries without a question."""
NAMED = 10


@click.command(name="retry", cls=StokerCommand)
@click.argument("ids", nargs=-1, metavar="[ID...]", shell_complete=complete_jobs)
@filter_options
@click.option(
    "--failed", is_flag=True, help="Only jobs that did not succeed: of those named, else of the last 24 hours."
)
@click.option("--since", metavar="WHEN", help="With --failed: jobs that ended since then, for example 2h, 08:00 or 7d.")
@click.option("--all", "everything", is_flag=True, help="With --failed: also failures that a retry cannot fix.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--fresh", is_flag=True, help="With the present code, not with that of the submit (frozen code).")
@click.option("--only", is_flag=True, help="Do not requeue jobs that were skipped because of these.")
@click.option(
    "-m",
    "--vram",
    metavar="+20%|SIZE|auto|all",
    help="More GPU memory than before, another size, or the learnt size (auto).",
)
@click.option("-G", "--gpus", type=int, metavar="N", help="New number of GPUs.")
@click.option("-t", "--time", metavar="DUR", help="New time limit; '' removes it.")
@click.option("--priority", type=int, metavar="N", help="New priority.")
@click.option("--dry-run", is_flag=True, help="Show what would happen; change nothing.")
@controlling
def command(
    *,
    ids: tuple[str, ...],
    chosen: Filter,
    failed: bool,
    since: str | None,
    everything: bool,
    yes: bool,
    only: bool,
    fresh: bool,
    vram: str | None,
    dry_run: bool,
    as_json: bool,
    paths: Paths,
    **changes: Any,
) -> int:
    """Run finished jobs again, with the same id and command; each attempt has its own log file.

    Jobs that were skipped because of these are requeued too, except with --only. --failed means failed,
    timeout, oom, lost and skipped: of the jobs named, or else of all jobs of the queue that ended in the last 24 hours.
    It skips failures that a retry cannot fix, except with --all: a command that was not found or not executable (exit
    127 or 126), and a job that ran out of memory on exclusive GPUs. On a terminal it asks before more than five jobs.
    Jobs of a foreground run that has ended become jobs of the queue. `all` means all finished jobs.

    \b
      stoker retry 12                job 12, all tasks of array 12, or what failed of the adaptive sweep 12
      stoker retry --failed          all that failed in the last 24 hours
      stoker retry --tag sweep=3 --state oom
      stoker retry 12 --vram +20%    with more GPU memory than the last time
      stoker retry 12 --fresh        with the code that is there now
      stoker retry 12 --time 8h      with another limit; also -G and --priority
    """
    filtered = chosen != NO_FILTER
    if not ids and not failed and not filtered:
        raise UsageError("no jobs given", "name them, or use --failed, --name, --tag, --group or --state")
    if since is not None and (ids or not failed):
        raise UsageError("--since is for --failed without ids", f"write it as --failed --since {since}")
    with opened(paths, say_progress) as control:
        recent = failed and not ids
        jobs = _recently_failed(control, since, chosen) if recent else _chosen(control, ids, chosen, failed=failed)
        if failed and not everything:
            jobs = _fixable(jobs)
        if not jobs and not recent:
            say("no job matches" if filtered else "no job has failed" if failed else "no job has ended")
        given = {name: value for name, value in changes.items() if value is not None}
        present = PresentCode(control, say) if fresh else None
        retries = planned_retries(control, jobs, vram, given, only=only, fresh=present)
        if failed and not (yes or dry_run or wants_json(as_json)) and not _confirmed(jobs):
            return 1
        if present is not None and not dry_run:
            present.keep()
        return report("retry", retry(control, retries, dry_run=dry_run), as_json=as_json, dry_run=dry_run)


def _chosen(control: Control, ids: Sequence[str], chosen: Filter, *, failed: bool) -> list[Job]:
    named = find(control.store, ids, "ended", chosen)
    jobs = jobs_in_order(control.store, queries.failed_among(control.store, named) if failed else named)
    refuse_unfinished(jobs)
    return without_good_members(control.store, jobs)


def _recently_failed(control: Control, since: str | None, chosen: Filter) -> list[Job]:
    now = time.time()
    begin = now - DAY if since is None else parse_since(since, now, LocalZone())
    when = "of the last 24 h" if since is None else f"since {since}"
    failed = ids_matching(control.store, chosen, "ended", queries.failed_since(control.store, QUEUE, begin))
    if failed:
        say(f"{count_text(len(failed), 'failed job')} {when}")
    elif chosen != NO_FILTER:
        say(f"no failed job {when} matches; use --since 7d to look further back")
    else:
        say(f"no failed jobs {when}; use --since 7d to look further back")
    return jobs_in_order(control.store, failed)


def _fixable(jobs: Sequence[Job]) -> list[Job]:
    """The jobs without those that would fail again in the same way."""
    hopeless = [job for job in jobs if isinstance(job.state, Ended) and is_hopeless(job.state)]
    if hopeless:
        named = ", ".join(map(id_text, hopeless[:NAMED])) + (" ..." if len(hopeless) > NAMED else "")
        what = count_text(len(hopeless), "failure")
        say(f"skipping {what} that a retry cannot fix (command not found, or memory): {named}; use --all to retry them")
    left = {job.id for job in hopeless}
    return [job for job in jobs if job.id not in left]


def is_hopeless(state: Ended) -> bool:
    """Whether the same attempt would end in the same way; a job that ends as oom had its GPUs to itself."""
    return state.result == "oom" or (state.result == "failed" and state.code in (126, 127))


def _confirmed(jobs: Sequence[Job]) -> bool:
    """Ask the user at a terminal whether to retry more than a few jobs."""
    count = len(ids_of(jobs))
    if count <= UNASKED or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    for job in islice(single(jobs), NAMED):
        say(f"  {id_text(job)}: {title(job, 60)}")
    if click.confirm(f"stoker: retry {count} jobs?", err=True):
        return True
    say("nothing was retried; --dry-run shows all of them")
    return False
