"""Only jobs that cannot delay a blocked job pass it."""

from __future__ import annotations

from stoker.core.planner.plan import plan
from stoker.core.planner.reasons import Crowded, KeptFree, NeverFits
from stoker.core.settings import Policy
from support.build import a_job, a_lease, a_need, a_queue, a_snapshot, declared, simulated, slot, where

FOUR = a_snapshot(declared("0", "1", "2", "3"))
WIDE = a_job(1, a_need(4))
NARROW = a_job(2)
PATIENT = Policy(order="age", patience=60.0)


def test_the_devices_that_will_be_open_first_are_reserved() -> None:
    """First open devices, then those with the nearest end, then those of unknown end."""
    slots = [slot(7, "0"), slot(8, "1", until=90.0), slot(9, "2", until=50.0)]
    job = a_job(1, a_need(3))
    reserved = plan(a_queue(job), slots, FOUR, [], PATIENT, 10.0).reserved
    assert reserved is not None
    assert (reserved.job, set(reserved.devices), reserved.moment) == (1, {"1", "2", "3"}, 90.0)


def test_a_job_that_ends_in_time_may_pass() -> None:
    """With a known moment, only a job with a time limit may pass."""
    slots = [slot(9, "0", until=100.0)]
    short, long, unknown = a_job(2, limit=90.0), a_job(2, limit=91.0), a_job(2)
    assert where(plan(a_queue(WIDE, short), slots, FOUR, [], PATIENT, 10.0)) == {2: "1"}
    for job in (long, unknown):
        decided = plan(a_queue(WIDE, job), slots, FOUR, [], PATIENT, 10.0)
        assert where(decided) == {}
        assert decided.reason(job) == KeptFree(1, 4, 100.0)
        assert decided.reason(WIDE) == Crowded(4, 3, 9)


def test_a_required_device_is_reserved_however_late_it_is_free() -> None:
    """Devices that are free earlier do not replace it."""
    pair = a_job(1, a_need(2, required=["0"]))
    reserved = plan(a_queue(pair), [slot(9, "0", until=100.0)], FOUR, [], PATIENT, 10.0).reserved
    assert reserved is not None
    assert (set(reserved.devices), reserved.moment) == ({"0", "1"}, 100.0)


def test_devices_beyond_the_reservation_are_free() -> None:
    """Devices outside of the reservation are free for other jobs."""
    pair = a_job(1, a_need(2, allowed=["0", "3"]))
    decided = plan(a_queue(pair, NARROW, a_job(3)), [slot(9, "0", until=100.0)], FOUR, [], PATIENT, 10.0)
    assert where(decided) == {2: "1", 3: "2"}


def test_a_job_that_leaves_room_may_share_a_reserved_device() -> None:
    """A small job may share a reserved device if both fit once the reserved job can start."""
    card = a_snapshot(simulated(24), at=10.0)
    slots = [slot(8, "0", resources=a_need(gib=12), until=50.0), slot(9, "0", resources=a_need(gib=9), until=90.0)]
    large = a_job(1, a_need(gib=10))
    for gib, starts in ((1, {2: "0"}), (2, {2: "0"}), (2.49, {2: "0"})):
        assert where(plan(a_queue(large, a_job(2, a_need(gib=gib))), slots, card, [], PATIENT, 10.0)) == starts
    tight = a_job(1, a_need(gib=13))
    decided = plan(a_queue(tight, a_job(2, a_need(gib=2))), slots, card, [], PATIENT, 10.0)
    assert where(decided) == {}
    assert decided.reason(a_job(2, a_need(gib=2))) == KeptFree(1, 1, 50.0)
    two = plan(a_queue(large, a_job(2, a_need(gib=2)), a_job(3, a_need(gib=1))), slots, card, [], PATIENT, 10.0)
    assert where(two) == {2: "0"}
    whole = plan(a_queue(a_job(1), a_job(2, a_need(gib=1))), slots, card, [], PATIENT, 10.0)
    assert where(whole) == {}


def test_unknown_ends_are_waited_for_with_patience() -> None:
    """Other jobs pass during the patience; then free devices are reserved."""
    slots = [slot(9, "0")]
    early = plan(a_queue(WIDE, NARROW), slots, FOUR, [], PATIENT, 59.0)
    assert where(early) == {2: "1"}
    late = plan(a_queue(WIDE, NARROW), slots, FOUR, [], PATIENT, 60.0)
    assert where(late) == {}
    assert late.reason(NARROW) == KeptFree(1, 4)


def test_a_late_run_is_expected_to_be_late_by_as_much_again() -> None:
    """Jobs that would end by then may pass; a job of unknown duration counts as half an hour."""
    slots = [slot(9, "0", until=1000.0, since=0.0)]
    for seconds, starts in ((500.0, {2: "1"}), (501.0, {}), (None, {})):
        assert where(plan(a_queue(WIDE, a_job(2, limit=seconds)), slots, FOUR, [], PATIENT, 1500.0)) == starts
    assert where(plan(a_queue(WIDE, NARROW), slots, FOUR, [], PATIENT, 2900.0)) == {2: "1"}


