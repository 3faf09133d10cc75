"""A fair turn for everybody who writes the queue, with an end to waiting."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from stoker.core.errors import StokerError


class Turnstile:
    """Lets one writer through at a time. The wait has an end: the one inside may have been stopped for good.

    Who waits next holds a lock of his own, so that a busy writer cannot pass him again and again.
    """

    def __init__(self, path: Path, patience: float) -> None:
        self._path = path
        self._patience = patience
        with contextlib.ExitStack() as closing:
            self._inside, self._next = (_opened(file, closing) for file in (path, path.with_suffix(".next")))
            self._closing = closing.pop_all()

    def close(self) -> None:
        """Close the files."""
        self._closing.close()

    @contextlib.contextmanager
    def passed(self) -> Iterator[None]:
        """Inside, alone."""
        deadline = time.monotonic() + self._patience
        self._lock(self._next, deadline)
        try:
            self._lock(self._inside, deadline)
        finally:
            fcntl.flock(self._next, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._inside, fcntl.LOCK_UN)

    def _lock(self, descriptor: int, deadline: float) -> None:
        pause = 0.001
        while not _try_lock(descriptor):
            if time.monotonic() >= deadline:
                raise self._out_of_patience()
            time.sleep(pause)
            pause = min(pause * 1.5, 0.01)

    def _out_of_patience(self) -> StokerError:
        message = f"{self._path} has been locked for {self._patience:g} s"
        holder = _holder(self._inside) or _holder(self._next)
        if holder is None:
            return StokerError(message, "end the Stoker that holds it; nothing was written")
        hint = f"let it go on (kill -CONT {holder}) or end it (kill -KILL {holder}); nothing was written"
        return StokerError(f"{message} by process {holder}", hint)


def _opened(path: Path, closing: contextlib.ExitStack) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    closing.callback(os.close, descriptor)
    return descriptor


def _try_lock(descriptor: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _holder(descriptor: int) -> int | None:
    """The process that has the file locked, as far as the kernel tells."""
    with contextlib.suppress(OSError):
        inode = os.fstat(descriptor).st_ino
        found = re.search(rf" FLOCK .* WRITE (\d+) \S+:{inode} ", Path("/proc/locks").read_text())
        return int(found[1]) if found else None
    return None
