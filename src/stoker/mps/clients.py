"""Who has clients of a daemon: everybody holds a shared lock on one file, and whoever gets it alone is the last.

The kernel gives a lock back at any death, so nobody has to count. Standard library only.
"""

from __future__ import annotations

import fcntl
import os

from stoker.mps.place import Place

_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def join(place: Place) -> int | None:
    """A descriptor that keeps the daemon from being stopped for as long as anybody has it open.

    None while a daemon is just being stopped: it has to be gone before the next one starts.
    """
    while True:
        descriptor = _take(place.clients, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if descriptor is None or is_in_place(descriptor, place.clients):
            return descriptor
        os.close(descriptor)


def wait_last(place: Place) -> int:
    """Wait until nobody has a client any more; until the descriptor is closed, nobody can join."""
    while True:
        descriptor = os.open(place.clients, _OPEN, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if is_in_place(descriptor, place.clients):
            return descriptor
        os.close(descriptor)  # a cleaner of temporary files removed it, and clients have joined at another one


def take_office(place: Place) -> int | None:
    """A descriptor for the one process that will stop the daemon; None where there is such a process already."""
    return _take(place.warden, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_in_place(descriptor: int, path: str) -> bool:
    """Whether others will find this very file under its name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _take(path: str, kind: int) -> int | None:
    descriptor = os.open(path, _OPEN, 0o600)
    try:
        fcntl.flock(descriptor, kind)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
