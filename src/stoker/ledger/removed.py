"""Leases whose files were removed while their holders live: they count until the kernel drops their locks."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from stoker.core.lease import Lease

SETTLE_SECONDS = 2.0
"""How long a claim waits for holders to restore removed leases that this process has never read."""
WARN_SECONDS = 1.0
"""Age at which a removed lease is worth a warning: a worker unlocks a released lease a moment after it is unlinked."""

ENDED_LIMIT = 256
"""Ended leases that are remembered before those are dropped whose locks are gone."""

_MARKS = 0x53544F4B << 32
_RECORD = struct.Struct("hhqqi")
_LOCKED = re.compile(r"OFDLCK +ADVISORY +WRITE +-?\d+ ([0-9a-f]+):([0-9a-f]+):(\d+) (\d+) \4$", re.MULTILINE)


class _Known(Struct, frozen=True):
    name: str
    lease: Lease
    removed_at: float | None = None


class RemovedLeases:
    """Remembers the leases that one process has read, to recognise those that vanish from the directory."""

    def __init__(self, path: Path) -> None:
        self._mark = _MARKS + zlib.crc32(os.fsencode(path))
        """The byte of its leases that holders lock besides: /proc/locks shows it, also when a file has no name."""
        self._known: dict[int, _Known] = {}
        """Live leases by inode."""
        self._ended: set[int] = set()
        """Inodes that count no more: released by us, or not restored in time."""
        self._unread: frozenset[int] = frozenset()
        """Inodes of removed leases whose contents this process never read."""
        self._unread_since = 0.0
        """Since when every look found some of those."""
        self._looked_at = float("-inf")

    @property
    def must_wait(self) -> bool:
        """Whether a claim has to wait for leases that are about to be restored."""
        return bool(self._unread)

    def mark(self, fd: int, name: str, lease: Lease) -> None:
        """Make a lease of this process recognisable as long as any process has its descriptor."""
        with suppress(OSError):  # a file system without such locks: the lease itself is not affected
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _RECORD.pack(fcntl.F_WRLCK, os.SEEK_SET, self._mark, 1, 0))
        self._known[os.fstat(fd).st_ino] = _Known(name, lease)

    def end(self, name: str) -> None:
        """Forget a lease that this process ends: its worker may hold the lock for another moment."""
        self._ended.update(inode for inode, entry in self._known.items() if entry.name == name)

    def look(self, directory: int, listing: Mapping[str, int], present: Mapping[str, Lease]) -> dict[str, Lease]:
        """The removed leases by name, after a look at the directory that found these."""
        now = time.monotonic()
        first, self._looked_at = now - self._looked_at > SETTLE_SECONDS, now
        before, self._known = self._known, {listing[name]: _Known(name, lease) for name, lease in present.items()}
        self._ended -= self._known.keys()  # the file system has used the inode again
        vanished = {
            inode: lease for inode, lease in before.items() if lease.name not in listing and inode not in self._ended
        }
        if not (vanished or first or self._unread or len(self._ended) > ENDED_LIMIT):
            return {}
        locked = self._locked(directory)
        self._ended &= locked
        removed = {inode: vanished[inode] for inode in vanished.keys() & locked}
        self._known.update((inode, _since(lease, now)) for inode, lease in removed.items())
        if first or self._unread:
            self._wait_for(locked - self._ended - self._known.keys() - set(listing.values()), now)
        return {lease.name: lease.lease for lease in removed.values()}

    def warnings(self) -> list[str]:
        """A sentence about each lease that stays removed."""
        limit = time.monotonic() - WARN_SECONDS
        removed = [entry for entry in self._known.values() if entry.removed_at is not None and entry.removed_at < limit]
        return [
            f"the lease {entry.name} of {entry.lease.owner} was removed, but a process still holds it: it counts"
            for entry in removed
        ]

    def _locked(self, directory: int) -> set[int]:
        """The inodes of all leases of this ledger that a process holds, with or without a name.

        It is empty if no live lease is among them: with some file systems, stat shows other numbers than the kernel.
        """
        device = os.fstat(directory).st_dev
        wanted = (os.major(device), os.minor(device), self._mark)
        locks = _LOCKED.findall(_kernel_locks())
        locked = {
            int(inode) for major, minor, inode, at in locks if (int(major, 16), int(minor, 16), int(at)) == wanted
        }
        return locked if not self._known or self._known.keys() & locked else set()

    def _wait_for(self, unread: set[int], now: float) -> None:
        if not self._unread:
            self._unread_since = now
        if now - self._unread_since >= SETTLE_SECONDS:
            self._ended |= unread
            unread = set()
        self._unread = frozenset(unread)


def _since(removed: _Known, now: float) -> _Known:
    return removed if removed.removed_at is not None else _Known(removed.name, removed.lease, now)


def _kernel_locks() -> str:
    try:
        with open("/proc/locks") as file:
            return file.read()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        return ""
