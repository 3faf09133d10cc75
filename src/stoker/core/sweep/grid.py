"""Parameter grids: every combination of the values, by number, in order, shuffled or drawn."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from random import Random

from stoker.core.errors import UsageError

MOST_SHUFFLED = 100_000_000
"""Most combinations that a shuffle keeps in memory, at four bytes each."""
ParameterSet = dict[str, str]


@dataclass(frozen=True)
class Grid:
    """The product of the parameters' values; the last parameter varies fastest."""

    parameters: Mapping[str, Sequence[str]]

    @property
    def size(self) -> int:
        """The number of combinations; without parameters there is one, the empty one."""
        return prod(len(values) for values in self.parameters.values())

    def at(self, number: int) -> ParameterSet:
        """The combination with this number, counted from 0."""
        chosen = {}
        block = self.size
        for name, values in self.parameters.items():
            block //= len(values)
            place, number = divmod(number, block)
            chosen[name] = values[place]
        return chosen


def ordered(grid: Grid) -> Iterator[ParameterSet]:
    return map(grid.at, range(grid.size))


def shuffled(grid: Grid, source: Random) -> Iterator[ParameterSet]:
    """All combinations in the order of `Random.shuffle`, so that old seeds give the same order."""
    if grid.size > MOST_SHUFFLED:
        raise UsageError(
            f"--seed works for at most {MOST_SHUFFLED} combinations, not {grid.size}",
            "leave out --seed, or keep the order of the grid",
        )
    numbers = array("I", range(grid.size))
    source.shuffle(numbers)
    return map(grid.at, numbers)


def drawn(grid: Grid, source: Random) -> Iterator[ParameterSet]:
    """Combinations drawn at random, none twice; the cost does not depend on the size of the grid."""
    return map(grid.at, _drawn_numbers(grid.size, source))


def _drawn_numbers(size: int, source: Random) -> Iterator[int]:
    # A Fisher-Yates shuffle from the front that stores only the positions whose number has changed.
    moved: dict[int, int] = {}
    for position in range(size):
        own = moved.pop(position, position)
        picked = source.randrange(position, size)
        if picked == position:
            yield own
        else:
            yield moved.get(picked, picked)
            moved[picked] = own
