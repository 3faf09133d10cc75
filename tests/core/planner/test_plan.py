"""Which jobs the plan starts, where, and in which order."""

from __future__ import annotations

import msgspec
import pytest

from stoker.core.job import Job
from stoker.core.planner.plan import Start, plan
from stoker.core.planner.queue import ReasonKey, WaitingJobs
from stoker.core.planner.reasons import AtLimit, Crowded, Leased, NeverFits
from stoker.core.settings import Policy
from stoker.core.spec import Resources
from support.build import GIB, a_job, a_lease, a_need, a_queue, a_reading, a_snapshot, declared, simulated, slot, where

TWO = a_snapshot(declared("0", "1"))
FOUR = a_snapshot(declared("0", "1", "2", "3"))


# -- order -------------------------------------------------------------------------------------------


def test_the_oldest_jobs_start_first() -> None:
    """Age decides among equals, across groups too."""
    queue = a_queue(a_job(3), a_job(1, a_need(allowed=["1"])), a_job(2), a_job(4))
    assert where(plan(queue, [], TWO, [], Policy(), 0.0)) == {1: "1", 2: "0"}


def test_a_higher_priority_goes_before_age() -> None:
    """A larger number is more important."""
    queue = a_queue(a_job(1), a_job(2, priority=-1), a_job(3, priority=7))
    assert where(plan(queue, [], TWO, [], Policy(), 0.0)) == {3: "0", 1: "1"}


def kinds(*jobs: Job) -> WaitingJobs:
    """The jobs, waiting, each of its own kind: only the head of each group is examined."""
    return a_queue(*(msgspec.structs.replace(job, kind=f"kind {job.id}") for job in jobs))


def test_order_shortest() -> None:
    """Work is time times GPUs; priority goes before it."""
    shortest, busy = Policy(order="shortest"), [slot(9, "0", until=500.0)]
    jobs = [a_job(1, limit=100.0), a_job(2, a_need(2), limit=40.0), a_job(3, limit=90.0)]
    assert where(plan(kinds(*jobs), [], TWO, [], shortest, 0.0)) == {2: "0 1"}
    assert where(plan(kinds(*jobs), busy, TWO, [], shortest, 0.0)) == {3: "1"}
    assert where(plan(kinds(*jobs, a_job(4, priority=1, limit=1000.0)), busy, TWO, [], shortest, 0.0)) == {4: "1"}


def test_short_work_goes_before_long_work_only_if_it_comes_soon() -> None:
    """A job submitted later than another's GPU-seconds after it cannot go first, however short it is."""
    shortest, one = Policy(order="shortest"), a_snapshot(declared("0"))
    for since, first in ((89.0, 2), (91.0, 1)):
        queue = kinds(a_job(1, limit=100.0), a_job(2, limit=10.0, since=since))
        assert where(plan(queue, [], one, [], shortest, 95.0)) == {first: "0"}


def test_work_of_unknown_length_has_its_place_among_the_others() -> None:
    """A job of unknown duration counts as half an hour."""
    shortest, one = Policy(order="shortest"), a_snapshot(declared("0"))
    for limit, first in ((1799.0, 2), (1801.0, 1)):
        queue = kinds(a_job(1), a_job(2, limit=limit))
        assert where(plan(queue, [], one, [], shortest, 0.0)) == {first: "0"}


def test_a_plan_leaves_the_queue_as_it_is() -> None:
    """Planning does not change the queue: planning twice gives the same plan."""
    queue = a_queue(*(a_job(number) for number in range(1, 6)))
    first = plan(queue, [], TWO, [], Policy(), 0.0)
    assert plan(queue, [], TWO, [], Policy(), 0.0) == first
    assert len(queue) == 5


