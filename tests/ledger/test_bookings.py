"""Bookings in the ledger: they last without a process, and one of two that meet is granted."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import stoker.ledger.agreements
from stoker.core.booking import MOST_OF_ONE_USER, Booking
from stoker.core.errors import UsageError
from stoker.ledger import Ledger
from support import ledger_programs as programs
from support.ledger_files import lease_name
from support.users import User, finish, made_users, run_as, running_as

HOUR = 3600.0


def wanted(*names: str, after: float = HOUR, seconds: float = HOUR, why: str = "deadline") -> Booking:
    """A booking of this user."""
    since = time.time() + after
    return Booking("", os.geteuid(), names, since, since + seconds, why)


def plant(ledger: Ledger, text: str, uid: int | None = None) -> Path:
    """A file as a hostile user would write it."""
    path = ledger.path / lease_name(uid).replace(".lease", ".booking")
    path.write_text(text)
    return path


def written(**changes: object) -> str:
    now = time.time()
    return json.dumps({"version": 1, "claims": ["A"], "since": now, "until": now + 60.0, "why": "x"} | changes)


def test_a_booking_lasts_without_a_process(ledger: Ledger) -> None:
    """Another reader sees it as it was made; its user can remove it."""
    booking = wanted("A", "B", why="a\x1b[31m\nline")
    name = ledger.agreements.book(booking)
    assert isinstance(name, str)
    (seen,) = Ledger(ledger.path).live().bookings.values()
    assert (seen.claims, seen.uid, seen.why) == (("A", "B"), os.geteuid(), r"a\x1b[31m\nline")
    assert (seen.since, seen.until) == (booking.since, booking.until)
    ledger.agreements.end_booking(name)
    assert ledger.live().bookings == {}


def test_the_first_of_two_bookings_stands(ledger: Ledger) -> None:
    """The second gets the first as an answer; other times and devices are free."""
    first = wanted("A", "B")
    ledger.agreements.book(first)
    assert isinstance(ledger.agreements.book(wanted("B", "C", after=1.5 * HOUR)), Booking)
    assert isinstance(ledger.agreements.book(wanted("B", "C", after=2.1 * HOUR)), str)
    assert isinstance(ledger.agreements.book(wanted("C", "D")), str)


def test_bookings_that_meet_in_the_middle(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another is published between our look and our file: it is older, so ours is withdrawn."""
    publish = stoker.ledger.agreements.publish  # type: ignore[attr-defined]
    others: list[str | Booking] = []

    def after_another(directory: int, name: str, contents: bytes) -> int:
        if not others:
            others.append("")
            others[0] = Ledger(ledger.path).agreements.book(wanted("A"))
        return int(publish(directory, name, contents))

    monkeypatch.setattr(stoker.ledger.agreements, "publish", after_another)
    rival = ledger.agreements.book(wanted("A", "B"))
    assert isinstance(rival, Booking)
    assert list(ledger.live().bookings) == others


def test_own_bookings_have_a_limit(ledger: Ledger) -> None:
    """Others would not count more."""
    for number in range(MOST_OF_ONE_USER):
        ledger.agreements.book(wanted(str(number)))
    with pytest.raises(UsageError, match="the limit per user"):
        ledger.agreements.book(wanted("Z"))
    assert len(Ledger(ledger.path).live().bookings) == MOST_OF_ONE_USER


def test_a_booking_that_is_over_vanishes(ledger: Ledger) -> None:
    """Its owner's next look removes the file an hour later."""
    now = time.time()
    recent = plant(ledger, written(since=now - 120.0, until=now - 60.0))
    old = plant(ledger, written(since=now - 9000.0, until=now - 8000.0))
    assert ledger.live().bookings == {}
    assert recent.exists()
    assert not old.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"since": -1.0},
        {"since": 0, "until": 253402300900},
        {"until": 1e300},
        {"until": 5.0},
        {"since": 1.0, "until": 1.0},
        {"claims": []},
        {"claims": ["A"] * 4097},
        {"claims": "A"},
        {"owner": "root"},
        {"version": 2},
        {"why": 5},
        {"why": "x" * 70_000},
    ],
)
def test_bad_bookings_are_ignored(ledger: Ledger, changes: dict[str, object]) -> None:
    """With a warning; nothing fails."""
    plant(ledger, written(**changes))
    view = ledger.live()
    assert view.bookings == {}
    assert len(view.warnings) == 1


def test_of_ten_thousand_bookings_a_few_count(ledger: Ledger) -> None:
    """And a look opens a thousand of them at most, once."""
    now = time.time()
    for number in range(10_000):
        plant(ledger, written(claims=[str(number)], since=now + 60.0, until=now + 120.0))
    reader = Ledger(ledger.path)
    assert len(reader.live().bookings) == MOST_OF_ONE_USER
    assert len(reader.live().bookings) == MOST_OF_ONE_USER


@pytest.fixture(scope="module")
def users() -> Iterator[tuple[User, User, User]]:
    with made_users(3) as (alice, bob, evil):
        yield alice, bob, evil


def test_no_booking_for_another_user(ledger: Ledger, users: tuple[User, User, User]) -> None:
    """The owner of a file is its user, and no other user can remove a booking."""
    alice, _, evil = users
    name = run_as(alice, programs.book, ledger.path, "A").strip()
    run_as(evil, programs.plant_lasting, ledger.path, f"{alice.uid}.{'0' * 16}.booking", written(claims=["B"]))
    assert "PermissionError" in run_as(evil, programs.remove, ledger.path / name)
    view = ledger.live()
    assert [(booking.owner, booking.claims) for booking in view.bookings.values()] == [(alice.name, ("A",))]
    assert [evil.name in warning for warning in view.warnings] == [True]


def test_users_who_book_at_once(ledger: Ledger, users: tuple[User, User, User]) -> None:
    """Of bookings of the same device at the same moment, never two are granted."""
    rounds = 40
    processes = [
        running_as(user, programs.book_many, ledger.path, str(rounds), str(time.time() + 2.0)) for user in users
    ]
    with processes[0] as first, processes[1] as second, processes[2] as third:
        granted = [json.loads(finish(process)) for process in (first, second, third)]
    devices = [device for one in granted for device in one]
    assert len(devices) == len(set(devices))
    bookings = sorted(ledger.live().bookings.values(), key=lambda booking: booking.claims)
    assert not any(one.meets(other) for one, other in pairwise(bookings))