def test_a_run_of_unknown_length_counts_as_half_an_hour() -> None:
    """After that it is expected to be late by as much again."""
    slots = [slot(9, "0", since=0.0)]
    for now, seconds, starts in ((600.0, 1200.0, {2: "1"}), (600.0, 1201.0, {}), (2000.0, 200.0, {2: "1"})):
        decided = plan(a_queue(WIDE, a_job(2, limit=seconds)), slots, FOUR, [], PATIENT, now)
        assert where(decided) == starts
        assert decided.reserved is not None
        assert not decided.reserved.sure


def test_guesses_are_believed_for_a_day_for_each_gpu() -> None:
    """After a day per GPU the devices are kept for the job, whatever the guess says."""
    for days, starts in ((3.9, {2: "1"}), (4.1, {})):
        now = days * 86400.0
        slots = [slot(9, "0", until=now - 3600.0, since=now - 7200.0)]
        assert where(plan(a_queue(WIDE, a_job(2, limit=60.0)), slots, FOUR, [], PATIENT, now)) == starts


def test_guesses_are_not_named_as_first_end() -> None:
    """Reasons name only ends that limits and history tell."""
    assert plan(a_queue(WIDE), [slot(9, "0", since=0.0)], FOUR, [], PATIENT, 10.0).reason(WIDE) == Crowded(4, 3)


def test_all_may_pass_freely() -> None:
    """With passing "freely" there is no reservation."""
    decided = plan(a_queue(WIDE, NARROW), [slot(9, "0")], FOUR, [], Policy(order="age", passing="freely"), 6000.0)
    assert (where(decided), decided.reserved) == ({2: "1"}, None)


def test_no_job_may_pass() -> None:
    """The first blocked job stops all that need devices, but not those that need none or never fit."""
    queue = a_queue(WIDE, NARROW, a_job(3, a_need(0)), a_job(4, a_need(9)))
    decided = plan(queue, [slot(9, "0", until=100.0)], FOUR, [], Policy(order="age", passing="never"), 10.0)
    assert where(decided) == {3: ""}
    assert decided.reason(NARROW) == KeptFree(1, 4)
    assert decided.reason(a_job(4, a_need(9))) == NeverFits("needs 9 GPUs; this machine has 4")


def test_only_later_jobs_are_held_back() -> None:
    """A job of higher priority starts; the reservation belongs to the first blocked job."""
    urgent = a_job(3, priority=1)
    decided = plan(a_queue(WIDE, urgent), [slot(9, "0")], FOUR, [], PATIENT, 600.0)
    assert where(decided) == {3: "1"}
    assert decided.reserved is not None
    assert decided.reserved.job == 1


def test_a_start_of_the_same_plan_is_waited_for_too() -> None:
    """The moment of a reservation includes jobs that start in the same plan."""
    queue = a_queue(a_job(1, limit=40.0), a_job(2, a_need(4)))
    reserved = plan(queue, [], FOUR, [], PATIENT, 10.0).reserved
    assert reserved is not None
    assert reserved.moment == 50.0


def test_nothing_is_reserved_for_a_job_that_waits_for_others() -> None:
    """The end of alice's lease is unknown, so no GPU is kept idle for it."""
    decided = plan(a_queue(WIDE, NARROW), [], FOUR, [a_lease("0")], PATIENT, 600.0)
    assert where(decided) == {2: "1"}
    assert decided.reserved is None


def test_the_reservation_goes_to_the_first_job_it_can_help() -> None:
    """A job that waits for another user's device gets no reservation."""
    queue = a_queue(a_job(1, a_need(1, allowed=["0"])), a_job(2, a_need(3)), a_job(3))
    decided = plan(queue, [slot(9, "1")], FOUR, [a_lease("0")], PATIENT, 600.0)
    assert where(decided) == {}
    assert decided.reason(a_job(3)) == KeptFree(2, 3)


def test_a_large_sharing_job_is_not_starved_by_small_ones() -> None:
    """Free memory on a reserved device is kept for the reserved job."""
    cards = a_snapshot(simulated(24))
    queue = a_queue(a_job(1, a_need(gib=20)), a_job(2, a_need(gib=4)))
    running = [slot(9, "0", resources=a_need(gib=10))]
    assert where(plan(queue, running, cards, [], PATIENT, 59.0)) == {2: "0"}
    assert plan(queue, running, cards, [], PATIENT, 60.0).reason(a_job(2, a_need(gib=4))) == KeptFree(1, 1)


def test_a_device_that_overlaps_a_reserved_one_is_kept_too() -> None:
    """Another name of the same GPU would delay the job, too."""
    snapshot = a_snapshot(declared("0", "0", "1"))
    queue = a_queue(a_job(1, a_need(2)), NARROW)
    decided = plan(queue, [slot(9, "1", until=50.0)], snapshot, [], PATIENT, 10.0)
    assert where(decided) == {}
