"""Devices that root or a coordinator drained for all users, and messages to all."""

from __future__ import annotations

import grp
import json
import os
import pwd
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.ledger import Ledger, coordinators, lasting
from stoker.ledger.coordinators import is_coordinator
from stoker.ledger.lasting import Announcement
from support.ledger_files import lease_name
from support.users import User, made_users, require_root


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """This user is a coordinator."""
    monkeypatch.setattr(lasting, "is_coordinator", lambda uid: uid == os.geteuid())


def plant(ledger: Ledger, kind: str, text: str) -> Path:
    path = ledger.path / lease_name().replace(".lease", f".{kind}")
    path.write_text(text)
    return path


def tell(ledger: Ledger, text: str, seconds: float = 60.0) -> None:
    now = time.time()
    ledger.agreements.tell(Announcement(0, "", text, now, now + seconds))


@pytest.mark.usefixtures("trusted")
def test_drains_come_and_go(ledger: Ledger) -> None:
    """One by one; the last one leaves no file."""
    ledger.agreements.drain({"A": 5.0, "B": 6.0})
    ledger.agreements.drain({"A": None})
    me = pwd.getpwuid(os.geteuid()).pw_name
    assert Ledger(ledger.path).live().drained == {"B": (6.0, me)}
    ledger.agreements.drain({"B": None})
    assert not list(ledger.path.iterdir())


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize(
    "text", ["[]", '{"version":1,"devices":{"A":"x"}}', '{"version":1,"devices":{"A":1e300}}', "{", '{"A":1.0}']
)
def test_bad_drains_are_ignored(ledger: Ledger, text: str) -> None:
    """With a warning."""
    plant(ledger, "drains", text)
    view = ledger.live()
    assert (view.drained, len(view.warnings)) == ({}, 1)


@pytest.mark.usefixtures("trusted")
def test_the_newest_message_of_a_user_counts(ledger: Ledger) -> None:
    """Until its time is over, escaped; an empty one ends it."""
    tell(ledger, "old")
    tell(ledger, "maintenance\x1b[2J at 18:00")
    (message,) = Ledger(ledger.path).live().messages
    assert message.text == r"maintenance\x1b[2J at 18:00"
    assert ledger.agreements.messages() == (message,)
    tell(ledger, "")
    assert not ledger.live().messages
    plant(ledger, "message", json.dumps({"version": 1, "text": "x", "until": time.time() - 1.0}))
    assert not ledger.live().messages


@pytest.mark.parametrize(
    ("kind", "body"), [("drains", {"devices": {"A": 1.0}}), ("message", {"text": "x", "until": 4e9})]
)
def test_of_other_users_nothing_counts(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, kind: str, body: dict[str, object]
) -> None:
    """A file of a user who is no coordinator is ignored, with a warning."""
    monkeypatch.setattr(lasting, "is_coordinator", lambda uid: False)
    plant(ledger, kind, json.dumps({"version": 1, **body}))
    view = ledger.live()
    assert (view.drained, view.messages) == ({}, ())
    assert ["only root and coordinators" in warning for warning in view.warnings] == [True]


@pytest.fixture(scope="module")
def users() -> Iterator[tuple[User, User]]:
    with made_users(2) as (alice, bob):
        yield alice, bob


def test_members_of_the_group_are_coordinators(tmp_path: Path, users: tuple[User, User]) -> None:
    """Only by a file of root that others cannot write; nothing else makes one."""
    alice, bob = users
    group = grp.getgrgid(alice.gid).gr_name
    system = tmp_path / "config.toml"
    system.write_text(f'[locked]\ncoordinators = "{group}"\n')
    assert is_coordinator(0, str(system))
    assert is_coordinator(alice.uid, str(system))
    assert not is_coordinator(bob.uid, str(system))
    system.chmod(0o666)
    assert not is_coordinator(alice.uid, str(system))
    system.chmod(0o644)
    os.chown(system, bob.uid, bob.gid)
    assert not is_coordinator(alice.uid, str(system))
    assert not is_coordinator(99_999_999, str(tmp_path / "missing"))


@pytest.mark.parametrize("text", ["locked = 3", "[locked]\ncoordinators = 3", "[locked]", "broken ["])
def test_a_file_without_a_group_names_nobody(tmp_path: Path, text: str) -> None:
    require_root()
    system = tmp_path / "config.toml"
    system.write_text(text)
    assert coordinators.coordinators(str(system)) == ""
