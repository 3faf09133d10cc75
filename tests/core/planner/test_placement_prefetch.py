"""Jobs are prefetched evenly, and never past a job that waits for the same device."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core.planner.plan import Start, plan
from stoker.core.planner.reasons import Crowded
from stoker.core.settings import Policy
from support.build import a_job, a_need, a_queue, a_reading, a_snapshot, behind, declared, simulated, slot, where

TWO = a_snapshot(declared("0", "1"))


def test_open_devices_are_filled_before_prefetching() -> None:
    """Jobs are prefetched only when no device is open."""
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


def test_of_equal_slots_the_one_that_runs_longest_is_next() -> None:
    """Attempts of equal length: slots get jobs in the order in which they become free. One not started yet is last."""
    three = a_snapshot(declared("0", "1", "2"))
    started = {7: None, 8: 30.0, 9: 20.0}
    slots = [replace(slot(job, str(job - 7), room=1), since=since) for job, since in started.items()]
    decided = plan(a_queue(*map(a_job, (1, 2, 3, 4))), slots, three, [], Policy(), 40.0)
    assert behind(decided) == {1: "k9", 2: "k8", 3: "k7"}


def test_a_prefetched_job_gets_the_devices_of_its_slot() -> None:
    """A prefetched job runs on the devices of the running attempt."""
    resources = a_need(2)
    decided = plan(
        a_queue(a_job(1, resources)), [slot(9, "1", "0", resources=resources, room=1)], TWO, [], Policy(), 0.0
    )
    assert decided.starts == (Start(a_job(1, resources), ("1", "0"), "k9", resources),)
    assert not decided.waits


def test_only_the_same_resources_may_follow() -> None:
    """A slot is used only for the same resources."""
    queue = a_queue(a_job(1, a_need(allowed=["0", "1"])))
    decided = plan(queue, [slot(8, "0", room=5), slot(9, "1", room=5)], TWO, [], Policy(), 0.0)
    assert decided.starts == ()


def test_priorities_share_the_room_in_order() -> None:
    """With equal resources, the higher priority is prefetched first."""
    queue = a_queue(a_job(1), a_job(2, priority=1), a_job(3, priority=1))
    slots = [slot(8, "0", room=2), slot(9, "1", room=1)]
    assert list(behind(plan(queue, slots, TWO, [], Policy(), 0.0))) == [2, 3, 1]


def test_no_job_is_prefetched_past_one_that_waits_for_the_device() -> None:
    """The first job in order gets the device next."""
    urgent = a_job(9, a_need(allowed=["0"]), priority=1)
    queue = a_queue(a_job(1), a_job(2), urgent)
    decided = plan(queue, [slot(7, "0", room=5), slot(8, "1", room=1)], TWO, [], Policy(), 0.0)
    assert behind(decided) == {1: "k8"}


def test_jobs_before_the_blocked_one_are_prefetched() -> None:
    """Only jobs after the blocked one are not prefetched."""
    queue = a_queue(a_job(1), a_job(2, a_need(2)), a_job(3))
    decided = plan(queue, [slot(8, "0", room=2), slot(9, "1", room=2)], TWO, [], Policy(order="age"), 0.0)
    assert list(behind(decided)) == [1]


def test_a_job_that_can_never_run_closes_no_slot() -> None:
    """A job that can never run waits for no device."""
    queue = a_queue(a_job(1, a_need(9)), a_job(2))
    decided = plan(queue, [slot(8, "0", room=1), slot(9, "1")], TWO, [], Policy(), 0.0)
    assert behind(decided) == {2: "k8"}


def test_nothing_is_prefetched_to_a_broken_device() -> None:
    """A job behind an attempt on a lost GPU would only fail there."""
    snapshot = a_snapshot(simulated(24), gpu0=a_reading(problem="GPU is lost"))
    assert plan(a_queue(a_job(1)), [slot(9, "0", room=1)], snapshot, [], Policy(), 0.0).starts == ()


def test_prefetched_jobs_do_not_count_as_running() -> None:
    """A prefetched job runs after another, so it does not count towards the limit."""
    queue = a_queue(*(a_job(number) for number in range(1, 5)))
    slots = [slot(8, "0", room=2), slot(9, "1", room=2)]
    decided = plan(queue, slots, TWO, [], Policy(max_running=2), 0.0)
    assert behind(decided) == {1: "k8", 2: "k9", 3: "k8", 4: "k9"}


def test_no_job_is_prefetched_before_one_that_waits_for_any_end() -> None:
    """A job that waits for the limit of running jobs can start at the end of any attempt."""
    queue = a_queue(a_job(1, a_need(1)), a_job(2, a_need(0)))
    slots = [slot(9, resources=a_need(0), room=2)]
    assert plan(queue, slots, TWO, [], Policy(max_running=1), 0.0).starts == ()


def test_a_reservation_ends_when_its_job_is_prefetched() -> None:
    """The plan keeps nothing free for a job that it starts."""
    decided = plan(a_queue(a_job(1)), [slot(8, "0", room=1), slot(9, "1")], TWO, [], Policy(), 0.0)
    assert decided.reserved is None
