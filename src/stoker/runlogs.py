"""Where a run puts the logs of its jobs: a new directory for each run, in a place that is nobody else's."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import time
from pathlib import Path

RUNS = "stoker-runs"


def new_log_directory(parent: Path) -> Path:
    """A directory named after the moment, in a parent that is made where it is missing."""
    parent.mkdir(exist_ok=True)
    if parent.lstat().st_uid != os.getuid():
        raise PermissionError(errno.EPERM, f"{parent} belongs to somebody else")
    return _new_directory(parent, time.strftime("%Y-%m-%d_%H-%M-%S"))


def _new_directory(parent: Path, name: str) -> Path:
    """A directory that nobody made before, with a number behind its name where that is needed."""
    for path in itertools.chain([parent / name], (parent / f"{name}.{number}" for number in itertools.count(2))):
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path
    raise AssertionError("numbers do not end")
