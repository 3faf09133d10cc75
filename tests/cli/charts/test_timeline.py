"""The timeline as a picture and in block characters."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from stoker.app.views.model import BookedTime
from stoker.app.views.timeline import Timeline, timeline_of
from stoker.cli.charts.timeline import timeline_svg
from stoker.cli.screens.timeline import render_timeline
from stoker.core.learning import Live
from stoker.store.past_jobs import Period
from stoker.store.samples import Sample
from support.build import GIB
from support.past import NOW, PastQueue
from support.views import texts

HOSTILE = "<script>alert('x')</script>\x1b[31m"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def timeline(tmp_path: Path) -> Iterator[Timeline]:
    """Two jobs that share a GPU, a failure, a job that runs, and one that is expected."""
    queue = PastQueue(tmp_path)
    queue.ran("a", "0", -3600, -1200, gib=12, group="vision")
    queue.ran("b", "0", -2400, -1800, gib=6)
    queue.ran(HOSTILE, "1", -3000, -600, code=1)
    queue.ran("now", "0", -600, None, gib=12)
    waits = queue.submit("waits")
    minute = int(NOW // 60)
    samples = [Sample(minute - place, "0", 100, GIB, GIB, 70, 200.0) for place in range(20, 61)]
    queue.store.record([], samples=samples)
    facts = queue.facts(
        starts={waits.id: NOW + 600},
        ends={4: NOW + 600, waits.id: NOW + 1200},
        places={waits.id: ("1",)},
        uses={4: Live(3 * GIB, 3 * GIB)},
    )
    yield timeline_of(facts, Period(NOW - 3600))
    queue.close()


def test_the_text_shows_what_shared_a_gpu(timeline: Timeline) -> None:
    """Bars are stacked, failures marked, the unused part of the memory and what is expected lighter."""
    lines = texts(render_timeline(timeline, 100, 14))
    assert all(len(line) <= 100 for line in lines)
    first, second = lines[1:6], lines[6:11]
    assert "▐2 b" in first[1]
    assert "▐1 a" in first[2]
    assert "▐4 now▒▒" in "".join(first)
    assert "█" in first[4]  # how busy it was
    assert "✗" in second[0]
    assert "░5 waits" in second[0]
    assert "\x1b" not in "".join(lines)
    assert "now" in lines[-2]


def test_booked_times_are_hatched(timeline: Timeline) -> None:
    """On their GPU, and the legend says so."""
    begin, end = (datetime.fromtimestamp(NOW + seconds, UTC) for seconds in (300, 1200))
    booked = BookedTime("bob", yours=False, begin=begin, end=end)
    lanes = [timeline.lanes[0], replace(timeline.lanes[1], bookings=[booked])]
    lines = texts(render_timeline(replace(timeline, lanes=lanes), 100, 14))
    assert "╱" not in "".join(lines[1:6])
    assert "╱╱" in "".join(lines[6:11])
    assert "╱ booked" in lines[-1]
    assert "booked" not in texts(render_timeline(timeline, 100, 14))[-1]


def test_little_room(timeline: Timeline) -> None:
    """Lanes that do not fit are counted, and nothing is wider than the terminal."""
    lines = texts(render_timeline(timeline, 40, 6))
    assert any("1 more GPU" in line for line in lines)
    assert all(len(line) <= 40 for line in lines)


def test_the_picture_has_every_bar(timeline: Timeline) -> None:
    """With all that is known of it in a tip; a hostile name is text."""
    root = ElementTree.fromstring(timeline_svg(timeline))
    tips = [tip.text or "" for tip in root.iter(f"{SVG}title")]
    assert any(tip.startswith("1 a\ndone, ") and "12.0G reserved" in tip for tip in tips)
    assert any("<script>" in tip for tip in tips)
    assert not list(root.iter(f"{SVG}script"))
    words = [one.text for one in root.iter(f"{SVG}text")]
    assert {"now", "GPU 0", "vision", "failed"} <= set(words)


def test_an_empty_machine(timeline: Timeline) -> None:
    """It has no lanes."""
    from msgspec.structs import replace

    empty = replace(timeline, lanes=[])
    assert "no GPUs" in timeline_svg(empty)
    assert "no GPUs" in "".join(texts(render_timeline(empty, 80, 24)))
