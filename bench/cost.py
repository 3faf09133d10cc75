"""The cost of a command or of the processes of a server: wall time, CPU time, memory."""

from __future__ import annotations

import contextlib
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path

from rounds import Incomplete

FLOORS: Mapping[str, Sequence[str]] = {
    "python -I -c pass": (sys.executable, "-I", "-c", "pass"),
    "... import click, msgspec, sqlite3": (sys.executable, "-I", "-c", "import click, msgspec, sqlite3"),
}
"""The least cost of any Python program on this machine; what lies above it is Stoker's."""
ROWS, COLUMNS = 40, 120
"""Of terminals."""
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """The cost of one command, from its start to its end."""

    seconds: float
    cpu: float
    """CPU seconds of the command and its waited-for children, without the work of a server."""
    memory: int = 0
    """Most bytes of its largest process."""


def spend(words: Sequence[str | Path], directory: Path, environment: Mapping[str, str]) -> Cost:
    """Run a command that must succeed."""
    with tempfile.TemporaryFile() as errors:
        started = time.perf_counter()
        process = subprocess.Popen(
            words, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip()
            raise Incomplete(f"ended with {process.returncode}: {' '.join(map(str, words))}: {said}")
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def spend_on_terminal(
    words: Sequence[str | Path], directory: Path, environment: Mapping[str, str], codes: Collection[int] = (0,)
) -> Cost:
    """Run a command that must end with one of some codes, with a terminal of its own for input and output."""
    started = time.perf_counter()
    pid, terminal = open_terminal(words, directory, environment)
    said = bytearray()
    with contextlib.closing(open(terminal, "rb", buffering=0)) as screen, contextlib.suppress(OSError):
        while some := screen.read(65536):  # OSError: the command has closed its end
            said += some
    _, status, usage = os.wait4(pid, 0)
    seconds = time.perf_counter() - started
    if os.waitstatus_to_exitcode(status) not in codes:
        raise Incomplete(f"failed: {' '.join(map(str, words))}: {said[-1000:].decode(errors='replace')}")
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def open_terminal(words: Sequence[str | Path], directory: Path, environment: Mapping[str, str]) -> tuple[int, int]:
    """Start a program on a terminal: its process, and the other end of the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(directory)
        os.execve(words[0], list(map(str, words)), {**environment, "TERM": "xterm-256color"})
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    return pid, terminal


def processes_at_home(directory: Path) -> list[int]:
    """The processes with this home directory, and their descendants: all that a run there started."""
    mark = f"HOME={directory}".encode()
    parents = {pid: _parent(pid) for pid in _processes()}
    found = {pid for pid in parents if mark in _read(pid, "environ").split(b"\0")}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU seconds of processes and their waited-for children so far."""
    fields = [_read(pid, "stat").rpartition(b") ")[2].split() for pid in pids]
    return sum(sum(map(int, words[11:15])) for words in fields if words) / _TICK


@dataclass(frozen=True)
class Memory:
    """The memory of a server's processes, without its jobs."""

    engine: int
    """Bytes of the engine process, shared pages included."""
    together: int
    """Bytes of all processes, each with its part of shared pages."""
    processes: int

    @property
    def cells(self) -> list[str]:
        """As cells of a table."""
        return [f"{self.engine / 1e6:.1f}", f"{self.together / 1e6:.1f}", str(self.processes)]


MEMORY_HEAD = ("engine, MB", "all, MB", "processes")


def memory_of(pids: Iterable[int], engine: int | None = None) -> Memory:
    """The memory of processes; the largest one counts as the engine where none is named."""
    ours = [pid for pid in pids if not _read(pid, "cmdline").startswith(b"sleep\0")]
    largest = _bytes(engine, "Rss:") if engine else max(_bytes(pid, "Rss:") for pid in ours)
    return Memory(largest, sum(_bytes(pid, "Pss:") for pid in ours), len(ours))


def peak_bytes(pid: int) -> int:
    """The most memory that a process had; 0 once it has ended and waits to be reaped."""
    lines = _read(pid, "status").decode().splitlines()
    return 1024 * next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def _bytes(pid: int, field: str) -> int:
    lines = _read(pid, "smaps_rollup").decode().splitlines()
    return 1024 * next((int(line.split()[1]) for line in lines if line.startswith(field)), 0)


def _parent(pid: int) -> int:
    words = _read(pid, "stat").rpartition(b") ")[2].split()
    return int(words[1]) if words else 0


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(pid: int, name: str) -> bytes:
    """A file of a process in /proc, empty where the process is gone or of another user."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""
