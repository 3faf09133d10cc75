"""`stoker report`: one file about a run, a batch or a period."""

from __future__ import annotations

import contextlib
import time

import click

from stoker.app.jobs.local_time import LocalZone
from stoker.app.jobs.select import find
from stoker.cli.options import (
    StokerCommand,
    complete_jobs,
    filter_options,
    json_option,
    sim_option,
    wants_json,
    write_file,
    write_json,
)
from stoker.core.errors import UsageError
from stoker.core.units import count_text, parse_since
from stoker.features.report.report import Report, batch_of, render_report, report_of_jobs, report_of_period
from stoker.store.filters import NO_FILTER, Filter
from stoker.store.past_jobs import Period
from stoker.store.paths import Paths
from stoker.store.writer import open_store


@click.command(name="report", cls=StokerCommand)
@click.argument("ids", nargs=-1, metavar="[ID]...", shell_complete=complete_jobs)
@click.option("--batch", metavar="ID", help="All jobs submitted together with this one: a run, a list, an array.")
@click.option("--since", metavar="WHEN", help="All jobs that ended since then, default 1d.")
@click.option("--html", "page", metavar="FILE", help="The file to write; - is standard output.")
@json_option
@filter_options
@sim_option
def command(
    *,
    ids: tuple[str, ...],
    batch: str | None,
    since: str | None,
    page: str | None,
    as_json: bool,
    chosen: Filter,
    paths: Paths,
) -> int:
    """Write an HTML file about jobs: timeline, outcomes, memory, slowest jobs and failures.

    The file needs nothing else, so you can mail it or attach it to an issue. It contains names, commands and the last
    lines of the logs of failed jobs. Without ids it is about the jobs that ended since WHEN, and those that run.

    \b
      stoker report --html report.html                  the last day
      stoker report --since 7d --group vit --html r.html
      stoker report --batch last --html sweep.html      the last run or list
      stoker report 12-40 --html jobs.html              some jobs
    """
    if bool(ids) + (batch is not None) + (since is not None) > 1:
        raise UsageError("ids, --batch and --since cannot be combined", "give one of them")
    if page is None and not wants_json(as_json):
        raise UsageError("--html names no file", "type: stoker report --html report.html")
    if chosen != NO_FILTER and (ids or batch is not None):
        raise UsageError("filters choose among the jobs of a period", "leave out the ids, or use --since")
    report = _report(paths, ids, batch, since, chosen)
    if page is None or as_json:
        write_json(report)
    if page is not None:
        write_file(page, render_report(report))
    return 0


def _report(paths: Paths, ids: tuple[str, ...], batch: str | None, since: str | None, chosen: Filter) -> Report:
    if ids or batch is not None:
        with contextlib.closing(open_store(paths)) as store:
            jobs = find(store, ids or [batch or ""], "ended")
        if batch is not None:
            jobs, label = batch_of(paths, jobs[0])
            return report_of_jobs(paths, jobs, label or f"batch of job {batch}")
        title = f"job {ids[0]}" if len(jobs) == 1 else f"{count_text(len(jobs), 'job')}: {' '.join(ids)}"
        return report_of_jobs(paths, jobs, title)
    now = time.time()
    start = parse_since(since or "1d", now, LocalZone())
    return report_of_period(paths, Period(start, chosen), f"Jobs since {since or '1 day ago'}")
