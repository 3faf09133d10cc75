"""`stoker simulate`: replay a trace of jobs by Stoker's policy and by others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from stoker.app.views.history import past_lines
from stoker.cli.console import say
from stoker.cli.options import Screen, StokerCommand, screen_options, write_json, write_plain
from stoker.cli.screens.plain import csv_lines
from stoker.cli.screens.text import write_lines
from stoker.core.errors import UsageError, did_you_mean
from stoker.core.units import count_text, parse_duration
from stoker.features.simulate.policies import DEFAULT_SWITCH, GIVING_WAY, POLICIES, Variant
from stoker.features.simulate.replay import ReplayOptions, ReplaySetup, outcome_of, prepare
from stoker.features.simulate.report import drawing, plain_lines, report_of, text_lines
from stoker.features.simulate.trace import SAMPLE, read_trace, rows_of
from stoker.features.simulate.workload import TraceJob
from stoker.store.engine_lock import QUEUE
from stoker.store.past_jobs import Period
from stoker.store.paths import Paths
from stoker.store.status_file import read_status

DEFAULT_POLICIES = "stoker,stoker-auto,fifo"
MOST_HISTORY = 1000
"""Jobs of a history that are replayed without --jobs and --from: the last ones."""
EVERYTHING = 2**62


@click.command(name="simulate", cls=StokerCommand)
@click.argument("trace", type=click.Path(path_type=Path), required=False)
@click.option("--history", is_flag=True, help="Replay the jobs that you ran here.")
@click.option("--sample", is_flag=True, help="Replay the sample trace that comes with Stoker.")
@click.option(
    "--gpus",
    default="",
    metavar="SPEC",
    help="GPUs to simulate, for example 4x24G; default: this machine's for --history, else 8x40G.",
)
@click.option(
    "--policy",
    metavar="NAMES",
    help=f"Any of {', '.join(POLICIES)}, or all; default all for --history, else {DEFAULT_POLICIES}.",
)
@click.option("--jobs", "count", type=click.IntRange(1), metavar="N", help="Only N jobs, in order of arrival.")
@click.option("--from", "first", type=click.IntRange(0), metavar="N", help="Start at job N, default 0.")
@click.option("--cap-duration", "longest", metavar="DUR", help="Cut longer jobs to this duration, for example 2d.")
@click.option(
    "--rho",
    type=click.FloatRange(0, 100, min_open=True),
    metavar="X",
    help="Scale arrivals to this load of the machine, for example 0.9.",
)
@click.option("--seed", type=int, default=0, metavar="N", help="Random seed, default 0.")
@click.option(
    "--models", type=click.Path(path_type=Path), metavar="FILE", help="Throughputs of pairs of models, in Gavel's form."
)
@click.option(
    "--preemptible",
    "shares",
    metavar="SHARES",
    help=f"Also replay {' and '.join(GIVING_WAY)} with these shares of the jobs ready to give way, "
    "for example 25,50,100%; default 100% for --history.",
)
@click.option(
    "--switch-cost",
    "switch",
    default=f"{DEFAULT_SWITCH:.0f}s",
    metavar="DUR",
    help=f"How long a job takes to save its state, and as long again to start, default {DEFAULT_SWITCH:.0f}s.",
)
@click.option(
    "--sessions",
    type=click.FloatRange(0, 1000),
    default=0,
    metavar="N",
    help="Add N sessions a day: a person waits for one GPU and keeps it for an hour.",
)
@click.option("--oracle", is_flag=True, help="Use the true durations instead of learnt ones.")
@click.option("--svg", type=click.Path(path_type=Path), metavar="FILE", help="Also write the plot to this file.")
@screen_options
def command(
    *,
    trace: Path | None,
    history: bool,
    sample: bool,
    policy: str | None,
    svg: Path | None,
    longest: str | None,
    shares: str | None,
    switch: str,
    screen: Screen,
    **values: Any,
) -> int:
    """Replay a trace of jobs (CSV), or your own history, through the scheduler: seconds instead of weeks.

    \b
      stoker simulate --history                              what other orders would have done to your jobs
      stoker simulate --sample --gpus 4x24G --policy all     without a history
      stoker history --csv > jobs.csv; stoker simulate jobs.csv --gpus 8x80G
      stoker simulate philly.csv --jobs 1000 --from 20000 --cap-duration 2d --models gavel_throughputs.json

    The trace is what `stoker history --csv` prints, or has columns for arrival and duration, and may have others: gpus,
    user, vram, load, name. docs/simulate.md lists the defaults for missing columns.
    """
    names = _policies(("all" if history else DEFAULT_POLICIES) if policy is None else policy)
    variants = _variants(names, _shares(("100%" if history else "0") if shares is None else shares))
    seconds = parse_duration(switch)
    if [trace is not None, history, sample].count(True) != 1:
        raise UsageError("need exactly one trace to replay", "give a CSV file, --history or --sample")
    rows = _history(screen) if history else read_trace(trace or SAMPLE)
    source = "your history" if history else "the sample" if sample else str(trace)
    values = _with_defaults(values, len(rows), screen.paths if history else None)
    options = ReplayOptions(source, longest=parse_duration(longest) if longest else None, **values)
    setup = prepare(rows, options)
    for note in setup.notes:
        say(note)
    _show(variants, seconds, options, setup, screen=screen, svg=svg)
    return 0


def _history(screen: Screen) -> list[TraceJob]:
    """The jobs of the queue that are over."""
    with past_lines(screen.paths, Period(), EVERYTHING) as jobs:
        rows = rows_of(csv_lines(jobs), "your history")
    if not rows:
        raise UsageError(
            "there is no history yet", f"stoker simulate --sample{screen.typed} shows it with made-up jobs"
        )
    return rows


def _with_defaults(values: dict[str, Any], jobs: int, paths: Paths | None) -> dict[str, Any]:
    """Values with those that a history chooses by itself: its last jobs, and the machine of its engine."""
    chosen = {**values, "first": values["first"] or 0}
    if paths is None:
        return chosen
    if values["first"] is None:
        chosen["first"] = max(0, jobs - (values["count"] or MOST_HISTORY))
    status = read_status(paths.status_file(QUEUE))
    sizes = [device.memory for device in status.devices if device.memory] if status else []
    return {**chosen, "gpus": values["gpus"] or ",".join(f"{count}x{size}G" for size, count in _cards(sizes))}


def _cards(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """GiB and number of the GPUs of each size."""
    return list(Counter(max(1, round(size / 2**30)) for size in sizes).items())


def _policies(text: str) -> list[str]:
    words = [word.strip().lower() for word in text.split(",")]
    if words == ["all"]:
        return list(POLICIES)
    for word in words:
        if word not in POLICIES:
            hint = did_you_mean(word, POLICIES, f"known: {', '.join(POLICIES)}, all")
            raise UsageError(f"no policy {word!r}", hint)
    return list(dict.fromkeys(words))


def _shares(text: str) -> list[float]:
    """The shares between 0 and 1 of a list of percentages."""
    try:
        shares = [float(word.strip().removesuffix("%")) / 100 for word in text.split(",")]
    except ValueError:
        shares = []
    if not shares or not all(0 <= share <= 1 for share in shares):
        raise UsageError(f"--preemptible {text} is no list of percentages", "write it as --preemptible 25,50,100%")
    return list(dict.fromkeys(shares))


def _variants(names: Sequence[str], shares: Sequence[float]) -> list[Variant]:
    """The policies, those of Stoker once for each share of jobs that give way; without any of them first."""
    return [
        Variant(name, share)
        for name in names
        for share in ([0.0, *(share for share in shares if share)] if name in GIVING_WAY else [0.0])
    ]


def _show(
    variants: list[Variant],
    switch: float,
    options: ReplayOptions,
    setup: ReplaySetup,
    *,
    screen: Screen,
    svg: Path | None,
) -> None:
    outcomes = {}
    for variant in variants:
        if screen.form == "screen":
            say(f"{count_text(len(setup.works), 'job')} by {variant.name} ...")
        policy, share = variant
        outcomes[variant] = outcome_of(policy, setup, oracle=options.oracle, preemptible=share, switch=switch)
    report = report_of(options, setup, outcomes)
    if svg is not None:
        svg.write_text(drawing(report), encoding="utf-8")
    if screen.form == "json":
        write_json(report.figures)
    elif screen.form == "plain":
        write_plain(plain_lines(report))
        if report.figures.summary:
            say(report.figures.summary)
    else:
        write_lines(text_lines(report, screen.size[0]), screen.color)
