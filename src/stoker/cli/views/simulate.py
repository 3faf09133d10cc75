"""Render the result of `stoker simulate` as text and SVG."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from html import escape
from math import log
from pathlib import Path

from stoker.cli.views.text import EMPTY, Column, Line, Span, clipped, table_lines
from stoker.core.text import printable
from stoker.core.units import count_text
from stoker.simulation.policies import BOUND, SENTENCES
from stoker.simulation.replay import Replayed, Simulation

BASELINE = "fifo"

PLAIN_COLUMNS = (
    "policy", "jobs", "completion_mean", "completion_p95", "wait_mean", "makespan", "utilisation", "packed",
    "out_of_memory", "lost",
)  # fmt: skip

_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "m"), (1.0, "s"))

_MARKS = (1.0, 10.0, 60.0, 600.0, 3600.0, 36000.0, 4 * 86400.0, 40 * 86400.0)
"""Seconds at which the axis has a word."""

_LEVELS = " ▁▂▃▄▅▆▇█"

_LEAST_SENTENCE = 20

_WIDEST_PLOT = 72


def frame(told: Simulation, replays: Sequence[Replayed], width: int) -> list[Line]:
    """A heading, a table, and a plot."""
    load = "all at once" if told.offered_load is None else f"offered load {told.offered_load:.2f}"
    heading = f"{count_text(told.jobs, 'job')} of {printable(Path(told.trace).name)} on {told.gpus} · {load}"
    lines = [(Span(heading, "heading"),), *_table(replays, width), EMPTY, *_plot(replays, width)]
    return [clipped(line, width) for line in lines]


def plain_lines(told: Simulation) -> list[str]:
    """TAB separated, seconds and shares as numbers."""
    rows = [[one.policy, *(_number(getattr(one.figures, name)) for name in PLAIN_COLUMNS[1:])] for one in told.policies]
    return ["\t".join(row) for row in (PLAIN_COLUMNS, *rows)]


def span(seconds: float) -> str:
    """A span in its largest unit: `5.2d`, `12.3h`, `41m`, `9s`."""
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), _UNITS[-1])
    return f"{seconds / size:.1f}{unit}" if unit in "dh" else f"{seconds / size:.0f}{unit}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4f}"


def _table(replays: Sequence[Replayed], width: int) -> list[Line]:
    figures = [one.told.figures for one in replays]
    columns = [
        Column("POLICY", [Span(one.told.policy, "id") for one in replays], 9),
        Column("MEAN", [Span(span(one.completion_mean)) for one in figures], 9, right=True, always=True),
        Column("× FIFO", [Span(text) for text in _ratios(replays)], 8, right=True),
        Column("95 %", [Span(span(one.completion_p95)) for one in figures], 7, right=True),
        Column("WAIT", [Span(span(one.wait_mean)) for one in figures], 6, right=True),
        Column("MAKESPAN", [Span(span(one.makespan)) for one in figures], 5, right=True),
        Column("UTIL", [Span(f"{100 * one.utilisation:.0f}%") for one in figures], 4, right=True),
        Column("PACKED", [Span(f"{100 * one.packed:.0f}%") for one in figures], 3, right=True),
        Column("OOM", [Span(f"{one.out_of_memory}") for one in figures], 2, right=True),
        Column("LOST", [Span(f"{one.lost}", "bad" if one.lost else "") for one in figures], 1, right=True),
    ]
    sentences = [(Span(SENTENCES[one.told.policy], "faint"),) for one in replays]
    return table_lines(columns, "", sentences, width, _LEAST_SENTENCE)


def _ratios(replays: Sequence[Replayed]) -> list[str]:
    means = {one.told.policy: one.told.figures.completion_mean for one in replays}
    baseline = means.get(BASELINE)
    return [f"{baseline / mean:.1f}" if baseline and mean else "-" for mean in means.values()]


def _plot(replays: Sequence[Replayed], width: int) -> list[Line]:
    """For each policy a row of blocks, the higher the more jobs are over after that time from their arrival."""
    longest = max((one.completions[-1] for one in replays if one.completions), default=0.0)
    label = max(len(one.told.policy) for one in replays) + 2
    columns = max(10, min(_WIDEST_PLOT, width - label - 1))
    edges = [max(longest, 2.0) ** ((number + 1) / columns) for number in range(columns)]
    rows = [
        (Span(f" {one.told.policy:<{label}}"), Span("".join(_level(one.completions, edge) for edge in edges)))
        for one in replays
    ]
    title = (Span(" share of jobs that are over so long after their arrival", "faint"),)
    return [title, *rows, (Span(" " * (label + 1)), Span(_axis(longest, columns), "faint"))]


def _level(completions: Sequence[float], edge: float) -> str:
    share = bisect_right(completions, edge) / max(1, len(completions))
    return _LEVELS[min(len(_LEVELS) - 1, int(share * (len(_LEVELS) - 1) + 0.5))]


def _axis(longest: float, columns: int) -> str:
    words = [" "] * columns
    for mark in _MARKS:
        text = f"{mark / 86400:.0f}d" if mark >= 86400 else span(mark).replace(".0", "")
        place = round(columns * log(mark) / log(max(longest, 2.0))) if mark > 1 else 0
        if place + len(text) <= columns and all(word == " " for word in words[max(0, place - 1) : place + len(text)]):
            words[place : place + len(text)] = text
    return "".join(words)


def is_reachable(policy: str) -> bool:
    """Whether a machine can be run so."""
    return policy != BOUND


WIDTH, HEIGHT = 760, 420

LEFT, RIGHT, TOP, BOTTOM = 60, 150, 40, 50

COLOURS = ("#0b6e4f", "#1f77b4", "#9467bd", "#ff7f0e", "#c62828", "#777777")

FONT = 'font-family="sans-serif" font-size="12"'

POINTS = 200
"""Points of a line: more cannot be seen."""

MARKS = (1.0, 10.0, 60.0, 600.0, 3600.0, 36000.0, 345600.0, 3456000.0)


def drawing(title: str, replays: Sequence[Replayed]) -> str:
    """All of it as one SVG."""
    longest = max((one.completions[-1] for one in replays if one.completions), default=2.0)
    longest = max(longest, 2.0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="14">{escape(title)}</text>',
        *_grid(longest),
        *(part for number, one in enumerate(replays) for part in _curve(one, number, longest)),
        f'<text x="{LEFT}" y="{HEIGHT - 10}">time from arrival to end (logarithmic); share of jobs upwards</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _across(seconds: float, longest: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * log(max(1.0, seconds)) / log(longest)


def _up(share: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share


def _grid(longest: float) -> list[str]:
    lines = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _up(share)
        lines.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    for mark in (mark for mark in MARKS if mark <= longest):
        x = _across(mark, longest)
        lines.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#eee"/>')
        word = span(mark).replace(".0", "")
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{word}</text>')
    return lines


def _curve(one: Replayed, number: int, longest: float) -> list[str]:
    policy, across, y = one.told.policy, WIDTH - RIGHT + 12, TOP + 12 + 18 * number
    dashes = "" if is_reachable(policy) else ' stroke-dasharray="5 4"'
    stroke = f'fill="none" stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="2"{dashes}'
    words = f"{escape(policy)} {span(one.told.figures.completion_mean)}"
    return [
        f'<polyline {stroke} points="{_points(one.completions, longest)}"/>',
        f'<line {stroke} x1="{across}" y1="{y - 4}" x2="{across + 18}" y2="{y - 4}"/>',
        f'<text x="{across + 24}" y="{y}">{words}</text>',
    ]


def _points(completions: Sequence[float], longest: float) -> str:
    count = len(completions)
    picked = sorted({round(step * (count - 1) / POINTS) for step in range(POINTS + 1)}) if count else []
    paths = [(_across(completions[place], longest), _up((place + 1) / count)) for place in picked]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in paths)
