"""The plan gives the most useful reason for waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from stoker.core.device import Snapshot
from stoker.core.lease import Lease
from stoker.core.planner.occupancy import Slot
from stoker.core.planner.plan import plan
from stoker.core.planner.reasons import Crowded, Leased, MemoryShort, Occupied, Reason, sentence
from stoker.core.settings import Policy
from stoker.core.spec import Resources
from support.build import GIB, a_job, a_lease, a_need, a_queue, a_reading, a_snapshot, declared, simulated, slot

NO_SLOTS: Sequence[Slot] = ()
FREE: Sequence[Lease] = ()


def reason(
    resources: Resources,
    snapshot: Snapshot,
    slots: Sequence[Slot] = NO_SLOTS,
    leases: Sequence[Lease] = FREE,
    freed: Mapping[str, float] | None = None,
) -> Reason | None:
    """Why a job with these resources waits."""
    job = a_job(1, resources)
    return plan(a_queue(job), slots, snapshot, leases, Policy(), 10.0, freed or {}).reason(job)


TWO = a_snapshot(declared("0", "1"))
CARDS = a_snapshot(simulated(24, 24), at=10.0)


def test_a_full_machine_is_crowded_and_names_the_first_end() -> None:
    """The reason names the job with the smallest known end."""
    slots = [slot(7, "0", until=90.0), slot(8, "1", until=30.0)]
    assert reason(a_need(1), TWO, slots) == Crowded(1, 0, 8)


def test_unknown_ends_are_not_named() -> None:
    """An unknown end is not guessed."""
    assert reason(a_need(2), TWO, [slot(7, "0")]) == Crowded(2, 1, None)


def test_devices_that_share_a_claim_are_counted_once() -> None:
    """Two names of one GPU are one free GPU."""
    snapshot = a_snapshot(declared("0", "0", "1"))
    assert reason(a_need(2), snapshot, [slot(7, "1")]) == Crowded(2, 1, None)


def test_too_little_memory_names_the_roomiest_device() -> None:
    """The reason names the device where least memory is missing."""
    slots = [slot(7, "0", resources=a_need(gib=20)), slot(8, "1", resources=a_need(gib=12), until=50.0)]
    most_free = 12 * GIB - Policy().reserve
    assert reason(a_need(gib=16), CARDS, slots) == MemoryShort(16 * GIB, most_free, "1", 8)


def test_a_sharing_job_on_a_full_machine_is_crowded() -> None:
    """Where all devices are held exclusively, the reason is the number of GPUs, not 0 free bytes."""
    assert reason(a_need(gib=1), CARDS, [slot(7, "0"), slot(8, "1")]) == Crowded(1, 0, None)


def test_an_unmeasured_job_needs_an_exclusive_gpu() -> None:
    """A job of unknown memory needs an exclusive GPU for its first run."""
    slots = [slot(7, "0", resources=a_need(gib=2)), slot(8, "1", resources=a_need(gib=2))]
    assert reason(Resources(auto=True), CARDS, slots) == Crowded(1, 0, None, unmeasured=True)
    assert reason(Resources(auto=True), TWO, [slot(7, "0"), slot(8, "1")]) == Crowded(1, 0, None)


def test_a_lease_is_named_with_its_owner() -> None:
    """When no end of our own jobs would help, the reason names the lease owner."""
    leases = [a_lease("0"), a_lease("1", owner="bob")]
    owners = (("alice", 1), ("bob", 1))
    assert reason(a_need(1), TWO, leases=leases) == Leased("0", "alice", "train.py", gpus=2, owners=owners)


def test_the_first_end_of_leases_is_told() -> None:
    """Of a GPU that several share, the last end; none if one of them has no limit."""
    leases = [replace(a_lease("0"), until=90.0), replace(a_lease("1", owner="bob"), until=50.0)]
    blamed = reason(a_need(1), TWO, leases=leases)
    assert isinstance(blamed, Leased)
    assert sentence(blamed) == "2 GPUs are held by alice (1), bob (1); the first is free by 50.0 at the latest"
    card, part = a_snapshot(simulated(24), at=10.0), replace(a_lease("0", gib=7), until=50.0)
    for other, until in ((90.0, 90.0), (None, None)):
        blamed = reason(a_need(1), card, leases=[part, replace(a_lease("0", gib=7), until=other)])
        assert isinstance(blamed, Leased)
        assert blamed.until == until


def test_a_lease_of_a_part_is_named_with_what_is_short() -> None:
    """Beside a lease on a part of a GPU, the reason names what is missing and the owner."""
    card, mine = a_snapshot(simulated(24), at=10.0), [slot(7, "0", resources=a_need(gib=1), until=20.0)]
    short = MemoryShort(20 * GIB, 16 * GIB - Policy().reserve, "0")
    blamed = Leased("0", "alice", "train.py", short=short)
    assert reason(a_need(gib=20), card, mine, [a_lease("0", gib=7)]) == blamed
    assert reason(a_need(gib=20), card, leases=[a_lease("0")]) == Leased("0", "alice", "train.py")
    assert reason(a_need(), card, leases=[a_lease("0", gib=7)]) == Leased("0", "alice", "train.py")


def test_a_lease_counts_when_our_own_jobs_are_not_enough() -> None:
    """The job needs 2 GPUs, we hold one and alice the other: only alice can help."""
    assert reason(a_need(2), TWO, [slot(7, "0")], [a_lease("1")]) == Leased("1", "alice", "train.py")


def test_our_own_job_is_named_when_its_end_is_enough() -> None:
    """The job needs 1 GPU: the end of our job is enough, so alice is not named."""
    assert reason(a_need(1), TWO, [slot(7, "0", until=20.0)], [a_lease("1")]) == Crowded(1, 0, 7)


def test_a_lease_goes_before_a_foreign_process() -> None:
    """A lease is a more useful reason than a foreign process."""
    snapshot = a_snapshot(simulated(24, 24), at=10.0, gpu0=a_reading(5, "bob"))
    assert reason(a_need(2), snapshot, leases=[a_lease("1")]) == Leased("1", "alice", "train.py")
    assert reason(a_need(1, allowed=["0"]), snapshot) == Occupied("0", "bob", 5 * GIB)


def test_an_owner_of_several_devices() -> None:
    """The reason counts the devices of a lease owner."""
    assert reason(a_need(1), TWO, leases=[a_lease("0"), a_lease("1")]) == Leased("0", "alice", "train.py", 2)
