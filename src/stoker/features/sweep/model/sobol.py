"""Sobol points: they fill a cube more evenly than random points do."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

BITS = 32
MOST_DIMENSIONS = 50
_INITIAL_SEED = 16
"""The first direction numbers may be any odd ones; these are fixed, so that a seed means the same points for ever."""


def sobol_points(dimensions: int, source: Random) -> Iterator[list[float]]:
    """Points of the unit cube without end, moved by a random digital shift (an XOR of all bits)."""
    directions = [_directions(polynomial) for polynomial in _polynomials(dimensions)]
    state = [source.getrandbits(BITS) for _ in directions]
    number = 0
    while True:
        yield [value / 2**BITS for value in state]
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
        return [1 << (BITS - 1 - place) for place in range(BITS)]
    source = Random(polynomial * _INITIAL_SEED)  # noqa: S311 - no secret
    numbers = [source.randrange(1, 2 ** (place + 1), 2) for place in range(degree)]
    for place in range(degree, BITS):
        number = numbers[place - degree] ^ (numbers[place - degree] << degree)
        for back in range(1, degree):
            if polynomial >> (degree - back) & 1:
                number ^= numbers[place - back] << back
        numbers.append(number)
    return [number << (BITS - 1 - place) for place, number in enumerate(numbers)]
