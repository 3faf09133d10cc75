"""The lock of the queue's writers: first come, first served, with a time limit."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from pathlib import Path

from stoker.core.errors import StokerError


class WriteLock:
    """A lock for one writer at a time. Waiting has a time limit, since the holder may be a stopped process.

    The next writer in line holds a second lock, so that a busy writer cannot overtake it again and again.
    """

    def __init__(self, path: Path, patience: float) -> None:
        self._path = path
        self._patience = patience
        with contextlib.ExitStack() as closing:
            self._lock, self._next = (_opened(file, closing) for file in (path, path.with_suffix(".next")))
            self._closing = closing.pop_all()
        self._is_open = True

    def close(self) -> None:
        self._is_open = False
        self._closing.close()

    def __enter__(self) -> None:
        deadline = time.monotonic() + self._patience
        self._take(self._next, deadline)
        try:
            self._take(self._lock, deadline)
        finally:
            fcntl.flock(self._next, fcntl.LOCK_UN)

    def __exit__(self, *_: object) -> None:
        if self._is_open:  # Ctrl-C within a with statement can leave its end to the garbage collector, after close()
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _take(self, descriptor: int, deadline: float) -> None:
        pause = 0.001
        while not try_lock(descriptor):
            if time.monotonic() >= deadline:
                raise self._timed_out()
            time.sleep(pause)
            pause = min(pause * 1.5, 0.01)

    def _timed_out(self) -> StokerError:
        message = f"{self._path} has been locked for {self._patience:g} s"
        holder = _holder(self._lock) or _holder(self._next)
        if holder is None:
            return StokerError(message, "end the Stoker that holds it; nothing was written")
        hint = f"let it go on (kill -CONT {holder}) or end it (kill -KILL {holder}); nothing was written"
        return StokerError(f"{message} by process {holder}", hint)


def _opened(path: Path, closing: contextlib.ExitStack) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    closing.callback(os.close, descriptor)
    return descriptor


def try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Take a lock unless another process holds it."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        return True
    return False


def _holder(descriptor: int) -> int | None:
    """The process that holds the lock of a file, where /proc/locks shows it."""
    with contextlib.suppress(OSError):
        inode = os.fstat(descriptor).st_ino
        found = re.search(rf" FLOCK .* WRITE (\d+) \S+:{inode} ", Path("/proc/locks").read_text())
        return int(found[1]) if found else None
    return None
