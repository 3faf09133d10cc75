"""The mutex file: it saves work where claims meet, and keeps older engines apart from ours."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from msgspec import Struct

from stoker.ledger.files import READ, create, new_name, try_lock, unlink

NAME = "mutex"
_OUR_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class Turn(Struct, frozen=True):
    """The result of one try."""

    directory: int
    fd: int | None = None
    must_wait: bool = False
    """Whether another process has the mutex, and has had it for a short time only."""

    def in_place(self) -> bool:
        """Whether the mutex that we locked is still the one that other processes find."""
        return self.fd is None or _in_place(self.directory, self.fd)


class Mutex:
    """Tried once per claim. It gives no right: a claim is safe without it.

    An older engine reads the leases only before it publishes, so ours must not publish at the same time. It holds the
    mutex for about a millisecond. A process that holds it longer than `patience` is ignored, and so is a mutex that
    cannot be opened.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._refused_at: float | None = None
        """Since when every try was refused."""

    @contextmanager
    def tried(self, directory: int) -> Iterator[Turn]:
        """Lock the mutex if that is possible at once."""
        fd = _opened(directory)
        if fd is None:
            yield Turn(directory)
            return
        try:
            if try_lock(fd, fcntl.LOCK_EX) and _in_place(directory, fd):
                self._refused_at = None
                yield Turn(directory, fd)
            else:
                yield Turn(directory, must_wait=self._is_refused_lately())
        finally:
            # Closing is not enough: a process forked meanwhile has the descriptor, too.
            with suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def _is_refused_lately(self) -> bool:
        now = time.monotonic()
        if self._refused_at is None:
            self._refused_at = now
        return now - self._refused_at < self._patience


def _opened(directory: int) -> int | None:
    """The mutex, made if it is missing; None if that is impossible or another user prevents it."""
    try:
        _make(directory)
        return os.open(NAME, READ, dir_fd=directory)
    except OSError as error:
        if error.errno in _OUR_SHORTAGES:
            raise
        return None


def _make(directory: int) -> None:
    """Create an empty file of mode 0444 atomically: a half-made one could not be opened by other users."""
    if os.access(NAME, os.F_OK, dir_fd=directory, follow_symlinks=False):
        return
    new = new_name("new")
    fd = create(directory, new)
    try:
        os.fchmod(fd, 0o444)
        # Exists: another process was faster. Gone: another process of this user swept it away.
        with suppress(FileExistsError, FileNotFoundError):
            os.link(new, NAME, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        os.close(fd)
        unlink(directory, new)


def _in_place(directory: int, fd: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(fd), os.stat(NAME, dir_fd=directory, follow_symlinks=False))
    return False
