"""The result folder of an instance, whose marker file shows that its run is not finished.

It imports next to nothing: the process of every instance waits for it.
"""

from __future__ import annotations

import fcntl
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    FolderState = Literal["absent", "done", "unfinished", "running"]

MARKER = ".stoker-unfinished"
"""In the folder from before a run starts until it has succeeded; the process that runs it locks this file."""

GLANCE_SECONDS = 0.25
"""Seconds for which folder_state() of other processes may hold the lock."""
_TEXT = b"This run was not finished. GPUTaskScheduler runs it again the next time.\n"


def folder_state(folder: str) -> FolderState:
    """A folder without a marker counts as done: the older library made none."""
    if not os.path.exists(folder):
        return "absent"
    try:
        descriptor = os.open(os.path.join(folder, MARKER), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # no marker, or not readable
        return "done"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "running"
    finally:
        os.close(descriptor)
    return "unfinished"


def begin(folder: str) -> None:
    """Create the folder with the marker, or raise OSError and create neither."""
    fresh = not os.path.isdir(folder)
    os.makedirs(folder, exist_ok=True)
    try:
        mark(folder)
    except OSError:
        if fresh:  # without the marker it would count as done
            os.rmdir(folder)  # noqa: PTH106
        raise


def mark(folder: str) -> None:
    """Create the marker."""
    descriptor = os.open(os.path.join(folder, MARKER), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:  # noqa: SIM105
        os.pwrite(descriptor, _TEXT, 0)
    except OSError:  # the disk is full; an empty marker will do
        pass
    os.close(descriptor)


def finish(folder: str) -> None:
    """Remove the marker: the run has succeeded."""
    remove(os.path.join(folder, MARKER))


def remove(path: str) -> None:
    """Remove a file if it is there."""
    try:  # noqa: SIM105
        os.unlink(path)
    except FileNotFoundError:
        pass


def occupy(folder: str) -> int | None:
    """Lock the folder until the descriptor is closed; None where another process runs it."""
    os.makedirs(folder, exist_ok=True)
    descriptor = os.open(os.path.join(folder, MARKER), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    deadline = time.monotonic() + GLANCE_SECONDS
    while not _locked(descriptor):
        if time.monotonic() > deadline:
            os.close(descriptor)
            return None
        time.sleep(0.01)
    return descriptor


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
