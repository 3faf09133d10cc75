"""Charts as SVG or PNG: those of `core/chart.py`, and small ones of many jobs for a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from stoker.app.jobs.installation import how_to_add_extra
from stoker.cli.charts.svg import FAINT, INK, Drawing, fitted, ink_on
from stoker.core.chart import Axis, Chart, ChartSeries, Parallel, axis_over
from stoker.core.errors import StokerError
from stoker.core.outcomes import RESULT_COLOURS

WIDTH, HEIGHT = 760.0, 440.0
LEFT, RIGHT, TOP, BOTTOM = 76.0, 24.0, 44.0, 56.0
TONES = {"main": "#1668a8", "good": "#c2410c", "bad": "#8b95a1", "faint": "#9db4c8"}
"""Colours that differ in lightness, too, so that they can be told apart without colour."""
WORST, BEST = (0xB8, 0xC4, 0xD0), (0xC2, 0x41, 0x0C)
PNG_SCALE = 2.0


def chart_svg(chart: Chart | Parallel) -> str:
    """The chart as a file."""
    drawing = Drawing(WIDTH, HEIGHT, chart.title)
    drawing.text((LEFT, 24), chart.title, size=15)
    if isinstance(chart, Parallel):
        _parallel(drawing, chart)
    else:
        _chart(drawing, chart)
    return drawing.svg()


def write_chart(chart: Chart | Parallel, path: Path) -> None:
    """Write an SVG, or a PNG where the name ends so."""
    text = chart_svg(chart)
    data = _png(text) if path.suffix.lower() == ".png" else text.encode()
    try:
        path.write_bytes(data)
    except OSError as error:
        raise StokerError(f"cannot write {path}: {error.strerror}", "name another file") from error


def _png(text: str) -> bytes:
    try:
        import resvg_py
    except ImportError:
        hint = f"{how_to_add_extra('plot')}, or write an SVG: -o FILE.svg"
        raise StokerError("a PNG needs resvg-py, which is not installed", hint) from None
    return bytes(resvg_py.svg_to_bytes(svg_string=text, width=int(WIDTH * PNG_SCALE)))


def _chart(drawing: Drawing, chart: Chart) -> None:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    drawing.axis_below([(_x(chart.x, value), text) for value, text in chart.x.ticks(8)], TOP, bottom, chart.x.title)
    drawing.axis_left([(_y(chart.y, value), text) for value, text in chart.y.ticks(6)], LEFT, right, chart.y.title)
    drawing.path(f"M{LEFT:g} {TOP:g}V{bottom:g}H{right:g}", INK, 1)
    for series in chart.series:
        _series(drawing, series, chart)
    named = [(series.name, TONES[series.tone]) for series in chart.series if series.name]
    drawing.legend(named, (right - drawing.legend_width(named), 24))


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.place(value) * (WIDTH - LEFT - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.place(value) * (HEIGHT - TOP - BOTTOM)


def _series(drawing: Drawing, series: ChartSeries, chart: Chart) -> None:
    places = [(_x(chart.x, x), _y(chart.y, y)) for x, y in series.points]
    if series.kind == "points":
        for place in places:
            drawing.circle(place, 3.2, TONES[series.tone], opacity=0.75)
    elif places:
        drawing.path(
            _path(places, steps=series.kind == "steps"), TONES[series.tone], 1 if series.tone == "faint" else 2
        )


def _path(places: Sequence[tuple[float, float]], *, steps: bool) -> str:
    (x, y), *rest = places
    words = [f"M{x:.1f} {y:.1f}"]
    words += [f"H{x:.1f}V{y:.1f}" if steps else f"L{x:.1f} {y:.1f}" for x, y in rest]
    return "".join(words)


def _parallel(drawing: Drawing, chart: Parallel) -> None:
    count = max(1, len(chart.axes) - 1)
    places = [LEFT + number * (WIDTH - LEFT - RIGHT - 40) / count for number in range(len(chart.axes))]
    for number in sorted(range(len(chart.lines)), key=lambda number: chart.goodness[number]):  # the best on top
        _parallel_line(drawing, chart, number, places)
    for axis, x in zip(chart.axes, places, strict=True):
        drawing.line((x, TOP + 16), (x, HEIGHT - BOTTOM), INK, 1.0, "axis")
        drawing.text((x, HEIGHT - BOTTOM + 22), axis.title, anchor="middle")
        for value, text in axis.ticks(6):
            drawing.text((x + 5, _parallel_y(axis, value) + 4), text, fill=FAINT, halo=True)


def _parallel_y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.place(value) * (HEIGHT - TOP - BOTTOM - 16)


def _parallel_line(drawing: Drawing, chart: Parallel, number: int, places: Sequence[float]) -> None:
    points = [
        (x, _parallel_y(axis, value))
        for axis, x, value in zip(chart.axes, places, chart.lines[number], strict=True)
        if value is not None
    ]
    share = chart.goodness[number]
    colour = "#" + "".join(f"{round(low + (high - low) * share):02x}" for low, high in zip(WORST, BEST, strict=True))
    if points:
        drawing.path(_path(points, steps=False), colour, round(1 + 1.5 * share, 1))


# -- charts of a report ------------------------------------------------------------------------

SMALL_WIDTH, SMALL_HEIGHT = 520.0, 300.0
SMALL_LEFT, SMALL_RIGHT, SMALL_TOP, SMALL_BOTTOM = 56.0, 16.0, 24.0, 40.0


def outcomes_svg(counts: Mapping[str, int], width: float = SMALL_WIDTH) -> str:
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


def scatter_svg(points: Sequence[Point], axes: Axes, width: float = SMALL_WIDTH, height: float = SMALL_HEIGHT) -> str:
    """A dot for each job."""
    drawing = Drawing(width, height, axes.title)
    x_values, y_values = [point.x for point in points], [point.y for point in points]
    if axes.diagonal:
        x_values = y_values = [0.0, *x_values, *y_values]
    x_axis = axis_over(axes.x, x_values, log=axes.logarithmic)
    y_axis = axis_over(axes.y, y_values, log=axes.logarithmic)
    right, bottom = width - SMALL_RIGHT, height - SMALL_BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return SMALL_LEFT + x_axis.place(x) * (right - SMALL_LEFT), bottom - y_axis.place(y) * (bottom - SMALL_TOP)

    low = y_axis.low
    drawing.axis_below([(place(x, low)[0], text) for x, text in x_axis.ticks(6)], SMALL_TOP, bottom, axes.x)
    drawing.axis_left([(place(x_axis.low, y)[1], text) for y, text in y_axis.ticks(6)], SMALL_LEFT, right, axes.y)
    if axes.diagonal and points:
        drawing.line(place(0.0, 0.0), place(max(x_values), max(x_values)), FAINT, 1.0, "diagonal")
    for point in points:
        drawing.circle(place(point.x, point.y), 3.5, point.colour, tip=point.tip)
    return drawing.svg(background=False)
