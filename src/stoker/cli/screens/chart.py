"""Render charts in block characters: four dots to a character."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from stoker.cli.screens.text import Line, Look, Span, clip, clipped, padded
from stoker.core.chart import Axis, Chart, Parallel, Tone

QUADRANTS = " ▘▝▀▖▌▞▛▗▚▐▜▄▙▟█"
"""By bits: upper left, upper right, lower left, lower right."""
LOOKS: dict[Tone, Look] = {"main": "", "good": "good", "bad": "faint", "faint": "faint"}
LABEL = 10
LEAST_WIDTH, LEAST_HEIGHT = 30, 8
MOST_HEIGHT = 24


class Canvas:
    """Dots, four to a character; each character has the look of its last dot."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._bits = [[0] * columns for _ in range(rows)]
        self._looks: list[list[Look]] = [[""] * columns for _ in range(rows)]

    def dot(self, x: float, y: float, look: Look) -> None:
        """Set the dot at a place; both run from 0 to 1, y upwards."""
        across = min(2 * self.columns - 1, int(x * 2 * self.columns))
        down = min(2 * self.rows - 1, int((1 - y) * 2 * self.rows))
        self._bits[down // 2][across // 2] |= 1 << (across % 2 + 2 * (down % 2))
        self._looks[down // 2][across // 2] = look

    def line(self, begin: tuple[float, float], end: tuple[float, float], look: Look) -> None:
        """Set the dots between two places."""
        steps = 1 + int(2 * max(abs(end[0] - begin[0]) * self.columns, abs(end[1] - begin[1]) * self.rows))
        for step in range(steps + 1):
            share = step / steps
            self.dot(begin[0] + (end[0] - begin[0]) * share, begin[1] + (end[1] - begin[1]) * share, look)

    def lines(self) -> list[Line]:
        return [
            tuple(Span(QUADRANTS[bits], look) for bits, look in zip(row, looks, strict=True))
            for row, looks in zip(self._bits, self._looks, strict=True)
        ]


def render_chart(chart: Chart | Parallel, width: int, height: int) -> list[Line]:
    """The chart with its title and axes, in a terminal of this size."""
    columns = max(LEAST_WIDTH, width - LABEL - 3)
    rows = min(MOST_HEIGHT, max(LEAST_HEIGHT, height - 6))
    lines = _parallel(chart, width, rows) if isinstance(chart, Parallel) else _chart(chart, columns, rows)
    return [clipped(line, width) for line in ((Span(f" {chart.title}", "heading"),), *lines)]


def _chart(chart: Chart, columns: int, rows: int) -> Iterator[Line]:
    canvas = Canvas(columns, rows)
    for series in chart.series:
        places = [(chart.x.place(x), chart.y.place(y)) for x, y in series.points]
        _draw(canvas, places, series.kind, LOOKS[series.tone])
    labels = _labels(chart.y, rows)
    for row, line in enumerate(canvas.lines()):
        yield Span(f" {labels.get(row, ''):>{LABEL}} "), Span("│", "faint"), *line
    yield (Span(f" {'':{LABEL}} "), Span("└" + "─" * columns, "faint"))
    yield (Span(" " * (LABEL + 3) + _ticks(chart.x, columns)),)
    named = [(series.name, series.kind) for series in chart.series if series.name]
    yield (Span(f" {chart.y.title} over {chart.x.title}" + "".join(f" · {name}" for name, _ in named), "faint"),)


def _draw(canvas: Canvas, places: Sequence[tuple[float, float]], kind: str, look: Look) -> None:
    if kind == "points":
        for x, y in places:
            canvas.dot(x, y, look)
        return
    for begin, end in pairwise(places):
        if kind == "steps":
            corner = (end[0], begin[1])
            canvas.line(begin, corner, look)
            canvas.line(corner, end, look)
        else:
            canvas.line(begin, end, look)
    if len(places) == 1:
        canvas.dot(*places[0], look)


def _labels(axis: Axis, rows: int) -> dict[int, str]:
    """The texts of an axis by row, from the top."""
    columns = {}
    for value, text in axis.ticks(max(2, rows // 3)):
        columns[min(rows - 1, int((1 - axis.place(value)) * rows))] = clip(text, LABEL)
    return columns


def _ticks(axis: Axis, columns: int) -> str:
    """The texts below an axis; one that would touch the last is left out."""
    line = ""
    for value, text in axis.ticks(max(2, columns // 12)):
        at = max(0, min(columns - len(text), int(axis.place(value) * columns) - len(text) // 2))
        if not line or at > len(line) + 1:
            line = padded(line, at) + text
    return line


def _parallel(chart: Parallel, width: int, rows: int) -> Iterator[Line]:
    """Axes side by side; the best tenth of the lines is drawn last and stands out."""
    count = len(chart.axes)
    columns = max(LEAST_WIDTH, width - 2)
    canvas = Canvas(columns, rows)
    for number in sorted(range(len(chart.lines)), key=lambda one: chart.goodness[one]):
        look: Look = "good" if chart.goodness[number] >= 0.9 else "faint"
        places = [
            (place / max(1, count - 1), axis.place(value))
            for place, (axis, value) in enumerate(zip(chart.axes, chart.lines[number], strict=True))
            if value is not None
        ]
        _draw(canvas, places, "line", look)
    yield (Span(" " + _spread([_end_text(axis, high=True) for axis in chart.axes], columns)),)
    yield from ((Span(" "), *line) for line in canvas.lines())
    yield (Span(" " + _spread([_end_text(axis, high=False) for axis in chart.axes], columns)),)
    yield (Span(" " + _spread([axis.title for axis in chart.axes], columns), "id"),)


def _end_text(axis: Axis, *, high: bool) -> str:
    if axis.names:
        return axis.names[-1 if high else 0]
    return f"{axis.high if high else axis.low:.3g}"


def _spread(texts: Sequence[str], columns: int) -> str:
    """Texts at equal distances, the first at the left and the last at the right."""
    line = ""
    for place, text in enumerate(texts):
        room = max(4, columns // max(1, len(texts)) - 1)
        short = clip(text, room)
        middle = int(place * (columns - 1) / max(1, len(texts) - 1))
        at = 0 if place == 0 else columns - len(short) if place == len(texts) - 1 else middle - len(short) // 2
        line = padded(line, max(len(line) + 1 if line else 0, at)) + short
    return line
