"""`stoker simulate`: replay a trace of jobs by Stoker's policy and by others."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from stoker.cli.output_options import Screen, output_options, write_json, write_plain
from stoker.cli.views.simulate import drawing, plain_lines, text_lines
from stoker.cli.views.text import write_lines
from stoker.core.errors import UsageError, did_you_mean
from stoker.core.text import printable
from stoker.core.units import count_text, parse_duration
from stoker.simulation.replay import POLICIES, ReplayOptions, Setup, outcome_of, prepare, report_of

DEFAULT_POLICIES = "stoker,fifo"


@click.command(name="simulate")
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--gpus", default="8x40G", metavar="SPEC", help="The machine, for example 4x24G; default 8x40G.")
@click.option(
    "--policy",
    default=DEFAULT_POLICIES,
    metavar="NAMES",
    help=f"Any of {', '.join(POLICIES)}, or all; default stoker,fifo.",
)
@click.option("--jobs", "count", type=click.IntRange(1), metavar="N", help="Only N jobs, by their arrival.")
@click.option("--from", "first", type=click.IntRange(0), default=0, metavar="N", help="From the Nth job on, default 0.")
@click.option("--cap-duration", "longest", metavar="DUR", help="No job runs longer than this, for example 2d.")
@click.option(
    "--rho",
    type=click.FloatRange(0, 100, min_open=True),
    metavar="X",
    help="Let jobs arrive so fast that they need this share of the machine, for example 0.9.",
)
@click.option("--seed", type=int, default=0, metavar="N", help="For what has to be drawn by chance, default 0.")
@click.option(
    "--models", type=click.Path(path_type=Path), metavar="FILE", help="Throughputs of pairs of models, in Gavel's form."
)
@click.option("--oracle", is_flag=True, help="Durations are known beforehand, not learnt.")
@click.option("--svg", type=click.Path(path_type=Path), metavar="FILE", help="Draw the plot into a file, too.")
@output_options
def command(*, policy: str, svg: Path | None, longest: str | None, screen: Screen, **values: Any) -> int:
    """Replay a trace of jobs (CSV) through the scheduler, in seconds instead of weeks.

    \b
      stoker simulate trace.csv --gpus 4x24G
      stoker simulate trace.csv --gpus 8x40G --policy all --rho 0.9
      stoker simulate philly.csv --jobs 1000 --from 20000 --cap-duration 2d --models gavel_throughputs.json

    The trace has columns for arrival and duration, and may have others: gpus, user, vram, load, name. docs/simulate.md
    tells what is assumed where they are missing.
    """
    names = _policies(policy)
    options = ReplayOptions(longest=parse_duration(longest) if longest else None, **values)
    setup = prepare(options)
    for note in setup.notes:
        print(f"stoker: {printable(note)}", file=sys.stderr)
    _show(names, options, setup, screen, svg)
    return 0


def _policies(text: str) -> list[str]:
    words = [word.strip().lower() for word in text.split(",")]
    if words == ["all"]:
        return list(POLICIES)
    for word in words:
        if word not in POLICIES:
            hint = did_you_mean(word, POLICIES, f"there are {', '.join(POLICIES)}, and all")
            raise UsageError(f"no policy {word!r}", hint)
    return list(dict.fromkeys(words))


def _show(names: list[str], options: ReplayOptions, setup: Setup, screen: Screen, svg: Path | None) -> None:
    outcomes = {}
    for name in names:
        if screen.form == "screen":
            print(f"stoker: {count_text(len(setup.works), 'job')} by {name} ...", file=sys.stderr)
        outcomes[name] = outcome_of(name, setup, oracle=options.oracle)
    report = report_of(options, setup, outcomes)
    if svg is not None:
        svg.write_text(drawing(report), encoding="utf-8")
    if screen.form == "json":
        write_json(report.figures)
    elif screen.form == "plain":
        write_plain(plain_lines(report))
    else:
        write_lines(text_lines(report, screen.size[0]), screen.color)