def test_every_job_that_waits_has_a_reason() -> None:
    """A job's reason is its group's; a job that starts has none."""
    jobs = [a_job(1), a_job(2), a_job(3), a_job(4, a_need(9))]
    decided = plan(a_queue(*jobs), [], TWO, [], Policy(), 0.0)
    assert [decided.reason(job) for job in jobs] == [
        None,
        None,
        Crowded(1, 0),
        NeverFits("needs 9 GPUs; this machine has 2"),
    ]


def test_a_group_that_is_used_up_has_no_reason() -> None:
    """Only kinds with waiting jobs are in the plan's waits."""
    assert not plan(a_queue(a_job(1)), [], TWO, [], Policy(), 0.0).waits


def test_a_job_that_can_never_run_blocks_no_other() -> None:
    """It gets its own reason and no reservation."""
    decided = plan(a_queue(a_job(1, a_need(9), priority=9), a_job(2)), [], TWO, [], Policy(patience=0), 0.0)
    assert where(decided) == {2: "0"}
    assert decided.reserved is None


# -- how many ----------------------------------------------------------------------------------------


def test_no_more_run_than_allowed() -> None:
    """Running jobs count, and so do jobs without GPUs."""
    queue = a_queue(a_job(1), a_job(2, a_need(0)), a_job(3))
    decided = plan(queue, [slot(9, "0")], FOUR, [], Policy(max_running=3), 0.0)
    assert [start.job.id for start in decided.starts] == [1, 2]
    assert decided.reason(a_job(3)) == AtLimit(3)


def test_jobs_without_gpus_need_no_device() -> None:
    """They start on a machine where all devices are in use, or that has none."""
    queue = a_queue(a_job(1, a_need(0)), a_job(2, a_need(0)))
    assert where(plan(queue, [], a_snapshot(()), [], Policy(), 0.0)) == {1: "", 2: ""}


def test_never_fits_goes_before_the_limit() -> None:
    """The reason is that it never fits, not the limit."""
    decided = plan(a_queue(a_job(1, a_need(9))), [], TWO, [], Policy(max_running=0), 0.0)
    assert list(decided.waits.items()) == [(ReasonKey(a_need(9), 0), NeverFits("needs 9 GPUs; this machine has 2"))]


def test_where_there_is_no_device_the_reason_is_why() -> None:
    """The reason is why there are no devices, such as a failing driver."""
    nothing = msgspec.structs.replace(a_snapshot(()), note="no GPU found: the driver is not loaded")
    decided = plan(a_queue(a_job(1)), [], nothing, [], Policy(), 0.0)
    assert decided.reason(a_job(1)) == NeverFits("no GPU found: the driver is not loaded")


# -- which devices -----------------------------------------------------------------------------------


def test_allowed_devices_are_the_only_ones() -> None:
    """A job starts only on its allowed devices."""
    queue = a_queue(a_job(1, a_need(2, allowed=["1", "3"])), a_job(2, a_need(allowed=["3"])))
    assert where(plan(queue, [], FOUR, [], Policy(order="age"), 0.0)) == {1: "1 3"}


def test_required_devices_are_waited_for_and_the_others_are_any() -> None:
    """The other devices are chosen in order; without the required one nothing starts, and the reason names it."""
    job = a_job(1, a_need(2, required=["2"]))
    assert where(plan(a_queue(job), [], FOUR, [], Policy(), 0.0)) == {1: "2 0"}
    blocked = plan(a_queue(job), [], FOUR, [a_lease("2")], Policy(), 0.0)
    assert (where(blocked), blocked.reason(job)) == ({}, Leased("2", "alice", "train.py"))
    assert plan(a_queue(job), [], TWO, [], Policy(), 0.0).reason(job) == NeverFits("no device 2; known devices: 0, 1")


def test_preferred_devices_come_first_and_in_their_order() -> None:
    """Other devices fill the rest."""
    queue = a_queue(a_job(1, a_need(3, preferred=["3", "2"])))
    assert where(plan(queue, [], FOUR, [], Policy(), 0.0)) == {1: "3 2 0"}


