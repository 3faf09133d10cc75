"""What every kind of devices offers, and who owns a process."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from functools import lru_cache
from typing import Protocol

from stoker.core.device import Snapshot


class Devices(Protocol):
    """A kind of devices: what it looks like now, and when to look again."""

    def look(self, now: float, newer_than: float = 0.0) -> Snapshot:
        """The newest snapshot, without waiting; one that is not newer than wanted is followed by another at once."""

    def fileno(self) -> int:
        """Readable when there is news, or -1."""

    def close(self) -> None:
        """Give everything back."""

    @property
    def variables(self) -> Mapping[str, str]:
        """What jobs on these devices need in their environment."""


def owner_name(pid: int) -> str:
    """The name of a process's user; `?` for a process that is gone, hidden, or of another PID namespace."""
    try:
        return user_name(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return "?"


def user_name(uid: int) -> str:
    """The name of a user, the number where there is no name."""
    try:
        return _account(uid)
    except KeyError:
        return str(uid)


@lru_cache
def _account(uid: int) -> str:
    # Only names are kept: a directory service that is down for a moment must not leave a number for good.
    return pwd.getpwuid(uid).pw_name
