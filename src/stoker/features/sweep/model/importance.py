"""How much each parameter matters for an objective, by what it explains alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from stoker.features.sweep.model.space import Params, Scalar

BINS = 6
LEAST = 8
"""Trials below which nothing can be said."""
METHOD = "share of the variance of the ranks that a parameter explains alone, adjusted for chance"


def importance_of(points: Sequence[tuple[Params, float]]) -> dict[str, float]:
    """From 0 to 1 for each parameter that varies, the largest first; empty for too few points to tell.

    Ranks of the values, so that one diverged trial does not decide. Numbers are cut into bins of equal size.
    """
    usable = [(params, value) for params, value in points if isfinite(value)]
    if len(usable) < LEAST:
        return {}
    ranks = ranks_of([value for _, value in usable])
    names = dict.fromkeys(name for params, _ in usable for name in params)
    columns = {name: [params.get(name) for params, _ in usable] for name in names}
    shares = {name: _explained(_groups(column), ranks) for name, column in columns.items() if len(set(column)) > 1}
    return dict(sorted(shares.items(), key=lambda share: -share[1])) if any(shares.values()) else {}


def ranks_of(values: Sequence[float]) -> list[float]:
    """Positions from 0; equal values share their mean position."""
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values)):
        places.setdefault(value, []).append(place)
    return [sum(places[value]) / len(places[value]) for value in values]


def _groups(column: Sequence[Scalar]) -> list[object]:
    """The value of each point, or its bin if a parameter has many numbers."""
    numbers = [value for value in column if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(column) or len(set(numbers)) <= BINS:
        return list(column)
    places = ranks_of([float(number) for number in numbers])
    return [int(place * BINS / len(places)) for place in places]


def _explained(groups: Sequence[object], ranks: Sequence[float]) -> float:
    members: dict[object, list[float]] = {}
    for group, rank in zip(groups, ranks, strict=True):
        members.setdefault(group, []).append(rank)
    total = _squares(ranks)
    free = len(ranks) - len(members)
    if not total or free <= 0:
        return 0.0
    within = sum(map(_squares, members.values()))
    return max(0.0, 1 - (within / free) / (total / (len(ranks) - 1)))


def _squares(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values)


def pareto(points: Mapping[int, Sequence[float]]) -> list[int]:
    """The points that no other point beats in all objectives, where smaller is better; by their first value."""
    best: list[int] = []
    for number in sorted(points, key=lambda number: tuple(points[number])):  # none is beaten by one that comes later
        if not any(_beats(points[other], points[number]) for other in best):
            best.append(number)
    return best


def _beats(scores: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(scores, other, strict=True)) and tuple(scores) != tuple(other)
