"""Find and signal every descendant of a process, whatever session it moved to.

Standard library only: workers are forked from a process that must stay small.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

_PR_SET_CHILD_SUBREAPER = 36


class Seen(NamedTuple):
    """A process as it was seen; the start time tells it from a later one with the same id."""

    pid: int
    parent: int
    started: int


def become_subreaper() -> None:
    """Make orphaned descendants children of this process instead of init's."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def parent_of(pid: int) -> int | None:
    """The parent of a process; None where the process does not exist."""
    process = _look(str(pid))
    return None if process is None else process.parent


def descendants(root: int) -> list[Seen]:
    """All living processes below root, parents before their children."""
    return _below([root], _all_processes())


def marked(marker: bytes) -> list[Seen]:
    """This user's processes with the marker in their environment, and all their descendants.

    A child that cleared its environment is found through its parent, as long as that lives.
    """
    every = _all_processes()
    user = os.getuid()
    carriers = [process for process in every if _carries(process.pid, marker, user)]
    return list(dict.fromkeys([*carriers, *_below([process.pid for process in carriers], every)]))


def send(targets: Iterable[Seen], number: int) -> None:
    """Signal each process that is still the one seen; a stopped one is continued so that it can react."""
    for process in targets:
        with contextlib.suppress(OSError):
            _send_one(process, number)


def _send_one(process: Seen, number: int) -> None:
    with _handle(process.pid) as signal_it:
        now = _look(str(process.pid))
        if now is not None and now.started == process.started:
            signal_it(number)
            if number != signal.SIGKILL:
                signal_it(signal.SIGCONT)


@contextlib.contextmanager
def _handle(pid: int) -> Iterator[Callable[[int], None]]:
    """A way to signal the process that has the id now, and no other that gets it later.

    Kernels before 5.3, and Pythons built for them (conda's among these), have no pidfds. There an id that is reused
    between the check and the signal would be hit; that takes a whole round of ids in a millisecond.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOSYS:
            raise
        yield lambda number: os.kill(pid, number)
        return
    try:
        yield lambda number: signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def _below(roots: list[int], every: list[Seen]) -> list[Seen]:
    children: dict[int, list[Seen]] = {}
    for process in every:
        children.setdefault(process.parent, []).append(process)
    found: list[Seen] = []
    front = roots
    while front:
        below = [child for parent in front for child in children.get(parent, ())]
        found += below
        front = [process.pid for process in below]
    return found


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
