"""Engines tell other users which jobs run under their leases."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.ledger import Ledger, LedgerNotice, prepare_ledger
from stoker.ledger.formats import LeaseJob
from support.ledger_files import lease_name, planted, taken


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """An empty ledger."""
    return Ledger(prepare_ledger(tmp_path / "ledger"))


def test_a_lease_tells_its_job(ledger: Ledger) -> None:
    """As long as the notice is there; a newer one replaces it."""
    with taken(ledger, "A") as held:
        notice = ledger.notify(LedgerNotice(waiting=2, leases={held.name: LeaseJob("12.3", 71, 90.0)}))
        view = ledger.live()
        (lease,) = view.leases.values()
        assert (lease.job, lease.process, lease.until, lease.pid) == ("12.3", 71, 90.0, os.getpid())
        assert view.waiting == {lease.owner: 2}
        notice = ledger.notify(LedgerNotice(waiting=1), notice)
        view = ledger.live()
        assert (list(view.leases.values()), view.waiting) == ([held.lease], {lease.owner: 1})
        ledger.retract(notice)
        assert not ledger.live().waiting


@pytest.mark.parametrize(
    "contents",
    [
        "[]",
        '{"version":2}',
        '{"waiting":-1}',
        '{"leases":{"a":{"job":"1","pid":-1}}}',
        '{"leases":{"a":{"job":"1","until":1e300}}}',
        '{"leases":{"a":{"job":"1","name":"secret"}}}',
        r'{"leases":{"a":{"job":"\u001b[2J"}}}',
        r'{"leases":{"a":{"job":"1\n"}}}',
        f'{{"leases":{{"a":{{"job":"{"9" * 1000}"}}}}}}',
    ],
)
def test_bad_contents_are_ignored(ledger: Ledger, contents: str) -> None:
    """With a warning that names the file."""
    name = lease_name().replace(".lease", ".jobs")
    with planted(ledger, name, contents.encode()), taken(ledger, "A") as held:
        view = ledger.live()
        assert (list(view.leases.values()), view.waiting) == ([held.lease], {})
        assert name in view.warnings[0]
