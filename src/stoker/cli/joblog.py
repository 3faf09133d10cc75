"""A job log with GNU parallel's columns, one line as each job ends."""

from __future__ import annotations

import os

from stoker.changes import Happening
from stoker.core.attempt import INHERIT
from stoker.core.errors import UsageError
from stoker.core.job import Exited, Started

HEADER = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n"


class JobLog:
    """Appends to a file; each line is one write, so that a crash leaves whole lines only."""

    def __init__(self, path: str, host: str) -> None:
        self._host = host
        self._started: dict[int, float] = {}
        try:
            self._file = _open(path)
        except OSError as error:
            raise UsageError(f"cannot write the job log {path}: {error.strerror}", "give another --joblog") from error

    def note(self, happening: Happening) -> None:
        """Write the line of an attempt that ended."""
        job = happening.job
        match happening.event:
            case Started(at=at):
                self._started[job.id] = at
            case Exited(at=at, code=code, signal=signal):
                started = self._started.pop(job.id, at)
                exit_value = 0 if signal else code
                size = _size(happening.log)
                command = job.command.text.replace("\n", " ").replace("\t", " ")
                fields = [
                    job.id,
                    self._host,
                    f"{started:.3f}",
                    f"{at - started:10.3f}",
                    0,
                    size,
                    exit_value,
                    signal,
                ]
                line = "\t".join(map(str, [*fields, command])) + "\n"
                os.write(self._file, line.encode(errors="surrogateescape"))

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
