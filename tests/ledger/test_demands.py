"""Demands between processes and users, honest and hostile."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.core.errors import UsageError
from stoker.core.planner.fairshare import Demand
from stoker.ledger import Ledger, LedgerUnusable, prepare_ledger
from stoker.ledger.files import MOST_BYTES
from support import ledger_programs as programs
from support.ledger_files import is_free, lease_name, planted, taken
from support.users import User, made_users, next_line, running_as
from support.wait import PATIENCE_SECONDS

GOOD = '{"version":1,"usage":2.5,"since":1.0,"gpus":2,"pid":1,"what":"work","claims":["A"],"least":1}'
BAD = {
    "empty": "",
    "broken": "{",
    "list": "[]",
    "null": "null",
    "cut": GOOD[:-1],
    "doubled": GOOD + GOOD,
    "newer version": GOOD.replace('"version":1', '"version":2'),
    "negative usage": GOOD.replace("2.5", "-2.5"),
    "infinite usage": GOOD.replace("2.5", "1e999"),
    "no usage": GOOD.replace('"usage":2.5,', ""),
    "text as number": GOOD.replace('"gpus":2', '"gpus":"2"'),
    "wants nothing": GOOD.replace('"gpus":2', '"gpus":0'),
    "wants everything": GOOD.replace('"gpus":2', '"gpus":1000000'),
    "needs nothing": GOOD.replace('"least":1', '"least":0'),
    "claims something else": GOOD.replace('["A"]', "[1]"),
    "far date": GOOD.replace('"since":1.0', '"since":1e300'),
    "before 1970": GOOD.replace('"since":1.0', '"since":-1.0'),
    "no process": GOOD.replace('"pid":1', '"pid":4194305'),
    "endless usage": GOOD.replace("2.5", "1e300"),
    "says who it is": GOOD.replace('"pid":1', '"pid":1,"uid":0'),
    "too large": GOOD.replace("work", "w" * MOST_BYTES),
}
MINE = Demand(uid=0, owner="", usage=1.0, since=5.0, gpus=2, claims=("A", "B"), what="waits")


def demand_name() -> str:
    """A name in the form of the ledger."""
    return lease_name().replace(".lease", ".demand")


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    """Another user of this machine."""
    with made_users(1) as (made,):
        yield made


def test_all_users_read_a_demand(ledger: Ledger) -> None:
    """A demand has usage, age, number and devices; its owner is the owner of the file."""
    held = ledger.demand(replace(MINE, uid=77, owner="somebody else"))
    (demand,) = ledger.live().demands.values()
    assert ledger.live().demands == {held.name: held.demand}
    assert (demand.usage, demand.since, demand.gpus, demand.claims) == (1.0, 5.0, 2, ("A", "B"))
    assert (demand.uid, demand.pid) == (os.geteuid(), os.getpid())
    assert stat.S_IMODE(held.path.stat().st_mode) == 0o644
    ledger.retract(held)
    assert (ledger.live().demands, list(ledger.path.iterdir())) == ({}, [])


def test_newer_demand_replaces_the_older(ledger: Ledger) -> None:
    """A newer demand keeps the name and replaces the older one."""
    older = ledger.demand(MINE)
    newer = ledger.demand(replace(MINE, usage=9.0), older)
    assert newer.name == older.name
    assert {name: demand.usage for name, demand in ledger.live().demands.items()} == {newer.name: 9.0}
    ledger.retract(newer)
    assert list(ledger.path.iterdir()) == []


def test_demands_block_nothing(ledger: Ledger) -> None:
    """A demand neither blocks a claim nor hides a lease."""
    held = ledger.demand(MINE)
    with taken(ledger, "A") as lease:
        view = ledger.live()
        assert (list(view.leases), list(view.demands), view.warnings) == ([lease.name], [held.name], ())
    assert is_free(ledger)
    ledger.retract(held)


def test_reader_always_finds_one(ledger: Ledger) -> None:
    """While a demand is replaced and leases are claimed, every read finds it complete."""
    held = ledger.demand(MINE)
    done = threading.Event()

    def look() -> None:
        other = Ledger(ledger.path)  # one ledger is for one thread
        while not done.is_set():
            view = other.live()
            seen.append((len(view.demands), view.warnings))

    seen: list[tuple[int, tuple[str, ...]]] = []
    reader = threading.Thread(target=look)
    reader.start()
    try:
        for number in range(500):
            held = ledger.demand(replace(MINE, usage=float(number)), held)
            assert is_free(ledger)
    finally:
        done.set()
        reader.join(PATIENCE_SECONDS)
    assert set(seen) == {(1, ())}
    ledger.retract(held)


def test_kill_ends_the_demand(ledger: Ledger, user: User) -> None:
    """When a process is killed its demand ends at once, and the warning names the owner of the file."""
    with running_as(user, programs.wait_for_gpus, ledger.path, "3.5", "2") as waiter:
        name = next_line(waiter)
        demand = ledger.live().demands[name]
        assert (demand.owner, demand.uid, demand.usage, demand.gpus) == (user.name, user.uid, 3.5, 2)
        waiter.kill()
        waiter.wait(PATIENCE_SECONDS)
    view = ledger.live()
    assert view.demands == {}
    assert view.warnings == (f"ignored {ledger.path / name}: left behind by {user.name}, no process holds it",)


def test_own_leftovers_are_removed(ledger: Ledger) -> None:
    """A stale demand of this user is removed by the next read."""
    (ledger.path / demand_name()).write_text(GOOD)
    view = ledger.live()
    assert (view.demands, view.warnings, list(ledger.path.iterdir())) == ({}, (), [])


@pytest.mark.parametrize("contents", BAD.values(), ids=BAD.keys())
def test_bad_contents_are_no_demand(ledger: Ledger, contents: str) -> None:
    """A locked file without a valid demand is ignored with one warning."""
    with planted(ledger, demand_name(), contents.encode()) as path:
        view = ledger.live()
    assert view.demands == {}
    assert [str(path) in warning for warning in view.warnings] == [True]


@settings(max_examples=200)
@given(st.binary(), st.sampled_from([b"", GOOD.encode()]), st.binary())
def test_random_contents_do_no_harm(before: bytes, middle: bytes, after: bytes) -> None:
    """Any contents give a demand or a printable warning."""
    with tempfile.TemporaryDirectory() as directory:
        ledger = Ledger(prepare_ledger(Path(directory) / "ledger"))
        with planted(ledger, demand_name(), before + middle + after):
            view = ledger.live()
        assert len(view.demands) + len(view.warnings) == 1
        assert all(warning.isprintable() for warning in view.warnings)


def test_special_files_are_not_followed(ledger: Ledger, tmp_path: Path) -> None:
    """A link to a valid demand, a pipe, a directory and a socket are ignored with a warning each."""
    (tmp_path / "elsewhere").write_text(GOOD)
    (ledger.path / demand_name()).symlink_to(tmp_path / "elsewhere")
    os.mkfifo(ledger.path / demand_name())
    (ledger.path / demand_name()).mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(ledger.path / demand_name()))
    view = ledger.live()
    assert (len(view.demands), len(view.warnings)) == (0, 4)


def test_no_demand_for_another_user(ledger: Ledger, user: User) -> None:
    """A demand named after one user but owned by another is ignored, and the warning names the owner."""
    with running_as(user, programs.plant, ledger.path, demand_name(), GOOD) as forger:
        next_line(forger)
        view = ledger.live()
    assert view.demands == {}
    assert f"belongs to {user.name}" in view.warnings[0]


def test_purpose_is_made_harmless(ledger: Ledger) -> None:
    """Control characters in the purpose are escaped on writing and on reading."""
    held = ledger.demand(replace(MINE, what="\x1b[2J"))
    assert held.demand.what == r"\x1b[2J"
    ledger.retract(held)
    with planted(ledger, demand_name(), GOOD.replace("work", r"\u001b[2J").encode()):
        (demand,) = ledger.live().demands.values()
    assert demand.what == r"\x1b[2J"


@pytest.mark.parametrize(
    "demand", [replace(MINE, usage=-1.0), replace(MINE, gpus=0), replace(MINE, claims=("\udcff",))]
)
def test_unreadable_demand_is_refused(ledger: Ledger, demand: Demand) -> None:
    """What readers would refuse is never written."""
    with pytest.raises(UsageError, match="cannot be registered"):
        ledger.demand(demand)
    assert list(ledger.path.iterdir()) == []


def test_unwritable_ledger(ledger: Ledger) -> None:
    """Where a demand cannot be written, LedgerUnusable is raised and the older one stays."""
    held = ledger.demand(MINE)
    ledger.path.rename(away := ledger.path.with_name("away"))
    ledger.path.write_text("a file in its place")
    with pytest.raises(LedgerUnusable):
        ledger.demand(replace(MINE, usage=9.0), held)
    ledger.path.unlink()
    away.rename(ledger.path)
    assert ledger.live().demands == {held.name: held.demand}
    ledger.retract(held)
