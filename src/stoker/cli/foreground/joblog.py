"""A job log with GNU parallel's columns, one line as each job ends."""

from __future__ import annotations

import os
import signal

from stoker.changes import Happening
from stoker.core.attempt import INHERIT
from stoker.core.errors import UsageError
from stoker.core.job import Exited, Lost

HEADER = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n"


class JobLog:
    """Appends to a file; each line is one write, so that a crash leaves whole lines only."""

    def __init__(self, path: str, host: str) -> None:
        self._host = host
        try:
            self._file = _open(path)
        except OSError as error:
            raise UsageError(f"cannot write the job log {path}: {error.strerror}", "give another --joblog") from error

    def note(self, happening: Happening) -> None:
        """Write the line of an attempt that ended."""
        event = happening.event
        if not isinstance(event, Exited | Lost):
            return
        job = happening.job
        started = event.at if happening.started is None else happening.started
        code, number = _ending(event)
        command = job.command.text.replace("\n", " ").replace("\t", " ")
        ran = f"{event.at - started:10.3f}"
        fields = [job.id, self._host, f"{started:.3f}", ran, 0, _size(happening.log), code, number, command]
        os.write(self._file, ("\t".join(map(str, fields)) + "\n").encode(errors="surrogateescape"))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _open(path: str) -> int:
    """The file, with the header in a new one."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        if os.fstat(file).st_size == 0:
            os.write(file, HEADER.encode())
    except OSError:
        os.close(file)
        raise
    return file


def _size(log: str) -> int:
    if not log or log == INHERIT:
        return 0
    try:
        return os.stat(log).st_size
    except OSError:
        return 0


def _ending(event: Exited | Lost) -> tuple[int, int]:
    """Exit value and signal as parallel tells them; a keeper that was killed counts as SIGKILL."""
    if isinstance(event, Lost):
        return 0, signal.SIGKILL
    return (0, event.signal) if event.signal else (event.code, 0)
