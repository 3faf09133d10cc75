"""Workers with devices and leases: opened, reused, recalled, closed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.device import Device
from stoker.core.errors import StokerError
from stoker.core.job import Job, Running
from stoker.core.lease import Claim
from stoker.core.spec import Resources
from stoker.ledger import Ledger, prepare_ledger
from stoker.sites.machine.allocations import (
    AHEAD_LIMIT,
    AHEAD_SECONDS,
    INTERVAL,
    OVERDUE,
    TOLD_SECONDS,
    Allocation,
    Allocations,
    LeaseCheck,
)
from support.build import GIB, a_job, declared, simulated
from support.fakes import START, FakeRunner
from support.ledger_files import GOOD, lease_name, planted

ONE = Resources()
HALF = Resources(memory=10 * GIB)
NAMED = declared("0", "1")
GPUS = simulated(24, 24)


class Yard:
    """Allocations on a fake runner and a real ledger."""

    def __init__(self, directory: Path) -> None:
        self.runner = FakeRunner()
        self.ledger = Ledger(prepare_ledger(directory / "ledger"))
        self.allocations = Allocations(self.runner, self.ledger, "label", lambda _: 60.0)
        self.jobs: dict[int, Job] = {}

    def open(self, *devices: Device, resources: Resources = ONE, job: int = 0) -> Allocation | None:
        """An allocation, busy with a job if one is given."""
        allocation = self.allocations.open(resources, devices, START)
        if allocation is not None and job:
            self.jobs[job] = a_job(job, resources, state=Running(1, allocation.worker, ("0",), START))
            allocation.take(job, START)
        return allocation

    def busy(self, *devices: Device, resources: Resources = ONE, job: int = 1) -> Allocation:
        allocation = self.open(*devices, resources=resources, job=job)
        assert allocation is not None
        return allocation

    @property
    def leased(self) -> list[str]:
        """Names of the devices that the ledger shows as leased."""
        return sorted(claim.name for lease in self.ledger.live().leases.values() for claim in lease.claims)


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    made = Yard(tmp_path)
    yield made
    made.runner.close()


class TestOpening:
    """A worker gets a lease on devices."""

    def test_a_worker_holds_the_lease(self, yard: Yard) -> None:
        """It is in the ledger, and the worker has its descriptor."""
        allocation = yard.busy(*NAMED)
        assert yard.leased == ["0", "1"]
        assert yard.runner.called("give_lease") == [[allocation.worker, allocation.lease]]
        assert yard.allocations.leases == {Path(allocation.lease).name}

    def test_a_device_of_another_engine_is_refused(self, yard: Yard) -> None:
        """No worker is started for it."""
        held = yard.ledger.claim((Claim("0"),), "other", START)
        assert held is not None
        assert yard.open(NAMED[0]) is None
        assert not yard.runner.calls
        yard.ledger.release(held)

    def test_no_lease_without_a_worker(self, yard: Yard) -> None:
        """Where none can be started, the device is free for others."""
        yard.runner.fails = StokerError("no processes", "close some")
        with pytest.raises(StokerError):
            yard.open(NAMED[0])
        assert yard.leased == []

    def test_slots_without_a_claim_need_no_lease(self, yard: Yard) -> None:
        """As jobs without GPUs."""
        allocation = yard.open()
        assert allocation is not None
        assert (allocation.lease, yard.leased) == ("", [])

    def test_an_idle_allocation_is_used_again(self, yard: Yard) -> None:
        """With its lease, if that covers the next job."""
        first = yard.busy(NAMED[0])
        first.finish(1, START)
        assert yard.open(NAMED[0]) is first
        assert len(yard.runner.called("start_worker")) == 1

    def test_a_worker_with_a_full_journal_is_replaced(self, yard: Yard) -> None:
        """By a fresh one."""
        first = yard.busy(NAMED[0])
        first.finish(1, START)
        yard.runner.full.add(first.worker)
        second = yard.open(NAMED[0])
        assert second is not None
        assert second.worker != first.worker
        assert yard.runner.called("stop_worker") == [[first.worker]]

    def test_an_idle_worker_is_used_for_other_devices(self, yard: Yard) -> None:
        """Under a new lease."""
        first = yard.busy(NAMED[0])
        first.finish(1, START)
        yard.allocations.close_idle()
        assert yard.leased == []
        second = yard.open(NAMED[1])
        assert second is not None
        assert (second.worker, yard.leased) == (first.worker, ["1"])

    def test_idle_leases_make_way(self, yard: Yard) -> None:
        """An idle lease of ours does not keep a wider job from its devices."""
        first = yard.busy(NAMED[0])
        first.finish(1, START)
        assert yard.open(*NAMED) is not None
        assert yard.leased == ["0", "1"]


class TestClosing:
    """Idle allocations go, busy ones stay."""

    def test_only_idle_ones_are_closed(self, yard: Yard) -> None:
        """The lease of a running job stays."""
        yard.busy(NAMED[0])
        yard.open(NAMED[1])
        yard.allocations.close_idle()
        assert yard.leased == ["0"]

    def test_an_adopted_worker_is_not_used_again(self, yard: Yard) -> None:
        """It inherited the streams of another engine."""
        yard.allocations.occupy(Allocation("old", ONE, NAMED[:1], adopted=True))
        yard.allocations.close_idle()
        assert yard.runner.called("stop_worker") == [["old"]]
        assert yard.allocations.stop_idle_workers() == set()

    def test_idle_workers_are_stopped_at_the_end(self, yard: Yard) -> None:
        """Busy ones go on."""
        busy = yard.busy(NAMED[0])
        yard.open(NAMED[1])
        assert yard.allocations.stop_idle_workers() == {"w2"}
        assert yard.runner.called("stop_worker") == [["w2"]]
        assert busy.worker in yard.allocations

    def test_a_lost_worker_loses_its_allocation(self, yard: Yard) -> None:
        """Its lease is not withdrawn: a process of the job may live."""
        allocation = yard.busy(NAMED[0])
        assert yard.allocations.lose(allocation.worker) is allocation
        assert yard.allocations.lose(allocation.worker) is None
        assert yard.leased == ["0"]


class TestPrefetch:
    """Attempts behind a running one."""

    def slot_room(self, yard: Yard, pace: float | None, now: float = START, devices: tuple[Device, ...] = NAMED) -> int:
        yard.busy(*devices[:1])
        if pace is not None:
            yard.allocations.learn(ONE, pace)
        (slot,) = yard.allocations.slots(yard.jobs.get, 0.25, now)
        return slot.room

    @pytest.mark.parametrize(
        ("pace", "room"), [(None, 0), (1.0, 0), (0.25, 1), (0.05, int(AHEAD_SECONDS / 0.05)), (0.0001, AHEAD_LIMIT)]
    )
    def test_the_shorter_attempts_are_the_more(self, yard: Yard, pace: float | None, room: int) -> None:
        """None where it is not known how long they take, or they take long."""
        assert self.slot_room(yard, pace) == room

    def test_none_behind_one_that_turned_out_long(self, yard: Yard) -> None:
        """Though the others were short."""
        assert self.slot_room(yard, 0.01, START + OVERDUE + 0.1) == 0

    def test_none_where_memory_must_be_seen_to_be_free(self, yard: Yard) -> None:
        """On measured devices the driver is asked first."""
        assert self.slot_room(yard, 0.01, devices=GPUS) == 0

    def test_none_where_the_devices_are_not_known_yet(self, yard: Yard) -> None:
        """An engine that starts before the driver adopts an attempt, and the next one would run without a device."""
        assert self.slot_room(yard, 0.01, devices=()) == 0

    def test_none_where_another_engine_goes_first(self, yard: Yard) -> None:
        """Its devices are promised."""
        yard.busy(NAMED[0])
        yard.allocations.learn(ONE, 0.01)
        (slot,) = yard.allocations.slots(yard.jobs.get, 0.25, START, lambda _: True)
        assert slot.room == 0

    def test_they_are_recalled_from_behind_a_long_one_once(self, yard: Yard) -> None:
        """And again when there are new ones."""
        allocation = yard.busy(NAMED[0])
        allocation.take(2, START)
        yard.allocations.spread(START)
        assert not yard.runner.called("recall")
        for _ in range(2):
            yard.allocations.spread(START + OVERDUE + 0.1)
        assert yard.runner.called("recall") == [[allocation.worker]]
        allocation.finish(2, START)
        assert not allocation.recalled

    def test_the_end_of_the_head_starts_the_time_of_the_next(self, yard: Yard) -> None:
        """A return of a prefetched attempt does not."""
        allocation = yard.busy(NAMED[0])
        allocation.take(2, START + 1)
        allocation.take(3, START + 1)
        allocation.finish(3, START + 2)
        assert allocation.head_since == START
        allocation.finish(1, START + 3)
        assert (allocation.head_since, list(allocation.jobs)) == (START + 3, [2])


class TestSharing:
    """Who was on the same devices."""

    def test_two_of_ours(self, yard: Yard) -> None:
        """Both are marked, and stay so until their attempt is over."""
        first, second = (yard.busy(GPUS[0], resources=HALF, job=job) for job in (1, 2))
        yard.allocations.note_sharing([])
        assert (first.shared, second.shared) == (True, True)
        second.finish(2, START)
        yard.allocations.note_sharing([])
        assert first.shared

    def test_one_of_another_engine(self, yard: Yard) -> None:
        """By the leases seen, or by the ledger itself."""
        ours = yard.busy(GPUS[0], resources=HALF)
        yard.allocations.note_sharing([])
        before = ours.shared
        other = Allocation("x", HALF, GPUS[:1])
        held = yard.ledger.claim(other.claims, "other", START, other.capacities)
        assert held is not None
        yard.allocations.refresh_sharing()
        assert (before, ours.shared) == (False, True)
        yard.ledger.release(held)

    def test_an_adopted_attempt_may_have_shared(self, yard: Yard) -> None:
        """On part of a GPU, not on a whole one."""
        for resources, shared in ((HALF, True), (ONE, False)):
            allocation = Allocation("old", resources, ())
            allocation.recognise(GPUS[:1])
            assert (allocation.devices, allocation.shared) == (GPUS[:1], shared)


class TestLeaseCheck:
    """Leases that are removed from the ledger."""

    def check(self, yard: Yard) -> LeaseCheck:
        return LeaseCheck(yard.allocations, yard.runner, yard.ledger, "label")

    def test_a_removed_lease_is_claimed_again(self, yard: Yard) -> None:
        """Under its name, for the worker that runs the job."""
        allocation, check = yard.busy(NAMED[0]), self.check(yard)
        assert not check.check(START)
        Path(allocation.lease).unlink()
        assert not check.check(START + INTERVAL / 2), "it is checked once per interval"
        assert check.check(START + INTERVAL)
        assert check.trouble == "the lease on GPU 0 was removed; it was reclaimed"
        assert yard.leased == ["0"]
        assert len(yard.runner.called("give_lease")) == 2
        assert not check.check(START + 2 * INTERVAL), "the user has time to read it"
        assert check.check(START + INTERVAL + TOLD_SECONDS)
        assert check.trouble == ""

    def test_a_rival_is_named(self, yard: Yard) -> None:
        """The job goes on; the device is in use twice."""
        allocation, check = yard.busy(NAMED[0]), self.check(yard)
        Path(allocation.lease).unlink()
        with planted(yard.ledger, lease_name(), GOOD.replace('"A"', '"0"').encode()):  # a program that looked too late
            assert check.check(START)
        assert check.trouble.startswith("the lease on GPU 0 was removed, and ")
        assert check.trouble.endswith(" has it now")

    def test_a_dead_worker_needs_none(self, yard: Yard) -> None:
        """Its loss will be reported."""
        allocation, check = yard.busy(NAMED[0]), self.check(yard)
        Path(allocation.lease).unlink()
        yard.runner.dead.add(allocation.worker)
        assert not check.check(START)
        assert not Path(allocation.lease).exists()
