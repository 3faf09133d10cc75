"""Finding and signalling every descendant of a process, whatever session it moved to.

Standard library only: keepers are forked from a process that must stay small.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterable
from typing import NamedTuple

_PR_SET_CHILD_SUBREAPER = 36


class Seen(NamedTuple):
    """A process as it was seen; the start time tells it from a later one with the same number."""

    pid: int
    parent: int
    started: int


def become_subreaper() -> None:
    """From now on orphaned descendants become children of this process instead of init's."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def descendants(root: int) -> list[Seen]:
    """All living processes below root, parents before their children."""
    children: dict[int, list[Seen]] = {}
    for process in _all_processes():
        children.setdefault(process.parent, []).append(process)
    found: list[Seen] = []
    front = [root]
    while front:
        below = [child for parent in front for child in children.get(parent, ())]
        found += below
        front = [process.pid for process in below]
    return found


def marked(marker: bytes) -> list[Seen]:
    """Living processes of this user whose environment holds the marker: what a dead keeper left behind."""
    mine = os.getuid()
    return [process for process in _all_processes() if _carries(process.pid, marker, mine)]


def send(targets: Iterable[Seen], number: int) -> None:
    """Signal each process that is still the one seen; a stopped one is woken so that it can act on it."""
    for process in targets:
        with contextlib.suppress(OSError):
            _send_one(process, number)


def _send_one(process: Seen, number: int) -> None:
    descriptor = os.pidfd_open(process.pid)
    try:
        now = _look(str(process.pid))
        if now is not None and now.started == process.started:
            signal.pidfd_send_signal(descriptor, number)
            if number != signal.SIGKILL:
                signal.pidfd_send_signal(descriptor, signal.SIGCONT)
    finally:
        os.close(descriptor)


def _all_processes() -> list[Seen]:
    seen = (_look(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return [process for process in seen if process is not None]


def _look(pid: str) -> Seen | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in b"ZX" else Seen(int(pid), int(fields[1]), int(fields[19]))


def _carries(pid: int, marker: bytes, owner: int) -> bool:
    try:
        if os.stat(f"/proc/{pid}").st_uid != owner:
            return False
        with open(f"/proc/{pid}/environ", "rb") as environ:
            return marker in environ.read().split(b"\0")
    except OSError:
        return False
