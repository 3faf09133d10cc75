"""The timeline of GPUs as SVG: a lane for each GPU, bars as high as the memory they reserve, the forecast pale."""

from __future__ import annotations

from typing import NamedTuple

from stoker.app.jobs.local_time import clock_text
from stoker.app.views.timeline import Bar, Lane, Timeline, colour_key
from stoker.cli.charts.svg import FAINT, GRID, INK, PALETTE, RED, Clock, Drawing, fitted, ink_on, tinted
from stoker.core.outcomes import FAILURES
from stoker.core.units import size_text, watch_text

WIDTH = 1100.0
LEFT = 92.0
RIGHT = 16.0
TOP = 34.0
LANE = 66.0
HEAT = 8.0
GAP = 14.0
NO_GROUP = "no group"
LEAST_LABEL = 11.0
"""Height of a bar from which on it has words inside, and width from which on a failure is marked."""
HEAT_INK = "#57606a"
_MOST_GROUPS = 8
_RESERVED, _USED = 0.35, 0.7
"""How strong the colours of reserved and of used memory are."""


class _Chart(NamedTuple):
    """The drawing, the data and the clock of all parts of the chart."""

    drawing: Drawing
    timeline: Timeline
    clock: Clock
    now: float

    def colour(self, bar: Bar) -> str:
        return self.colour_of(colour_key(self.timeline, bar))

    def colour_of(self, key: str) -> str:
        return PALETTE[self.timeline.colours[key]] if key in self.timeline.colours else FAINT


