"""The ledger between processes and users, honest and hostile."""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
import timeit
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.errors import UsageError
from stoker.core.lease import Claim
from stoker.ledger import HeldLease, Ledger, LedgerUnusable, find_ledger, prepare_ledger
from stoker.ledger.files import MOST_BYTES
from support import ledger_programs as programs
from support.ledger_files import BAD, GOOD, ROOM, is_free, lease_name, planted, promises_hold, steps, taken
from support.users import User, finish, made_users, next_line, reachable_directory, run_as, running_as
from support.wait import PATIENCE_SECONDS


@pytest.fixture(scope="session")
def users() -> Iterator[tuple[User, ...]]:
    """Two users of this machine."""
    with made_users(2) as made:
        yield made


class TestFinding:
    """Where the ledger is."""

    def test_first_directory_is_created_for_all(self, tmp_path: Path) -> None:
        """The first place that can be made is made with mode 1777."""
        found = find_ledger({}, (tmp_path / "missing" / "stoker", tmp_path / "stoker", tmp_path / "later"))
        assert found == tmp_path / "stoker"
        assert stat.S_IMODE(found.stat().st_mode) == 0o1777
        assert not (tmp_path / "later").exists()

    def test_existing_directory_goes_first(self, tmp_path: Path) -> None:
        """An existing later directory is used before an earlier one is created."""
        prepare_ledger(tmp_path / "later")
        assert find_ledger({}, (tmp_path / "earlier", tmp_path / "later")) == tmp_path / "later"

    def test_environment_decides(self, tmp_path: Path) -> None:
        """STOKER_LEDGER overrides the fixed directories."""
        chosen = tmp_path / "chosen"
        assert find_ledger({"STOKER_LEDGER": str(chosen)}, (tmp_path,)) == chosen

    def test_relative_path_is_refused(self) -> None:
        """A STOKER_LEDGER that depends on the current directory is refused."""
        with pytest.raises(UsageError, match="absolute path"):
            find_ledger({"STOKER_LEDGER": "ledger"})

    def test_no_directory_at_all(self, tmp_path: Path) -> None:
        """Where no directory can be created, the error names them and STOKER_LEDGER."""
        with pytest.raises(LedgerUnusable, match="missing/stoker") as caught:
            find_ledger({}, (tmp_path / "missing/stoker",))
        assert "STOKER_LEDGER" in caught.value.hint

    def test_symlink_is_refused(self, tmp_path: Path) -> None:
        """A symbolic link is refused, even to a good ledger."""
        prepare_ledger(tmp_path / "good")
        (tmp_path / "link").symlink_to(tmp_path / "good")
        with pytest.raises(LedgerUnusable, match="symbolic link"):
            find_ledger({"STOKER_LEDGER": f"{tmp_path}/link/"})

    def test_file_is_refused(self, tmp_path: Path) -> None:
        """A file in the ledger's place is refused and left unchanged."""
        (tmp_path / "file").write_text("precious")
        with pytest.raises(LedgerUnusable, match="not a directory"):
            find_ledger({}, (tmp_path / "file", tmp_path / "other"))
        assert (tmp_path / "file").read_text() == "precious"

    @pytest.mark.parametrize("mode", [0o777, 0o775, 0o770])
    def test_directory_without_sticky_bit_is_refused(self, tmp_path: Path, mode: int) -> None:
        """Where others could remove leases, the ledger is refused and the error says which mode it needs."""
        tmp_path.chmod(mode)
        with pytest.raises(LedgerUnusable, match="sticky") as caught:
            find_ledger({}, (tmp_path,))
        assert "chmod 1777" in caught.value.hint

    def test_umask_does_not_matter(self, users: tuple[User, ...]) -> None:
        """A user with umask 077 makes a ledger that another can use."""
        with reachable_directory() as directory:
            directory.chmod(0o1777)
            run_as(users[0], programs.find, path := directory / "ledger", umask=0o077)
            assert stat.S_IMODE(path.stat().st_mode) == 0o1777
            assert path.stat().st_uid == users[0].uid
            with running_as(users[1], programs.hold, path, "A") as holder:
                assert next_line(holder).startswith(f"{users[1].uid}.")

    def test_half_made_directory_is_repaired_by_its_owner(self, tmp_path: Path) -> None:
        """A directory whose creator was killed before its chmod is opened to all at its next use."""
        tmp_path.chmod(0o1700)
        assert stat.S_IMODE(find_ledger({}, (tmp_path,)).stat().st_mode) == 0o1777


