"""Files of a ledger directory: written so that they count only when whole, read as if somebody hostile wrote them."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import pwd
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

SIZE_LIMIT = 64 * 1024
WHAT_LIMIT = 200

_NAME = re.compile(r"([0-9]{1,10})\.[0-9a-f]{16}\.[a-z]+")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Any other error while opening (too many files, no memory) is our own trouble, and nothing may pass for free.
_FAULTS_OF_THE_FILE = (errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENXIO, errno.ENODEV)
_TRIES = 3
"""How often a file is opened that was replaced by a newer one each time."""


Contents = TypeVar("Contents")


class Odd(Exception):
    """Why a file in the ledger is not to be believed."""


def read_kind(
    directory: int, path: Path, kind: str, decoded: Callable[[bytes, int], Contents]
) -> tuple[dict[str, Contents], list[str]]:
    """What the live files of a kind say, by name, and a sentence on each that is not to be believed."""
    found: dict[str, Contents] = {}
    warnings = []
    for name in os.listdir(directory):
        if name.endswith(f".{kind}"):
            try:
                if said := _read(directory, name):
                    found[name] = decoded(*said)
            except Odd as odd:
                warnings.append(printable(f"ignored {path / name}: {odd}"))
    return found, warnings


def publish(directory: int, name: str, contents: bytes) -> int:
    """Put a locked file in place in one step, replacing an older one; the lock lives in the descriptor returned."""
    new = new_name("new")
    fd = create(directory, new)
    try:
        # Until it is locked nobody else may open it: whoever came first could hold the lock against us.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.write(fd, contents) != len(contents):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fchmod(fd, 0o644)
        os.rename(new, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        unlink(directory, new)
        os.close(fd)
        raise
    return fd


def sweep(directory: int) -> None:
    """Remove what a writer of ours left that was killed."""
    mine = f"{os.geteuid()}."
    for name in os.listdir(directory):
        if name.startswith(mine) and name.endswith(".new"):
            unlink(directory, name)


def new_name(kind: str) -> str:
    """A name that nobody else has, for a file of ours."""
    return f"{os.geteuid()}.{os.urandom(8).hex()}.{kind}"


def create(directory: int, name: str) -> int:
    """A new file that only its maker can open."""
    return os.open(name, _CREATE, 0o600, dir_fd=directory)


def unlink(directory: int, name: str) -> None:
    """Remove a file if that is possible."""
    with suppress(OSError):
        os.unlink(name, dir_fd=directory)


@contextmanager
def opened(directory: int, name: str) -> Iterator[int]:
    """A file of anybody's, open for reading, without following or waiting for anything."""
    fd = os.open(name, _READ, dir_fd=directory)
    try:
        yield fd
    finally:
        os.close(fd)


def try_lock(fd: int, kind: int) -> bool:
    """Whether the lock could be had at once."""
    with suppress(BlockingIOError):
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
        return True
    return False


@functools.cache
def owner_name(uid: int) -> str:
    """The user's name, or his number where no directory knows him."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def printable(text: str) -> str:
    """The text with everything escaped that could move a cursor or hide a word on somebody's terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def purpose(text: str) -> str:
    """What somebody says about himself, made harmless and short."""
    return printable(text)[:WHAT_LIMIT]


def within_limit(contents: bytes) -> bytes:
    """The contents, unless they are more than a reader takes."""
    if len(contents) > SIZE_LIMIT:
        raise Odd(f"larger than {SIZE_LIMIT} bytes")
    return contents


def _read(directory: int, name: str) -> tuple[bytes, int] | None:
    """The contents of anybody's file, and whose it is; None where it was released just now, or left behind by us."""
    try:
        for _ in range(_TRIES):
            with opened(directory, name) as fd:
                stale = try_lock(fd, fcntl.LOCK_SH)
                # A holder unlinks before it unlocks: asked in this order, a released file never looks stale.
                status = os.fstat(fd)
                if status.st_nlink > 0:
                    return _examine(directory, name, fd, status, stale=stale)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in _FAULTS_OF_THE_FILE:
            raise
        raise Odd("a symbolic link" if error.errno == errno.ELOOP else "it cannot be opened") from error
    return None


def _examine(directory: int, name: str, fd: int, status: os.stat_result, *, stale: bool) -> tuple[bytes, int] | None:
    _refuse_odd(name, status)
    if not stale:
        return within_limit(os.read(fd, SIZE_LIMIT + 1)), status.st_uid
    if status.st_uid != os.geteuid():
        raise Odd(f"left behind by {owner_name(status.st_uid)}, nobody holds it")
    unlink(directory, name)
    return None


def _refuse_odd(name: str, status: os.stat_result) -> None:
    match = _NAME.fullmatch(name)
    if not match or not stat.S_ISREG(status.st_mode):
        raise Odd("not a file that Stoker makes")
    if status.st_uid != int(match[1]):
        raise Odd(f"it belongs to {owner_name(status.st_uid)}, not to the user in its name")
    if status.st_nlink != 1:
        raise Odd("it has a second name elsewhere")
