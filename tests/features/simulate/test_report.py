"""The result of a replay in figures, and in one sentence."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stoker.features.simulate.report import PolicyResult, figures, summary_of
from stoker.features.simulate.workload import (
    ReplayOutcome,
)

NOTHING = figures(ReplayOutcome((), (), 1, 0.0, 0.0))


def told(policy: str, mean: float, wait: float = 100.0, preemptible: float = 0.0, short: float = 0.0) -> PolicyResult:
    told_figures = replace(NOTHING, completion_mean=mean, wait_mean=wait, short_wait_mean=short)
    return PolicyResult(policy, told_figures, 1, preemptible)


def test_the_gain_is_told_in_one_sentence() -> None:
    """Of the default order, and with --vram auto where that was replayed."""
    results = [told("fifo", 100), told("stoker", 50), told("stoker-auto", 25)]
    assert summary_of("9 jobs", results) == (
        "With 9 jobs, the default order would end jobs 2.0 times sooner than strict FIFO on average;"
        " with --vram auto, 4.0 times sooner than strict FIFO."
    )
    assert summary_of("9 jobs", results[:2]).endswith("2.0 times sooner than strict FIFO on average.")


@pytest.mark.parametrize(
    ("mean", "said"), [(101.0, "as soon as strict FIFO"), (200.0, "2.0 times later than strict FIFO")]
)
def test_no_gain_is_told_too(mean: float, said: str) -> None:
    """Where the order makes no difference, or makes it worse."""
    assert said in summary_of("9 jobs", [told("fifo", 100), told("stoker", mean)])


def test_the_gain_of_giving_way_is_told() -> None:
    """Over the default order, for the largest share of the jobs that was replayed."""
    results = [told("fifo", 100), told("stoker", 50, short=7200.0)]
    given = [told("stoker+50%", 40, preemptible=0.5, short=600.0), told("stoker+25%", 45, preemptible=0.25)]
    assert summary_of("9 jobs", [*results, *given]).endswith(
        "If 50% of them gave way (--preemptible), they would end 1.2 times sooner than without;"
        " jobs below 10 minutes would wait 10m on average, without 2.0h."
    )


def test_where_no_job_waits_the_order_does_not_matter() -> None:
    """A ratio of run times would say nothing."""
    assert "no difference" in summary_of("9 jobs", [told("fifo", 100, 0.1), told("stoker", 100, 0.0)])


def test_there_is_no_sentence_without_both_orders() -> None:
    """There is nothing to compare."""
    assert summary_of("9 jobs", [told("stoker", 50)]) == ""


def test_an_empty_trace_has_figures_too() -> None:
    """All of them nothing."""
    assert NOTHING.completion_mean == 0.0