class TestClaiming:
    """Which claims are granted."""

    def test_one_holder_at_a_time(self, ledger: Ledger) -> None:
        """An exclusively held device is granted again only after its release."""
        with taken(ledger, "A"):
            assert not is_free(ledger)
        assert is_free(ledger)

    def test_all_or_nothing(self, ledger: Ledger) -> None:
        """When one of several devices is held, none of the others is claimed."""
        with taken(ledger, "B"):
            assert not is_free(ledger, Claim("A"), Claim("B"))
            assert is_free(ledger, Claim("A"), Claim("C"))

    def test_same_device_twice_counts_twice(self, ledger: Ledger) -> None:
        """A lease that names a device twice counts as two claims."""
        assert not is_free(ledger, Claim("A"), Claim("A"))
        assert is_free(ledger, Claim("A", share=2), Claim("A", share=2))

    def test_all_users_read_a_lease(self, ledger: Ledger) -> None:
        """A lease has claims, owner, process, purpose and start."""
        with taken(ledger, "A", "B") as held:
            assert ledger.live().leases == {held.name: held.lease}
            assert held.lease.claims == (Claim("A"), Claim("B"))
            assert held.lease.pid == os.getpid()
        assert ledger.live().leases == {}

    def test_nothing_is_left_behind(self, ledger: Ledger) -> None:
        """After a release no file remains."""
        assert is_free(ledger)
        assert list(ledger.path.iterdir()) == []

    def test_purpose_is_made_harmless(self, ledger: Ledger) -> None:
        """Control characters and broken text in the purpose are escaped, and long ones cut."""
        held = ledger.claim((Claim("A"),), "\x1b[2J\udcff" + "x" * 1000, 1.0)
        assert held
        (lease,) = ledger.live().leases.values()
        assert lease.what.startswith(r"\x1b[2J\udcff" + "x")
        assert len(lease.what) == 200
        ledger.release(held)

    @pytest.mark.parametrize("claims", [(Claim("\udcff"),), (Claim("A" * MOST_BYTES),), (Claim("A", -1),)])
    def test_unreadable_claims_are_refused(self, ledger: Ledger, claims: tuple[Claim, ...]) -> None:
        """What readers would refuse is never written."""
        with pytest.raises(UsageError, match="cannot be leased"):
            ledger.claim(claims, "work", 1.0)
        assert list(ledger.path.iterdir()) == []

    def test_leftovers_of_a_killed_claim_are_removed(self, ledger: Ledger) -> None:
        """An unfinished file is ignored and, once it is old, removed by the next claim."""
        leftover = ledger.path / f"{os.geteuid()}.0123456789abcdef.new"
        leftover.write_text(GOOD)
        assert is_free(ledger)
        assert leftover.exists()  # another process of this user may be writing it
        os.utime(leftover, (1.0, 1.0))
        assert is_free(ledger)
        assert not leftover.exists()

    def test_directory_that_vanished_is_made_again(self, ledger: Ledger) -> None:
        """A ledger removed by a cleaner of temporary files is empty, and the next claim creates it again."""
        ledger.path.rmdir()
        assert ledger.live().leases == {}
        assert is_free(ledger)

    def test_looking_is_cheap(self, ledger: Ledger) -> None:
        """Sixteen leases are read in less than a millisecond."""
        with ExitStack() as stack:
            for number in range(16):
                stack.enter_context(taken(ledger, f"GPU-{number}"))
            assert min(timeit.repeat(ledger.live, number=1, repeat=200)) < 0.001

    @settings(max_examples=60)
    @given(steps)
    def test_grants_keep_every_promise(self, steps: list[int | tuple[Claim, ...]]) -> None:
        """After any claims and releases, a claim is granted exactly when it is compatible."""
        with tempfile.TemporaryDirectory() as directory:
            ledger = Ledger(Path(directory) / "ledger")
            held: list[HeldLease] = []
            for step in steps:
                if isinstance(step, int):
                    if step < len(held):
                        ledger.release(held.pop(step))
                    continue
                standing = [claim for lease in held for claim in lease.lease.claims]
                granted = ledger.claim(step, "step", 1.0, ROOM)
                assert bool(granted) == all(promises_hold(standing, claim) for claim in step)
                held += [granted] if granted else []
            for lease in held:
                ledger.release(lease)


