"""The state directory of a user is private."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.errors import StokerError
from stoker.store.paths import file_system_of as file_system
from stoker.store.paths import find_paths, write_problem
from support.disk import fill, small_disk
from support.users import User, made_users, reachable_directory, run_as


@pytest.fixture(scope="session")
def user() -> Iterator[User]:
    """A user of this machine."""
    with made_users(1) as (made,):
        yield made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that XDG_STATE_HOME names."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def a_mount(point: Path | str, kind: str) -> str:
    """A line of /proc/self/mountinfo."""
    return f"36 35 98:0 / {point} rw,noatime master:1 - {kind} source rw\n"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class TestFindPaths:
    """The state directory."""

    def test_environment_decides(self, tmp_path: Path) -> None:
        """STOKER_STATE names the directory; every host has a folder in it."""
        assert find_paths({"STOKER_STATE": str(tmp_path / "s")}, "host", simulated=False).state == tmp_path / "s/host"

    def test_relative_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A relative STOKER_STATE is made absolute."""
        monkeypatch.chdir(tmp_path)
        assert find_paths({"STOKER_STATE": "s"}, "host", simulated=False).state == tmp_path / "s/host"

    def test_default(self, home: Path) -> None:
        """Without it the state is in the XDG state directory."""
        paths = find_paths({}, "host", simulated=False)
        assert (paths.state, paths.note) == (home / "stoker/host", "")

    def test_simulated_machine(self, home: Path) -> None:
        """Simulated GPUs have a separate state directory."""
        assert find_paths({}, "host", simulated=True).state == home / "stoker/host-simulated"

    def test_everything_is_inside(self, home: Path) -> None:
        """All other paths are below the state directory and distinct."""
        paths = find_paths({}, "host", simulated=False)
        inside = [paths.database, paths.workers, paths.engines, paths.logs, paths.simulator]
        assert {path.parent for path in inside} == {paths.state}
        assert len(set(inside)) == len(inside)

    def test_private(self, home: Path) -> None:
        """The directory is created private, and an open one is made private."""
        before = os.umask(0)
        try:
            state = find_paths({}, "host", simulated=False).state
        finally:
            os.umask(before)
        assert mode_of(state) == 0o700
        state.chmod(0o755)
        find_paths({}, "host", simulated=False)
        assert mode_of(state) == 0o700

    @pytest.mark.parametrize("obstacle", ["file", "link", "file above"])
    def test_something_in_the_way(self, tmp_path: Path, obstacle: str) -> None:
        """A file in its place is refused and left unchanged; the hint names STOKER_STATE."""
        match obstacle:
            case "file":
                (tmp_path / "host").write_text("precious")
            case "link":
                (tmp_path / "host").symlink_to(tmp_path)
            case _:
                tmp_path = tmp_path / "above"
                tmp_path.write_text("precious")
        with pytest.raises(StokerError) as caught:
            find_paths({"STOKER_STATE": str(tmp_path)}, "host", simulated=False)
        assert "STOKER_STATE" in caught.value.hint

    def test_directory_of_another_user(self, tmp_path: Path, user: User) -> None:
        """A directory of another user is refused."""
        (tmp_path / "host").mkdir()
        os.chown(tmp_path / "host", user.uid, user.gid)
        with pytest.raises(StokerError, match="another user"):
            find_paths({"STOKER_STATE": str(tmp_path)}, "host", simulated=False)


class TestNetworkHome:
    """Homes on network file systems, which is not safe for a queue."""

    @pytest.fixture
    def mounts(self, tmp_path: Path, home: Path) -> str:
        """A list of mounts in which the home is on NFS."""
        home.mkdir()
        (tmp_path / "mountinfo").write_text(a_mount("/", "ext4") + a_mount(home, "nfs4"))
        return str(tmp_path / "mountinfo")

    def test_local_directory(self, tmp_path: Path, home: Path, mounts: str) -> None:
        """The state is in a private local directory instead, with a notice."""
        paths = find_paths({}, "host", simulated=False, mountinfo=mounts, spare=tmp_path)
        assert paths.state == tmp_path / f"stoker-{os.getuid()}" / "host"
        assert [mode_of(paths.state), mode_of(paths.state.parent)] == [0o700, 0o700]
        assert "is on nfs4" in paths.note
        assert str(paths.state) in paths.note
        assert list(home.iterdir()) == []

    def test_chosen_directory(self, home: Path, mounts: str) -> None:
        """A directory in STOKER_STATE is used even on a network file system."""
        assert not find_paths({"STOKER_STATE": str(home)}, "host", simulated=False, mountinfo=mounts).note

    def test_planted_directory(self, tmp_path: Path, mounts: str, user: User) -> None:
        """A directory of another user in its place is refused, even if it is open to all."""
        planted = tmp_path / f"stoker-{os.getuid()}"
        planted.mkdir()
        planted.chmod(0o777)
        os.chown(planted, user.uid, user.gid)
        with pytest.raises(StokerError, match="another user"):
            find_paths({}, "host", simulated=False, mountinfo=mounts, spare=tmp_path)


