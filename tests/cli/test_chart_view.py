"""Charts in block characters."""

from __future__ import annotations

import pytest

from stoker.cli.screens.chart import Canvas, render_chart
from stoker.cli.screens.text import line_cells
from stoker.core.chart import Axis, Chart, ChartSeries, Parallel


def text(canvas: Canvas) -> list[str]:
    """The characters of each row."""
    return ["".join(span.text for span in line) for line in canvas.lines()]


def test_four_dots_to_a_character() -> None:
    """The corners, and a line without gaps."""
    canvas = Canvas(2, 2)
    for place in ((0.0, 0.0), (1.0, 1.0), (0.0, 1.0)):
        canvas.dot(*place, "")
    assert text(canvas) == ["▘▝", "▖ "]
    line = Canvas(9, 1)
    line.line((0.0, 0.9), (1.0, 0.9), "")
    assert text(line) == ["▀" * 9]


@pytest.mark.parametrize("size", [(20, 5), (80, 24), (200, 60)])
def test_a_chart_fits_its_terminal(size: tuple[int, int]) -> None:
    """Also with one point, many parameters, or none at all."""
    axis = Axis("a long name of a parameter", 1e-5, 1, log=True)
    charts: list[Chart | Parallel] = [
        Chart("one", axis, Axis("y", 0, 1), (ChartSeries("best", ((0.1, 0.5),), "steps"),)),
        Chart("none", axis, Axis("y", 0, 1), ()),
        Parallel("many", (axis,) * 9, ((0.1,) * 9, (None,) * 9), (1.0, 0.0)),
    ]
    for chart in charts:
        lines = render_chart(chart, *size)
        assert max(map(line_cells, lines)) <= size[0]
        assert len(lines) <= max(14, min(size[1], 30))