def test_newest_first_takes_the_last_listed_and_then_the_last_freed() -> None:
    """The order of simple_gpu_scheduler."""
    policy = Policy(newest_first=True)
    queue = a_queue(a_job(1), a_job(2), a_job(3))
    assert where(plan(queue, [], FOUR, [], policy, 9.0)) == {1: "3", 2: "2", 3: "1"}
    assert where(plan(queue, [], FOUR, [], policy, 9.0, {"0": 5.0, "1": 7.0})) == {1: "1", 2: "0", 3: "3"}


def test_near_devices_go_to_one_job() -> None:
    """A job with two GPUs gets two that are near each other."""
    near = {"0": ("2", "1", "3"), "1": ("3", "0", "2"), "2": ("0", "1", "3"), "3": ("1", "0", "2")}
    devices = [msgspec.structs.replace(device, near=near[device.id]) for device in FOUR.devices]
    queue = a_queue(a_job(1, a_need(2)), a_job(2, a_need(2)))
    assert where(plan(queue, [], a_snapshot(devices), [], Policy(), 0.0)) == {1: "0 2", 2: "1 3"}


def test_a_device_listed_twice_takes_two_jobs() -> None:
    """A GPU listed twice takes two jobs; a lease of another engine takes one of the two places."""
    twice = a_snapshot(declared("0", "0"))
    queue = a_queue(a_job(1), a_job(2), a_job(3))
    assert where(plan(queue, [], twice, [], Policy(), 0.0)) == {1: "0", 2: "0#1"}
    assert where(plan(queue, [], twice, [a_lease("0", share=2)], Policy(), 0.0)) == {1: "0"}
    assert where(plan(queue, [], twice, [a_lease("0")], Policy(), 0.0)) == {}
    assert where(plan(queue, [], twice, [a_lease("0", gib=4)], Policy(), 0.0)) == {}


def test_a_slot_without_gpus_takes_one_job() -> None:
    """A slot without GPUs has no ledger name, but takes only one job at a time."""
    bare = msgspec.structs.replace(declared("none")[0], claims=())
    queue = a_queue(a_job(1), a_job(2))
    assert where(plan(queue, [], a_snapshot([bare]), [], Policy(), 0.0)) == {1: "none"}
    assert where(plan(queue, [slot(9, "none")], a_snapshot([bare]), [], Policy(), 0.0)) == {}


# -- packing -----------------------------------------------------------------------------------------


def test_sharing_jobs_go_to_empty_devices_first_and_then_where_they_fit_tightest() -> None:
    """The smallest sufficient device that is empty, and then the smallest sufficient gap."""
    snapshot = a_snapshot(simulated(24, 16, 10))
    jobs = [a_job(1, a_need(gib=9)), a_job(2, a_need(gib=6)), a_job(3, a_need(gib=12)), a_job(4, a_need(gib=5))]
    assert where(plan(a_queue(*jobs), [], snapshot, [], Policy(), 0.0)) == {1: "2", 2: "1", 3: "0", 4: "1"}


def test_sharing_keeps_the_reserve_free() -> None:
    """Two jobs of half a GPU each do not share it, since the reserve stays free."""
    queue = a_queue(a_job(1, a_need(gib=12)), a_job(2, a_need(gib=12)))
    snapshot = a_snapshot(simulated(24))
    assert where(plan(queue, [], snapshot, [], Policy(), 0.0)) == {1: "0"}
    assert where(plan(queue, [], snapshot, [], Policy(reserve=0), 0.0)) == {1: "0", 2: "0"}


def test_a_job_of_the_whole_size_runs_exclusively() -> None:
    """An empty GPU of 24G takes a job that asks for 24G."""
    big = a_need(gib=24)
    snapshot = a_snapshot(simulated(24))
    assert where(plan(a_queue(a_job(1, big)), [], snapshot, [], Policy(), 0.0)) == {1: "0"}
    small = slot(9, "0", resources=a_need(gib=1))
    assert where(plan(a_queue(a_job(1, big)), [small], snapshot, [], Policy(), 0.0)) == {}


