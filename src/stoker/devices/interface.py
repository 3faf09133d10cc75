"""The protocol of every kind of devices; the owner, the command and the ancestors of a process."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Protocol

from stoker.core.device import Snapshot

MOST_ANCESTORS = 128
"""Bounds the search in case processes come and go meanwhile; a job inside jobs may be deep down."""

_LONGEST_COMMAND = 200


class Devices(Protocol):
    """A kind of devices."""

    def snapshot(self, now: float, newer_than: float = 0.0) -> Snapshot:
        """The newest snapshot, without waiting; one that is not newer than wanted requests another."""

    def fileno(self) -> int:
        """Readable when there is a new snapshot, or -1."""

    def close(self) -> None:
        """Release processes and descriptors."""

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables that jobs on these devices need."""


def owner_name(pid: int) -> str:
    """The name of a process's user; `?` for a process that is gone, hidden, or of another PID namespace."""
    try:
        return user_name(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return "?"


def ancestors(pid: int) -> Iterator[int]:
    """The process and those above it, as far as they are visible and without init."""
    above: int | None = pid
    for _ in range(MOST_ANCESTORS):
        if above is None or above <= 1:
            return
        yield above
        above = parent_of(above)


def parent_of(pid: int) -> int | None:
    """The parent of a process; None for one that is gone or hidden."""
    fields = process_file(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else None


def process_file(pid: int, name: str) -> bytes:
    """A file of /proc about a process; empty if the process is gone or of another user."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def has_open(pid: int, status: os.stat_result) -> bool:
    """Whether a process has a file open; False for another user's process."""
    folder = f"/proc/{pid}/fd"
    try:
        return any(_is_same(f"{folder}/{number}", status) for number in os.listdir(folder))
    except OSError:
        return False


def _is_same(path: str, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), status)
    except OSError:  # closed meanwhile
        return False


def user_name(uid: int) -> str:
    """The name of a user, the number if there is no name."""
    try:
        return _account(uid)
    except KeyError:
        return str(uid)


def command_of(pid: int) -> str:
    """The beginning of a process's command line; empty for a process that is gone or hidden."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(_LONGEST_COMMAND)
    except OSError:
        return ""
    return words.replace(b"\0", b" ").decode(errors="replace").strip()


@lru_cache
def _account(uid: int) -> str:
    # Only names are kept: a directory service that is down for a moment must not leave a number for good.
    return pwd.getpwuid(uid).pw_name
