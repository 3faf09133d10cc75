"""`stoker history`: jobs that are over."""

from __future__ import annotations

import sys
import time
from typing import get_args

import click
import msgspec

from stoker.cli.output_options import Screen, screen_options, write_json, write_plain
from stoker.cli.sim_option import StokerCommand
from stoker.cli.views.job import render_history
from stoker.cli.views.plain import PAST_COLUMNS, csv_lines, plain_lines
from stoker.cli.views.text import write_lines
from stoker.core.errors import UsageError, did_you_mean
from stoker.core.job import Result
from stoker.core.units import parse_since
from stoker.queue.history_view import History, past_jobs, read_history
from stoker.queue.view_model import LETTERS
from stoker.queue.view_text import LocalZone
from stoker.store.paths import paths_here
from stoker.store.queries import Period

MOST_LINES = 200
"""Jobs that are shown without --limit if the output is no terminal."""
EVERYTHING = 2**62
STATES: tuple[str, ...] = get_args(Result)


@click.command(name="history", cls=StokerCommand)
@click.option("--since", metavar="WHEN", help="Only what ended since then: 2h, 1d, 08:00, yesterday, 2026-11-15.")
@click.option("--state", "states", metavar="STATES", help=f"Only these ends: {', '.join(STATES)}.")
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="The last N jobs.")
@click.option("-a", "--all", "everything", is_flag=True, help="All of them.")
@click.option("--hooks", "on_finish_jobs", is_flag=True, help="Hook commands too.")
@click.option("--csv", "stream", flag_value="csv", help="Comma separated, all of them.")
@click.option("--jsonl", "stream", flag_value="jsonl", help="One JSON value for each job, all of them.")
@screen_options
def command(
    *,
    since: str | None,
    states: str | None,
    limit: int | None,
    everything: bool,
    on_finish_jobs: bool,
    stream: str | None,
    screen: Screen,
) -> int:
    """Jobs that are over, newest last, with the GPU-hours of all.

    \b
      stoker history                              the last ones
      stoker history --since 1d --state failed,oom
      stoker history --csv > jobs.csv             all, for a spreadsheet
    """
    now = time.time()
    period = Period(parse_since(since, now, LocalZone()) if since else 0.0, parse_states(states), on_finish_jobs)
    paths = paths_here(screen.sim)
    if stream:
        with past_jobs(paths, period, limit or EVERYTHING) as jobs:
            json_lines = (msgspec.json.encode(job).decode() for job in jobs)
            write_plain(csv_lines(jobs) if stream == "csv" else json_lines)
        return 0
    fitting = max(1, screen.size[1] - 4) if screen.form == "screen" else MOST_LINES
    most = EVERYTHING if everything else limit or fitting
    _show(read_history(paths, period, most, now, simulated=screen.sim), screen)
    return 0


def parse_states(text: str | None) -> tuple[str, ...]:
    """Results as users type them: words, or Slurm's letters."""
    letters = {letter: word for word, letter in LETTERS.items() if word in STATES}
    words = [word.strip() for word in text.split(",")] if text else []
    found = [letters.get(word.upper(), word.lower()) for word in words]
    for word in found:
        if word not in STATES:
            hint = did_you_mean(word, STATES, f"there are {', '.join(STATES)}")
            raise UsageError(f"{word!r} is not how a job ends", hint)
    return tuple(dict.fromkeys(found))


def _show(history: History, screen: Screen) -> None:
    if screen.form == "json":
        write_json(history)
    elif screen.form == "plain":
        write_plain(plain_lines(history.jobs, PAST_COLUMNS))
        if history.hidden:
            print(f"stoker: {history.hidden} older (stoker history{screen.typed} -a)", file=sys.stderr)
    else:
        write_lines(render_history(history, screen.size[0], screen.typed), screen.color)
