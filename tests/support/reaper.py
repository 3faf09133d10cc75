"""A process that starts daemons for a test and ends with it, however it ends; and with it all their descendants."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.wait import PATIENCE_SECONDS, line_from

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36


class Reaper:
    """Starts processes that die with this one, also if it is killed; their descendants too."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a signal for the test's group must not end it before its children
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
        """The process id of a daemon that stays in the foreground; its output goes to the log."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([list(command), dict(environment), str(log)]) + "\n")
        self._process.stdin.flush()
        return int(line_from(self._process.stdout))

    def close(self) -> None:
        """Kill everything and wait for it."""
        self._process.communicate(timeout=PATIENCE_SECONDS)


def descendants(pid: int) -> set[int]:
    """All living processes below one."""
    processes = {int(name): _state_and_parent(int(name)) for name in os.listdir("/proc") if name.isdecimal()}
    found = {pid}
    while more := {child for child, (state, parent) in processes.items() if parent in found and state != "Z"} - found:
        found |= more
    return found - {pid}


def is_alive(pid: int) -> bool:
    """Whether it exists, and has not ended without its parent's notice."""
    return _state_and_parent(pid)[0] not in "ZX"


def _state_and_parent(pid: int) -> tuple[str, int]:
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return "X", 0
    return state, int(parent)


def _serve() -> None:
    """Start what standard input asks for; at its end kill everything."""
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_CHILD_SUBREAPER, 1)
    buffer = b""
    while True:
        _reap()
        if select.select([0], [], [], 0.05)[0]:
            data = os.read(0, 65536)
            if not data:
                break
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                print(_start(*json.loads(line)), flush=True)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (left := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        time.sleep(0.01)


def _start(command: list[str], environment: dict[str, str], log: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    # Also if this process is killed; setpriv keeps it where the command begins with it.
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor, target in ((os.open("/dev/null", os.O_RDONLY), 0), (output, 1), (output, 2)):
        os.dup2(descriptor, target)
    try:
        os.execvpe(command[0], command, environment)
    finally:
        os._exit(127)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    _serve()
