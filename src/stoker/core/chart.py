"""Charts as data: axes, and points or lines in them. Renderers make block characters or SVG of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from math import floor, isfinite, log10
from typing import Literal

from msgspec import Struct

Kind = Literal["points", "line", "steps"]
Tone = Literal["main", "good", "bad", "faint"]
COLOURS = 8
"""Colours that charts have for groups."""


class Axis(Struct, frozen=True):
    """From `low` to `high`; names stand for 0, 1, 2 ... if the values are no numbers."""

    title: str
    low: float
    high: float
    log: bool = False
    names: tuple[str, ...] = ()

    def place(self, value: float) -> float:
        """Where a value is, from 0 to 1."""
        low, high, at = (self._scaled(position) for position in (self.low, self.high, value))
        return min(1.0, max(0.0, (at - low) / (high - low))) if high > low else 0.5

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """Values to mark, with their texts."""
        if self.names:
            gap = max(1, -(-len(self.names) // most))
            return [(float(place), name) for place, name in enumerate(self.names) if place % gap == 0]
        values = _powers(self.low, self.high, most) if self.log else _round_values(self.low, self.high, most)
        return [(value, f"{value:.4g}") for value in values]

    def _scaled(self, value: float) -> float:
        return log10(value) if self.log and value > 0 else value


class ChartSeries(Struct, frozen=True):
    """Points that belong together."""

    name: str
    points: tuple[tuple[float, float], ...]
    kind: Kind = "points"
    tone: Tone = "main"


class Chart(Struct, frozen=True):
    """Series over two axes."""

    title: str
    x: Axis
    y: Axis
    series: tuple[ChartSeries, ...]


class Parallel(Struct, frozen=True):
    """Parallel coordinates: a line for each row through one axis for each parameter; the last axis is the value."""

    title: str
    axes: tuple[Axis, ...]
    lines: tuple[tuple[float | None, ...], ...]
    """A value on each axis; None if the row does not have the parameter."""
    goodness: tuple[float, ...]
    """From 0 (worst) to 1 (best) for each line."""


def axis_over(title: str, values: Iterable[float], *, log: bool = False, margin: float = 0.04) -> Axis:
    """An axis on which all values are, with a margin."""
    finite = [value for value in values if isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if log and low > 0:
        factor = (high / low) ** margin if high > low else 1.5
        return Axis(title, low / factor, high * factor, log=True)
    room = (high - low) * margin if high > low else abs(high) * 0.1 or 1.0
    return Axis(title, low - room, high + room)


def wants_log(values: Sequence[float]) -> bool:
    """Whether numbers are easier to read on a logarithmic axis."""
    return bool(values) and min(values) > 0 and max(values) / min(values) >= 50


def _round_values(low: float, high: float, most: int) -> list[float]:
    """Round numbers between two, at most so many."""
    span = high - low
    if not span > 0 or most < 1:
        return [low]
    power = 10.0 ** floor(log10(span / most))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10, 20, 50) if span / (power * factor) <= most)
    first = -(-low // step)
    count = floor((high - first * step) / step + 1e-9) + 1
    return [0.0 if abs(value := (first + place) * step) < step / 1e6 else value for place in range(max(0, count))]


def _powers(low: float, high: float, most: int) -> list[float]:
    first, last = -(-log10(low) // 1), log10(high) // 1
    powers = [10.0 ** (first + place) for place in range(int(last - first) + 1)]
    if len(powers) < 2:
        return _round_values(low, high, most)
    gap = max(1, -(-len(powers) // most))
    return powers[::gap]


def colours_of(names: Iterable[str]) -> dict[str, int]:
    """A colour for each name, given in the order of first use: later names do not change those of earlier ones.

    The name itself decides; if its colour is taken, the next free one. When all are taken, they are used again.
    """
    chosen: dict[str, int] = {}
    for name in dict.fromkeys(names):
        taken = set(list(chosen.values())[len(chosen) // COLOURS * COLOURS :])
        first = hashlib.sha256(name.encode(errors="surrogateescape")).digest()[0] % COLOURS
        chosen[name] = next(place % COLOURS for place in range(first, first + COLOURS) if place % COLOURS not in taken)
    return chosen
