"""Jobs of a trace, and what is drawn that it does not tell."""

from __future__ import annotations

from random import Random

import pytest

from stoker.features.simulate.workload import (
    BUILT_IN,
    FAMILIES,
    Model,
    TraceJob,
    capped,
    draw,
    extract,
    family_model,
    offered_load,
    paced,
)

GIB = 2**30


# -- the trace ---------------------------------------------------------------------------------------


def test_a_slice_goes_by_arrival_and_begins_at_nothing() -> None:
    """Whatever the order of the file was."""
    rows = [TraceJob(30.0, 1.0), TraceJob(10.0, 2.0), TraceJob(20.0, 3.0)]
    assert [(row.arrival, row.seconds) for row in extract(rows, 1, 2)] == [(0.0, 3.0), (10.0, 1.0)]
    assert extract(rows, 3) == []


def test_durations_are_capped() -> None:
    """Long ones are cut, short ones stay."""
    assert [row.seconds for row in capped([TraceJob(0, 5.0), TraceJob(0, 50.0)], 10.0)] == [5.0, 10.0]


def test_arrivals_are_paced_to_an_offered_load() -> None:
    """The work stays, the time in which it comes is stretched."""
    rows = [TraceJob(0.0, 100.0, 2), TraceJob(10.0, 300.0)]
    assert offered_load(rows, 5) == 10.0
    assert offered_load(paced(rows, 5, 0.5), 5) == pytest.approx(0.5)


def test_what_comes_at_once_cannot_be_paced() -> None:
    """There is no time that could be stretched."""
    rows = [TraceJob(0.0, 100.0), TraceJob(0.0, 100.0)]
    assert paced(rows, 1, 0.5) == rows


# -- what is drawn -----------------------------------------------------------------------------------


def some_rows(count: int = 400) -> list[TraceJob]:
    random = Random(7)
    return [
        TraceJob(float(number), random.lognormvariate(7, 2), random.choice([1, 1, 1, 4]), f"u{random.randrange(4)}")
        for number in range(count)
    ]


def test_the_same_seed_draws_the_same_jobs() -> None:
    """Figures can be compared from one day to the next."""
    assert draw(some_rows(), BUILT_IN, 40 * GIB, Random(3)) == draw(some_rows(), BUILT_IN, 40 * GIB, Random(3))
    assert draw(some_rows(), BUILT_IN, 40 * GIB, Random(3)) != draw(some_rows(), BUILT_IN, 40 * GIB, Random(4))


def test_users_repeat_their_work() -> None:
    """About four of five jobs are of a kind that was there before; a kind has one model and one number of GPUs."""
    works = draw(some_rows(), BUILT_IN, 40 * GIB, Random(1))
    kinds = {work.kind for work in works}
    assert 40 < len(kinds) < 130
    assert len({(work.kind, work.model, work.gpus) for work in works}) == len(kinds)


def test_what_the_trace_tells_is_kept() -> None:
    """Memory, load and kind are only drawn where they are missing."""
    (work,) = draw([TraceJob(0.0, 5.0, memory=7 * GIB, load=33, kind="mine")], BUILT_IN, 40 * GIB, Random(1))
    assert (work.peak, work.load, work.kind) == (7 * GIB, 33, "mine")


def test_a_kind_that_names_a_model_is_that_model() -> None:
    """So that a trace that names its models gets their measured speeds."""
    (work,) = draw([TraceJob(0.0, 5.0, kind="A3C")], BUILT_IN, 40 * GIB, Random(1))
    assert work.model == "A3C"


def test_no_job_is_drawn_that_no_gpu_could_hold() -> None:
    """Small cards train no large models."""
    works = draw(some_rows(), BUILT_IN, 6 * GIB, Random(1))
    assert max(work.peak for work in works) <= 6 * GIB
    assert all(1 <= work.load <= 100 for work in works)


def test_models_of_a_family_grow_with_their_batch() -> None:
    """Memory and load."""
    sizes = (16, 32, 64)
    small, large = (family_model("ResNet-50", sizes, batch) for batch in (16, 64))
    assert (small.memory, small.load) < (large.memory, large.load)
    assert family_model("A3C", (0,), 0) == Model("A3C", int(1.2e9), FAMILIES["A3C"].loads[0])
