"""What a replay is made of, and its result in one sentence."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stoker.core.errors import UsageError
from stoker.features.simulate.replay import PolicyResult, ReplayOptions, figures, machine_of, prepare, summary_of
from stoker.features.simulate.workload import ReplayOutcome, TraceJob

NOTHING = figures(ReplayOutcome((), (), 1, 0.0, 0.0))
JOBS = [TraceJob(float(number), 60.0, 1 + number % 2, memory=2**30, devices=("0", "1")) for number in range(30)]


def told(policy: str, mean: float, wait: float = 100.0) -> PolicyResult:
    return PolicyResult(policy, replace(NOTHING, completion_mean=mean, wait_mean=wait), 1)


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


def test_where_no_job_waits_the_order_does_not_matter() -> None:
    """A ratio of run times would say nothing."""
    assert "no difference" in summary_of("9 jobs", [told("fifo", 100, 0.1), told("stoker", 100, 0.0)])


def test_there_is_no_sentence_without_both_orders() -> None:
    """There is nothing to compare."""
    assert summary_of("9 jobs", [told("stoker", 50)]) == ""


def test_the_machine_is_the_one_that_the_jobs_had() -> None:
    """At least as wide as the widest job; the usual one where the trace names no GPU."""
    assert machine_of(JOBS) == "2x40G"
    assert machine_of([*JOBS, TraceJob(0.0, 1.0, 6, devices=("0",))]) == "6x40G"
    assert machine_of([TraceJob(0.0, 1.0)]) == "8x40G"


def test_what_cannot_run_is_left_out_and_told() -> None:
    """Jobs without a duration or a GPU, and jobs wider than the machine."""
    odd = [TraceJob(1.0, 0.0), TraceJob(2.0, 60.0, 0), TraceJob(3.0, 60.0, 9)]
    setup = prepare([*JOBS, *odd], ReplayOptions("a trace", "2x24G"))
    assert len(setup.works) == len(JOBS)
    assert [note.partition(": ")[2] for note in setup.notes] == [
        "no GPU needed", "no time taken", "more than 2 GPUs needed"
    ]  # fmt: skip
    with pytest.raises(UsageError, match="none of 3 jobs can run"):
        prepare(odd, ReplayOptions("a trace", "2x24G"))


def test_doubts_are_told() -> None:
    """Few jobs, and memory that was not measured."""
    setup = prepare([replace(job, memory=None) for job in JOBS[:5]], ReplayOptions("your history"))
    assert setup.notes == [
        "only 5 jobs: the results are not significant",
        "the memory of 5 jobs was not measured and is assumed",
    ]
