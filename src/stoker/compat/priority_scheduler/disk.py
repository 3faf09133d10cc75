"""Files that others change too: held for a moment, and replaced in one step so that no crash leaves half of one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_MAKE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES = 10


@contextlib.contextmanager
def held(path: Path, *, make: bool = False) -> Iterator[int]:
    """A descriptor of the file that is at the path now, locked; who replaces it meanwhile does so after us.

    BlockingIOError where somebody else holds it.
    """
    descriptor = lock(path, make=make)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def lock(path: Path, *, make: bool = False) -> int:
    """The same for as long as the descriptor is open."""
    for _ in range(_TRIES):
        descriptor = os.open(path, _MAKE if make else _READ, 0o666)
        try:
            _refuse_odd(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise BlockingIOError(errno.EAGAIN, "it is replaced again and again")


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one that the path names."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


def contents(descriptor: int, begin: int = 0) -> bytes:
    """All of an open file from a place on."""
    parts = []
    while part := os.pread(descriptor, 2**20, begin):
        parts.append(part)
        begin += len(part)
    return b"".join(parts)


def replace(path: Path, data: bytes, like: int) -> None:
    """Put other contents in place of a file; mode and owner stay those of the descriptor, as far as we may."""
    new = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):  # one that was left by somebody who was killed
        os.unlink(new)
    descriptor = os.open(new, _NEW, 0o600)
    try:
        try:
            _dress(descriptor, os.fstat(like))
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        new.rename(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        raise
    _sync_directory(path.parent)


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything."""
    while data:
        data = data[os.write(descriptor, data) :]


def _dress(descriptor: int, like: os.stat_result) -> None:
    with contextlib.suppress(PermissionError):
        os.fchown(descriptor, like.st_uid, like.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(like.st_mode))


def _refuse_odd(descriptor: int) -> None:
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, os.strerror(number) if number == errno.EISDIR else "it is no plain file")


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
