"""When a device is open, by readings, leases and our own attempts."""

from __future__ import annotations

from math import inf

from msgspec.structs import replace

from stoker.core.device import Snapshot
from stoker.core.lease import Claim
from stoker.core.planner.occupancy import ANY_NUMBER, NOW, STALE_SECONDS, Occupancy, Slot, claims_on
from stoker.core.planner.plan import Plan, plan
from stoker.core.planner.reasons import Draining, Occupied, Reason, Unusable
from stoker.core.settings import Policy
from stoker.core.spec import Resources
from support.build import GIB, a_job, a_need, a_queue, a_reading, a_snapshot, declared, simulated, slot, where

CARD = simulated(24)
COUNT = Policy(strangers="count")


def decide(snapshot: Snapshot, policy: Policy | None = None, freed: float | None = None, **resources: float) -> Plan:
    """The plan for one job on a machine with one device."""
    queue = a_queue(a_job(1, a_need(gib=resources.get("gib"))))
    return plan(queue, [], snapshot, [], policy or Policy(), 20.0, {} if freed is None else {"0": freed})


def reason(decided: Plan) -> Reason:
    """The only reason in the plan."""
    ((_, only),) = decided.waits.items()
    return only


def test_an_idle_device_may_show_a_little_memory_as_used() -> None:
    """Memory of the driver itself is not a foreign process."""
    assert where(decide(a_snapshot(CARD, gpu0=a_reading(0.25)))) == {1: "0"}


def test_a_device_with_a_problem_is_unusable() -> None:
    """The reason shows the problem as the probe reports it."""
    decided = decide(a_snapshot(CARD, gpu0=a_reading(problem="GPU is lost")))
    assert reason(decided) == Unusable("0", "GPU is lost")


def test_a_declared_device_may_have_a_problem() -> None:
    """A declared device has no readings, but may have a problem."""
    decided = decide(a_snapshot(declared("0"), gpu0=a_reading(problem="marked unavailable")))
    assert (where(decided), reason(decided)) == ({}, Unusable("0", "marked unavailable"))


def test_a_device_without_a_reading_is_not_free() -> None:
    """A missing reading means unknown, never free; declared devices have none."""
    assert reason(decide(Snapshot(0.0, CARD))) == Unusable("0", "its state could not be read")
    assert where(decide(Snapshot(0.0, declared("0")))) == {1: "0"}


def test_a_device_drains_until_it_was_seen_after_its_last_job() -> None:
    """A reading from before the end of the last job does not count."""
    assert reason(decide(a_snapshot(CARD, at=10.0), freed=10.0)) == Draining("0")
    assert where(decide(a_snapshot(CARD, at=10.1), freed=10.0)) == {1: "0"}


def test_memory_that_our_last_job_left_behind_drains() -> None:
    """Memory without a process after our own job: the driver has not freed it yet."""
    assert reason(decide(a_snapshot(CARD, at=11.0, gpu0=a_reading(3)), freed=10.0)) == Draining("0")


def test_memory_that_does_not_come_back_closes_the_device() -> None:
    """After a minute the device is unusable until the memory is free."""
    stuck = a_reading(18)
    assert reason(decide(a_snapshot(CARD, at=69.9, gpu0=stuck), freed=10.0)) == Draining("0")
    closed = Unusable("0", "18.0G still in use, but no process is visible")
    assert reason(decide(a_snapshot(CARD, at=70.0, gpu0=stuck), freed=10.0)) == closed
    assert reason(decide(a_snapshot(CARD, at=15.0, gpu0=stuck), Policy(quarantine=5.0), freed=10.0)) == closed
    assert where(decide(a_snapshot(CARD, at=71.0), freed=10.0)) == {1: "0"}


def test_a_process_explains_the_memory() -> None:
    """Where a process is visible, the memory is taken to be its own."""
    crowd = a_snapshot(CARD, at=90.0, gpu0=a_reading(18, "bob"))
    assert reason(decide(crowd, freed=10.0)) == Occupied("0", "bob", 18 * GIB)


def test_foreign_processes_are_avoided() -> None:
    """Foreign processes or memory block a device; the reason names the owners where known."""
    assert reason(decide(a_snapshot(CARD, gpu0=a_reading(3)))) == Occupied("0", "an unknown user", 3 * GIB)
    crowd = a_snapshot(CARD, gpu0=a_reading(0, "bob", "alice", "bob"))
    assert reason(decide(crowd)) == Occupied("0", "alice, bob", 0)


def test_foreign_memory_can_be_counted_instead() -> None:
    """With `count`, sharing jobs get the rest, the reason names the owner, and exclusive jobs start beside them."""
    snapshot = a_snapshot(CARD, gpu0=a_reading(10, "bob"))
    assert where(decide(snapshot, COUNT, gib=13)) == {1: "0"}
    assert reason(decide(snapshot, COUNT, gib=14)) == Occupied("0", "bob", 10 * GIB)
    assert where(decide(snapshot, COUNT)) == {1: "0"}


