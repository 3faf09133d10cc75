"""`stoker sweep plot`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from stoker.cli.options import StokerCommand, sim_option
from stoker.cli.screens.text import terminal_size, write_lines
from stoker.core.errors import UsageError
from stoker.features.sweep.charts import KINDS, chart_of
from stoker.features.sweep.view import opened_sweep
from stoker.store.paths import Paths


@click.command(name="plot", cls=StokerCommand)
@click.argument("sweep", required=False)
@click.option("--kind", type=click.Choice(KINDS), help="What to plot; default is best, or parameter with -p.")
@click.option("-p", "--parameter", metavar="NAME", help="Plot the objective against this parameter.")
@click.option("-o", "--out", metavar="FILE", help="Write FILE.svg or FILE.png in place of the terminal.")
@click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", help="When to use colour.")
@sim_option
def plot(
    *, sweep: str | None, kind: str | None, parameter: str | None, out: str | None, color: str, paths: Paths
) -> int:
    """Plot a sweep: in the terminal, or as SVG or PNG.

    best: all trials, and the best so far. parallel: a line for each trial through all parameters.
    parameter: the objective against one parameter. curves: values over the steps of all trials.

    \b
      stoker sweep plot
      stoker sweep plot 12 --kind parallel -o sweep.svg
      stoker sweep plot 12 -p lr
      stoker sweep plot 12 --kind curves -o curves.png
    """
    if parameter is not None and kind not in (None, "parameter"):
        raise UsageError(f"-p is not for --kind {kind}", "leave out --kind")
    chosen = kind or ("best" if parameter is None else "parameter")
    with opened_sweep(paths, sweep) as now:
        chart = chart_of(now, chosen, parameter)
    if out is None:
        from stoker.cli.screens.chart import render_chart

        write_lines(render_chart(chart, *terminal_size(os.environ)), color)
        return 0
    path = Path(out)
    if path.suffix.lower() not in (".svg", ".png"):
        raise UsageError(f"{out} is neither .svg nor .png", f"write it as {out}.svg")
    from stoker.cli.charts.chart import write_chart

    write_chart(chart, path)
    return 0
