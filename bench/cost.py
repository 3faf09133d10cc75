"""What a command, or the processes of a server, cost: seconds on the clock, seconds of processor, memory."""

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
"""What any such program in Python costs at least, on the machine as it is: what lies above it is ours."""
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """Of one command, from its start until it was waited for."""

    seconds: float
    cpu: float
    """Seconds of processor that it and its waited-for children took; what a server did for it is not in it."""


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
    return Cost(seconds, usage.ru_utime + usage.ru_stime)


def processes_at_home(directory: Path) -> list[int]:
    """The processes whose home is the directory, and their descendants: all that was started for a run there."""
    mark = f"HOME={directory}".encode()
    parents = {pid: _parent(pid) for pid in _processes()}
    found = {pid for pid in parents if mark in _read(pid, "environ").split(b"\0")}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)


def cpu_seconds(pids: Iterable[int]) -> float:
    """Seconds of processor that processes and their waited-for children have taken so far."""
    fields = [_read(pid, "stat").rpartition(b") ")[2].split() for pid in pids]
    return sum(sum(map(int, words[11:15])) for words in fields if words) / _TICK


@dataclass(frozen=True)
class Memory:
    """Of the processes of a server, without those of its jobs."""

    engine: int
    """Bytes of the process that does the work, with all that it shares with others."""
    together: int
    """Bytes of all of them, where each has its part of what it shares."""
    processes: int

    @property
    def cells(self) -> list[str]:
        """As cells of a table."""
        return [f"{self.engine / 1e6:.1f}", f"{self.together / 1e6:.1f}", str(self.processes)]


MEMORY_HEAD = ("engine, MB", "all, MB", "processes")


def memory_of(pids: Iterable[int], engine: int | None = None) -> Memory:
    """The memory of processes; the largest is taken for the engine where none is named."""
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
    """A file of a process, empty where it is gone or not ours."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""