def timeline_svg(timeline: Timeline, width: float = WIDTH, *, background: bool = True) -> str:
    """The whole chart."""
    below = 52.0
    height = TOP + max(1, len(timeline.lanes)) * (LANE + HEAT + GAP) + below
    bottom = height - below
    drawing = Drawing(width, height, _title(timeline))
    clock = Clock(timeline.since.timestamp(), timeline.until.timestamp(), LEFT, width - RIGHT)
    chart = _Chart(drawing, timeline, clock, timeline.at.timestamp())
    drawing.text((LEFT, 18), _title(timeline), bold=True, size=13)
    drawing.axis_below([(clock.at(at), text) for at, text in clock.ticks(int((width - LEFT) // 70))], TOP, bottom)
    if not timeline.lanes:
        drawing.text((LEFT, TOP + 30), "no GPUs", fill=FAINT)
    for place, lane in enumerate(timeline.lanes):
        _lane(chart, lane, TOP + place * (LANE + HEAT + GAP))
    _now(chart, bottom)
    keys = _keys(timeline)
    names = [(key or NO_GROUP, chart.colour_of(key)) for key in keys] if len(keys) > 1 else []
    drawing.legend([*names, ("failed", RED)], (LEFT, height - 10))
    return drawing.svg(background=background)


def _title(timeline: Timeline) -> str:
    now = timeline.at.timestamp()
    since, until = clock_text(timeline.since.timestamp(), now), clock_text(timeline.until.timestamp(), now)
    simulated = " (simulated GPUs)" if timeline.simulated else ""
    return f"GPUs of {timeline.host}{simulated}, {since} to {until}"


def _keys(timeline: Timeline) -> list[str]:
    """The groups by first appearance, as many as the legend has room for."""
    bars = sorted((bar for lane in timeline.lanes for bar in (*lane.bars, *lane.forecast)), key=lambda bar: bar.start)
    return list(dict.fromkeys(colour_key(timeline, bar) for bar in bars))[:_MOST_GROUPS]


def _lane(chart: _Chart, lane: Lane, top: float) -> None:
    drawing = chart.drawing
    name = f"GPU {lane.label}" if len(lane.label) <= 3 else lane.label
    drawing.text((8, top + 14), fitted(name, LEFT - 12, 12), bold=True, size=12)
    drawing.text((8, top + 30), fitted(lane.model, LEFT - 12, 10), fill=FAINT, size=10, kind="faint")
    if lane.memory_bytes:
        drawing.text((8, top + 44), size_text(lane.memory_bytes), fill=FAINT, size=10, kind="faint")
    drawing.line((LEFT, top), (drawing.width - RIGHT, top))
    drawing.line((LEFT, top + LANE), (drawing.width - RIGHT, top + LANE), FAINT)
    for bar in lane.forecast:
        end = chart.clock.high if bar.end is None else bar.end.timestamp()
        _expected(chart, bar, (bar.start.timestamp(), end), top)
    for bar in lane.bars:
        _bar(chart, bar, lane, top)
    _heat(chart, lane, top + LANE + 2)


def _box(times: tuple[float, float], bar: Bar, clock: Clock, lane_top: float) -> tuple[float, float, float, float]:
    """Left, top, width and height of a bar; the lane is as high as the memory of the GPU."""
    left, right = (max(clock.start, min(clock.end, clock.at(at))) for at in times)
    height = min(1.0 - bar.bottom, bar.height) * LANE
    return left, lane_top + LANE * (1 - bar.bottom) - height, max(1.0, right - left), height


def _bar(chart: _Chart, bar: Bar, lane: Lane, lane_top: float) -> None:
    drawing, start = chart.drawing, bar.start.timestamp()
    end = chart.now if bar.end is None else bar.end.timestamp()
    if end < chart.clock.low or start > chart.clock.high:
        return
    if bar.end is None and bar.expected_end is not None:
        _expected(chart, bar, (chart.now, bar.expected_end.timestamp()), lane_top, labelled=False)
    colour, tip = RED if bar.state in FAILURES else chart.colour(bar), tip_of(bar, chart.now)
    left, top, width, height = box = _box((start, end), bar, chart.clock, lane_top)
    drawing.rect(box, tinted(colour, _RESERVED), stroke=colour, rounded=2, tip=tip)
    used, ink = _used(bar, lane), ink_on(tinted(colour, _USED))
    drawing.rect((left, top + height * (1 - used), width, height * used), tinted(colour, _USED), rounded=2, tip=tip)
    if height >= LEAST_LABEL:
        _words(drawing, bar, box, ink, "on")
    if bar.state in FAILURES and width >= LEAST_LABEL:
        at = left + width - 3, top + min(height - 2, 13)
        drawing.text(at, "✗", anchor="end", fill=ink, bold=True, kind="on")


def _used(bar: Bar, lane: Lane) -> float:
    """The part of a bar that was used; all of it if nothing was measured."""
    if not lane.memory_bytes or bar.used_bytes is None or not bar.height:
        return 1.0
    return min(1.0, bar.used_bytes / lane.memory_bytes / bar.height)


def _words(drawing: Drawing, bar: Bar, box: tuple[float, float, float, float], fill: str, kind: str) -> None:
    left, top, width, height = box
    if words := fitted(f"{bar.label} {bar.title}", width - 8):
        drawing.text((left + 4, top + min(height - 3, 13)), words, fill=fill, kind=kind)


def _expected(chart: _Chart, bar: Bar, times: tuple[float, float], lane_top: float, *, labelled: bool = True) -> None:
    if times[1] < chart.clock.low or times[0] > chart.clock.high:
        return
    colour, box = chart.colour(bar), _box(times, bar, chart.clock, lane_top)
    chart.drawing.rect(box, colour, opacity=0.15, stroke=colour, dashed=True, rounded=2, tip=tip_of(bar, chart.now))
    if labelled and box[3] >= LEAST_LABEL:
        _words(chart.drawing, bar, box, INK, "ink")


def tip_of(bar: Bar, now: float) -> str:
    """All that is known of a bar, in lines."""
    start = bar.start.timestamp()
    until = "" if bar.end is None else f" to {clock_text(bar.end.timestamp(), now)}"
    ran = f", {watch_text(bar.end.timestamp() - start)}" if bar.end is not None else ""
    reserved = "the whole GPU" if bar.reserved_bytes is None else f"{size_text(bar.reserved_bytes)} reserved"
    used = "" if bar.used_bytes is None else f", {size_text(bar.used_bytes)} used at most"
    expected = "expected" if bar.state == "queued" else bar.state
    return f"{bar.label} {bar.title}\n{expected}, {clock_text(start, now)}{until}{ran}\n{reserved}{used}"


def _heat(chart: _Chart, lane: Lane, top: float) -> None:
    """A strip that is the darker the busier the GPU was."""
    timeline, clock, drawing = chart.timeline, chart.clock, chart.drawing
    start, step = timeline.samples_start.timestamp(), timeline.samples_step_seconds
    for place, percent in enumerate(lane.samples.utilisation_percent):
        left, right = start + place * step, min(chart.now, start + (place + 1) * step)
        if percent is None or right <= clock.low or left >= clock.high:
            continue
        x = max(clock.start, clock.at(left))
        width = min(clock.end, clock.at(right)) - x
        drawing.rect((x, top, width + 0.3, HEAT), HEAT_INK, opacity=round(0.08 + 0.82 * percent / 100, 2))
    drawing.line((LEFT, top + HEAT), (drawing.width - RIGHT, top + HEAT), GRID)
    drawing.text((LEFT - 6, top + HEAT), "busy", anchor="end", fill=FAINT, size=9, kind="faint")


def _now(chart: _Chart, bottom: float) -> None:
    if chart.clock.low <= chart.now < chart.clock.high:
        x = chart.clock.at(chart.now)
        chart.drawing.line((x, TOP - 6), (x, bottom), RED, 1.5, "now")
        chart.drawing.text((x, TOP - 9), "now", anchor="middle", fill=RED, size=10, kind="now")
