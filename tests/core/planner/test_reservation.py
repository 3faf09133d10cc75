"""A wide job at the head is passed only by jobs that cannot delay it."""

from __future__ import annotations

from stoker.core.planner.plan import plan
from stoker.core.planner.policy import Policy
from stoker.core.planner.reasons import Crowded, KeptFree, NeverFits
from support.build import a_job, a_lease, a_need, a_queue, a_snapshot, declared, simulated, slot, where

FOUR = a_snapshot(declared("0", "1", "2", "3"))
WIDE = a_job(1, a_need(4))
NARROW = a_job(2)
PATIENT = Policy(patience=60.0)


def test_the_devices_that_will_be_open_first_are_reserved() -> None:
    """Open ones, then those whose end is near, then those nobody can tell."""
    slots = [slot(7, "0"), slot(8, "1", until=90.0), slot(9, "2", until=50.0)]
    job = a_job(1, a_need(3))
    reserved = plan(a_queue(job), slots, FOUR, [], PATIENT, 10.0).reserved
    assert reserved is not None
    assert (reserved.job, set(reserved.devices), reserved.moment) == (1, {"1", "2", "3"}, 90.0)


def test_a_job_that_ends_in_time_may_pass() -> None:
    """With a known moment only a time limit proves that nobody is delayed."""
    slots = [slot(9, "0", until=100.0)]
    short, long, unknown = a_job(2, limit=90.0), a_job(2, limit=91.0), a_job(2)
    assert where(plan(a_queue(WIDE, short), slots, FOUR, [], PATIENT, 10.0)) == {2: "1"}
    for job in (long, unknown):
        decided = plan(a_queue(WIDE, job), slots, FOUR, [], PATIENT, 10.0)
        assert where(decided) == {}
        assert decided.reason(job) == KeptFree(1, 4)
        assert decided.reason(WIDE) == Crowded(4, 3, 9)


def test_a_required_device_is_reserved_however_late_it_is_free() -> None:
    """Others that would be free earlier do not stand in for it."""
    pair = a_job(1, a_need(2, required=["0"]))
    reserved = plan(a_queue(pair), [slot(9, "0", until=100.0)], FOUR, [], PATIENT, 10.0).reserved
    assert reserved is not None
    assert (set(reserved.devices), reserved.moment) == ({"0", "1"}, 100.0)


def test_devices_beyond_the_reservation_are_for_everybody() -> None:
    """A job that may use two of four leaves the other two alone."""
    pair = a_job(1, a_need(2, allowed=["0", "3"]))
    decided = plan(a_queue(pair, NARROW, a_job(3)), [slot(9, "0", until=100.0)], FOUR, [], PATIENT, 10.0)
    assert where(decided) == {2: "1", 3: "2"}


def test_what_leaves_room_may_share_a_reserved_device() -> None:
    """A small job goes into a gap that the reserved one cannot use, if both fit once that one can start."""
    card = a_snapshot(simulated(24), at=10.0)
    slots = [slot(8, "0", resources=a_need(gib=12), until=50.0), slot(9, "0", resources=a_need(gib=9), until=90.0)]
    large = a_job(1, a_need(gib=10))
    for gib, starts in ((1, {2: "0"}), (2, {2: "0"}), (2.49, {2: "0"})):
        assert where(plan(a_queue(large, a_job(2, a_need(gib=gib))), slots, card, [], PATIENT, 10.0)) == starts
    tight = a_job(1, a_need(gib=13))
    decided = plan(a_queue(tight, a_job(2, a_need(gib=2))), slots, card, [], PATIENT, 10.0)
    assert where(decided) == {}
    assert decided.reason(a_job(2, a_need(gib=2))) == KeptFree(1, 1)
    two = plan(a_queue(large, a_job(2, a_need(gib=2)), a_job(3, a_need(gib=1))), slots, card, [], PATIENT, 10.0)
    assert where(two) == {2: "0"}
    whole = plan(a_queue(a_job(1), a_job(2, a_need(gib=1))), slots, card, [], PATIENT, 10.0)
    assert where(whole) == {}


def test_unknown_ends_are_waited_for_with_patience() -> None:
    """Others pass freely for a while; then what is free is kept."""
    slots = [slot(9, "0")]
    early = plan(a_queue(WIDE, NARROW), slots, FOUR, [], PATIENT, 59.0)
    assert where(early) == {2: "1"}
    late = plan(a_queue(WIDE, NARROW), slots, FOUR, [], PATIENT, 60.0)
    assert where(late) == {}
    assert late.reason(NARROW) == KeptFree(1, 4)


def test_a_run_that_is_late_is_taken_to_be_late_by_as_much_again() -> None:
    """Meanwhile those may pass that would end by then; whoever is not expected at all counts as half an hour."""
    slots = [slot(9, "0", until=1000.0, since=0.0)]
    for seconds, starts in ((500.0, {2: "1"}), (501.0, {}), (None, {})):
        assert where(plan(a_queue(WIDE, a_job(2, limit=seconds)), slots, FOUR, [], PATIENT, 1500.0)) == starts
    assert where(plan(a_queue(WIDE, NARROW), slots, FOUR, [], PATIENT, 2900.0)) == {2: "1"}


