"""A hostile user of the machine beside honest ones: what it can do to their claims, with real users."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import stoker.ledger
from stoker.core.lease import Claim, Lease
from stoker.ledger import Ledger, LedgerUnusable
from stoker.ledger.formats import encode_lease
from stoker.ledger.reader import OWNER_BYTES, OWNER_FILES
from support import ledger_programs as programs
from support.ledger_files import GOOD, is_free, lease_name, planted, taken
from support.users import User, made_users, next_line, run_as, running_as

Users = tuple[User, User, User]


@pytest.fixture(scope="module")
def users() -> Iterator[Users]:
    """Two honest users and a hostile one."""
    with made_users(3) as (alice, bob, evil):
        yield alice, bob, evil


class Meanwhile:
    """A lease of another process, to be published once at the right moment."""

    def __init__(self, ledger: Ledger, stack: ExitStack) -> None:
        self.lease: Lease | None = None
        self._ledger = ledger
        self._stack = stack

    def publish(self) -> None:
        if self.lease:
            self._stack.enter_context(planted(self._ledger, lease_name(), encode_lease(self.lease)))
        self.lease = None

    def withdraw(self) -> None:
        self._stack.close()


class TestMeeting:
    """Claims that are published at the same time."""

    @pytest.fixture
    def meanwhile(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Iterator[Meanwhile]:
        """Another lease that is published between our first look and our publication."""
        with ExitStack() as stack:
            made = Meanwhile(ledger, stack)
            publish = stoker.ledger.publish  # type: ignore[attr-defined]

            def after_another(directory: int, name: str, contents: bytes) -> int:
                made.publish()
                return int(publish(directory, name, contents))

            monkeypatch.setattr("stoker.ledger.publish", after_another)
            yield made

    @pytest.mark.parametrize("since", [1.0, 3.0], ids=["older", "younger"])
    def test_a_lease_published_meanwhile_prevails(self, ledger: Ledger, meanwhile: Meanwhile, since: float) -> None:
        """It may have been granted before ours was seen: ours is withdrawn, whichever is older."""
        meanwhile.lease = Lease((Claim("A"),), "", 1, "", since)
        assert ledger.claim((Claim("A"),), "mine", 2.0) is None
        assert len(list(ledger.path.glob("*.lease"))) == 1
        meanwhile.withdraw()
        assert is_free(ledger)

    @pytest.mark.parametrize(("since", "granted"), [(1.0, False), (3.0, True)], ids=["older", "younger"])
    def test_the_older_of_two_claims_waits_for_the_younger_to_withdraw(
        self, ledger: Ledger, meanwhile: Meanwhile, monkeypatch: pytest.MonkeyPatch, since: float, *, granted: bool
    ) -> None:
        """Of two claims that see each other one is granted, so that they do not withdraw for ever."""
        meanwhile.lease = Lease((Claim("A"),), "", 1, "", since)
        monkeypatch.setattr(os, "sched_yield", meanwhile.withdraw)
        held = ledger.claim((Claim("A"),), "mine", 2.0)
        assert bool(held) == granted
        if held:
            ledger.release(held)

    def test_claims_that_share_may_meet(self, ledger: Ledger, meanwhile: Meanwhile) -> None:
        """Leases that fit together are granted together, and no more than fit."""
        meanwhile.lease = Lease((Claim("A", 4, 8),), "", 1, "", 1.0)
        held = ledger.claim((Claim("A", 4, 8),), "mine", 2.0, {"A": 8})
        assert held
        assert ledger.claim((Claim("A", 1, 8),), "mine", 2.0, {"A": 8}) is None
        ledger.release(held)


class TestFiles:
    """Files that a hostile user leaves in the ledger."""

    def test_a_second_link_voids_no_lease(self, ledger: Ledger, users: Users) -> None:
        """A lease counts whatever its number of links; root stands in for a kernel that lets others link."""
        with running_as(users[0], programs.hold, ledger.path, "A") as holder:
            path = ledger.path / next_line(holder)
            os.link(path, ledger.path / "x")
            os.link(path, ledger.path / lease_name(users[0].uid))
            assert not is_free(ledger)
            assert run_as(users[1], programs.try_to_hold, ledger.path, "A") == "\n"
            holder.kill()
            holder.wait(10)
        assert is_free(ledger)

    @pytest.mark.parametrize("named", ["evil", "victim"])
    def test_junk_hides_no_lease_of_another_user(self, ledger: Ledger, users: Users, named: str) -> None:
        """Thousands of files, named after the hostile user or after the victim, cost one warning and hide nothing."""
        alice, bob, evil = users
        run_as(evil, programs.litter, ledger.path, alice.uid if named == "victim" else evil.uid, "3000")
        with running_as(alice, programs.hold, ledger.path, "A") as holder:
            name = next_line(holder)
            owners, warnings = programs.seen_by(bob, ledger)
            assert owners == {name: alice.name}
            assert len(warnings) == 1
            assert f"3,000 of {evil.name}" in warnings[0]
            assert run_as(bob, programs.try_to_hold, ledger.path, "A") == "\n"
            assert run_as(bob, programs.try_to_hold, ledger.path, "B")

    def test_ignored_files_are_not_opened_again(
        self, ledger: Ledger, users: Users, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A look opens at most so many files of a user, and those that it ignored no second time."""
        run_as(users[2], programs.litter, ledger.path, users[2].uid, "1500", GOOD)
        opened: list[str] = []
        really = os.open

        def noted(path: str | Path, flags: int, *rest: int, **others: int) -> int:
            opened.append(str(path))
            return really(path, flags, *rest, **others)

        monkeypatch.setattr(os, "open", noted)
        assert len(ledger.live().warnings) == 1
        assert 0 < sum(name.endswith(".lease") for name in opened) <= OWNER_FILES
        opened.clear()
        assert len(ledger.live().warnings) == 1
        assert not any(name.endswith(".lease") for name in opened)

    def test_removed_files_are_not_warned_about(self, ledger: Ledger, users: Users) -> None:
        """The warning goes with the files."""
        run_as(users[2], programs.litter, ledger.path, users[2].uid, "20")
        assert len(ledger.live().warnings) == 1
        for path in ledger.path.glob("*.lease"):
            path.unlink()
        assert ledger.live().warnings == ()

    def test_a_far_date_is_no_lease(self, ledger: Ledger, users: Users) -> None:
        """A lease with a date that no screen can show is void, and its owner is named."""
        contents = GOOD.replace('"since":1.0', '"since":1e300')
        with running_as(users[2], programs.plant, ledger.path, lease_name(users[2].uid), contents) as planter:
            next_line(planter)
            view = ledger.live()
        assert view.leases == {}
        assert ["since" in warning for warning in view.warnings] == [True]

    def test_many_bytes_of_one_user(self, ledger: Ledger) -> None:
        """Of one user no more than a limit is read; the rest is void."""
        filler = GOOD.replace("work", "w" * 60_000).encode()
        with ExitStack() as stack:
            for _ in range(count := OWNER_BYTES // len(filler) + 1):
                stack.enter_context(planted(ledger, lease_name(), filler))
            view = ledger.live()
            assert (len(view.leases), len(view.warnings)) == (count - 1, 1)
            with pytest.raises(LedgerUnusable, match="the limit per user"):
                ledger.claim((Claim("B" * 60_000),), "mine", 1.0)

    def test_own_leases_have_a_limit(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        """A claim beyond what others would read is refused, since it would protect nothing."""
        monkeypatch.setattr("stoker.ledger.OWNER_FILES", 2)
        with taken(ledger, "A"), taken(ledger, "B"), pytest.raises(LedgerUnusable, match="the limit per user"):
            is_free(ledger, Claim("C"))
        assert is_free(ledger)
