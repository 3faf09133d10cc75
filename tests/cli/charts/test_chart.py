"""Charts as SVG and PNG."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from stoker.cli.charts.chart import chart_svg, write_chart
from stoker.core.chart import Axis, Chart, ChartSeries, Parallel
from stoker.core.errors import StokerError

HOSTILE = '<script>alert("x")</script> & {lr}'
CHART = Chart(
    HOSTILE,
    Axis("trials", 0, 4),
    Axis(HOSTILE, 0.1, 10, log=True),
    (
        ChartSeries("ended", ((1.0, 5.0), (2.0, 0.2))),
        ChartSeries("best", ((1.0, 5.0), (2.0, 0.2)), "steps", "good"),
        ChartSeries("", ()),
    ),
)
PARALLEL = Parallel(
    "p", (Axis("lr", 0, 1), Axis("act", -0.5, 1.5, names=("relu", "<b>"))), ((0.5, 1.0), (0.1, None)), (1.0, 0.0)
)


@pytest.mark.parametrize("chart", [CHART, PARALLEL])
def test_the_file_is_valid_and_loads_nothing(chart: Chart | Parallel) -> None:
    """Names of parameters are text, whatever is in them."""
    root = ElementTree.fromstring(chart_svg(chart))
    assert {element.tag.rpartition("}")[2] for element in root.iter()} <= {
        "svg",
        "title",
        "rect",
        "path",
        "line",
        "circle",
        "text",
    }
    assert "http" not in chart_svg(chart).replace("http://www.w3.org/2000/svg", "")


def test_a_png_is_a_picture(tmp_path: Path) -> None:
    """By the name of the file."""
    write_chart(CHART, tmp_path / "a.PNG")
    assert (tmp_path / "a.PNG").read_bytes().startswith(b"\x89PNG")


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package for PNG, and a folder that does not exist."""
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(StokerError, match="needs resvg-py"):
        write_chart(CHART, tmp_path / "a.png")
    with pytest.raises(StokerError, match="cannot write"):
        write_chart(CHART, tmp_path / "none" / "a.svg")
