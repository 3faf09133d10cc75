"""Which waiting job goes first within a priority."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from stoker.core.job import Job
from stoker.core.planner.order import (
    HEAD_START,
    LEAST_WORK,
    MOST_WORK,
    Order,
    QueuePosition,
    overtaken_by,
    rounded_work,
)
from stoker.core.planner.plan import plan
from stoker.core.planner.reasons import Outranked
from stoker.core.settings import Policy
from support.build import a_job, a_need, a_queue, a_snapshot, declared, slot, where

ONE = a_snapshot(declared("0"))
HOUR = 3600.0
DAY = 24 * HOUR


def submitted(job: Job, at: float, kind: str = "") -> Job:
    return replace(job, submitted=at, kind=kind)


def first_of(*jobs: Job, now: float, policy: Policy | None = None, known: Mapping[str, float] | None = None) -> int:
    """The job that gets the only device."""
    expects = lambda job: (known or {}).get(job.kind) if job.spec.limit is None else job.spec.limit  # noqa: E731
    decided = plan(a_queue(*jobs), [], ONE, [], policy or Policy(), now, expects=expects)
    (job,) = where(decided)
    return job


@pytest.mark.parametrize(
    ("seconds", "rounded"), [(1, 64), (64, 64), (65, 128), (HOUR, 4096), (4 * DAY, 2**19), (99 * DAY, 2**19)]
)
def test_work_is_rounded_up_between_bounds(seconds: float, rounded: float) -> None:
    """Jobs that take about the same are equal, as are all that take less or more than the bounds."""
    assert rounded_work(seconds) == rounded
    assert rounded_work(LEAST_WORK) <= rounded_work(seconds) <= rounded_work(MOST_WORK)


def test_a_short_job_passes_a_long_one_once_it_has_waited_longer_for_what_it_takes() -> None:
    """An hour of work that came 30 minutes ago, and four hours that came an hour or four hours ago."""
    short = submitted(a_job(2, limit=HOUR), 7.5 * HOUR)
    for at, first in ((7.0 * HOUR, 2), (4.0 * HOUR, 1)):
        long = submitted(a_job(1, limit=4 * HOUR), at)
        assert first_of(long, short, now=8 * HOUR) == first


def test_equal_work_goes_by_age() -> None:
    """59 and 34 minutes round to the same power of two."""
    older, younger = submitted(a_job(1, limit=59 * 60), 0.0), submitted(a_job(2, limit=35 * 60), 60.0)
    assert first_of(older, younger, now=HOUR) == 1


def test_new_jobs_go_by_work() -> None:
    """Nothing has waited yet: the head start of all is the same, so the least work goes first."""
    assert HEAD_START > 0
    assert first_of(a_job(1, limit=4 * HOUR), a_job(2, limit=HOUR), now=0.0) == 2


def test_unknown_work_counts_as_half_an_hour() -> None:
    """Less than an hour, more than ten minutes."""
    for limit, first in ((HOUR, 2), (600.0, 1)):
        assert first_of(a_job(1, limit=limit), a_job(2), now=0.0) == first


def test_gpus_count() -> None:
    """Half an hour on two GPUs is more work than 50 minutes on one."""
    two = a_snapshot(declared("0", "1"))
    wide, narrow = a_job(1, a_need(2), limit=1800.0), a_job(2, limit=2000.0)
    assert where(plan(a_queue(wide, narrow), [], two, [], Policy(), 0.0)) == {2: "0"}


def test_the_jobs_of_a_batch_share_its_turn() -> None:
    """A single job passes an older sweep of equal jobs that runs already; and starts in the same plan count."""
    sweep = [submitted(a_job(number, limit=HOUR), 0.0, "sweep") for number in (1, 2, 3)]
    single = submitted(a_job(9, limit=HOUR), 1.5 * HOUR, "single")
    assert first_of(*sweep, single, now=3 * HOUR) == 1
    running = [replace(slot(number, "elsewhere"), kind="sweep") for number in (6, 7)]
    two = a_snapshot(declared("0", "1"))
    assert where(plan(a_queue(*sweep, single), running, ONE, [], Policy(), 3 * HOUR)) == {9: "0"}
    assert where(plan(a_queue(*sweep, single), [], two, [], Policy(), 3 * HOUR)) == {1: "0", 9: "1"}


def test_a_job_that_waited_for_four_weeks_goes_before_all() -> None:
    """However large it is; the oldest of such jobs first."""
    huge = submitted(a_job(1, limit=30 * DAY), 0.0)
    small = submitted(a_job(2, limit=60.0), DAY)
    assert first_of(huge, small, now=27.9 * DAY) == 2
    assert first_of(huge, small, now=28 * DAY) == 1
    assert first_of(huge, small, now=40 * DAY) == 1


def test_priorities_come_before_the_order() -> None:
    """The order is one within a priority."""
    old, urgent = submitted(a_job(1, limit=60.0), 0.0), submitted(a_job(2, priority=1, limit=DAY), HOUR)
    assert first_of(old, urgent, now=2 * HOUR) == 2


@pytest.mark.parametrize(("order", "first"), [("age", 1), ("shortest", 2), ("fair", 2)])
def test_orders(order: str, first: int) -> None:
    """A day of work, and a minute later an hour of it."""
    policy = replace(Policy(), order=order)
    day, hour = submitted(a_job(1, limit=DAY), 0.0), submitted(a_job(2, limit=HOUR), 60.0)
    assert first_of(day, hour, now=120.0, policy=policy) == first


def test_what_was_learnt_counts() -> None:
    """A known kind goes by its usual duration."""
    unknown, known = submitted(a_job(1), 0.0, "new"), submitted(a_job(2), 0.0, "quick")
    assert first_of(unknown, known, now=0.0, known={"quick": 120.0}) == 2
    assert first_of(unknown, known, now=0.0, known={"quick": 2 * HOUR}) == 1


def test_a_retry_keeps_its_place() -> None:
    """The time since the submission counts, not since the last attempt."""
    policy, order = Policy(), {}
    for since in (0.0, HOUR):
        job = submitted(a_job(1, since=since), 0.0)
        order[since] = Order(policy, 2 * HOUR, lambda job: None, {}).key(job)
    assert order[0.0] == order[HOUR]


def a_standing(job: int, *, waited: float, seconds: float, priority: int = 0, batch: int = 0) -> QueuePosition:
    """Figures of a job on one GPU at 100 days."""
    return QueuePosition(job, 1, priority, 100 * DAY - waited, seconds, True, 1, batch)


@pytest.mark.parametrize(
    ("ours", "first", "reason"),
    [
        ({"waited": HOUR, "seconds": HOUR}, {"waited": HOUR, "seconds": 600}, Outranked(2, "waited", 6.0, 1.0)),
        (
            {"waited": HOUR, "seconds": 600, "batch": 5},
            {"waited": HOUR, "seconds": 1200},
            Outranked(2, "waited", 3.0, 1.0, 5),
        ),
        ({"waited": 9.0, "seconds": HOUR}, {"waited": 9.0, "seconds": 2100}, Outranked(2, "alike")),
        ({"waited": 9.0, "seconds": HOUR}, {"waited": 9.0, "seconds": 900}, Outranked(2, "smaller")),
        ({"waited": HOUR, "seconds": 60}, {"waited": 29 * DAY, "seconds": DAY}, Outranked(2, "overdue", 28 * DAY)),
        ({"waited": DAY, "seconds": 60}, {"waited": 1, "seconds": 60, "priority": 3}, Outranked(2, "priority", 3, 0)),
    ],
)
def test_why_another_job_goes_first(ours: dict[str, float], first: dict[str, float], reason: Outranked) -> None:
    """Priority, four weeks of waiting, the ratio of waiting time to work, or age among jobs that take about as long."""
    decided = overtaken_by(a_standing(1, **ours), a_standing(2, **first), Policy(), 100 * DAY)  # type: ignore[arg-type]
    assert replace(decided, theirs=round(decided.theirs, 2), ours=round(decided.ours, 2)) == reason


def test_the_ratios_shown_agree_with_the_order() -> None:
    """Where rounded work decides, the rounded ratios are shown: a user never sees the smaller one go first."""
    ours, first = a_standing(1, waited=HOUR, seconds=1100), a_standing(2, waited=0.95 * HOUR, seconds=1020)
    decided = overtaken_by(ours, first, Policy(), 100 * DAY)
    assert decided.by == "waited"
    assert decided.theirs > decided.ours


@pytest.mark.parametrize(("order", "by"), [("age", "older"), ("shortest", "shorter")])
def test_other_orders_have_other_reasons(order: str, by: str) -> None:
    """A ratio explains only the fair order."""
    standings = a_standing(2, waited=HOUR, seconds=60), a_standing(1, waited=DAY, seconds=60)
    assert overtaken_by(*standings, Policy(order=order), 100 * DAY).by == by  # type: ignore[arg-type]
