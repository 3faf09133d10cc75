"""When devices and ledger are looked at, and what stays known."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.core.device import Snapshot
from stoker.core.lease import Claim
from stoker.ledger import Ledger, prepare_ledger
from stoker.sites.machine.observation import LEASE_INTERVAL, REFRESH_INTERVAL, SHORTEST_INTERVAL, Observation
from support.build import declared
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
