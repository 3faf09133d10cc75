"""The result folder of an instance, and how it shows whether its run was finished.

It imports next to nothing: every instance's process waits for it.
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
"""In a folder from before a run starts until it has succeeded; whoever runs it holds a lock on this file."""

GLANCE_SECONDS = 0.25
"""For how long the lock may be held by people who only look."""
_TEXT = b"This run was not finished. GPUTaskScheduler runs it again the next time.\n"


def folder_state(folder: str) -> FolderState:
    """What a folder tells; one that the older library made, which knows no marker, counts as done as it did there."""
    if not os.path.exists(folder):
        return "absent"
    try:
        descriptor = os.open(os.path.join(folder, MARKER), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # no marker, or nothing that we may look into
        return "done"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "running"
    finally:
        os.close(descriptor)
    return "unfinished"


def begin(folder: str) -> None:
    """Make the folder where it is missing, with the marker; an OSError where neither could be made."""
    fresh = not os.path.isdir(folder)
    os.makedirs(folder, exist_ok=True)
    try:
        mark(folder)
    except OSError:
        if fresh:  # without the marker it would count as done
            os.rmdir(folder)  # noqa: PTH106
        raise


def mark(folder: str) -> None:
    """Have the folder say that its run is not finished."""
    descriptor = os.open(os.path.join(folder, MARKER), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:  # noqa: SIM105
        os.pwrite(descriptor, _TEXT, 0)
    except OSError:  # on a full disk it has to do without its text
        pass
    os.close(descriptor)


def finish(folder: str) -> None:
    """Have the folder say that its run has succeeded."""
    remove(os.path.join(folder, MARKER))


def remove(path: str) -> None:
    """Remove a file; somebody may have done so before."""
    try:  # noqa: SIM105
        os.unlink(path)
    except FileNotFoundError:
        pass


def occupy(folder: str) -> int | None:
    """Keep others from running it, for as long as the descriptor is open; None where another does so already."""
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
