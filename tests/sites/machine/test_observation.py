"""When devices and ledger are looked at, and what stays known."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.core.device import Process, Reading, Snapshot
from stoker.core.lease import Claim
from stoker.ledger import Ledger, prepare_ledger
from stoker.sites.machine.observation import (
    AFTER_JOBS,
    LEASE_INTERVAL,
    REFRESH_INTERVAL,
    SAME_BYTES,
    SHORTEST_INTERVAL,
    Observation,
    StillProcesses,
)
from support.build import GIB, declared, simulated
from support.fakes import START, FakeDevices

CLAIM = (Claim("0"),)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(prepare_ledger(tmp_path / "ledger"))


def test_it_is_due_once_per_interval(ledger: Ledger) -> None:
    """At once before the first look and after something has changed."""
    observation = Observation(FakeDevices(), ledger, START)
    assert observation.due_in(START) < 0
    observation.refresh(START, (), waiting=False)
    assert observation.due_in(START) == pytest.approx(REFRESH_INTERVAL)
    observation.expire()
    assert observation.due_in(START) < 0


def test_leases_of_others_are_seen_and_ours_are_not(ledger: Ledger) -> None:
    """Ours are known by their names."""
    observation = Observation(FakeDevices(), ledger, START)
    ours, other = (ledger.claim((Claim(name),), "what", START) for name in ("0", "1"))
    assert ours is not None
    assert other is not None
    observation.refresh(START, [ours.path.name], waiting=True)
    assert [claim.name for lease in observation.leases for claim in lease.claims] == ["1"]
    ledger.release(ours)
    ledger.release(other)


def test_leases_are_read_once_per_interval(ledger: Ledger) -> None:
    """A claim reads the ledger itself, so they need not be newer."""
    observation = Observation(FakeDevices(), ledger, START)
    observation.refresh(START, (), waiting=True)
    held = ledger.claim(CLAIM, "what", START)
    assert held is not None
    observation.refresh(START + LEASE_INTERVAL / 2, (), waiting=True)
    counts = [len(observation.leases)]
    observation.refresh(START + LEASE_INTERVAL, (), waiting=True)
    assert [*counts, len(observation.leases)] == [0, 1]
    ledger.release(held)


def test_a_freed_device_needs_a_newer_snapshot(ledger: Ledger) -> None:
    """For jobs that wait: what was seen before may still show the memory of the attempt."""
    devices = FakeDevices(*declared("0"))
    observation = Observation(devices, ledger, START)
    observation.leave(["0"], START + 5)
    observation.refresh(START + 6, (), waiting=True)
    observation.refresh(START + 6, (), waiting=False)
    observation.refresh(START + 6, (), waiting=False, young=START + 4)
    assert devices.newer_than == [0.0, START + 5, 0.0, START + 4]


def test_a_device_that_vanishes_stays_known(ledger: Ledger) -> None:
    """Jobs that ran on it are still shown on it."""
    devices = FakeDevices(*declared("0", "1"))
    observation = Observation(devices, ledger, START)
    devices.shown = Snapshot(START, declared("1"))
    observation.refresh(START, (), waiting=False)
    assert [device.label for device in observation.devices(["0", "1", "9"])] == ["0", "1"]
    assert [device.label for device in observation.snapshot.devices] == ["1"]


def test_an_engine_that_waits_for_others_looks_more_often(ledger: Ledger) -> None:
    """The shorter attempts are, the more often."""
    observation = Observation(FakeDevices(), ledger, START)
    observation.leave(["0"], START)
    intervals = [observation.hurried_interval(START + seconds) for seconds in (0.1, 2.0, 100.0)]
    assert intervals == [SHORTEST_INTERVAL, pytest.approx(0.1), LEASE_INTERVAL]


# -- foreign processes that only hold memory -----------------------------------------------------

CARD = simulated(24)


class Watch:
    """Looks at a card with processes, one second after the other."""

    def __init__(self) -> None:
        self._still = StillProcesses()
        self.at = 100.0

    def since(self, *processes: Process, busy: int | None = 0, leased: bool = False, seconds: float = 1.0) -> object:
        """Since when they are still, as the next look says."""
        self.at += seconds
        snapshot = Snapshot(self.at, CARD, {"0": Reading(GIB, busy, processes=processes)})
        return self._still.marked(snapshot, CARD[0].claims if leased else ()).reading("0").still_since


BOB = Process(7, GIB, "bob")


def test_a_process_is_still_from_its_first_look() -> None:
    """As long as its memory and the utilisation do not change much."""
    watch = Watch()
    first = watch.since(BOB)
    assert first == watch.at
    assert watch.since(Process(7, GIB + SAME_BYTES, "bob"), busy=5) == first
    assert watch.since(Process(7, GIB + SAME_BYTES + 1, "bob")) == watch.at


def test_all_of_them_count() -> None:
    """The last that came or moved; one of unknown memory is never still, one that draws does not matter."""
    watch = Watch()
    first = watch.since(BOB, Process(9, None, "gdm", graphics=True))
    assert watch.since(BOB, Process(8, GIB, "carol")) == watch.at
    assert watch.since(BOB) == first
    assert watch.since(BOB, Process(8, None, "carol")) is None
    assert watch.since() is None


def test_a_process_that_computes_is_not_still() -> None:
    """Nor one on a card whose utilisation is unknown."""
    watch = Watch()
    watch.since(BOB)
    assert watch.since(BOB, busy=6) == watch.at
    assert watch.since(BOB, busy=None) == watch.at


def test_jobs_on_the_card_say_nothing_of_it() -> None:
    """While they run, and a moment longer."""
    watch = Watch()
    first = watch.since(BOB)
    assert watch.since(BOB, busy=100, leased=True) == first
    assert watch.since(BOB, busy=100) == first
    assert watch.since(BOB, busy=100, seconds=AFTER_JOBS) == watch.at
