"""The order in which a search visits the points of a space: grid, shuffled, random or Sobol."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from random import Random

from stoker.core.errors import UsageError
from stoker.core.grid import MOST_SHUFFLED, drawn, ordered, shuffled
from stoker.features.sweep.model.grammar import at_fraction
from stoker.features.sweep.model.sobol import MOST_DIMENSIONS, sobol_points
from stoker.features.sweep.model.space import (
    Choices,
    Params,
    Product,
    Range,
    Scalar,
    Space,
    continuous,
    is_active,
    points_of,
    values_of,
)

FIXED = ("grid", "shuffled", "random", "sobol")
"""Methods that need no results of earlier trials."""
ADAPTIVE = ("tpe", "gp", "cmaes")
METHODS = (*FIXED, *ADAPTIVE)


def size_of(space: Space) -> int | None:
    """The number of points; None if it is infinite."""
    return None if continuous(space) else points_of(space).size


def count_of(space: Space, method: str, count: int | None) -> int:
    """How many points a search visits; refuses a search that would not end."""
    size = points_of(space).size if method in ("grid", "shuffled") else size_of(space)
    if count is None and (size is None or method in ("sobol", *ADAPTIVE)):
        raise UsageError(f"--method {method} does not end by itself", "say how many trials: -N 20")
    if size is None or method in ("sobol", *ADAPTIVE):
        return int(count or 0)
    return size if count is None else min(size, count)


def visited(space: Space, method: str, seed: int, start: int, stop: int) -> Iterator[Params]:
    """The points of a search from one number up to another. More points never change the earlier ones."""
    if method == "grid" and start:
        points = points_of(space)
        return map(points.at, range(start, min(stop, points.size)))
    return islice(_all(space, method, seed), start, stop)


def _all(space: Space, method: str, seed: int) -> Iterator[Params]:
    source = Random(seed)  # noqa: S311 - a search order is no secret
    if method == "grid":
        return ordered(points_of(space))
    if method == "shuffled":
        points = points_of(space)
        return shuffled(points, source) if points.size <= MOST_SHUFFLED else drawn(points, source)
    if method == "random":
        return _random(space, source) if continuous(space) else drawn(points_of(space), source)
    if method == "sobol":
        return _sobol(space, source)
    raise UsageError(f"--method {method} chooses points by the results of earlier ones", f"here: {', '.join(FIXED)}")


def _random(space: Space, source: Random) -> Iterator[Params]:
    while True:
        product = source.choice(space.products)
        yield point_at(product, [source.random() for _ in product.parameters])


def _sobol(space: Space, source: Random) -> Iterator[Params]:
    dimensions = max(len(product.parameters) for product in space.products) + (len(space.products) > 1)
    if dimensions > MOST_DIMENSIONS:
        raise UsageError(f"sobol takes at most {MOST_DIMENSIONS} parameters, not {dimensions}", "use --method random")
    for fractions in sobol_points(dimensions, source):
        chosen = int(fractions[-1] * len(space.products)) if len(space.products) > 1 else 0
        yield point_at(space.products[chosen], fractions)


def point_at(product: Product, fractions: list[float]) -> Params:
    """The point of a product at fractions of its dimensions, each from 0 up to 1."""
    point: Params = {}
    for parameter, fraction in zip(product.parameters, fractions, strict=False):
        if is_active(parameter, point):
            point[parameter.name] = _value(parameter.domain, fraction)
    return point


def _value(domain: Choices | Range, fraction: float) -> Scalar:
    values = values_of(domain)
    if isinstance(domain, Choices) or (values is not None and not domain.log):
        return values[int(fraction * len(values))] if values else None
    if not domain.integer:
        return at_fraction(domain, fraction)
    # Half a step more on both sides, so that rounding gives the first and the last integer their share.
    low, high = math.log(domain.low - 0.5), math.log(domain.high + 0.5)
    return min(max(round(math.exp(low + fraction * (high - low))), int(domain.low)), int(domain.high))