class TestNoUsableHome:
    """Homes that do not exist or cannot be written to, as in containers."""

    @pytest.mark.parametrize("kind", ["missing", "file", "read-only"])
    def test_local_directory(self, user: User, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        """The state is in a private local directory instead, with a notice."""
        with reachable_directory() as place:
            (place / "spare").mkdir(mode=0o1777)
            (place / "spare").chmod(0o1777)
            home = place / "home"
            if kind == "file":
                home.write_text("")
            elif kind == "read-only":
                (home / "stoker/host").mkdir(parents=True)
                os.chown(home / "stoker/host", user.uid, user.gid)
                (home / "stoker/host").chmod(0o500)
            said = run_as(user, print_paths, home, place / "spare").splitlines()
            assert said[0] == str(place / "spare" / f"stoker-{user.uid}" / "host")
            assert str(home) in said[1]

    def test_a_full_disk_is_no_reason(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The queue is not split over two places."""

        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(Path, "mkdir", full)
        with pytest.raises(StokerError, match="No space left"):
            find_paths({}, "host", simulated=False)


def print_paths(home: str, spare: str) -> None:
    """The state directory and its notice, for a user with this XDG_STATE_HOME."""
    os.environ["XDG_STATE_HOME"] = home
    paths = find_paths({}, "host", simulated=False, spare=Path(spare))
    print(paths.state, paths.note, sep="\n")


class TestFileSystemOf:
    """The type of a file system, from the kernel's list."""

    def test_this_machine(self) -> None:
        """The mounts of this machine are parsed."""
        assert file_system(Path("/proc/self")) == "proc"

    @pytest.mark.parametrize(
        ("path", "kind"),
        [
            ("/usr", "ext4"),
            ("/dev/null", "xfs"),
            ("/dev/shm/not/there/yet", "tmpfs"),
            ("/development", "ext4"),
        ],
    )
    def test_innermost_mount(self, tmp_path: Path, path: str, kind: str) -> None:
        """The innermost mount above a path counts, also for paths that do not exist yet."""
        (tmp_path / "mounts").write_text(a_mount("/", "ext4") + a_mount("/dev", "xfs") + a_mount("/dev/shm", "tmpfs"))
        assert file_system(Path(path), str(tmp_path / "mounts")) == kind

    def test_last_of_two(self, tmp_path: Path) -> None:
        """Of two mounts on one path the later one counts."""
        (tmp_path / "mounts").write_text(a_mount("/", "rootfs") + a_mount("/", "lustre"))
        assert file_system(tmp_path, str(tmp_path / "mounts")) == "lustre"

    @pytest.mark.parametrize("name", ["a b", "a\\b", "dépôt 一", "no-break\u00a0space"])
    def test_odd_names(self, tmp_path: Path, name: str) -> None:
        """Mount points with blanks, backslashes and letters of any script are recognised."""
        (tmp_path / name).mkdir()
        written = str(tmp_path / name).replace("\\", "\\134").replace(" ", "\\040")
        (tmp_path / "mounts").write_text(a_mount("/", "ext4") + a_mount(written, "nfs"))
        assert file_system(tmp_path / name, str(tmp_path / "mounts")) == "nfs"


@pytest.mark.parametrize("options", ["size=1m", "nr_inodes=3"])
def test_a_full_disk_is_named(tmp_path: Path, options: str) -> None:
    """Whether bytes or inodes are used up; nothing is left of the probe."""
    with small_disk(tmp_path / "disk", options) as disk:
        assert write_problem(disk) == ""
        assert list(disk.iterdir()) == []
        (disk / "file").touch()
        (disk / "last inode").touch()
        if options.startswith("size"):
            fill(disk)
        assert write_problem(disk) == f"{disk} cannot be written to: No space left on device"
