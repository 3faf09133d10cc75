"""Leases whose files are removed while their holders live."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from stoker.core.lease import Claim
from stoker.ledger import Ledger, prepare_ledger, removed
from support.ledger_files import is_free, taken
from support.wait import PATIENCE_SECONDS, ending, wait_until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An empty ledger directory."""
    return prepare_ledger(tmp_path / "ledger")


def test_a_removed_lease_counts(path: Path) -> None:
    """For every process that has read it, until its holder ends."""
    ours, theirs = Ledger(path), Ledger(path)
    with taken(theirs, "A") as held:
        assert not is_free(ours)
        held.path.unlink()
        assert not is_free(ours)
        assert list(ours.live().leases) == [held.name]
        assert is_free(ours, Claim("B"))
    assert is_free(ours)
    assert not ours.live().leases


def test_a_removed_directory(path: Path) -> None:
    """Leases count although the directory is another one."""
    ours, theirs = Ledger(path), Ledger(path)
    with taken(theirs, "A"):
        ours.live()
        shutil.rmtree(path)
        assert not is_free(ours)
    assert is_free(ours)


def test_a_process_that_inherits_it_is_a_holder(path: Path) -> None:
    """As with a lease that has its file."""
    ours, theirs = Ledger(path), Ledger(path)
    held = theirs.claim((Claim("A"),), "work", 1.0)
    assert held
    with ending(subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(held.fd,))) as heir:
        ours.live()
        theirs.release(held)
        assert not is_free(ours), "an heir of the descriptor lives"
        assert is_free(theirs), "its own process has ended it"
        assert heir.stdin
        heir.stdin.close()
        heir.wait(PATIENCE_SECONDS)
        assert is_free(ours)


def test_a_process_that_never_read_it_waits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot know which devices are held, so it claims none before the holder had time to restore the lease."""
    with taken(Ledger(path), "A") as held:
        held.path.unlink()
        ours = Ledger(path)
        assert not is_free(ours, Claim("B"))
        monkeypatch.setattr(removed, "SETTLE_SECONDS", 0.05)
        wait_until(lambda: is_free(ours, Claim("B")))


def test_a_restored_lease(path: Path) -> None:
    """It is one lease again, which other processes need not wait for."""
    ours, theirs = Ledger(path), Ledger(path)
    with taken(theirs, "A") as held:
        ours.live()
        held.path.unlink()
        again = theirs.claim(held.lease.claims, "work", 1.0, name=held.name)
        assert again
        assert not is_free(ours)
        assert len(ours.live().leases) == 1
        theirs.release(again)


def test_it_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it stays removed: a released one is unlocked a moment after it is unlinked."""
    ours, theirs = Ledger(path), Ledger(path)
    with taken(theirs, "A") as held:
        ours.live()
        held.path.unlink()
        assert ours.live().warnings == ()
        monkeypatch.setattr(removed, "WARN_SECONDS", -1.0)
        (warning,) = ours.live().warnings
        assert f"{held.name} of {held.lease.owner} was removed" in warning


def test_another_ledger_does_not_matter(path: Path) -> None:
    """Its leases are on the same file system."""
    with taken(Ledger(prepare_ledger(path.with_name("other"))), "A") as held:
        held.path.unlink()
        assert is_free(Ledger(path))
