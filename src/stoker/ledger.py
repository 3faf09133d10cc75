"""Leases between all users of the machine: files that count exactly as long as somebody holds their lock."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import pwd
import re
import secrets
import stat
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from stoker.core.errors import StokerError, UsageError
from stoker.core.lease import Claim, Lease, compatible

PLACES = (Path("/run/lock/stoker"), Path("/tmp/.stoker"))
SIZE_LIMIT = 64 * 1024
WHAT_LIMIT = 200

_MUTEX = "mutex"
_LEASE_NAME = re.compile(r"([0-9]{1,10})\.[0-9a-f]{16}\.lease")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Any other error while opening (too many files, no memory) is our own trouble, and nothing may pass for free.
_FAULTS_OF_THE_FILE = (errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENXIO, errno.ENODEV)
_SHARED_HINT = "set STOKER_LEDGER to a directory with mode 1777 that all users of this machine share"
_HINTS = {
    errno.ENOSPC: "free some space on its file system; jobs start again by themselves",
    errno.EDQUOT: "free some of your quota on its file system; jobs start again by themselves",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


class LedgerUnusable(StokerError):
    """The ledger cannot be trusted or written, so nothing can be claimed in it."""


class HeldLease(Struct, frozen=True):
    """A lease that this process holds, and the descriptor whose lock keeps it alive wherever it is passed."""

    fd: int
    path: Path
    lease: Lease

    @property
    def name(self) -> str:
        """The name under which everybody sees the lease."""
        return self.path.name


class LedgerView(Struct, frozen=True):
    """The live leases by name, and a sentence on everything that was ignored."""

    leases: Mapping[str, Lease]
    warnings: tuple[str, ...] = ()


class _WrittenClaim(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    # A negative number would make room for others that is not there.
    memory: Annotated[int, Meta(ge=0)] | None = None
    share: Annotated[int, Meta(ge=1)] = 1


class _Written(Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    claims: tuple[_WrittenClaim, ...]
    pid: int
    what: str
    since: float


_decoder = msgspec.json.Decoder(_Written)


class _Odd(Exception):
    """Why a file in the ledger is not to be believed."""


def find_ledger(environment: Mapping[str, str], places: Iterable[Path] = PLACES) -> Path:
    """The directory that every user of the machine finds alike, made where there is none yet."""
    chosen = environment.get("STOKER_LEDGER", "")
    if chosen:
        if not chosen.startswith("/"):
            raise UsageError(f"STOKER_LEDGER is {chosen!r}, which is not a full path", _SHARED_HINT)
        return prepare_ledger(Path(chosen))
    # What exists goes before what could be made, or users who may not write to the first place part ways.
    ordered = sorted(places, key=lambda place: not os.path.lexists(place))
    for place in ordered:
        if os.path.lexists(place) or os.access(place.parent, os.W_OK | os.X_OK):
            return prepare_ledger(place)
    raise LedgerUnusable(f"no ledger can be made in {' or '.join(map(str, ordered))}", _SHARED_HINT)


def prepare_ledger(path: Path) -> Path:
    """The path, after making the directory if it is missing and refusing it if it is not safe to share."""
    with _explained(path):
        with suppress(FileExistsError):
            path.mkdir(0o1777)
        with _entered(path):
            return path


class Ledger:
    """One ledger directory; claims in it are made by one process at a time."""

    def __init__(self, path: Path, patience: float = 5.0) -> None:
        self.path = path
        self._patience = patience

    def claim(
        self, claims: tuple[Claim, ...], what: str, now: float, capacities: Mapping[str, int | None] = {}
    ) -> HeldLease | None:
        """A lease on all the claims at once; None where one of them cannot stand beside what others hold."""
        lease = Lease(claims, _owner(os.geteuid()), os.getpid(), _printable(what)[:WHAT_LIMIT], now)
        contents = _encoded(lease)
        # Made again where it is gone: cleaners of temporary files remove directories that were idle for long.
        prepare_ledger(self.path)
        with _explained(self.path), _entered(self.path) as directory, self._mutex(directory) as mutex:
            _sweep(directory)
            if not _fits(claims, _view(directory, self.path).leases.values(), capacities):
                return None
            held = self._publish(directory, contents, lease)
            if _in_place(directory, mutex):
                return held
            self.release(held)
        raise LedgerUnusable(f"{self.path / _MUTEX} was replaced while it was locked", "try again")

    def live(self) -> LedgerView:
        """What is leased now; own stale files are removed on the way, and nothing found can make it fail."""
        try:
            with _entered(self.path) as directory:
                return _view(directory, self.path)
        except FileNotFoundError:
            return LedgerView({})
        except (OSError, LedgerUnusable) as error:
            return LedgerView({}, (_printable(f"the ledger {self.path} cannot be read: {error}"),))

    def release(self, held: HeldLease) -> None:
        """End a lease that this process holds."""
        with suppress(OSError):
            os.unlink(held.path)
        os.close(held.fd)

    def withdraw(self, lease: str) -> None:
        """End one of our leases by its path or name, whoever holds its descriptor now."""
        with _explained(self.path), suppress(FileNotFoundError):
            os.unlink(self.path / Path(lease).name)

    def _publish(self, directory: int, contents: bytes, lease: Lease) -> HeldLease:
        stem = f"{os.geteuid()}.{secrets.token_hex(8)}"
        fd = os.open(f"{stem}.new", _CREATE, 0o600, dir_fd=directory)
        try:
            # Until it is locked nobody else may open it: whoever came first could hold the lock against us.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.write(fd, contents) != len(contents):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fchmod(fd, 0o644)
            os.rename(f"{stem}.new", f"{stem}.lease", src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            _unlink(directory, f"{stem}.new")
            os.close(fd)
            raise
        return HeldLease(fd, self.path / f"{stem}.lease", lease)

    @contextmanager
    def _mutex(self, directory: int) -> Iterator[int]:
        for pause in _pauses(self._patience):
            _make_mutex(directory)
            with _opened(directory, _MUTEX) as mutex:
                if _try_lock(mutex, fcntl.LOCK_EX) and _in_place(directory, mutex):
                    try:
                        yield mutex
                    finally:
                        # Closing is not enough where a process forked meanwhile has the descriptor too.
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


@contextmanager
def _opened(directory: int, name: str) -> Iterator[int]:
    fd = os.open(name, _READ, dir_fd=directory)
    try:
        yield fd
    finally:
        os.close(fd)


def _check_directory(directory: int, path: Path) -> None:
    status = os.fstat(directory)
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o022 and not mode & stat.S_ISVTX:
        message = f"{path} has mode {mode:o}: without the sticky bit, users could remove each other's leases"
        raise LedgerUnusable(message, f"run 'chmod 1777 {path}', or {_SHARED_HINT}")
    # Sticky but closed is what mkdir under a umask leaves; only its maker may and will open it to all.
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
    """Put an empty file of mode 0444 in place in one step: a half-made one would lock others out for ever."""
    if os.access(_MUTEX, os.F_OK, dir_fd=directory, follow_symlinks=False):
        return
    new = f"{os.geteuid()}.{secrets.token_hex(8)}.new"
    fd = os.open(new, _CREATE, 0o600, dir_fd=directory)
    try:
        os.fchmod(fd, 0o444)
        # It exists: somebody was faster. It is gone: another process of ours took it for a leftover.
        with suppress(FileExistsError, FileNotFoundError):
            os.link(new, _MUTEX, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        os.close(fd)
        _unlink(directory, new)


def _in_place(directory: int, mutex: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(mutex), os.stat(_MUTEX, dir_fd=directory, follow_symlinks=False))
    return False


def _holder(directory: int) -> str:
    """Who holds the mutex, as far as the kernel tells, ready to end a sentence."""
    with suppress(OSError):
        inode = os.stat(_MUTEX, dir_fd=directory, follow_symlinks=False).st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            found = re.search(rf" FLOCK .* WRITE (\d+) \S+:{inode} ", line)
            if found:
                return f" by process {found[1]} of {_owner(os.stat(f'/proc/{found[1]}').st_uid)}"
    return ""


def _try_lock(fd: int, kind: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
        return True
    return False


def _sweep(directory: int) -> None:
    """Remove what a claim of ours left that was killed; under the mutex nobody else of us is writing one."""
    mine = f"{os.geteuid()}."
    for name in os.listdir(directory):
        if name.startswith(mine) and name.endswith(".new"):
            _unlink(directory, name)


def _unlink(directory: int, name: str) -> None:
    with suppress(OSError):
        os.unlink(name, dir_fd=directory)


def _view(directory: int, path: Path) -> LedgerView:
    leases: dict[str, Lease] = {}
    warnings = []
    for name in os.listdir(directory):
        if not name.endswith(".lease"):
            continue
        try:
            lease = _read_lease(directory, name)
        except _Odd as odd:
            warnings.append(_printable(f"ignored {path / name}: {odd}"))
        else:
            if lease:
                leases[name] = lease
    return LedgerView(leases, tuple(warnings))


def _read_lease(directory: int, name: str) -> Lease | None:
    """The lease in a file of anybody's; None where it was released just now, or left behind by us."""
    try:
        with _opened(directory, name) as fd:
            return _examine(directory, name, fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in _FAULTS_OF_THE_FILE:
            raise
        raise _Odd("a symbolic link" if error.errno == errno.ELOOP else "it cannot be opened") from error


def _examine(directory: int, name: str, fd: int) -> Lease | None:
    # A holder unlinks before it unlocks: asked in this order, a released lease never looks stale.
    stale = _try_lock(fd, fcntl.LOCK_SH)
    status = os.fstat(fd)
    if status.st_nlink == 0:
        return None
    _refuse_odd(name, status)
    if not stale:
        return _decoded(os.read(fd, SIZE_LIMIT + 1), _owner(status.st_uid))
    if status.st_uid != os.geteuid():
        raise _Odd(f"left behind by {_owner(status.st_uid)}, nobody holds it")
    _unlink(directory, name)
    return None


def _refuse_odd(name: str, status: os.stat_result) -> None:
    match = _LEASE_NAME.fullmatch(name)
    if not match or not stat.S_ISREG(status.st_mode):
        raise _Odd("not a file that Stoker makes")
    if status.st_uid != int(match[1]):
        raise _Odd(f"it belongs to {_owner(status.st_uid)}, not to the user in its name")
    if status.st_nlink != 1:
        raise _Odd("it has a second name elsewhere")


def _encoded(lease: Lease) -> bytes:
    claims = tuple(_WrittenClaim(claim.name, claim.memory, claim.share) for claim in lease.claims)
    try:
        contents = msgspec.json.encode(_Written(1, claims, lease.pid, lease.what, lease.since))
        # Read back, because a lease that readers refuse would protect nothing.
        _decoded(contents, lease.owner)
    except (UnicodeEncodeError, _Odd) as error:
        names = _printable(", ".join(claim.name for claim in claims))[:WHAT_LIMIT]
        raise UsageError(f"these devices cannot be leased: {names}", "use fewer or plainer names") from error
    return contents


def _decoded(contents: bytes, owner: str) -> Lease:
    if len(contents) > SIZE_LIMIT:
        raise _Odd(f"larger than {SIZE_LIMIT} bytes")
    try:
        written = _decoder.decode(contents)
    except ValueError as error:
        raise _Odd(f"its contents are not a lease ({error})") from error
    claims = tuple(Claim(claim.name, claim.memory, claim.share) for claim in written.claims)
    return Lease(claims, owner, written.pid, _printable(written.what)[:WHAT_LIMIT], written.since)


def _fits(claims: Iterable[Claim], leases: Iterable[Lease], capacities: Mapping[str, int | None]) -> bool:
    held: defaultdict[str, list[Claim]] = defaultdict(list)
    for lease in leases:
        for claim in lease.claims:
            held[claim.name].append(claim)
    for claim in claims:
        if not compatible(claim, held[claim.name], capacities.get(claim.name)):
            return False
        held[claim.name].append(claim)
    return True


@functools.cache
def _owner(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _printable(text: str) -> str:
    """The text with everything escaped that could move a cursor or hide a word on somebody's terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
