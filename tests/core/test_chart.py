"""Axes of charts: where values are, and which are marked."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.chart import COLOURS, Axis, axis_over, colours_of, wants_log


def test_places() -> None:
    """From 0 to 1, linear or logarithmic; what is outside is at the edge."""
    assert [Axis("x", 0, 10).place(value) for value in (-5, 0, 5, 10, 99)] == [0, 0, 0.5, 1, 1]
    assert Axis("x", 1e-4, 1, log=True).place(1e-2) == pytest.approx(0.5)
    assert Axis("x", 3, 3).place(3) == 0.5


def test_ticks_are_round() -> None:
    """Few, round, within the axis; names stand for themselves."""
    assert [text for _, text in Axis("x", 0.13, 9.7).ticks(5)] == ["2", "4", "6", "8"]
    assert [text for _, text in Axis("x", 5e-5, 2, log=True).ticks(8)] == ["0.0001", "0.001", "0.01", "0.1", "1"]
    assert [text for _, text in Axis("x", -0.5, 2.5, names=("a", "b", "c")).ticks(2)] == ["a", "c"]


@settings(max_examples=100, derandomize=True)
@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=9), st.integers(1, 12), st.booleans())
def test_any_values_have_an_axis(values: list[float], most: int, log: bool) -> None:
    """All values are on it, and so are its ticks."""
    axis = axis_over("x", [*values, nan, inf], log=log)
    assert all(axis.low <= value <= axis.high for value in values)
    ticks = axis.ticks(most)
    assert len(ticks) <= 2 * most + 1
    assert all(axis.low - 1e-6 * abs(axis.low) <= tick <= axis.high + 1e-6 * abs(axis.high) for tick, _ in ticks)


def test_wide_ranges_are_logarithmic() -> None:
    """Only of positive numbers."""
    assert wants_log([0.001, 1.0])
    assert not wants_log([0.5, 1.0])
    assert not wants_log([-1.0, 100.0])


# -- colours of groups

NAMES = [f"group {number}" for number in range(20)]


def test_a_new_group_changes_no_other() -> None:
    """Its colour is decided after theirs."""
    for count in range(20):
        before, after = colours_of(NAMES[:count]), colours_of(NAMES[: count + 1])
        assert {name: after[name] for name in before} == before


def test_colours_differ_as_long_as_there_are_enough() -> None:
    """Then each is used once more before any is used a third time."""
    places = list(colours_of(NAMES).values())
    assert sorted(places[:COLOURS]) == sorted(places[COLOURS : 2 * COLOURS]) == list(range(COLOURS))


def test_the_name_decides() -> None:
    """A group alone has the same colour in every queue."""
    assert colours_of(["vision"]) == {"vision": colours_of(["vision", "language"])["vision"]}
