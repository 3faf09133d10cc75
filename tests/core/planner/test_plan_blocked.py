"""Of all that keeps a job waiting, the plan tells what helps most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stoker.core.device import Snapshot
from stoker.core.lease import Lease
from stoker.core.planner.occupancy import Slot
from stoker.core.planner.plan import plan
from stoker.core.planner.policy import Policy
from stoker.core.planner.reasons import Crowded, Leased, MemoryShort, Occupied, Reason
from stoker.core.spec import Resources
from support.build import GIB, a_job, a_lease, a_need, a_queue, a_reading, a_snapshot, declared, simulated, slot

NOBODY: Sequence[Slot] = ()
FREE: Sequence[Lease] = ()


def reason(
    resources: Resources,
    snapshot: Snapshot,
    slots: Sequence[Slot] = NOBODY,
    leases: Sequence[Lease] = FREE,
    freed: Mapping[str, float] | None = None,
) -> Reason | None:
    """Why a job with this need waits."""
    job = a_job(1, resources)
    return plan(a_queue(job), slots, snapshot, leases, Policy(), 10.0, freed or {}).reason(job)


TWO = a_snapshot(declared("0", "1"))
CARDS = a_snapshot(simulated(24, 24), at=10.0)


def test_a_full_machine_is_crowded_and_tells_who_ends_first() -> None:
    """The smallest known end is named."""
    slots = [slot(7, "0", until=90.0), slot(8, "1", until=30.0)]
    assert reason(a_need(1), TWO, slots) == Crowded(1, 0, 8)


def test_nobody_ends_first_when_nobody_knows() -> None:
    """An end that cannot be told is not guessed."""
    assert reason(a_need(2), TWO, [slot(7, "0")]) == Crowded(2, 1, None)


def test_devices_that_share_a_claim_are_counted_once() -> None:
    """Two words for one GPU are not two free GPUs."""
    snapshot = a_snapshot(declared("0", "0", "1"))
    assert reason(a_need(2), snapshot, [slot(7, "1")]) == Crowded(2, 1, None)


def test_too_little_memory_names_the_roomiest_device() -> None:
    """The job sees what is missing and where least is missing."""
    slots = [slot(7, "0", resources=a_need(gib=20)), slot(8, "1", resources=a_need(gib=12), until=50.0)]
    most_free = 12 * GIB - Policy().reserve
    assert reason(a_need(gib=16), CARDS, slots) == MemoryShort(16 * GIB, most_free, "1", 8)


def test_a_sharer_on_a_full_machine_is_crowded() -> None:
    """Where everything is held whole, the number of GPUs says more than "0 bytes free"."""
    assert reason(a_need(gib=1), CARDS, [slot(7, "0"), slot(8, "1")]) == Crowded(1, 0, None)


def test_one_that_would_share_is_told_why_it_does_not() -> None:
    """There is memory enough for it, but nobody knows that: it has a GPU to itself this once."""
    slots = [slot(7, "0", resources=a_need(gib=2)), slot(8, "1", resources=a_need(gib=2))]
    assert reason(Resources(auto=True), CARDS, slots) == Crowded(1, 0, None, unmeasured=True)
    assert reason(Resources(auto=True), TWO, [slot(7, "0"), slot(8, "1")]) == Crowded(1, 0, None)


def test_a_lease_of_somebody_else_is_told_with_the_name() -> None:
    """When no job of ours could make room, the person to ask is named."""
    leases = [a_lease("0"), a_lease("1", owner="bob")]
    assert reason(a_need(1), TWO, leases=leases) == Leased("0", "alice", "train.py")


def test_a_lease_of_a_part_is_told_with_what_is_short() -> None:
    """Where others have a part of a GPU, its owner sees memory free: what is missing is said, and beside whom."""
    card, mine = a_snapshot(simulated(24), at=10.0), [slot(7, "0", resources=a_need(gib=1), until=20.0)]
    short = MemoryShort(20 * GIB, 16 * GIB - Policy().reserve, "0")
    blamed = Leased("0", "alice", "train.py", short=short)
    assert reason(a_need(gib=20), card, mine, [a_lease("0", gib=7)]) == blamed
    assert reason(a_need(gib=20), card, leases=[a_lease("0")]) == Leased("0", "alice", "train.py")
    assert reason(a_need(), card, leases=[a_lease("0", gib=7)]) == Leased("0", "alice", "train.py")


def test_a_lease_counts_when_our_own_jobs_are_not_enough() -> None:
    """Needs 2, we hold one and alice the other: only alice can help."""
    assert reason(a_need(2), TWO, [slot(7, "0")], [a_lease("1")]) == Leased("1", "alice", "train.py")


def test_our_own_job_is_told_when_its_end_will_do() -> None:
    """Needs 1: the end of our job is enough, so alice is not blamed."""
    assert reason(a_need(1), TWO, [slot(7, "0", until=20.0)], [a_lease("1")]) == Crowded(1, 0, 7)


def test_a_lease_goes_before_a_stranger() -> None:
    """An announced holder is more use than an unannounced one."""
    snapshot = a_snapshot(simulated(24, 24), at=10.0, gpu0=a_reading(5, "bob"))
    assert reason(a_need(2), snapshot, leases=[a_lease("1")]) == Leased("1", "alice", "train.py")
    assert reason(a_need(1, allowed=["0"]), snapshot) == Occupied("0", "bob", 5 * GIB)


def test_somebody_who_holds_all() -> None:
    """One who holds several devices is told with their number, not as if the others were free."""
    assert reason(a_need(1), TWO, leases=[a_lease("0"), a_lease("1")]) == Leased("0", "alice", "train.py", 2)
