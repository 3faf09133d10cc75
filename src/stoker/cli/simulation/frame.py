"""Replays in text: a table, and how many jobs are over after how long."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import log
from pathlib import Path

from stoker.cli.screens.pieces import EMPTY, Line, Piece, clipped
from stoker.cli.screens.table import Column, table_lines
from stoker.cli.simulation.replays import Replayed, Simulation
from stoker.core.replay.conduct import BOUND, SENTENCES
from stoker.core.units import count_text
from stoker.words import printable

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
    lines = [(Piece(heading, "heading"),), *_table(replays, width), EMPTY, *_plot(replays, width)]
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
        Column("POLICY", [Piece(one.told.policy, "id") for one in replays], 9),
        Column("MEAN", [Piece(span(one.completion_mean)) for one in figures], 9, right=True, always=True),
        Column("× FIFO", [Piece(text) for text in _ratios(replays)], 8, right=True),
        Column("95 %", [Piece(span(one.completion_p95)) for one in figures], 7, right=True),
        Column("WAIT", [Piece(span(one.wait_mean)) for one in figures], 6, right=True),
        Column("MAKESPAN", [Piece(span(one.makespan)) for one in figures], 5, right=True),
        Column("UTIL", [Piece(f"{100 * one.utilisation:.0f}%") for one in figures], 4, right=True),
        Column("PACKED", [Piece(f"{100 * one.packed:.0f}%") for one in figures], 3, right=True),
        Column("OOM", [Piece(f"{one.out_of_memory}") for one in figures], 2, right=True),
        Column("LOST", [Piece(f"{one.lost}", "bad" if one.lost else "") for one in figures], 1, right=True),
    ]
    sentences = [(Piece(SENTENCES[one.told.policy], "faint"),) for one in replays]
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
        (Piece(f" {one.told.policy:<{label}}"), Piece("".join(_level(one.completions, edge) for edge in edges)))
        for one in replays
    ]
    title = (Piece(" share of jobs that are over so long after their arrival", "faint"),)
    return [title, *rows, (Piece(" " * (label + 1)), Piece(_axis(longest, columns), "faint"))]


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
