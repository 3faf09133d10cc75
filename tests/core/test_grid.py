"""Parameter grids and their orders."""

from __future__ import annotations

from collections import Counter
from itertools import islice, product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import UsageError
from stoker.core.grid import MOST_SHUFFLED, Grid, ParameterSet, drawn, ordered, shuffled

SMALL = Grid({"lr": ["0.1", "0.2"], "size": ["32", "64", "128"]})
HUGE = Grid({f"bit{number}": ["0", "1"] for number in range(200)})

grids = st.dictionaries(st.text(max_size=3), st.lists(st.text(max_size=3), max_size=4), max_size=4).map(Grid)


def combinations(grid: Grid[str]) -> list[ParameterSet]:
    """The whole product, which the lazy orders must equal."""
    return [dict(zip(grid.parameters, values, strict=True)) for values in product(*grid.parameters.values())]


def counted(parameter_sets: list[ParameterSet]) -> Counter[tuple[tuple[str, str], ...]]:
    return Counter(tuple(parameters.items()) for parameters in parameter_sets)


def test_last_parameter_varies_fastest() -> None:
    """The last parameter varies fastest."""
    assert [(point["lr"], point["size"]) for point in ordered(SMALL)] == [
        ("0.1", "32"),
        ("0.1", "64"),
        ("0.1", "128"),
        ("0.2", "32"),
        ("0.2", "64"),
        ("0.2", "128"),
    ]


def test_no_parameters_make_one_combination() -> None:
    """A grid without parameters has one empty combination."""
    assert list(ordered(Grid({}))) == [{}]


def test_parameter_without_values_empties_the_grid() -> None:
    """A parameter without values leaves no combination, in any order."""
    grid = Grid({"a": ["1", "2"], "b": []})
    assert grid.size == 0
    assert [*ordered(grid), *shuffled(grid, Random(1)), *drawn(grid, Random(1))] == []


@given(grids)
def test_ordered_is_the_product(grid: Grid[str]) -> None:
    """Combinations by number equal the plain product, including repeated values."""
    assert list(ordered(grid)) == combinations(grid)
    assert grid.size == len(combinations(grid))


@given(grids, st.integers())
def test_shuffled_has_the_order_of_a_shuffled_list(grid: Grid[str], seed: int) -> None:
    """A seed gives the order of shuffling the list of all combinations."""
    expected = combinations(grid)
    Random(seed).shuffle(expected)
    assert list(shuffled(grid, Random(seed))) == expected


@given(grids, st.integers())
def test_drawn_has_every_combination_once(grid: Grid[str], seed: int) -> None:
    """Drawing to the end gives the whole grid, repeated combinations included."""
    assert counted(list(drawn(grid, Random(seed)))) == counted(combinations(grid))


def test_drawn_is_uniform() -> None:
    """Every one of the six orders of three values is drawn about equally often."""
    source = Random(2019)
    grid = Grid({"a": ["x", "y", "z"]})
    orders = Counter("".join(point["a"] for point in drawn(grid, source)) for _ in range(6000))
    assert len(orders) == 6
    assert all(850 < count < 1150 for count in orders.values())


def test_huge_grids_are_lazy() -> None:
    """The first of 2**200 combinations come at once, in order and drawn."""
    assert [point["bit199"] for point in islice(ordered(HUGE), 3)] == ["0", "1", "0"]
    assert set(counted(list(islice(drawn(HUGE, Random(1)), 1000))).values()) == {1}


def test_a_seed_does_not_order_huge_grids() -> None:
    """Too many combinations for memory are refused with a hint."""
    with pytest.raises(UsageError, match=f"at most {MOST_SHUFFLED} combinations") as caught:
        shuffled(HUGE, Random(1))
    assert "--seed" in caught.value.hint
