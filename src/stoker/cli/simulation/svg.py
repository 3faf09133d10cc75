"""Replays as a drawing: for each policy a line of how many jobs are over after how long."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log

from stoker.cli.simulation.frame import is_reachable, span
from stoker.cli.simulation.replays import Replayed

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
    places = [(_across(completions[place], longest), _up((place + 1) / count)) for place in picked]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