def test_a_run_of_unknown_length_is_taken_to_last_for_half_an_hour() -> None:
    """And for as long again as it is late, after that."""
    slots = [slot(9, "0", since=0.0)]
    for now, seconds, starts in ((600.0, 1200.0, {2: "1"}), (600.0, 1201.0, {}), (2000.0, 200.0, {2: "1"})):
        decided = plan(a_queue(WIDE, a_job(2, limit=seconds)), slots, FOUR, [], PATIENT, now)
        assert where(decided) == starts
        assert decided.reserved is not None
        assert not decided.reserved.sure


def test_guesses_are_believed_for_a_day_for_each_gpu() -> None:
    """Each may go wrong; after that the devices are kept for the job whatever others promise."""
    for days, starts in ((3.9, {2: "1"}), (4.1, {})):
        now = days * 86400.0
        slots = [slot(9, "0", until=now - 3600.0, since=now - 7200.0)]
        assert where(plan(a_queue(WIDE, a_job(2, limit=60.0)), slots, FOUR, [], PATIENT, now)) == starts


def test_nobody_is_said_to_end_first_by_a_guess() -> None:
    """What people are told of ends is what limits and experience tell."""
    assert plan(a_queue(WIDE), [slot(9, "0", since=0.0)], FOUR, [], PATIENT, 10.0).reason(WIDE) == Crowded(4, 3)


def test_all_may_pass_freely() -> None:
    """Without a reservation, for whoever wants to see what that costs."""
    decided = plan(a_queue(WIDE, NARROW), [slot(9, "0")], FOUR, [], Policy(passing="freely"), 6000.0)
    assert (where(decided), decided.reserved) == ({2: "1"}, None)


def test_nobody_may_pass() -> None:
    """The first that finds no devices stops all that need one, but not those that need none or could never run."""
    queue = a_queue(WIDE, NARROW, a_job(3, a_need(0)), a_job(4, a_need(9)))
    decided = plan(queue, [slot(9, "0", until=100.0)], FOUR, [], Policy(passing="never"), 10.0)
    assert where(decided) == {3: ""}
    assert decided.reason(NARROW) == KeptFree(1, 4)
    assert decided.reason(a_job(4, a_need(9))) == NeverFits("needs 9 GPUs; this machine has 4")


def test_only_later_jobs_are_held_back() -> None:
    """A more important job takes what it needs, and leaves the reservation to the first that is blocked."""
    urgent = a_job(3, priority=1)
    decided = plan(a_queue(WIDE, urgent), [slot(9, "0")], FOUR, [], PATIENT, 600.0)
    assert where(decided) == {3: "1"}
    assert decided.reserved is not None
    assert decided.reserved.job == 1


def test_a_start_of_the_same_plan_is_waited_for_too() -> None:
    """The moment of the reservation counts the limit of a job that starts just now."""
    queue = a_queue(a_job(1, limit=40.0), a_job(2, a_need(4)))
    reserved = plan(queue, [], FOUR, [], PATIENT, 10.0).reserved
    assert reserved is not None
    assert reserved.moment == 50.0


def test_nothing_is_kept_for_a_job_that_waits_for_somebody_else() -> None:
    """How long alice stays is hers to say; our GPUs do not stand idle for it."""
    decided = plan(a_queue(WIDE, NARROW), [], FOUR, [a_lease("0")], PATIENT, 600.0)
    assert where(decided) == {2: "1"}
    assert decided.reserved is None


def test_the_reservation_goes_to_the_first_job_it_can_help() -> None:
    """A job that waits for somebody else's device does not use it up."""
    queue = a_queue(a_job(1, a_need(1, allowed=["0"])), a_job(2, a_need(3)), a_job(3))
    decided = plan(queue, [slot(9, "1")], FOUR, [a_lease("0")], PATIENT, 600.0)
    assert where(decided) == {}
    assert decided.reason(a_job(3)) == KeptFree(2, 3)


def test_a_large_sharer_is_not_starved_by_small_ones() -> None:
    """Memory that becomes free on a reserved device is kept as a whole device is."""
    cards = a_snapshot(simulated(24))
    queue = a_queue(a_job(1, a_need(gib=20)), a_job(2, a_need(gib=4)))
    running = [slot(9, "0", resources=a_need(gib=10))]
    assert where(plan(queue, running, cards, [], PATIENT, 59.0)) == {2: "0"}
    assert plan(queue, running, cards, [], PATIENT, 60.0).reason(a_job(2, a_need(gib=4))) == KeptFree(1, 1)


def test_a_device_that_overlaps_a_reserved_one_is_kept_too() -> None:
    """Another word for the same GPU would delay the job as well."""
    snapshot = a_snapshot(declared("0", "0", "1"))
    queue = a_queue(a_job(1, a_need(2)), NARROW)
    decided = plan(queue, [slot(9, "1", until=50.0)], snapshot, [], PATIENT, 10.0)
    assert where(decided) == {}