class TestLifetime:
    """A lease lives exactly as long as its lock."""

    def test_kill_ends_the_lease(self, ledger: Ledger, users: tuple[User, ...]) -> None:
        """When its holder is killed, the device is free at once, and its user removes the file."""
        with running_as(users[0], programs.hold, ledger.path, "A") as holder:
            name = next_line(holder)
            assert ledger.live().leases[name].owner == users[0].name
            assert not is_free(ledger)
            holder.kill()
            holder.wait(PATIENCE_SECONDS)
        view = ledger.live()
        assert view.leases == {}
        (warning,) = view.warnings
        assert warning == f"ignored {ledger.path / name}: left behind by {users[0].name}, no process holds it"
        assert is_free(ledger)
        assert programs.seen_by(users[0], ledger) == ({}, [])
        assert not (ledger.path / name).exists()

    def test_lease_follows_the_descriptor(self, ledger: Ledger, users: tuple[User, ...]) -> None:
        """A lease whose descriptor was passed on outlives its claimant, until the receiver closes it."""
        receiver = ledger.path.parent / "receiver"
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(receiver))
            receiver.chmod(0o777)
            server.listen()
            server.settimeout(PATIENCE_SECONDS)
            with running_as(users[0], programs.hand_over, ledger.path, "A", str(receiver)) as claimant:
                next_line(claimant)
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(PATIENCE_SECONDS)
                    name, (fd,), _, _ = socket.recv_fds(connection, 100, 1)
                claimant.kill()
                claimant.wait(PATIENCE_SECONDS)
        assert list(ledger.live().leases) == [name.decode()]
        os.close(fd)
        assert ledger.live().leases == {}

    def test_withdrawn_lease_has_ended(self, ledger: Ledger) -> None:
        """A withdrawn lease frees its device although its lock is still held."""
        with taken(ledger, "A") as held:
            ledger.withdraw(str(held.path))
            ledger.withdraw(held.name)
            assert is_free(ledger)

    def test_no_double_grant(self, ledger: Ledger, users: tuple[User, ...]) -> None:
        """Eight processes of two users, with 60 grants each, never hold a device twice."""
        witnesses = prepare_ledger(ledger.path.parent / "witnesses")
        arguments = (programs.storm, ledger.path, str(witnesses), "60")
        with ExitStack() as stack:
            storm = [stack.enter_context(running_as(users[n % 2], *arguments, str(n))) for n in range(8)]
            for process in storm:
                assert process.stdin
                process.stdin.write("go\n")
                process.stdin.flush()
            counts = [json.loads(finish(process)) for process in storm]
        assert all(granted > 0 and doubled == 0 for granted, doubled in counts)
        assert list(ledger.path.iterdir()) == []


