"""The order in which a search visits the points of a space: grid, shuffled, random or Sobol."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from random import Random

from stoker.core.errors import UsageError
from stoker.core.grid import MOST_SHUFFLED, drawn, ordered, shuffled
from stoker.features.sweep.model.grammar import at_fraction
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
SOBOL_BITS = 32
MOST_DIMENSIONS = 50
"""Of Sobol points."""
_INITIAL_SEED = 16
"""The first direction numbers may be any odd ones; these are fixed, so that a seed means the same points for ever."""


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
    if not domain.integer or domain.step is not None:
        return at_fraction(domain, fraction)
    # Half a step more on both sides, so that rounding gives the first and the last integer their share.
    low, high = math.log(domain.low - 0.5), math.log(domain.high + 0.5)
    return min(max(round(math.exp(low + fraction * (high - low))), int(domain.low)), int(domain.high))


# -- Sobol points: they fill a cube more evenly than random points do ---------------------------------


def sobol_points(dimensions: int, source: Random) -> Iterator[list[float]]:
    """Points of the unit cube without end, moved by a random digital shift (an XOR of all bits)."""
    directions = [_directions(polynomial) for polynomial in _polynomials(dimensions)]
    state = [source.getrandbits(SOBOL_BITS) for _ in directions]
    number = 0
    while True:
        yield [value / 2**SOBOL_BITS for value in state]
        number += 1
        bit = (number & -number).bit_length() - 1  # the Gray code of the next number differs in this bit
        state = [value ^ of_dimension[bit] for value, of_dimension in zip(state, directions, strict=True)]


def _polynomials(count: int) -> list[int]:
    """1 for the first dimension, then primitive polynomials modulo 2 by degree, with their coefficients as bits."""
    polynomials, degree = [1], 1
    while len(polynomials) < count:
        polynomials += [
            candidate for candidate in range(2**degree + 1, 2 ** (degree + 1), 2) if _is_primitive(candidate, degree)
        ]
        degree += 1
    return polynomials[:count]


def _is_primitive(polynomial: int, degree: int) -> bool:
    """Whether the powers of x modulo the polynomial are all 2**degree - 1 nonzero remainders."""
    value, period = 1, 0
    while True:
        value <<= 1
        value ^= polynomial if value >> degree else 0
        period += 1
        if value == 1 or period >> degree:
            return period == (1 << degree) - 1


def _directions(polynomial: int) -> list[int]:
    """The direction numbers of a dimension, the most significant bit first."""
    degree = polynomial.bit_length() - 1
    if not degree:
        return [1 << (SOBOL_BITS - 1 - place) for place in range(SOBOL_BITS)]
    source = Random(polynomial * _INITIAL_SEED)  # noqa: S311 - no secret
    numbers = [source.randrange(1, 2 ** (place + 1), 2) for place in range(degree)]
    for place in range(degree, SOBOL_BITS):
        number = numbers[place - degree] ^ (numbers[place - degree] << degree)
        for back in range(1, degree):
            if polynomial >> (degree - back) & 1:
                number ^= numbers[place - back] << back
        numbers.append(number)
    return [number << (SOBOL_BITS - 1 - place) for place, number in enumerate(numbers)]
