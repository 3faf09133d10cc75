"""The next jobs are handed over ahead, evenly, and never past somebody who waits for the same device."""

from __future__ import annotations

from stoker.core.planner.plan import Start, plan
from stoker.core.planner.policy import Policy
from stoker.core.planner.reasons import Crowded
from support.build import a_job, a_need, a_queue, a_reading, a_snapshot, behind, declared, simulated, slot, where

TWO = a_snapshot(declared("0", "1"))


def test_open_devices_are_filled_before_anybody_waits_behind() -> None:
    """Handing over is for when nothing else is left."""
    queue = a_queue(a_job(1), a_job(2), a_job(3))
    decided = plan(queue, [slot(9, "0", room=1)], TWO, [], Policy(), 0.0)
    assert where(decided) == {1: "1"}
    assert behind(decided) == {2: "k9"}
    assert decided.reason(a_job(3)) == Crowded(1, 0)


def test_jobs_are_spread_evenly_over_the_slots() -> None:
    """The slot with the most room left is next."""
    queue = a_queue(*(a_job(number) for number in range(1, 10)))
    decided = plan(queue, [slot(8, "0", room=3), slot(9, "1", room=2)], TWO, [], Policy(), 0.0)
    assert behind(decided) == {1: "k8", 2: "k8", 3: "k9", 4: "k8", 5: "k9"}


def test_a_handed_over_job_gets_the_devices_of_its_slot() -> None:
    """It will run on what the running attempt holds now."""
    resources = a_need(2)
    decided = plan(
        a_queue(a_job(1, resources)), [slot(9, "1", "0", resources=resources, room=1)], TWO, [], Policy(), 0.0
    )
    assert decided.starts == (Start(a_job(1, resources), ("1", "0"), "k9", resources),)
    assert decided.waits == {}


def test_only_the_very_same_need_may_follow() -> None:
    """A slot made for one need is not bent to another."""
    queue = a_queue(a_job(1, a_need(allowed=["0", "1"])))
    decided = plan(queue, [slot(8, "0", room=5), slot(9, "1", room=5)], TWO, [], Policy(), 0.0)
    assert decided.starts == ()


def test_priorities_share_the_room_in_order() -> None:
    """Equal needs of two priorities: the important ones are handed over first."""
    queue = a_queue(a_job(1), a_job(2, priority=1), a_job(3, priority=1))
    slots = [slot(8, "0", room=2), slot(9, "1", room=1)]
    assert list(behind(plan(queue, slots, TWO, [], Policy(), 0.0))) == [2, 3, 1]


def test_nobody_is_handed_over_past_a_job_that_waits_for_the_device() -> None:
    """Whoever is handed over has the device next; that is the turn of the first in order."""
    urgent = a_job(9, a_need(allowed=["0"]), priority=1)
    queue = a_queue(a_job(1), a_job(2), urgent)
    decided = plan(queue, [slot(7, "0", room=5), slot(8, "1", room=1)], TWO, [], Policy(), 0.0)
    assert behind(decided) == {1: "k8"}


def test_those_before_the_blocked_job_are_still_handed_over() -> None:
    """Age counts here as everywhere: only what is younger than the blocked one has to wait."""
    queue = a_queue(a_job(1), a_job(2, a_need(2)), a_job(3))
    decided = plan(queue, [slot(8, "0", room=2), slot(9, "1", room=2)], TWO, [], Policy(), 0.0)
    assert list(behind(decided)) == [1]


def test_a_job_that_can_never_run_closes_no_slot() -> None:
    """It waits for nothing."""
    queue = a_queue(a_job(1, a_need(9)), a_job(2))
    decided = plan(queue, [slot(8, "0", room=1), slot(9, "1")], TWO, [], Policy(), 0.0)
    assert behind(decided) == {2: "k8"}


def test_nothing_is_handed_over_to_a_broken_device() -> None:
    """What waits behind an attempt on a lost GPU would only fail there."""
    snapshot = a_snapshot(simulated(24), gpu0=a_reading(problem="GPU is lost"))
    assert plan(a_queue(a_job(1)), [slot(9, "0", room=1)], snapshot, [], Policy(), 0.0).starts == ()


def test_the_limit_on_running_jobs_does_not_count_those_that_wait_behind() -> None:
    """What is handed over runs after another, never beside it."""
    queue = a_queue(*(a_job(number) for number in range(1, 5)))
    slots = [slot(8, "0", room=2), slot(9, "1", room=2)]
    decided = plan(queue, slots, TWO, [], Policy(max_running=2), 0.0)
    assert behind(decided) == {1: "k8", 2: "k9", 3: "k8", 4: "k9"}


def test_nobody_is_handed_over_before_a_job_that_waits_for_any_end() -> None:
    """Where the limit on running jobs keeps one waiting, every slot that becomes free is its chance."""
    queue = a_queue(a_job(1, a_need(1)), a_job(2, a_need(0)))
    slots = [slot(9, resources=a_need(0), room=2)]
    assert plan(queue, slots, TWO, [], Policy(max_running=1), 0.0).starts == ()


def test_a_reservation_ends_when_its_job_is_handed_over() -> None:
    """The plan keeps nothing free for a job that it starts."""
    decided = plan(a_queue(a_job(1)), [slot(8, "0", room=1), slot(9, "1")], TWO, [], Policy(), 0.0)
    assert decided.reserved is None
