"""`stoker history`: jobs that are over."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Mapping
from typing import get_args

import click
import msgspec

from stoker.cli.output_options import Screen, screen_options, write_json, write_plain
from stoker.cli.views.history import render_history
from stoker.cli.views.plain import csv_lines, past_plain
from stoker.cli.views.text import terminal_size, write_lines
from stoker.core.device import Device
from stoker.core.errors import UsageError
from stoker.core.job import Result
from stoker.core.units import parse_since
from stoker.queue.history_view import SCHEMA, History, PastLine, past_lines
from stoker.queue.local_time import LocalZone
from stoker.queue.view_model import LETTERS, exactly, moment
from stoker.store.engine_lock import QUEUE
from stoker.store.paths import Paths, host_name, paths_here
from stoker.store.queries import Period
from stoker.store.status_file import read_status
from stoker.store.writer import open_store

MOST_LINES = 200
"""Jobs told of where nobody asked for another number and no terminal limits them."""
EVERYTHING = 2**62
STATES: tuple[str, ...] = get_args(Result)


@click.command(name="history")
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
        _write_stream(paths, period, limit or EVERYTHING, stream)
        return 0
    most = EVERYTHING if everything else limit or _fitting(screen)
    _show(read_history(paths, period, most, now, simulated=screen.sim), screen)
    return 0


def parse_states(text: str | None) -> tuple[str, ...]:
    """Ends as they are typed: words, or Slurm's letters."""
    letters = {letter: word for word, letter in LETTERS.items() if word in STATES}
    words = [word.strip() for word in text.split(",")] if text else []
    found = [letters.get(word.upper(), word.lower()) for word in words]
    for word in found:
        if word not in STATES:
            import difflib

            near = difflib.get_close_matches(word, STATES, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(STATES)}"
            raise UsageError(f"{word!r} is not how a job ends", hint)
    return tuple(dict.fromkeys(found))


def read_history(paths: Paths, period: Period, limit: int, now: float, *, simulated: bool) -> History:
    """The jobs that ended last, and the sum of all."""
    devices = _devices(paths)
    with contextlib.closing(open_store(paths)) as store, store.glance():
        jobs = list(past_lines(store, period, limit, devices))
        counts = store.past_counts(period)
        hours = store.past_gpu_seconds(period) / 3600
    return History(
        schema=SCHEMA,
        at=exactly(now),
        host=host_name(),
        simulated=simulated,
        since=moment(period.since or None),
        jobs=jobs,
        counts=counts,
        hidden=sum(counts.values()) - len(jobs),
        gpu_hours=round(hours, 6),
    )


def _fitting(screen: Screen) -> int:
    """On a terminal as many as it has lines for."""
    return max(1, terminal_size(os.environ)[1] - 4) if screen.form == "screen" else MOST_LINES


def _show(history: History, screen: Screen) -> None:
    if screen.form == "json":
        write_json(history)
    elif screen.form == "plain":
        write_plain(past_plain(history.jobs))
        if history.hidden:
            print(f"stoker: {history.hidden} older (stoker history{screen.typed} -a)", file=sys.stderr)
    else:
        write_lines(render_history(history, terminal_size(os.environ)[0], screen.typed), screen.color)


def _write_stream(paths: Paths, period: Period, limit: int, form: str) -> None:
    devices = _devices(paths)
    with contextlib.closing(open_store(paths)) as store, store.glance():
        jobs = past_lines(store, period, limit, devices)
        write_plain(csv_lines(jobs) if form == "csv" else _json_lines(jobs))


def _json_lines(jobs: Iterable[PastLine]) -> Iterable[str]:
    encoder = msgspec.json.Encoder()
    return (encoder.encode(job).decode() for job in jobs)


def _devices(paths: Paths) -> Mapping[str, Device]:
    """The devices that the engine saw last, by their ids."""
    view = read_status(paths.status_file(QUEUE))
    return {device.id: device for device in view.devices} if view else {}
