"""Files of a ledger directory: written atomically, read as hostile input."""

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
# Any other error of open (too many files, no memory) is ours: the device must not count as free.
_FAULTS_OF_THE_FILE = (errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENXIO, errno.ENODEV)
_TRIES = 10
"""Attempts to open a file that is replaced by a newer one each time."""


Contents = TypeVar("Contents")


class InvalidFile(Exception):
    """Why a file in the ledger is ignored."""


def read_kind(
    directory: int, path: Path, kind: str, decoded: Callable[[bytes, int], Contents]
) -> tuple[dict[str, Contents], list[str]]:
    """The contents of the live files of a kind by name, and a warning about each that is ignored."""
    found: dict[str, Contents] = {}
    warnings = []
    for name in os.listdir(directory):
        if name.endswith(f".{kind}"):
            try:
                if contents := _read(directory, name):
                    found[name] = decoded(*contents)
            except InvalidFile as error:
                warnings.append(printable(f"ignored {path / name}: {error}"))
    return found, warnings


def publish(directory: int, name: str, contents: bytes) -> int:
    """Create or replace a file atomically. The returned descriptor holds its lock."""
    new = new_name("new")
    fd = create(directory, new)
    try:
        # Mode 0600 until it is locked: another user who opened it first could hold the lock against us.
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
    """Remove new files of killed processes of this user."""
    mine = f"{os.geteuid()}."
    for name in os.listdir(directory):
        if name.startswith(mine) and name.endswith(".new"):
            unlink(directory, name)


def new_name(kind: str) -> str:
    """A unique name for a file of this user."""
    return f"{os.geteuid()}.{os.urandom(8).hex()}.{kind}"


def create(directory: int, name: str) -> int:
    """Create a file that only this user can open."""
    return os.open(name, _CREATE, 0o600, dir_fd=directory)


def unlink(directory: int, name: str) -> None:
    """Remove a file; errors are ignored."""
    with suppress(OSError):
        os.unlink(name, dir_fd=directory)


@contextmanager
def opened(directory: int, name: str) -> Iterator[int]:
    """Open a file of any user for reading, without following links or waiting for a pipe."""
    fd = os.open(name, _READ, dir_fd=directory)
    try:
        yield fd
    finally:
        os.close(fd)


def try_lock(fd: int, kind: int) -> bool:
    """Take a lock unless another process holds it."""
    with suppress(BlockingIOError):
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
        return True
    return False


@functools.cache
def owner_name(uid: int) -> str:
    """The name of a user, or the number where it has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def printable(text: str) -> str:
    """The text with every character escaped that could move a cursor or hide text on a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def purpose(text: str) -> str:
    """A user's description of a lease or demand, printable and short."""
    return printable(text)[:WHAT_LIMIT]


def within_limit(contents: bytes) -> bytes:
    """The contents, unless they exceed the limit of readers."""
    if len(contents) > SIZE_LIMIT:
        raise InvalidFile(f"larger than {SIZE_LIMIT} bytes")
    return contents


def _read(directory: int, name: str) -> tuple[bytes, int] | None:
    """The contents of a file and the user id of its owner; None where it was just released, or stale and ours."""
    try:
        for _ in range(_TRIES):
            with opened(directory, name) as fd:
                stale = try_lock(fd, fcntl.LOCK_SH)
                # A holder unlinks before it unlocks. Checked in this order, a released file never looks stale.
                status = os.fstat(fd)
                if status.st_nlink > 0:
                    return _examine(directory, name, fd, status, stale=stale)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in _FAULTS_OF_THE_FILE:
            raise
        raise InvalidFile("a symbolic link" if error.errno == errno.ELOOP else "it cannot be opened") from error
    return None


def _examine(directory: int, name: str, fd: int, status: os.stat_result, *, stale: bool) -> tuple[bytes, int] | None:
    _check_file(name, status)
    if not stale:
        return within_limit(os.read(fd, SIZE_LIMIT + 1)), status.st_uid
    if status.st_uid != os.geteuid():
        raise InvalidFile(f"left behind by {owner_name(status.st_uid)}, nobody holds it")
    unlink(directory, name)
    return None


def _check_file(name: str, status: os.stat_result) -> None:
    match = _NAME.fullmatch(name)
    if not match or not stat.S_ISREG(status.st_mode):
        raise InvalidFile("not a file that Stoker makes")
    if status.st_uid != int(match[1]):
        raise InvalidFile(f"it belongs to {owner_name(status.st_uid)}, not to the user in its name")
    if status.st_nlink != 1:
        raise InvalidFile("it has a second name elsewhere")