@pytest.mark.parametrize(
    ("first", "second"), [(Resources(), a_need(gib=1)), (a_need(gib=1), Resources())], ids=["whole", "part"]
)
def test_exclusive_and_sharing_jobs_do_not_mix(first: Resources, second: Resources) -> None:
    """An exclusive job and sharing jobs never use a device together, whichever came first."""
    snapshot = a_snapshot(simulated(24))
    gib = None if first.memory is None else first.memory / GIB
    queue = a_queue(a_job(1, second))
    assert where(plan(queue, [slot(9, "0", resources=first)], snapshot, [], Policy(), 0.0)) == {}
    assert where(plan(queue, [], snapshot, [a_lease("0", gib=gib)], Policy(), 0.0)) == {}


def test_others_reservations_count_like_ours() -> None:
    """Memory that another engine leased is used; the rest may be shared."""
    queue = a_queue(a_job(1, a_need(gib=10)), a_job(2, a_need(gib=5)))
    snapshot = a_snapshot(simulated(24), gpu0=a_reading(15, "alice"))
    assert where(plan(queue, [], snapshot, [a_lease("0", gib=16)], Policy(), 0.0)) == {2: "0"}


def test_memory_on_a_device_of_unknown_size_means_all_of_it() -> None:
    """Jobs do not share a device of unknown size."""
    queue = a_queue(a_job(1, a_need(gib=1)), a_job(2, a_need(gib=1)))
    assert where(plan(queue, [], a_snapshot(declared("0")), [], Policy(), 0.0)) == {1: "0"}


def test_a_wide_sharing_job_gets_its_part_on_each_device() -> None:
    """A job may use a part of several GPUs."""
    queue = a_queue(a_job(1, a_need(2, gib=10)), a_job(2, a_need(2, gib=10)), a_job(3, a_need(gib=10)))
    decided = plan(queue, [], a_snapshot(simulated(24, 24)), [], Policy(order="age"), 0.0)
    assert where(decided) == {1: "0 1", 2: "0 1"}


def test_memory_beyond_the_reservations_counts_as_used() -> None:
    """Memory beyond the reservations counts as used."""
    running = slot(9, "0", resources=a_need(gib=4))
    queue = a_queue(a_job(1, a_need(gib=10)))
    modest = a_snapshot(simulated(24), gpu0=a_reading(4, "me"))
    greedy = a_snapshot(simulated(24), gpu0=a_reading(18, "me"))
    assert where(plan(queue, [running], modest, [], Policy(), 0.0)) == {1: "0"}
    assert where(plan(queue, [running], greedy, [], Policy(), 0.0)) == {}


# -- speed -------------------------------------------------------------------------------------------


def test_the_plan_looks_at_no_more_jobs_than_it_starts() -> None:
    """The plan reads only the head of each group and the started jobs."""
    seen: list[int] = []

    class Watched(Job, frozen=True):
        """A job that records when the plan reads its id."""

        def __getattribute__(self, name: str) -> object:
            value = super().__getattribute__(name)
            if name == "id" and isinstance(value, int):
                seen.append(value)
            return value

    jobs = [a_job(number) for number in range(1, 1001)]
    queue = a_queue(*(Watched(**msgspec.structs.asdict(job)) for job in jobs))
    seen.clear()
    decided = plan(queue, [slot(9, "0", room=3)], TWO, [], Policy(), 0.0)
    assert len(decided.starts) == 4
    assert max(seen) == 5


def test_a_start_names_job_devices_and_worker() -> None:
    """On an open device `behind` is empty."""
    assert plan(a_queue(a_job(1)), [], TWO, [], Policy(), 0.0).starts == (Start(a_job(1), ("0",), behind=""),)
