"""The counts of `status --by-group` and `--by-user`."""

from __future__ import annotations

from stoker.app.views.engines import EngineStatuses
from stoker.app.views.facts import QueueFacts
from stoker.app.views.model import GroupLine
from stoker.app.views.summary import user_lines
from stoker.cli.screens.status import group_table, user_table
from stoker.cli.screens.text import line_cells
from stoker.core.lease import Claim, Lease
from stoker.core.planner.fairshare import Demand
from stoker.ledger import LedgerView
from stoker.store.writer import Store
from support.views import GIB, NOW, texts


def a_lease(owner: str, *claims: Claim) -> Lease:
    return Lease(claims, owner, 7, "stoker", NOW)


def test_other_users_are_known_from_the_ledger(store: Store) -> None:
    """Leases tell what they have, demands what they wait for and used; this user comes first, even if idle."""
    ledger = LedgerView(
        {
            "a": a_lease("alice", Claim("GPU-0", 4 * GIB)),
            "b": a_lease("alice", Claim("GPU-0", 2 * GIB), Claim("GPU-1", GIB)),
            "c": a_lease("bob", Claim("GPU-2")),
        },
        demands={"d": Demand(5, "carol", 7200.0, NOW - 60, gpus=2), "e": Demand(5, "carol", 1.0, NOW - 600)},
        waiting={"alice": 3, "carol": 12},
    )
    facts = QueueFacts(store, EngineStatuses(None, lives=False), NOW, simulated=False)
    own, alice, bob, carol = user_lines(facts, ledger)
    assert (own.you, own.user, own.running, own.waiting) == (True, facts.user, 0, 0)
    assert (alice.user, alice.running, alice.gpus, alice.vram_bytes, alice.waiting_gpus) == ("alice", 2, 2, 7 * GIB, 0)
    assert (bob.running, bob.gpus, bob.vram_bytes, bob.recent_gpu_hours) == (1, 1, None, None)
    assert (carol.running, carol.waiting_gpus, carol.recent_gpu_hours) == (0, 3, 2.0)
    lines = texts(user_table([own, alice, bob, carol], NOW, 100))
    assert lines[1].split()[:2] == [facts.user, "(you)"]
    assert "whole GPUs" in lines[3]
    assert (alice.waiting, bob.waiting, carol.waiting) == (3, None, 12)
    assert "3 jobs          -" in lines[2], "they wait, but could not start now"
    assert "12 jobs     3 GPUs" in lines[4]
    assert "10m ago" in lines[4]


def test_summaries_fit_the_terminal() -> None:
    """Columns are dropped on a narrow one, the name never."""
    groups = [GroupLine("", 0, 12, 1, 0), GroupLine("vision-" * 9, 3, 100_000, 0, 4, limit=3)]
    for width in (20, 40, 80):
        lines = group_table(groups, width)
        assert len(lines) == 3
        assert texts(lines)[0].split()[0] == "GROUP"
    assert max(map(line_cells, group_table(groups, 80))) <= 80
