"""Small charts of many jobs: how they ended, and one number against another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stoker.cli.charts.svg import FAINT, Drawing, fitted, ink_on
from stoker.core.chart import axis_over
from stoker.core.outcomes import RESULT_COLOURS

WIDTH = 520.0
HEIGHT = 300.0
LEFT, RIGHT, TOP, BELOW = 56.0, 16.0, 24.0, 40.0


def outcomes_svg(counts: Mapping[str, int], width: float = WIDTH) -> str:
    """One bar of all jobs, in parts by how they ended."""
    drawing = Drawing(width, 64.0, "How the jobs ended")
    total = sum(counts.values()) or 1
    names = [name for name in RESULT_COLOURS if counts.get(name)]
    left = 8.0
    for name in names:
        part = counts[name] / total * (width - 16)
        drawing.rect((left, 8, part, 22), RESULT_COLOURS[name], tip=f"{counts[name]} {name}")
        if words := fitted(str(counts[name]), part - 6):
            drawing.text((left + part / 2, 23), words, anchor="middle", fill=ink_on(RESULT_COLOURS[name]), kind="on")
        left += part
    drawing.legend([(f"{counts[name]} {name}", RESULT_COLOURS[name]) for name in names], (8, 52))
    return drawing.svg(background=False)


class Point(NamedTuple):
    """One job of a scatter plot."""

    x: float
    y: float
    colour: str
    tip: str


class Axes(NamedTuple):
    """The meaning of the two directions."""

    title: str
    x: str
    y: str
    logarithmic: bool = False
    diagonal: bool = False
    """Whether both have the same range, from 0 on, and a line shows where they are equal."""


def scatter_svg(points: Sequence[Point], axes: Axes, width: float = WIDTH, height: float = HEIGHT) -> str:
    """A dot for each job."""
    drawing = Drawing(width, height, axes.title)
    x_values, y_values = [point.x for point in points], [point.y for point in points]
    if axes.diagonal:
        x_values = y_values = [0.0, *x_values, *y_values]
    x_axis = axis_over(axes.x, x_values, log=axes.logarithmic)
    y_axis = axis_over(axes.y, y_values, log=axes.logarithmic)
    right, bottom = width - RIGHT, height - BELOW

    def place(x: float, y: float) -> tuple[float, float]:
        return LEFT + x_axis.place(x) * (right - LEFT), bottom - y_axis.place(y) * (bottom - TOP)

    low = y_axis.low
    drawing.axis_below([(place(x, low)[0], text) for x, text in x_axis.ticks(6)], TOP, bottom, axes.x)
    drawing.axis_left([(place(x_axis.low, y)[1], text) for y, text in y_axis.ticks(6)], LEFT, right, axes.y)
    if axes.diagonal and points:
        drawing.line(place(0.0, 0.0), place(max(x_values), max(x_values)), FAINT, 1.0, "diagonal")
    for point in points:
        drawing.circle(place(point.x, point.y), 3.5, point.colour, tip=point.tip)
    return drawing.svg(background=False)
