"""Leases and demands that users of a machine share. A file counts as long as a process holds its lock."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from stoker.core.device import Claim, Lease
from stoker.core.errors import StokerError, UsageError
from stoker.core.planner.fairshare import Demand
from stoker.ledger import demands, leases
from stoker.ledger.demands import HeldDemand
from stoker.ledger.files import (
    SIZE_LIMIT,
    WHAT_LIMIT,
    create,
    new_name,
    opened,
    owner_name,
    printable,
    publish,
    purpose,
    read_kind,
    sweep,
    try_lock,
    unlink,
)

__all__ = [
    "PLACES",
    "SIZE_LIMIT",
    "WHAT_LIMIT",
    "HeldDemand",
    "HeldLease",
    "Ledger",
    "LedgerUnusable",
    "LedgerView",
    "find_ledger",
    "owner_name",
    "prepare_ledger",
]

PLACES = (Path("/run/lock/stoker"), Path("/tmp/.stoker"))

_MUTEX = "mutex"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SHARED_HINT = "set STOKER_LEDGER to a directory with mode 1777 that all users of this machine share"
_HINTS = {
    errno.ENOSPC: "free some space on its file system; jobs start again by themselves",
    errno.EDQUOT: "free some of your quota on its file system; jobs start again by themselves",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}
_TRIES = 3
"""Attempts to write a demand whose new file another process of this user swept away."""


class LedgerUnusable(StokerError):
    """The ledger is not safe or not writable, so nothing can be claimed."""


class HeldLease(Struct, frozen=True):
    """A lease of this process. The lock of its descriptor keeps it alive, also in a process that inherits it."""

    fd: int
    path: Path
    lease: Lease

    @property
    def name(self) -> str:
        """The file name, which identifies the lease."""
        return self.path.name


class LedgerView(Struct, frozen=True):
    """The live leases and demands by name, and a warning about each file that was ignored."""

    leases: Mapping[str, Lease]
    warnings: tuple[str, ...] = ()
    demands: Mapping[str, Demand] = {}


def find_ledger(environment: Mapping[str, str], paths: Iterable[Path] = PLACES) -> Path:
    """The directory that all users of the machine share, created where it is missing."""
    chosen = environment.get("STOKER_LEDGER", "")
    if chosen:
        if not chosen.startswith("/"):
            raise UsageError(f"STOKER_LEDGER is {chosen!r}, which is not a full path", _SHARED_HINT)
        return prepare_ledger(Path(chosen))
    # Prefer an existing directory: else users who may not write to the first parent would use different ones.
    ordered = sorted(paths, key=lambda place: not os.path.lexists(place))
    for place in ordered:
        if os.path.lexists(place) or os.access(place.parent, os.W_OK | os.X_OK):
            return prepare_ledger(place)
    raise LedgerUnusable(f"no ledger can be made in {' or '.join(map(str, ordered))}", _SHARED_HINT)


def prepare_ledger(path: Path) -> Path:
    """Create the directory where it is missing, and refuse one that is not safe to share."""
    with _explained(path):
        with suppress(FileExistsError):
            path.mkdir(0o1777)
        with _entered(path):
            return path


class Ledger:
    """One ledger directory. One process at a time makes a claim."""

    def __init__(self, path: Path, patience: float = 5.0) -> None:
        self.path = path
        self._patience = patience

    def claim(
        self,
        claims: tuple[Claim, ...],
        what: str,
        now: float,
        capacities: Mapping[str, int | None] = {},
        name: str = "",
    ) -> HeldLease | None:
        """A lease on all the claims at once; None where one of them is not compatible with existing leases.

        `name` restores a lease of this user whose file was removed.
        """
        lease = Lease(claims, owner_name(os.geteuid()), os.getpid(), purpose(what), now)
        contents = leases.encoded(lease)
        # Cleaners of temporary files remove directories that were idle for long.
        prepare_ledger(self.path)
        with _explained(self.path), _entered(self.path) as directory, self._mutex(directory) as mutex:
            sweep(directory)  # under the mutex no other process of this user writes a lease
            if not leases.fits(claims, self._leases(directory)[0].values(), capacities):
                return None
            name = name or new_name(leases.KIND)
            held = HeldLease(publish(directory, name, contents), self.path / name, lease)
            if _in_place(directory, mutex):
                return held
            self.release(held)
        raise LedgerUnusable(f"{self.path / _MUTEX} was replaced while it was locked", "try again")

    def live(self) -> LedgerView:
        """The live leases and demands. Removes stale files of this user; no content can make it fail."""
        try:
            with _entered(self.path) as directory:
                found, warnings = self._leases(directory)
                wanted, more = read_kind(directory, self.path, demands.KIND, demands.decoded)
                return LedgerView(found, (*warnings, *more), wanted)
        except FileNotFoundError:
            return LedgerView({})
        except (OSError, LedgerUnusable) as error:
            return LedgerView({}, (printable(f"the ledger {self.path} cannot be read: {error}"),))

    def release(self, held: HeldLease) -> None:
        """End a lease that this process holds."""
        with suppress(OSError):
            os.unlink(held.path)
        os.close(held.fd)

    def withdraw(self, lease: str) -> None:
        """End a lease of this user by path or name, whichever process holds its descriptor."""
        with _explained(self.path), suppress(FileNotFoundError):
            os.unlink(self.path / Path(lease).name)

    def is_gone(self, lease: str) -> bool:
        """Whether the file of a lease of this user was removed, so that other engines ignore it."""
        return not os.path.lexists(self.path / Path(lease).name)

    def freshen(self, lease: str) -> None:
        """Set the file time of a lease to now, against cleaners that remove files by age."""
        with suppress(OSError):
            os.utime(self.path / Path(lease).name, follow_symlinks=False)

    def demand(self, demand: Demand, before: HeldDemand | None = None) -> HeldDemand:
        """Publish what this engine waits for, in place of `before`. The user is always that of this process."""
        uid = os.geteuid()
        demand = msgspec.structs.replace(
            demand, uid=uid, owner=owner_name(uid), pid=os.getpid(), what=purpose(demand.what)
        )
        contents = demands.encoded(demand)
        path = before.path if before else self.path / new_name(demands.KIND)
        prepare_ledger(self.path)
        with _explained(self.path), _entered(self.path) as directory:
            held = HeldDemand(_persist(directory, path.name, contents), path, demand)
        if before:
            os.close(before.fd)
        return held

    def withdraw_demand(self, held: HeldDemand) -> None:
        with suppress(OSError):
            os.unlink(held.path)
        os.close(held.fd)

    def _leases(self, directory: int) -> tuple[dict[str, Lease], list[str]]:
        return read_kind(directory, self.path, leases.KIND, leases.decoded)

    @contextmanager
    def _mutex(self, directory: int) -> Iterator[int]:
        for pause in _pauses(self._patience):
            _make_mutex(directory)
            with opened(directory, _MUTEX) as mutex:
                if try_lock(mutex, fcntl.LOCK_EX) and _in_place(directory, mutex):
                    try:
                        yield mutex
                    finally:
                        # Closing is not enough: a process forked meanwhile has the descriptor, too.
                        fcntl.flock(mutex, fcntl.LOCK_UN)
                    return
            time.sleep(pause)
        message = f"{self.path / _MUTEX} has been locked for {self._patience:g} s{_holder(directory)}"
        raise LedgerUnusable(message, f"end that process, or {_SHARED_HINT}")


@contextmanager
def _entered(path: Path) -> Iterator[int]:
    try:
        directory = os.open(path, _DIRECTORY)
    except NotADirectoryError as error:
        message = f"{path} is a file or a symbolic link, not a directory"
        raise LedgerUnusable(message, f"remove it, or {_SHARED_HINT}") from error
    try:
        _check_directory(directory, path)
        yield directory
    finally:
        os.close(directory)


def _check_directory(directory: int, path: Path) -> None:
    status = os.fstat(directory)
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o022 and not mode & stat.S_ISVTX:
        message = f"{path} has mode {mode:o}: without the sticky bit, users could remove each other's leases"
        raise LedgerUnusable(message, f"run 'chmod 1777 {path}', or {_SHARED_HINT}")
    # Sticky but not open to all is what mkdir leaves under a umask; its owner opens it.
    if mode & stat.S_ISVTX and mode != 0o1777 and status.st_uid == os.geteuid():
        os.fchmod(directory, 0o1777)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        place = path / error.filename if isinstance(error.filename, str) else path
        hint = _HINTS.get(error.errno or 0, f"make it usable for you, or {_SHARED_HINT}")
        raise LedgerUnusable(f"the ledger cannot be used: {place}: {error.strerror}", hint) from error


def _pauses(patience: float) -> Iterator[float]:
    pause = 0.0002
    while patience > 0:
        yield pause
        patience -= pause
        pause = min(pause * 1.5, 0.01)


def _make_mutex(directory: int) -> None:
    """Create an empty file of mode 0444 atomically: a half-made one would lock out other users for ever."""
    if os.access(_MUTEX, os.F_OK, dir_fd=directory, follow_symlinks=False):
        return
    new = new_name("new")
    fd = create(directory, new)
    try:
        os.fchmod(fd, 0o444)
        # Exists: another process was faster. Gone: another process of this user swept it away.
        with suppress(FileExistsError, FileNotFoundError):
            os.link(new, _MUTEX, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        os.close(fd)
        unlink(directory, new)


def _in_place(directory: int, mutex: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(mutex), os.stat(_MUTEX, dir_fd=directory, follow_symlinks=False))
    return False


def _holder(directory: int) -> str:
    """The holder of the mutex as /proc/locks shows it, as the end of a sentence."""
    with suppress(OSError):
        inode = os.stat(_MUTEX, dir_fd=directory, follow_symlinks=False).st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            found = re.search(rf" FLOCK .* WRITE (\d+) \S+:{inode} ", line)
            if found:
                return f" by process {found[1]} of {owner_name(os.stat(f'/proc/{found[1]}').st_uid)}"
    return ""


def _persist(directory: int, name: str, contents: bytes) -> int:
    """Publish without the mutex: repeat where a claim of another process of this user swept the new file away."""
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):
            return publish(directory, name, contents)
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), name)
