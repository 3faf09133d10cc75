"""The scheduler.log of the older GPUTaskScheduler, and the same on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

PROGRAM = "gpu_task_scheduler"
_DATE = "%a, %d %b %Y %H:%M:%S"
_LINES = {"finished": 46, "receives": 53, "skips": 56, "finishes": 93}
"""Where the older library wrote of each deed: scripts that read its log know the whole beginning of a line."""


class SchedulerLog:
    """Appends to the file, if there is one; what cannot be written does not keep instances from running."""

    def __init__(self, path: str | None) -> None:
        self._file: TextIO | None = None
        if path is not None:
            self._file = open(path, "a", buffering=1, encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
        self._has_file = path is not None

    def note(self, slot: str, deed: str, text: str = "", at: float | None = None) -> None:
        """One line: what the worker of a slot does with which instance."""
        moment = time.time() if at is None else at
        message = f"INFO gpu{slot} {deed}" + (f" task {text}" if deed != "finished" else "")
        date = time.strftime(_DATE, time.localtime(moment))
        if self._has_file:
            self._append(f"{date} {PROGRAM}.py[line:{_LINES[deed]}] {message}\n")
            date = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment)) + f",{int(moment * 1000) % 1000:03d}"
        show(f"{date} {message}")

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            file, self._file = self._file, None
            _quietly(file.close)

    def _append(self, line: str) -> None:
        if self._file is not None and not _quietly(self._file.write, line):
            say(f"{self._file.name} cannot be written any more; the instances run on")
            self.close()


def say(text: str) -> None:
    """A sentence to the person."""
    show(f"{PROGRAM}: {text}")


def show(line: str) -> None:
    """A line on standard error, wherever that leads by now; a reader who left does not end the run."""
    if sys.stderr is not None and _quietly(sys.stderr.write, line.encode(errors="backslashreplace").decode() + "\n"):
        _quietly(sys.stderr.flush)


def _quietly(do: Callable[..., object], *arguments: str) -> bool:
    """Whether it could be done."""
    try:
        do(*arguments)
    except (OSError, ValueError):
        return False
    return True