class TestHostility:
    """No file in the ledger can make it fail, or pass for another user's lease."""

    @pytest.mark.parametrize("contents", BAD.values(), ids=BAD.keys())
    def test_bad_contents_are_no_lease(self, ledger: Ledger, contents: str) -> None:
        """A locked file without a valid lease is ignored with one warning."""
        with planted(ledger, lease_name(), contents.encode()) as path:
            view = ledger.live()
            assert view.leases == {}
            assert [str(path) in warning for warning in view.warnings] == [True]
            assert is_free(ledger)

    @settings(max_examples=300)
    @given(st.binary(), st.sampled_from([b"", GOOD.encode()]), st.binary())
    def test_random_contents_do_no_harm(self, before: bytes, middle: bytes, after: bytes) -> None:
        """Any contents give a lease or a printable warning."""
        with tempfile.TemporaryDirectory() as directory:
            ledger = Ledger(prepare_ledger(Path(directory) / "ledger"))
            with planted(ledger, lease_name(), before + middle + after):
                view = ledger.live()
            assert len(view.leases) + len(view.warnings) == 1
            assert all(warning.isprintable() for warning in view.warnings)

    @pytest.mark.parametrize(
        "name", ["x.lease", ".lease", "-1.0123456789abcdef.lease", "0\x1b[2J\n.lease", "\udcff.lease"]
    )
    def test_strange_names_are_ignored(self, ledger: Ledger, name: str) -> None:
        """A lease under a foreign name is ignored with a printable warning."""
        with planted(ledger, name, GOOD.encode()):
            view = ledger.live()
        assert (len(view.leases), len(view.warnings)) == (0, 1)
        assert view.warnings[0].isprintable()

    def test_other_kinds_of_files_are_left_alone(self, ledger: Ledger) -> None:
        """Files of other kinds are ignored without a warning, so that new kinds can be added."""
        with planted(ledger, "1000.0123456789abcdef.later", b"later"):
            assert ledger.live().warnings == ()

    def test_special_files_are_not_followed_and_do_not_block(self, ledger: Ledger, tmp_path: Path) -> None:
        """A link to a valid lease, a pipe, a directory and a socket are ignored with a warning each."""
        (tmp_path / "elsewhere").write_text(GOOD)
        (ledger.path / lease_name()).symlink_to(tmp_path / "elsewhere")
        os.mkfifo(ledger.path / lease_name())
        (ledger.path / lease_name()).mkdir()
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(ledger.path / lease_name()))
        view = ledger.live()
        assert (len(view.leases), len(view.warnings)) == (0, 4)
        assert is_free(ledger)

    def test_no_claim_for_another_user(self, ledger: Ledger, users: tuple[User, ...]) -> None:
        """A lease named after one user but owned by another is ignored, and the warning names the owner."""
        with running_as(users[0], programs.plant, ledger.path, lease_name(users[1].uid), GOOD) as forger:
            next_line(forger)
            view = ledger.live()
        assert view.leases == {}
        assert f"belongs to {users[0].name}" in view.warnings[0]

    def test_unreadable_file_is_ignored(self, ledger: Ledger, users: tuple[User, ...]) -> None:
        """A lease that a user cannot read is ignored with a warning."""
        with taken(ledger, "A") as held:
            held.path.chmod(0o600)
            owners, (warning,) = programs.seen_by(users[0], ledger)
        assert owners == {}
        assert "cannot be opened" in warning

    def test_users_see_each_other(self, ledger: Ledger, users: tuple[User, ...]) -> None:
        """Every user sees a lease with the name of its owner, whatever the umask."""
        with running_as(users[0], programs.hold, ledger.path, "A") as holder:
            name = next_line(holder)
            assert programs.seen_by(users[1], ledger) == ({name: users[0].name}, [])
            with running_as(users[1], programs.hold, ledger.path, "A") as late:
                assert next_line(late) == ""

    def test_owner_without_a_name_is_a_number(self, ledger: Ledger, users: tuple[User, ...]) -> None:
        """A lease of a user without a name shows "uid" and the number."""
        nobody = User("nobody in particular", 1_987_654_321, users[0].gid)
        with running_as(nobody, programs.hold, ledger.path, "A") as holder:
            name = next_line(holder)
            assert ledger.live().leases[name].owner == "uid 1987654321"


class TestTrouble:
    """Errors of the machine."""

    def test_full_disk_leaves_nothing(self, ledger: Ledger, users: tuple[User, ...]) -> None:
        """A lease that cannot be written in full is an error and leaves no file."""
        complaint = run_as(users[0], programs.complain_without_space, ledger.path)
        assert complaint.startswith("LedgerUnusable: the ledger cannot be used")
        assert list(ledger.path.iterdir()) == []
        assert is_free(ledger)

    def test_directory_closed_to_writing(self, ledger: Ledger, users: tuple[User, ...]) -> None:
        """Without write permission a claim is an error that says so; reading works."""
        with taken(ledger, "A") as held:
            ledger.path.chmod(0o555)
            complaint = run_as(users[0], programs.complain, ledger.path, "B")
            assert complaint.startswith("LedgerUnusable")
            assert "Permission denied" in complaint
            assert programs.seen_by(users[0], ledger) == ({held.name: held.lease.owner}, [])
            ledger.path.chmod(0o700)
            owners, (warning,) = programs.seen_by(users[0], ledger)
        assert owners == {}
        assert "cannot be read" in warning

    def test_short_of_descriptors_nothing_is_granted(self, ledger: Ledger, users: tuple[User, ...]) -> None:
        """A process without descriptors for reading leases is granted nothing."""
        with taken(ledger, "A"):
            complaint = run_as(users[0], programs.complain_without_descriptors, ledger.path)
        assert "Too many open files" in complaint
