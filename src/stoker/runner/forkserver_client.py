"""The engine's end of the forkserver: light to import, so that it starts before all the rest is loaded."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from stoker.core.errors import StokerError
from stoker.runner.inherited import inherited_locks

_PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from stoker.runner.forkserver import main; main()"
PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])


class Shared(NamedTuple):
    """Which of the engine's standard streams the jobs of a worker share."""

    input: bool
    output: bool


def message_of(folder: Path, shared: Shared) -> bytes:
    """The message that asks for a worker."""
    return bytes([shared.input, shared.output]) + os.fsencode(folder)


class Forkserver:
    """A process that forks workers."""

    def __init__(self, marks: Mapping[str, str] = {}) -> None:
        """`marks` are the environment of the process and its workers, by which others find them."""
        self._marks = marks
        self._running: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._failures: dict[str, int] = {}
        with contextlib.suppress(OSError):  # it is tried again when the first worker is started
            self._running = _start(marks)

    def fork(self, folder: Path, descriptors: list[int], shared: Shared) -> None:
        """Fork a worker; a forkserver that was killed is replaced once."""
        message = message_of(folder, shared)
        for _ in range(2):
            if self._running is None:
                self._running = _start(self._marks)
            try:
                socket.send_fds(self._running[1], [message], descriptors)
            except OSError:
                self.close()
            else:
                return
        raise StokerError("the process that starts jobs keeps dying", "check whether it is killed (ulimit, OOM killer)")

    def failure(self, folder: Path) -> int:
        """The error's number if no process could be made for the worker, else 0; told once."""
        with contextlib.suppress(OSError):
            while self._running is not None and (answer := self._running[1].recv(4096, socket.MSG_DONTWAIT)):
                number, _, name = answer.partition(b" ")
                self._failures[os.fsdecode(name)] = int(number)
        return self._failures.pop(str(folder), 0)

    def close(self) -> None:
        """Let it exit; workers live on."""
        if self._running is not None:
            process, control = self._running
            control.close()
            process.wait()
            self._running = None


def _start(marks: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start it with all our streams, since jobs may need them; workers close those that theirs do not share."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, PACKAGE_PARENT, str(theirs.fileno())],
            pass_fds=[theirs.fileno(), *inherited_locks()],  # of the job that the engine runs in, if any
            start_new_session=True,
            env=dict(marks),
        )
    return process, ours
