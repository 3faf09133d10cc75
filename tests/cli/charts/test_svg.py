"""Scales, ticks and escaping of charts."""

from __future__ import annotations

import re
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.cli.charts.chart import Axes, Point, outcomes_svg, scatter_svg
from stoker.cli.charts.svg import PALETTE, RED, Clock, Drawing, contrast, escape, fitted, ink_on, tinted
from stoker.core.chart import COLOURS
from stoker.core.outcomes import RESULT_COLOURS


@settings(max_examples=200, derandomize=True)
@given(st.text())
def test_no_text_becomes_markup(text: str) -> None:
    """Whatever a job is called, the picture is well-formed, and the text comes back."""
    drawing = Drawing(100, 100, text)
    drawing.text((1, 1), text)
    drawing.rect((0, 0, 1, 1), "#000000", tip=text)
    root = ElementTree.fromstring(drawing.svg())
    (shown,) = [one.text or "" for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert len(list(root)) == 4
    if text.isprintable():
        assert shown == text


def test_hostile_names() -> None:
    """Elements, attributes, control characters and half characters."""
    assert (
        escape("<b a='1' c=\"2\">&\x00\x1b\ud800") == "&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt;&amp;\ufffd\ufffd\ufffd"
    )


def test_times_are_even(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full hours of the local zone, and the date at midnight."""
    monkeypatch.setenv("TZ", "XYZ-5:30")
    time.tzset()
    clock = Clock(1_800_000_000, 1_800_000_000 + 6 * 3600, 0, 600)
    assert [text for _, text in clock.ticks(7)] == ["14:00", "15:00", "16:00", "17:00", "18:00", "19:00"]
    late = Clock(1_800_000_000 + 36_000, 1_800_000_000 + 43_200, 0, 600)
    assert "Jan 16" in [text for _, text in late.ticks(3)]
    monkeypatch.undo()
    time.tzset()


def test_plots_are_well_formed() -> None:
    """Also without a single point."""
    axes = Axes("title", "x", "y", logarithmic=True, diagonal=True)
    for svg in (
        scatter_svg([], axes),
        scatter_svg([Point(0, 5, "#000000", "<tip>")], axes),
        outcomes_svg({"done": 3, "odd": 1}),
    ):
        ElementTree.fromstring(svg)


def test_long_words_are_cut() -> None:
    """To about the width, or left out."""
    assert fitted("a job with a long name", 60) == "a job wi…"
    assert fitted("short", 1000) == "short"
    assert not fitted("short", 10)


def test_the_page_has_the_same_colours() -> None:
    """A group looks the same there and in a picture."""
    style = (Path(__file__).parents[3] / "web/src/style.css").read_text()
    light = [re.search(rf"--series-{place}: (#[0-9a-f]{{6}});", style) for place in range(len(PALETTE))]
    assert tuple(found[1] for found in light if found) == PALETTE
    assert len(PALETTE) == COLOURS


@pytest.mark.parametrize("colour", [*PALETTE, RED, *RESULT_COLOURS.values()])
def test_words_on_a_colour_can_be_read(colour: str) -> None:
    """Dark or white words, whichever are clearer."""
    assert contrast(ink_on(colour), colour) >= 3.9


@pytest.mark.parametrize("colour", [*PALETTE, RED])
def test_words_on_a_bar_can_be_read(colour: str) -> None:
    """On the part that was used, and on the one that was only reserved."""
    for part in (0.35, 0.7):
        assert contrast(ink_on(tinted(colour, 0.7)), tinted(colour, part)) >= 4.5