def test_processes_on_a_device_of_ours_are_not_foreign() -> None:
    """Processes on a device with an attempt of ours count as part of it."""
    snapshot = a_snapshot(CARD, gpu0=a_reading(4, "me"))
    queue = a_queue(a_job(1, a_need(gib=4)))
    decided = plan(queue, [slot(9, "0", resources=a_need(gib=4))], snapshot, [], Policy(), 0.0)
    assert where(decided) == {1: "0"}


def test_the_share_of_an_exclusive_claim() -> None:
    """A device listed twice allows two leases; a sharing claim is limited only by memory."""
    assert claims_on(declared("0", "0")[0], Resources()) == (Claim("0", share=2),)
    assert claims_on(CARD[0], a_need(gib=1)) == (Claim("0", GIB, ANY_NUMBER),)
    assert claims_on(declared("0")[0], a_need(gib=1)) == (Claim("0"),)


def ready(resources: Resources, *slots: Slot, used_gib: float = 0.0) -> float | None:
    """When the only device will be open for these resources, at time 20."""
    snapshot = a_snapshot(CARD, gpu0=a_reading(used_gib))
    occupancy = Occupancy(slots, snapshot, [], policy=Policy(), now=20.0, freed={})
    return occupancy.ready(occupancy.views[0], resources)


def test_a_device_is_ready_when_enough_sharing_jobs_have_ended() -> None:
    """The first end that makes enough room counts; an overdue end is expected now."""
    small, large = a_need(gib=4), a_need(gib=12)
    held = [slot(7, "0", resources=large, until=50.0), slot(8, "0", resources=small, until=30.0)]
    assert ready(small, *held) == NOW
    assert ready(a_need(gib=10), *held) == 30.0
    assert ready(large, *held) == 50.0
    assert ready(Resources(), *held) == 50.0
    assert ready(Resources(), slot(7, "0", until=10.0)) == 20.0
    assert ready(Resources(), slot(7, "0")) == inf


def test_memory_beyond_a_reservation_is_freed_at_the_end() -> None:
    """Memory beyond a reservation is used while the attempt runs, and free after it."""
    greedy = slot(7, "0", resources=a_need(gib=4), until=30.0)
    assert ready(a_need(gib=10), greedy, used_gib=4) == NOW
    assert ready(a_need(gib=10), greedy, used_gib=18) == 30.0
    assert ready(a_need(gib=10), slot(7, "0", until=40.0), used_gib=18) == 40.0


def stale(gib: float = 0.6, seconds: float = STALE_SECONDS, owner: str = "bob") -> Snapshot:
    """A card on which a foreign process has been still for so long."""
    return a_snapshot(CARD, at=1000.0, gpu0=replace(a_reading(gib, owner), still_since=1000.0 - seconds))


def test_a_small_stale_process_blocks_only_whole_cards() -> None:
    """Jobs with a reservation share the card with it; for others the reason names its owner."""
    assert where(decide(stale(), gib=20)) == {1: "0"}
    assert reason(decide(stale(), gib=23.5)) == Occupied("0", "bob", int(0.6 * GIB))
    assert reason(decide(stale())) == Occupied("0", "bob", int(0.6 * GIB), stale=True)


def test_a_foreign_process_is_not_stale() -> None:
    """When it has moved lately, or holds as much as a server does."""
    for snapshot in (stale(seconds=STALE_SECONDS - 1), stale(gib=3.1), a_snapshot(CARD, gpu0=a_reading(0.6, "bob"))):
        assert isinstance(reason(decide(snapshot, gib=1)), Occupied)


def test_an_empty_card_goes_before_a_stale_one() -> None:
    """And a stale one before those with jobs."""
    cards = simulated(24, 24, 24)
    readings = {"gpu0": a_reading(4), "gpu1": stale().reading("0"), "gpu2": a_reading(0)}
    snapshot = a_snapshot(cards, at=1000.0, **readings)
    running = slot(9, "0", resources=a_need(gib=4))
    queue = a_queue(*(a_job(number, a_need(gib=4)) for number in (1, 2)))
    assert where(plan(queue, [running], snapshot, [], Policy(), 1000.0)) == {1: "2", 2: "1"}


def test_jobs_of_unknown_load_are_spread() -> None:
    """Six jobs on four empty cards: no card gets a third before all have two."""
    queue = a_queue(*(a_job(number, a_need(gib=6)) for number in range(1, 7)))
    decided = plan(queue, [], a_snapshot(simulated(24, 24, 24, 24)), [], Policy(), 0.0)
    assert sorted(where(decided).values()) == ["0", "0", "1", "1", "2", "3"]
