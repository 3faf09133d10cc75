"""Files of a ledger directory: written atomically, read as hostile input."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

from msgspec import Meta

SIZE_LIMIT = 64 * 1024
WHAT_LIMIT = 200
MOST_GPUS = 4096
"""More GPUs than any machine has; a larger number is a mistake or malice."""
LARGEST = 2**53
"""No number of bytes, percent or seconds is larger; sums of it stay within 64 bits."""
Moment = Annotated[float, Meta(ge=0, le=4e9)]
"""A time until the year 2096: a file with another one is void, since no engine writes it."""
Process = Annotated[int, Meta(ge=0, le=2**22)]
"""The kernel's limit of process numbers."""

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Open a file of any user without following links or waiting for a pipe."""
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
FAULTS_OF_THE_FILE = (errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENXIO, errno.ENODEV)
"""Any other error of open (too many files, no memory) is ours: the device must not count as free."""


class InvalidFile(Exception):
    """Why a file in the ledger is ignored."""


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
    fd = os.open(name, READ, dir_fd=directory)
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
    """The name of a user, or the number if it has no name."""
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
