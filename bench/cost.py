"""The cost of a command or of the processes of a server: wall time, CPU time, memory."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rounds import Incomplete

FLOORS: Mapping[str, Sequence[str]] = {
    "python -I -c pass": (sys.executable, "-I", "-c", "pass"),
    "... import click, msgspec, sqlite3": (sys.executable, "-I", "-c", "import click, msgspec, sqlite3"),
}
"""The least cost of any Python program on this machine; what lies above it is Stoker's."""
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
