"""Render the timeline of GPUs in block characters: bars stacked by memory, the forecast to the right of now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from math import ceil
from typing import NamedTuple

from stoker.app.jobs.local_time import clock_text, ticks
from stoker.app.views.timeline import Bar, Lane, Timeline
from stoker.cli.screens.text import (
    GPU_LOADS,
    HEIGHTS,
    Line,
    Look,
    Span,
    cells,
    clip,
    clipped,
    fitting,
    heading,
    load_look,
    one_line,
    padded,
)
from stoker.core.outcomes import FAILURES
from stoker.core.units import count_text, short_size

LEGEND = "█ used ▒ reserved ░ expected ✗ failed │ now"
BOOKED = "╱ booked"
GROUP_LOOKS: tuple[Look, ...] = ("bar0", "bar1", "bar2", "bar3", "bar4")
"""Colours of groups; jobs without a group have the first."""
_INSIDE: dict[Look, Look] = {
    "bar0": "on_bar0",
    "bar1": "on_bar1",
    "bar2": "on_bar2",
    "bar3": "on_bar3",
    "bar4": "on_bar4",
    "bad": "on_bad",
}
"""Looks of text on a bar."""
MOST_ROWS = 6
LEAST_LABEL = 3
_TICK = 8
"""Columns that the time of a tick takes, with a blank."""


class Scale(NamedTuple):
    """Which column of the chart a moment is in."""

    since: float
    until: float
    columns: int

    def column(self, at: float) -> float:
        return (at - self.since) * self.columns / max(1e-9, self.until - self.since)

    def columns_of(self, start: float, end: float) -> tuple[int, int]:
        """First column and the one after the last, at least one and within the chart."""
        first = min(self.columns - 1, max(0, int(self.column(start))))
        return first, min(self.columns, max(first + 1, ceil(self.column(end) - 1e-6)))


class Cell(NamedTuple):
    """One character of the chart."""

    text: str
    look: Look = ""


def render_timeline(timeline: Timeline, width: int, height: int | None = None) -> list[Line]:
    """A heading, the chart, and what is not in it."""
    now = timeline.at.timestamp()
    empty = timeline.expected_empty
    since = f"GPUs of {timeline.host} since {clock_text(timeline.since.timestamp(), now)}"
    until = "" if empty is None else f"queue empty ~{clock_text(empty.timestamp(), now)}"
    title = heading([since, until], width, simulated=timeline.simulated)
    room = None if height is None else max(4, height - 3)
    if not timeline.lanes:
        return [title, (Span(" no GPUs"),)]
    last = Span(f" {fitting((LEGEND, *_left_out(timeline)), width - 1)}", "faint")
    return [clipped(line, width) for line in (title, *chart_lines(timeline, width, room), (last,))]


def _left_out(timeline: Timeline) -> Iterator[str]:
    if any(lane.bookings for lane in timeline.lanes):
        yield BOOKED
    if timeline.left_out:
        yield f"{count_text(timeline.left_out, 'older job')} not shown"
    if timeline.without_gpu:
        yield f"{count_text(timeline.without_gpu, 'run')} without GPU not shown"


def chart_lines(timeline: Timeline, width: int, room: int | None = None) -> list[Line]:
    """Some lines for each lane, and the times below; lanes for which there is no room are counted."""
    names = [_name(lane) for lane in timeline.lanes]
    wide = min(14, max(map(cells, names), default=0))
    scale = Scale(timeline.since.timestamp(), timeline.until.timestamp(), max(10, width - wide - 2))
    now = timeline.at.timestamp()
    rows = _rows(len(timeline.lanes), room)
    fits = len(timeline.lanes) if room is None else max(1, (room - 1) // (rows + 1))
    shown = timeline.lanes[: fits if fits >= len(timeline.lanes) else max(1, fits - 1)]
    lines: list[Line] = []
    for lane, name in zip(shown, names, strict=False):
        labels = [name, *_memory_label(lane, rows), *[""] * rows]
        body = [*_lane_rows(lane, scale, rows, now), _heat(lane, timeline, scale, now)]
        lines += [
            (Span(f"{padded(clip(label, wide), wide)} ", "id" if not place else "faint"), *line)
            for place, (label, line) in enumerate(zip(labels, body, strict=False))
        ]
    if hidden := len(timeline.lanes) - len(shown):
        lines.append((Span(f" … {count_text(hidden, 'more GPU')}", "faint"),))
    return [*lines, (Span(" " * (wide + 1)), *axis_line(scale, now))]


def _name(lane: Lane) -> str:
    label = lane.label
    return f"GPU {label}" if len(label) <= 3 else label


def _memory_label(lane: Lane, rows: int) -> list[str]:
    return [short_size(lane.memory_bytes)] if lane.memory_bytes and rows > 1 else []


def _rows(lanes: int, room: int | None) -> int:
    """Lines of the bars of one lane; another line shows how busy the GPU was."""
    if room is None:
        return 4
    return max(1, min(MOST_ROWS, (room - 1) // max(1, lanes) - 1))


# -- bars ------------------------------------------------------------------------------------------


def _lane_rows(lane: Lane, scale: Scale, rows: int, now: float) -> list[Line]:
    """The lines of a lane from top to bottom."""
    grid: list[list[Cell]] = [[Cell(" ")] * scale.columns for _ in range(rows)]
    line = int(scale.column(now))
    for row in grid if 0 <= line < scale.columns else ():
        row[line] = Cell("│", "faint")
    for booked in lane.bookings:
        begin = booked.begin.timestamp()
        columns = range(*scale.columns_of(begin, booked.end.timestamp())) if begin < scale.until else ()
        for place in columns:
            for row in grid:
                row[place] = Cell("╱", "faint")
    for bar in lane.forecast:
        _draw(grid, bar, scale, (bar.start.timestamp(), _moment(bar.end) or scale.until), expected=True)
    for bar in lane.bars:
        end = _moment(bar.end)
        if end is None and bar.expected_end is not None:
            _draw(grid, bar, scale, (now, bar.expected_end.timestamp()), expected=True, labelled=False)
        _draw(grid, bar, scale, (bar.start.timestamp(), now if end is None else end), memory=lane.memory_bytes)
    return [_joined(row) for row in reversed(grid)]


def _moment(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


def _draw(
    grid: list[list[Cell]],
    bar: Bar,
    scale: Scale,
    times: tuple[float, float],
    *,
    expected: bool = False,
    labelled: bool = True,
    memory: int | None = None,
) -> None:
    """Draw a bar from `times[0]` to `times[1]`; of the reserved memory, the part that was used is full."""
    if times[1] < scale.since or times[0] > scale.until:
        return
    first, after = scale.columns_of(*times)
    after -= expected and labelled and after - first > 2  # a gap before the next one
    look = bar_look(bar)
    for row in _rows_of(bar, len(grid)):
        middle = (row + 0.5) / len(grid) - bar.bottom
        full = bar.used_bytes is None or memory is None or middle * memory <= bar.used_bytes
        fill = "░" if expected else "█" if full or row == _rows_of(bar, len(grid))[0] else "▒"
        for column in range(first, after):
            grid[row][column] = Cell(fill, look)
        if times[0] >= scale.since and after - first > 1 and not expected:
            grid[row][first] = Cell("▐", look)
    top = grid[_rows_of(bar, len(grid))[-1]]
    if labelled:
        _label(top, bar, first, after, look)
    if bar.state in FAILURES and not expected:
        top[after - 1] = Cell("✗", "bad")


def _rows_of(bar: Bar, rows: int) -> Sequence[int]:
    """Rows from the bottom up that a bar covers, at least one."""
    covered = [row for row in range(rows) if bar.bottom <= (row + 0.5) / rows < bar.bottom + bar.height]
    return covered or [min(rows - 1, int((bar.bottom + bar.height / 2) * rows))]


def _label(row: list[Cell], bar: Bar, first: int, after: int, look: Look) -> None:
    """The id, and as much of the title as there is room for, inside of the bar."""
    room = after - first - 2 - (bar.state in FAILURES)
    title = one_line(bar.title)
    text = bar.label if cells(bar.label) + 4 > room else clip(f"{bar.label} {title}", room)
    if cells(text) > room or room < LEAST_LABEL - 1 or not text.isprintable() or cells(text) != len(text):
        return
    for place, character in enumerate(text, first + 1):
        row[place] = Cell(character, _INSIDE[look])


def bar_look(bar: Bar) -> Look:
    """The colour of a group; failures are red."""
    if bar.state in FAILURES:
        return "bad"
    return GROUP_LOOKS[0] if not bar.group else GROUP_LOOKS[1 + sum(bar.group.encode()) % (len(GROUP_LOOKS) - 1)]


def _joined(row: Sequence[Cell]) -> Line:
    """Neighbours of the same look in one span."""
    spans: list[Span] = []
    for cell in row:
        if spans and spans[-1].look == cell.look:
            spans[-1] = Span(spans[-1].text + cell.text, cell.look)
        else:
            spans.append(Span(cell.text, cell.look))
    return tuple(spans)


# -- below the bars --------------------------------------------------------------------------------


def _heat(lane: Lane, timeline: Timeline, scale: Scale, now: float) -> Line:
    """How busy the GPU was, by column; a gap where that is unknown."""
    start, step = timeline.samples_start.timestamp(), timeline.samples_step_seconds
    row = [Cell(" ")] * scale.columns
    if 0 <= (column := int(scale.column(now))) < scale.columns:
        row[column] = Cell("│", "faint")
    highest: dict[int, int] = {}
    for place, percent in enumerate(lane.samples.utilisation_percent):
        if percent is None:
            continue
        first, after = scale.columns_of(start + place * step, min(now, start + (place + 1) * step))
        for column in range(first, after):
            highest[column] = max(percent, highest.get(column, 0))
    for column, percent in highest.items():
        row[column] = Cell(HEIGHTS[min(7, percent * 8 // 100)], load_look(percent, GPU_LOADS))
    return _joined(row)


def axis_line(scale: Scale, now: float) -> Line:
    """Times at even moments, and `now` below its line."""
    text = [" "] * scale.columns
    line = int(scale.column(now))
    begin = max(0, min(scale.columns - 3, line - 1)) if 0 <= line < scale.columns else -_TICK
    for at in ticks(scale.since, scale.until, scale.columns // _TICK):
        shown, column = clock_text(at, now), int(scale.column(at))
        if column + len(shown) <= scale.columns and not begin - len(shown) <= column <= begin + 3:
            text[column : column + len(shown)] = shown
    if begin >= 0:
        text[begin : begin + 3] = "now"
    return (Span("".join(text), "faint"),)
