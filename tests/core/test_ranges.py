"""Numbers as ranges are the same numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.ranges import Ranges, distinct, joined, missing, ranges_of, run_text, runs, union

NUMBERS = st.lists(st.integers(0, 40), unique=True)
PARTS = st.lists(st.builds(lambda first, length: range(first, first + length), st.integers(0, 40), st.integers(0, 9)))


@given(NUMBERS)
def test_a_sequence(numbers: list[int]) -> None:
    """Length, order, places from both ends, slices and membership are those of a list."""
    ranges = ranges_of(numbers)
    assert list(ranges) == numbers
    assert len(ranges) == len(numbers)
    assert [ranges[at] for at in range(-len(numbers), len(numbers))] == numbers * 2
    assert all((number in ranges) == (number in numbers) for number in range(41))
    assert all(ranges[start:stop] == numbers[start:stop] for start in range(5) for stop in range(-2, 9))
    with pytest.raises(IndexError):
        ranges[len(numbers)]


@given(PARTS)
def test_sets_of_parts(parts: list[range]) -> None:
    """`union` sorts, `distinct` keeps the order; both have each number once."""
    all_numbers = [number for part in parts for number in part]
    assert list(union(parts)) == sorted(set(all_numbers))
    assert list(distinct(parts)) == list(dict.fromkeys(all_numbers))


@given(NUMBERS, NUMBERS)
def test_those_among_others(numbers: list[int], others: list[int]) -> None:
    """In the order of the first."""
    assert list(ranges_of(numbers).among(ranges_of(others))) == [number for number in numbers if number in others]


@given(NUMBERS)
def test_what_is_missing(numbers: list[int]) -> None:
    """Of a range, without sorted parts."""
    parts = ranges_of(sorted(numbers)).parts
    assert list(missing(range(5, 30), parts)) == [number for number in range(5, 30) if number not in numbers]


def test_neighbours_are_joined() -> None:
    """Ranges with steps stay as they are."""
    assert joined([range(3), range(3, 5), range(7, 8), range(8, 20, 3)]).parts == (
        range(5),
        range(7, 8),
        range(8, 20, 3),
    )


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([3], "3"),
        ([3, 4], "3-4"),
        ([*range(3, 60), *range(100, 200)], "3-59,100-199"),
        ([0, 5, 10, 15], "0-15:5"),
        ([0, 5, 10], "0,5,10"),
        ([7, 9, 10, 11], "7,9-11"),
        ([1, 3, 5, 7, 8, 9], "1,3,5,7-9"),
    ],
)
def test_runs(numbers: list[int], text: str) -> None:
    """Runs of equal distances are short; with gaps from four numbers on."""
    assert ",".join(map(run_text, runs(ranges_of(numbers).parts))) == text


@given(NUMBERS)
def test_runs_have_the_same_numbers(numbers: list[int]) -> None:
    """Whatever they are."""
    assert list(Ranges(runs(ranges_of(sorted(numbers)).parts))) == sorted(numbers)


def test_large_ranges_cost_nothing() -> None:
    """Only the ranges are held."""
    ranges = Ranges([range(10**15), range(2 * 10**15, 3 * 10**15)])
    assert len(ranges) == 2 * 10**15
    assert ranges[10**15] == 2 * 10**15
    assert 10**15 not in ranges
