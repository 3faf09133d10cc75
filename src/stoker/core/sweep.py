"""Parameter spaces: every combination of the values, addressed by number and taken in some order."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from random import Random

from stoker.core.errors import UsageError

MOST_SHUFFLED = 100_000_000
"""Combinations whose numbers still fit comfortably in memory, at four bytes each."""

ParameterSet = dict[str, str]


@dataclass(frozen=True)
class Grid:
    """The product of the parameters' values; the last parameter varies fastest."""

    parameters: Mapping[str, Sequence[str]]

    @property
    def size(self) -> int:
        """How many combinations there are; no parameters at all make one, the empty one."""
        return prod(len(values) for values in self.parameters.values())

    def at(self, number: int) -> ParameterSet:
        """The combination with this number, counted from 0, made without making those before it."""
        chosen = {}
        block = self.size
        for name, values in self.parameters.items():
            block //= len(values)
            place, number = divmod(number, block)
            chosen[name] = values[place]
        return chosen


def ordered(grid: Grid) -> Iterator[ParameterSet]:
    """All combinations as they are numbered."""
    return map(grid.at, range(grid.size))


def shuffled(grid: Grid, source: Random) -> Iterator[ParameterSet]:
    """All combinations in the order that a shuffle of their list gives, so that old seeds keep theirs."""
    if grid.size > MOST_SHUFFLED:
        raise UsageError(
            f"a seed orders at most {MOST_SHUFFLED} combinations, and here are {grid.size}",
            "leave out --seed, or take the grid in order",
        )
    numbers = array("I", range(grid.size))
    source.shuffle(numbers)
    return map(grid.at, numbers)


def drawn(grid: Grid, source: Random) -> Iterator[ParameterSet]:
    """Combinations drawn at random, none twice; costs only what has been drawn, however large the grid."""
    return map(grid.at, _drawn_numbers(grid.size, source))


def _drawn_numbers(size: int, source: Random) -> Iterator[int]:
    # A Fisher-Yates shuffle from the front; remembers only the places that no longer hold their own number.
    moved: dict[int, int] = {}
    for place in range(size):
        own = moved.pop(place, place)
        picked = source.randrange(place, size)
        if picked == place:
            yield own
        else:
            yield moved.get(picked, picked)
            moved[picked] = own
