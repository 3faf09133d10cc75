"""What ran on each GPU, stacked by memory, and what is expected to run."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.app.jobs.local_time import to_datetime
from stoker.app.views.timeline import Bar, Stacked, Timeline, read_timeline, stack, timeline_of
from stoker.app.views.usage import read_usage
from stoker.core.learning import Live
from stoker.store.past_jobs import Period
from stoker.store.samples import Sample
from support.build import GIB, declared
from support.past import NOW, PastQueue

HOUR = 3600.0
TODAY = Period(NOW - 24 * HOUR)


def bars(timeline: Timeline, lane: int = 0) -> list[tuple[str, str, float, float]]:
    """Label, state, bottom and height of the bars of a lane."""
    return [(bar.label, bar.state, bar.bottom, bar.height) for bar in timeline.lanes[lane].bars]


def test_bars_are_stacked_by_memory(queue: PastQueue) -> None:
    """A job takes the lowest place that is free for all of its time."""
    queue.ran("a", "0", -4000, -1000, gib=12)
    queue.ran("b", "0", -3000, -2000, code=1, gib=6)
    queue.ran("c", "0", -1500, None, gib=6)
    queue.ran("whole", "1", -4000, -100)
    timeline = timeline_of(queue.facts(), TODAY)
    assert bars(timeline) == [("1", "done", 0.0, 0.5), ("2", "failed", 0.5, 0.25), ("3", "running", 0.5, 0.25)]
    assert bars(timeline, 1) == [("4", "done", 0.0, 1.0)]
    first = timeline.lanes[0].bars[0]
    assert (first.start, first.end, first.reserved_bytes) == (
        to_datetime(NOW - 4000),
        to_datetime(NOW - 1000),
        12 * GIB,
    )


def test_every_attempt_has_a_bar(queue: PastQueue) -> None:
    """Also of a job that waits again; the end of a lost attempt is the start of the next."""
    job = queue.attempt(queue.submit("again"), "0", -4000, -3500, code=-1)
    queue.attempt(job, "1", -3400, None)
    timeline = timeline_of(queue.facts(), TODAY)
    assert [bar.state for lane in timeline.lanes for bar in lane.bars] == ["lost", "running"]
    assert timeline.lanes[0].bars[0].end == to_datetime(NOW - 3400)


def test_only_the_period_is_shown(queue: PastQueue) -> None:
    """What ended before it is left out, what began before it is not; a limit leaves out the oldest."""
    queue.ran("old", "0", -9 * HOUR, -8 * HOUR)
    queue.ran("across", "0", -5 * HOUR, -3 * HOUR)
    queue.ran("new", "0", -2 * HOUR, -1 * HOUR)
    assert [bar[0] for bar in bars(timeline_of(queue.facts(), Period(NOW - 4 * HOUR)))] == ["2", "3"]
    limited = timeline_of(queue.facts(), TODAY, limit=1)
    assert ([bar[0] for bar in bars(limited)], limited.left_out) == (["3"], 2)


def test_the_forecast_is_stacked_on_what_runs(queue: PastQueue) -> None:
    """Until the expected end of what runs, which bounds the timeline."""
    queue.ran("now", "0", -100, None, gib=18)
    beside, later = queue.submit("beside", gib=6), queue.submit("later", gib=12)
    timeline = timeline_of(
        queue.facts(
            starts={beside.id: NOW + 5, later.id: NOW + 600},
            ends={1: NOW + 600, beside.id: NOW + 900, later.id: NOW + 1200},
            places={beside.id: ("0",), later.id: ("0",)},
            uses={1: Live(5 * GIB, 7 * GIB)},
        ),
        TODAY,
    )
    (lane, _) = timeline.lanes
    assert [(bar.label, bar.state, bar.bottom, bar.height) for bar in lane.forecast] == [
        ("2", "queued", 0.75, 0.25),
        ("3", "queued", 0.0, 0.5),
    ]
    (running,) = lane.bars
    assert (running.end, running.expected_end, running.used_bytes) == (None, to_datetime(NOW + 600), 7 * GIB)
    assert timeline.until == to_datetime(NOW + 1200)


def test_a_dead_engine_expects_nothing(queue: PastQueue) -> None:
    """Its last forecast is not shown."""
    job = queue.submit("waits")
    timeline = timeline_of(queue.facts(lives=False, starts={job.id: NOW + 5}, ends={}, places={job.id: ("0",)}), TODAY)
    assert timeline.lanes[0].forecast == []
    assert (timeline.engine_running, timeline.until) == (False, to_datetime(NOW))


def test_unknown_devices_have_lanes(queue: PastQueue) -> None:
    """A GPU that was removed, or of a cluster; devices without memory have bars of full height."""
    queue.ran("here", "x", -100, -50)
    queue.ran("there", "lab:n3 0", -100, -50)
    queue.devices = declared("x")
    timeline = timeline_of(queue.facts(readings={}), TODAY)
    assert [(lane.label, len(lane.bars)) for lane in timeline.lanes] == [("x", 1), ("lab:n3 0", 1)]
    assert bars(timeline, 1) == [("2", "done", 0.0, 1.0)]


def test_samples_go_with_the_lanes(queue: PastQueue) -> None:
    """A value for each step; the last one is the latest reading, and gaps are unknown."""
    minute = int(NOW // 60)
    queue.store.record([], samples=[Sample(minute - 2, "0", 90, GIB, 2 * GIB, 70, 300.0)])
    timeline = timeline_of(queue.facts(), Period(NOW - 180))
    samples = timeline.lanes[0].samples
    assert samples.utilisation_percent == [None, 90, None, 50]
    assert samples.used_bytes == [None, GIB, None, GIB]
    assert (timeline.samples_step_seconds, timeline.samples_start) == (60, to_datetime((minute - 3) * 60))
    assert timeline_of(queue.facts(lives=False), Period(NOW - 180)).lanes[0].samples.utilisation_percent[-1] is None


A_BAR = Bar(1, "1", "", "", 1, "done", to_datetime(0.0), None, None, None, None, 0.0, 1.0)


@settings(max_examples=100, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 10), st.sampled_from([1, 2, 4, 8])), max_size=25))
def test_bars_never_overlap_where_memory_fits(some: list[tuple[int, int, int]]) -> None:
    """Of bars that fit into the memory at every moment, those without gaps between places never overlap."""
    spans: list[Stacked] = []
    for start, length, eighths in sorted(some):
        span = Stacked(start, start + length, eighths / 8)
        present = [one for one in spans if one.end > span.start]
        if sum(one.height for one in present) + span.height <= 1:
            spans.append(span)
    placed = stack([(A_BAR, span) for span in spans])
    for index, (span, bar) in enumerate(zip(spans, placed, strict=True)):
        assert 0 <= bar.bottom <= 1 - span.height
        for other, below in list(zip(spans, placed, strict=True))[:index]:
            if other.end > span.start and bar.bottom < 1 - span.height:
                assert below.bottom + other.height <= bar.bottom or bar.bottom + span.height <= below.bottom


def test_jobs_without_a_gpu_are_counted(queue: PastQueue) -> None:
    """They have no lane."""
    queue.ran("cpu", "", -10, None)
    queue.ran("gpu", "0", -10, None)
    timeline = timeline_of(queue.facts(), TODAY)
    assert (timeline.without_gpu, [len(lane.bars) for lane in timeline.lanes]) == (1, [1, 0])


def test_colours_stay(tmp_path: Path) -> None:
    """A new group does not change those of the others; without groups, titles have colours."""
    with closing(PastQueue(tmp_path, time.time())) as queue:
        queue.write_status()
        queue.ran("alone", "0", -500, -400)
        period = Period(queue.now - 1000)
        assert read_timeline(queue.paths, period).colours.keys() == {"alone"}
        queue.ran("a", "0", -300, -200, group="vision")
        before = read_timeline(queue.paths, period).colours
        queue.ran("b", "0", -600, -550, group="language")
        after = read_timeline(queue.paths, period).colours
        assert (set(before), set(after)) == ({"vision"}, {"vision", "language"})
        assert after["vision"] == before["vision"] != after["language"]
        assert read_usage(queue.paths, period).colours == after
