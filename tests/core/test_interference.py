"""How much jobs that share a GPU slow each other down."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.interference import slowdown

loads = st.lists(st.integers(1, 100), min_size=2, max_size=8)


def total(*loads: float) -> float:
    """The total work of all members, in exclusive jobs."""
    return sum(slowdown(load, sum(loads), len(loads)) for load in loads)


def mean_total(low: int, high: int) -> float:
    """The mean over pairs of equal members whose loads add up to something between the two."""
    sums = range(low, high)
    return sum(total(both / 2, both / 2) for both in sums) / len(sums)


@pytest.mark.parametrize(
    ("low", "high", "measured"), [(1, 80, 2.0), (80, 120, 1.90), (120, 160, 1.69), (160, 200, 1.43)]
)
def test_pairs_do_what_was_measured(low: int, high: int, measured: float) -> None:
    """In each band of summed loads, a pair does as much together as the measured pairs did."""
    assert mean_total(low, high) == pytest.approx(measured, abs=0.02)
    if low > 1:
        assert total((low + high) / 4, (low + high) / 4) == pytest.approx(measured)


@pytest.mark.parametrize(("both", "slowest"), [(40, 0.95), (100, 0.91), (140, 0.78), (180, 0.64)])
def test_no_job_is_slower_than_the_slower_member(both: int, slowest: float) -> None:
    """In the most unequal pair, the heavier member runs as the slower one of the measured pairs."""
    assert slowdown(both, both, 2) == pytest.approx(slowest)


def test_an_exclusive_job_loses_nothing() -> None:
    """An exclusive job runs at full speed, and so does a job without load."""
    assert slowdown(100, 100, 1) == slowdown(0, 0, 3) == 1.0


def test_a_full_gpu_is_shared() -> None:
    """Beyond a full GPU, more members do no more together: twice the load is half the speed."""
    assert slowdown(90, 360, 4) == pytest.approx(slowdown(90, 180, 2) / 2)
    assert total(90, 90, 90, 90) == pytest.approx(total(90, 90))


@given(loads)
def test_a_speed_is_between_zero_and_one(loads: list[int]) -> None:
    """Each speed is above 0 and at most 1."""
    assert all(0 < slowdown(load, sum(loads), len(loads)) <= 1 for load in loads)


@given(st.integers(1, 100), st.integers(1, 12))
def test_more_co_tenants_never_help(load: int, members: int) -> None:
    """One more job of the same kind makes no job faster."""
    assert slowdown(load, load * (members + 1), members + 1) <= slowdown(load, load * members, members)
