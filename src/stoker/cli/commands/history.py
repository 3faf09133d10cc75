"""`stoker history`: finished jobs."""

from __future__ import annotations

import contextlib
import shlex
import time

import click

from stoker.app.jobs.local_time import LocalZone
from stoker.app.jobs.select import find
from stoker.app.views.history import History, past_lines, read_history
from stoker.cli.console import say
from stoker.cli.options import (
    Screen,
    StokerCommand,
    complete_jobs,
    filter_options,
    refuse_states,
    screen_options,
    write_file,
    write_json,
    write_plain,
)
from stoker.cli.screens.job import render_history
from stoker.cli.screens.plain import PAST_COLUMNS, csv_lines, plain_lines
from stoker.cli.screens.text import write_lines
from stoker.core.outcomes import RESULTS
from stoker.core.ranges import Ranges
from stoker.core.text import to_json
from stoker.core.units import count_text, parse_since
from stoker.store import queries
from stoker.store.filters import Filter
from stoker.store.past_jobs import Period
from stoker.store.paths import Paths
from stoker.store.writer import open_store

MOST_LINES = 200
"""Jobs that are shown without --limit if the output is no terminal."""
EVERYTHING = 2**62
TIMELINE_SECONDS = 12 * 3600.0
"""Length of a timeline without --since."""


@click.command(name="history", cls=StokerCommand)
@click.argument("ids", nargs=-1, metavar="[ID]...", shell_complete=complete_jobs)
@click.option("--since", metavar="WHEN", help="Only jobs that ended since then: 2h, 1d, 08:00, yesterday, 2026-11-15.")
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="The last N jobs.")
@click.option("-a", "--all", "everything", is_flag=True, help="All jobs, and every task of an array.")
@click.option("--tasks", "each_task", is_flag=True, help="A line for every task of an array.")
@click.option("--hooks", "on_finish_jobs", is_flag=True, help="Also jobs of on_finish and --notify.")
@click.option("--csv", "stream", flag_value="csv", help="Print all jobs as CSV.")
@click.option("--jsonl", "stream", flag_value="jsonl", help="Print all jobs as JSON, one per line.")
@click.option("--timeline", is_flag=True, help="Show what ran on each GPU over time, and what is expected to run.")
@click.option("--svg", "picture", metavar="FILE", help="Write the timeline as a picture; - is standard output.")
@filter_options
@screen_options
def command(
    *,
    ids: tuple[str, ...],
    since: str | None,
    chosen: Filter,
    limit: int | None,
    everything: bool,
    each_task: bool,
    on_finish_jobs: bool,
    stream: str | None,
    timeline: bool,
    picture: str | None,
    screen: Screen,
) -> int:
    """Show finished jobs, newest last, with their GPU-hours and why they failed; with ids, only these jobs.

    On a terminal the tasks of an array share a line. Programs get a line for each task.

    \b
      stoker history                              the most recent
      stoker history --since 1d --state failed,oom
      stoker history --tag sweep=3 --tasks        every task of a sweep
      stoker history 12 --csv > tasks.csv         the tasks of array 12, for a spreadsheet
      stoker history --timeline --since 2h        GPUs over time; --svg FILE draws it
    """
    now = time.time()
    refuse_states(chosen, RESULTS, "stoker status")
    period = Period(parse_since(since, now, LocalZone()) if since else 0.0, chosen, on_finish_jobs)
    paths = screen.paths
    if ids:
        period = period._replace(only=_named(paths, ids, screen), on_finish_jobs=True)
    if timeline or picture is not None:
        return show_timeline(paths, period._replace(since=period.since or now - TIMELINE_SECONDS), picture, screen)
    if stream:
        with past_lines(paths, period, limit or EVERYTHING) as jobs:
            json_lines = (to_json(job).decode() for job in jobs)
            write_plain(csv_lines(jobs) if stream == "csv" else json_lines)
        return 0
    fitting = max(1, screen.size[1] - 4) if screen.form == "screen" else MOST_LINES
    most = EVERYTHING if everything else limit or fitting
    separate = each_task or everything or screen.form != "screen"
    _show(read_history(paths, period, most, now, each_task=separate), screen)
    return 0


def _named(paths: Paths, words: tuple[str, ...], screen: Screen) -> Ranges:
    """The ids of the jobs that the words mean; a name means all jobs of that name."""
    with contextlib.closing(open_store(paths)) as store:
        ids = find(store, words, "any")
        unfinished = len(queries.open_among(store, ids))
    if unfinished:
        count = count_text(unfinished, "job")
        say(f"{count} not finished yet: {shlex.join(['stoker', 'status', *words])}{screen.typed}")
    return ids


def _show(history: History, screen: Screen) -> None:
    if screen.form == "json":
        write_json(history)
    elif screen.form == "plain":
        write_plain(plain_lines(history.jobs, PAST_COLUMNS))
        if history.hidden:
            say(f"{history.hidden} older (stoker history{screen.typed} -a)")
    else:
        write_lines(render_history(history, screen.size[0], screen.typed), screen.color)


def show_timeline(paths: Paths, period: Period, picture: str | None, screen: Screen) -> int:
    """GPUs over time, as text, JSON or a picture; it begins with the first job if that is later than the period."""
    from stoker.app.views.timeline import read_timeline

    timeline = read_timeline(paths, period, trim=True)
    if picture is not None:
        from stoker.cli.charts.timeline import timeline_svg

        write_file(picture, timeline_svg(timeline))
    elif screen.form == "json":
        write_json(timeline)
    else:
        from stoker.cli.screens.timeline import render_timeline

        write_lines(render_timeline(timeline, screen.size[0], screen.size[1]), screen.color)
    return 0
