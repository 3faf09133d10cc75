"""Bookings of real users: the engine of another user keeps the GPUs free in time, and says so."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.booking import MOST_OF_ONE_USER
from stoker.core.job import Running
from stoker.core.spec import Resources
from stoker.ledger import Ledger, prepare_ledger
from support import ledger_programs as programs
from support.background import Background
from support.cli import until
from support.ledger_files import GOOD, lease_name
from support.users import User, made_users, next_line, reachable_directory, run_as, running_as
from support.wait import wait_until


@pytest.fixture(scope="module")
def users() -> Iterator[tuple[User, User]]:
    with made_users(2) as (bob, evil):
        yield bob, evil


@pytest.fixture
def ledger(background: Background) -> Iterator[Path]:
    """A ledger that all users of the machine share with the queue."""
    with reachable_directory() as directory:
        path = prepare_ledger(directory / "ledger")
        background.environment["STOKER_LEDGER"] = str(path)
        yield path


def why(background: Background, job: int) -> str:
    (line,) = json.loads(background("status", str(job), "--json").out)["jobs"]
    return str(line["why"])


def test_a_booking_of_another_user(background: Background, ledger: Path, users: tuple[User, User]) -> None:
    """No job starts on the GPU until it is over; jobs go on elsewhere; screens name the user."""
    bob = users[0]
    name = run_as(bob, programs.book, ledger, "sim:0").strip()
    first, second = background.submit(until("gate"), "true")
    background.wait_word("running", first)
    assert background.job(first).state.devices == ("SIM-1",)  # type: ignore[union-attr]
    (only,) = background.submit("true", resources=Resources(allowed=("SIM-0",)))
    wait_until(lambda: f"GPU 0 is booked by {bob.name} from" in why(background, only))
    booked = json.loads(background("gpus", "--json").out)["devices"][0]["bookings"]
    assert [(line["user"], line["yours"]) for line in booked] == [(bob.name, False)]
    assert "booked by" in background("status", "--table").out
    assert bob.name in background("book", "--table").out
    assert background.word(second) == "waiting"
    assert background("book", "--cancel", name.split(".")[1][:6]).code == 0, "root may cancel it"
    background.wait_over(only, second)
    background.open_gate("gate")


def test_a_preemptible_job_leaves_in_time(background: Background, ledger: Path, users: tuple[User, User]) -> None:
    """Before the booking begins; a job that is not preemptible runs on, and the booking says so."""
    bob = users[0]
    (leaves,) = background.submit(until("gate"), resources=Resources(allowed=("SIM-0",)), preemptible="restart")
    (stays,) = background.submit(until("gate"), resources=Resources(allowed=("SIM-1",)))
    background.wait_word("running", leaves, stays)
    begin = time.time() + 20.0
    for device in ("sim:0", "sim:1"):
        run_as(bob, programs.book_later, ledger, device, str(begin), "600")
    wait_until(lambda: background.word(leaves) != "running")
    wait_until(lambda: time.time() > begin)
    wait_until(lambda: f"GPU 0 is booked by {bob.name}" in why(background, leaves))
    assert isinstance(background.job(stays).state, Running)
    shown = background("book", "--table").out
    assert f"job {stays} of" in shown or "GPU 1: a job of" in shown
    assert "begins when it ends" in shown
    background.open_gate("gate")
    background.wait_over(stays)


def test_a_user_who_ignores_bookings(background: Background, ledger: Path, users: tuple[User, User]) -> None:
    """Is found by the check of the engine; ten thousand bookings and bad ones hide no other."""
    bob, evil = users
    run_as(evil, programs.book_thousands, ledger, "10000")
    run_as(bob, programs.book, ledger, "sim:1")
    claims = '[{"name":"sim:1"}]'
    late = GOOD.replace('[{"name":"A"}]', claims).replace('"since":1.0', f'"since":{time.time() + 60.0}')
    with running_as(evil, programs.plant, ledger, lease_name(evil.uid), late) as planter:
        next_line(planter)
        notes = [line for line in background("engine", "check").out.splitlines() if "has held sim:1" in line]
        assert [evil.name in line and f"booked by {bob.name}" in line for line in notes] == [True]
        bookings = Ledger(ledger).live().bookings.values()
        assert sum(booking.uid == evil.uid for booking in bookings) == MOST_OF_ONE_USER
        assert [booking.claims for booking in bookings if booking.uid == bob.uid] == [("sim:1",)]
        (job,) = background.submit("true")
        background.wait_over(job)


def test_book_from_the_command_line(background: Background, ledger: Path) -> None:
    """Of one's own bookings the engine keeps nothing free; bad input is refused with the way out."""
    assert background("book", "2", "--for", "1h", "--why", "a\x1b[31m\nb").code == 0
    (line,) = json.loads(background("book", "--json").out)["bookings"]
    assert (line["yours"], line["gpus"], line["why"], line["state"]) == (True, ["0", "1"], r"a\x1b[31m\nb", "now")
    (job,) = background.submit("true")
    background.wait_over(job)
    for words, said in (
        (("3", "--for", "1h"), "this machine has 2 GPUs"),
        (("0", "--for", "1h"), "range"),
        (("1", "--for", "0"), "is not a duration"),
        (("1", "--for", "3650d"), "at most 14 days"),
        (("1", "--for", "1h", "--from", "1970-01-01"), "in the past"),
        (("1", "--for", "1h", "--from", "9999-01-01"), "not a time"),
        (("1", "--for", "1h", "--from", "2096-01-01"), "at most 31 days ahead"),
        (("1", "--for", "1h"), "has booked GPU 0-1"),
        (("--gpu", "7", "--for", "1h"), "no device '7'"),
        (("--cancel", "zz"), "there is no booking"),
        (("--why", "x"), "number of GPUs is missing"),
        (("1",), "--for is missing"),
    ):
        outcome = background("book", *words)
        assert outcome.code != 0
        assert said in outcome.err, words
    assert len(os.listdir(ledger)) >= 1
