"""Leases that are removed under running jobs: the engine notices, and claims the devices anew."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.job import Running
from stoker.core.lease import Claim
from stoker.devices.detect import DeclaredDevices
from stoker.ledger import HeldLease, Ledger
from stoker.ledger.files import owner_name
from stoker.sites.machine import allocations
from support.cli import until
from support.engines import Workshop
from support.wait import wait_until

CLAIM = (Claim("name:0"),)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at every turn, and tell of a removed lease for a moment only."""
    monkeypatch.setattr(allocations, "INTERVAL", 0.0)
    monkeypatch.setattr(allocations, "TOLD_SECONDS", 0.5)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Workshop]:
    """An engine on one device, at work on a job that waits for a file."""
    with Workshop(tmp_path, DeclaredDevices(["0"])) as made:
        at_work(made)
        yield made


def at_work(shop: Workshop) -> None:
    """Start a job that waits for a file."""
    (job,) = shop.submit(until(str(shop.directory / "go")))
    shop.work_until(lambda: isinstance(shop.job(job).state, Running))


def ledger_of(shop: Workshop) -> Ledger:
    """The ledger as another process would see it."""
    return Ledger(shop.directory / "ledger")


def lease_file(shop: Workshop) -> Path:
    """The one lease there is."""
    (path,) = (shop.directory / "ledger").glob("*.lease")
    return path


def claimed_late(ledger: Ledger) -> HeldLease:
    """Claim as an engine that never read the removed lease, which waits for its holder before it claims."""
    claims: list[HeldLease] = []

    def claim() -> bool:
        claims.extend(filter(None, [ledger.claim(CLAIM, "another", 0.0)]))
        return bool(claims)

    wait_until(claim)
    return claims[0]


class TestRemovedLease:
    """Somebody cleaned up where he should not have."""

    def test_it_is_claimed_anew_under_its_name_and_goes_with_the_job(self, shop: Workshop) -> None:
        """Others are refused again; when the job is over, nothing is left."""
        path = lease_file(shop)
        path.unlink()
        shop.work_until(path.exists)
        assert ledger_of(shop).claim(CLAIM, "another", 0.0) is None
        assert shop.engine.trouble == "the lease on GPU 0 was removed; it was reclaimed"
        shop.work_until(lambda: not shop.engine.trouble)
        (shop.directory / "go").touch()
        shop.finish()
        assert not path.exists()

    def test_the_whole_ledger_may_be_gone(self, shop: Workshop) -> None:
        """It is made again, and the lease in it."""
        path = lease_file(shop)
        shutil.rmtree(shop.directory / "ledger")
        shop.work_until(path.exists)
        assert ledger_of(shop).claim(CLAIM, "another", 0.0) is None

    def test_whoever_took_the_device_meanwhile_is_named(self, shop: Workshop) -> None:
        """The engine had no turn to restore the lease; once the rival has left, the device is ours again."""
        path = lease_file(shop)
        path.unlink()
        rival = claimed_late(ledger_of(shop))
        shop.work_until(lambda: bool(shop.engine.trouble))
        name = owner_name(os.geteuid())
        assert shop.engine.trouble == f"the lease on GPU 0 was removed, and {name} has it now"
        ledger_of(shop).release(rival)
        shop.work_until(path.exists)

    def test_an_engine_that_took_the_job_over_looks_too(self, tmp_path: Path) -> None:
        """The worker of a dead engine gets the new lease."""
        first = Workshop(tmp_path, DeclaredDevices(["0"]))
        at_work(first)
        path = lease_file(first)
        first.abandon()
        path.unlink()
        with Workshop(tmp_path, DeclaredDevices(["0"])) as second:
            (job,) = second.store.active_jobs("test")
            second.engine.adopt(job, adopted=False)
            second.work_until(path.exists)
            assert ledger_of(second).claim(CLAIM, "another", 0.0) is None


def test_leases_stay_young(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cleaners that go by age leave them."""
    monkeypatch.setattr(allocations, "FRESH_SECONDS", 0.0)
    with Workshop(tmp_path, DeclaredDevices(["0"])) as shop:
        at_work(shop)
        path = lease_file(shop)
        os.utime(path, (0, 0))
        shop.work_until(lambda: path.stat().st_mtime > 0)
