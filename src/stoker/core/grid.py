"""Parameter grids: every combination of the values, by number, in order, shuffled or drawn."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, product
from math import prod
from random import Random
from typing import Any, Generic, Protocol, TypeVar

from stoker.core.errors import UsageError

MOST_SHUFFLED = 100_000_000
"""Most combinations that a shuffle keeps in memory, at four bytes each."""
MOST_IN_MEMORY = 1_000_000
"""Most values of all parameters that `itertools.product` may copy."""
MOST_CASES = 10_000
"""Most values of a parameter on which others depend: each is a case of its own."""
Value = TypeVar("Value")
Point_co = TypeVar("Point_co", covariant=True)
ParameterSet = dict[str, str]


class Points(Protocol[Point_co]):
    """Combinations by number; none of them is made before it is asked for."""

    @property
    def size(self) -> int: ...
    def __iter__(self) -> Iterator[Point_co]:
        """All of them in order."""

    def at(self, number: int) -> Point_co:
        """The combination with this number, counted from 0."""


@dataclass(frozen=True)
class Grid(Generic[Value]):
    """The product of the parameters' values; the last parameter varies fastest."""

    parameters: Mapping[str, Sequence[Value]]

    @cached_property
    def size(self) -> int:
        """The number of combinations; without parameters there is one, the empty one."""
        return prod(len(values) for values in self.parameters.values())

    def __iter__(self) -> Iterator[dict[str, Value]]:
        """All combinations in order: faster than one by one, if the values fit into memory."""
        if sum(map(len, self.parameters.values())) > MOST_IN_MEMORY:
            return map(self.at, range(self.size))
        names = tuple(self.parameters)
        return (dict(zip(names, values, strict=True)) for values in product(*self.parameters.values()))

    def at(self, number: int) -> dict[str, Value]:
        chosen = {}
        block = self.size
        for name, values in self.parameters.items():
            block //= len(values)
            place, number = divmod(number, block)
            chosen[name] = values[place]
        return chosen


class Tree(Generic[Value]):
    """A grid in which some parameters exist only for certain values of earlier ones, in the same order."""

    def __init__(
        self,
        parameters: Mapping[str, Sequence[Value]],
        when: Mapping[str, Mapping[str, Sequence[Value]]],
        same: Callable[[Value, Value], bool],
    ) -> None:
        """`when` has the conditions of the parameters that have some: other parameters, and the values they need."""
        self._parameters = list(parameters.items())
        self._when = when
        self._same = same
        self._decides = {name for conditions in when.values() for name in conditions}
        self._counts: dict[tuple[int, tuple[Any, ...]], int] = {}
        """Number of combinations from a parameter on, by the values that later conditions depend on."""
        for name in self._decides:
            if len(parameters[name]) > MOST_CASES:
                raise UsageError(
                    f"conditions depend on {name}, which has {len(parameters[name])} values",
                    f"the limit is {MOST_CASES}; give {name} a list of values",
                )
        self.size = self._count(0, {})

    def __iter__(self) -> Iterator[dict[str, Value]]:
        return map(self.at, range(self.size))

    def at(self, number: int) -> dict[str, Value]:
        chosen: dict[str, Value] = {}
        for place, (name, values) in enumerate(self._parameters):
            if self._exists(name, chosen):
                value, number = self._pick(place, values, chosen, number)
                chosen[name] = value
        return chosen

    def _pick(self, place: int, values: Sequence[Value], chosen: dict[str, Value], number: int) -> tuple[Value, int]:
        """The value of a parameter, and the number of the combination among those that have it."""
        name = self._parameters[place][0]
        if name not in self._decides:
            position, number = divmod(number, self._count(place + 1, chosen))
            return values[position], number
        for value in values:
            block = self._count(place + 1, {**chosen, name: value})
            if number < block:
                return value, number
            number -= block
        raise IndexError(number)

    def _exists(self, name: str, chosen: Mapping[str, Value]) -> bool:
        conditions = self._when.get(name, {})
        return all(
            other in chosen and any(self._same(chosen[other], value) for value in values)
            for other, values in conditions.items()
        )

    def _count(self, place: int, chosen: dict[str, Value]) -> int:
        if place == len(self._parameters):
            return 1
        key = place, tuple((name, type(value), value) for name, value in chosen.items() if name in self._decides)
        if key not in self._counts:
            self._counts[key] = self._counted(place, chosen)
        return self._counts[key]

    def _counted(self, place: int, chosen: dict[str, Value]) -> int:
        name, values = self._parameters[place]
        if not self._exists(name, chosen):
            return self._count(place + 1, chosen)
        if name not in self._decides:
            return len(values) * self._count(place + 1, chosen)
        return sum(self._count(place + 1, {**chosen, name: value}) for value in values)


class Chain(Generic[Point_co]):
    """The combinations of several grids, one after another."""

    def __init__(self, parts: Sequence[Points[Point_co]]) -> None:
        self._parts = parts
        self._ends = list(accumulate(part.size for part in parts))

    @property
    def size(self) -> int:
        return self._ends[-1]

    def __iter__(self) -> Iterator[Point_co]:
        return chain.from_iterable(self._parts)

    def at(self, number: int) -> Point_co:
        place = bisect_right(self._ends, number)
        return self._parts[place].at(number - (self._ends[place - 1] if place else 0))


def ordered(grid: Points[Point_co]) -> Iterator[Point_co]:
    return iter(grid)


def shuffled(grid: Points[Point_co], source: Random) -> Iterator[Point_co]:
    """All combinations in the order of `Random.shuffle`, so that old seeds give the same order."""
    if grid.size > MOST_SHUFFLED:
        raise UsageError(
            f"--seed works for at most {MOST_SHUFFLED} combinations, not {grid.size}",
            "leave out --seed, or keep the order of the grid",
        )
    numbers = array("I", range(grid.size))
    source.shuffle(numbers)
    return map(grid.at, numbers)


def drawn(grid: Points[Point_co], source: Random) -> Iterator[Point_co]:
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
