"""Small charts of many jobs: how they ended, and one number against another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stoker.charts.svg import FAINT, RED, Drawing, Linear, Logarithmic, Scale, fitted

WIDTH = 520.0
HEIGHT = 300.0
LEFT, RIGHT, TOP, BELOW = 56.0, 16.0, 24.0, 40.0
RESULT_COLOURS = {
    "done": "#2da44e",
    "failed": RED,
    "oom": "#a40e26",
    "timeout": "#bc4c00",
    "lost": "#8250df",
    "cancelled": "#8c959f",
    "skipped": "#afb8c1",
}
"""Colours of results; each has its name beside it, too."""


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
            drawing.text((left + part / 2, 23), words, anchor="middle", fill="#ffffff", kind="on")
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
    """What the two directions mean."""

    title: str
    x: str
    y: str
    unit: str = ""
    logarithmic: bool = False
    diagonal: bool = False
    """Whether a line shows where both are equal."""


def scatter_svg(points: Sequence[Point], axes: Axes, width: float = WIDTH, height: float = HEIGHT) -> str:
    """A dot for each job; both directions have the same range if there is a diagonal."""
    drawing = Drawing(width, height, axes.title)
    x_values, y_values = [point.x for point in points], [point.y for point in points]
    if axes.diagonal:
        x_values = y_values = [*x_values, *y_values]
    x = _scale(x_values, LEFT, width - RIGHT, axes)
    y = _scale(y_values, height - BELOW, TOP, axes)
    drawing.axis_below(x, TOP, height - BELOW, 6, axes.x)
    drawing.axis_left(y, LEFT, width - RIGHT, 6, axes.y)
    if axes.diagonal and x_values:
        low, high = min(x_values) if axes.logarithmic else 0.0, max(x_values)
        drawing.line((x.at(low), y.at(low)), (x.at(high), y.at(high)), FAINT, 1.0, "faint-line")
    for point in points:
        drawing.circle((x.at(point.x), y.at(point.y)), 3.5, point.colour, tip=point.tip)
    return drawing.svg(background=False)


def _scale(values: Sequence[float], start: float, end: float, axes: Axes) -> Scale:
    if axes.logarithmic:
        known = [value for value in values if value > 0] or [1.0]
        return Logarithmic(min(known) / 1.3, max(known) * 1.3, start, end, axes.unit)
    return Linear(0.0, max([*values, 1e-9]) * 1.08, start, end, axes.unit)
