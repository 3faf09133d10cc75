"""The console script as people type it, in a directory, a queue and a ledger of the test's own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import pytest
from msgspec import Struct

from support import forked
from support.forked import Forked, can_fork, forked_daemons
from support.wait import PATIENCE_SECONDS, wait_until

PROGRAM = forked.PROGRAM
TIMEOUT_SECONDS = PATIENCE_SECONDS


class Outcome(Struct, frozen=True):
    """How a command line ended and what it wrote."""

    code: int
    out: str
    err: str


class Stoker:
    """Types `stoker ...`; whatever its jobs leave behind ends with the test."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.cwd = home / "work"
        self.cwd.mkdir()
        outside = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
        self.environment = {
            **outside,
            "STOKER_STATE": str(home / "state"),
            "STOKER_LEDGER": str(home / "ledger"),
            "SHELL": "/bin/sh",
            "PATH": f"{Path(PROGRAM).parent}:{os.environ['PATH']}",
        }
        self._started: list[subprocess.Popen[bytes]] = []

    def __call__(
        self, *arguments: str | bytes, stdin: str | bytes = b"", cwd: Path | None = None, **environment: str
    ) -> Outcome:
        """Run a command line to its end."""
        process = self.start(*arguments, cwd=cwd, environment=environment)
        return self.finish(process, stdin)

    def start(
        self,
        *arguments: str | bytes,
        cwd: Path | None = None,
        stdin: int | IO[bytes] = subprocess.PIPE,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command line and leave it running."""
        variables = {**self.environment, **(environment or {})}
        process = Forked(
            [PROGRAM, *arguments],
            cwd=cwd or self.cwd,
            env=variables,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._started.append(process)
        return process

    def finish(self, process: subprocess.Popen[bytes], stdin: str | bytes | None = None) -> Outcome:
        """Wait for the end of what was started."""
        given = stdin.encode() if isinstance(stdin, str) else stdin
        out, err = process.communicate(given, timeout=TIMEOUT_SECONDS)
        return Outcome(process.returncode, out.decode(errors="surrogateescape"), err.decode(errors="surrogateescape"))

    def typed(self, line: str, **environment: str) -> Outcome:
        """Run a line as a person types it into a shell."""
        process = subprocess.Popen(
            ["sh", "-c", line],
            cwd=self.cwd,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._started.append(process)
        return self.finish(process)

    def write(self, name: str, *lines: str | bytes) -> Path:
        """A file in the working directory, one line each."""
        path = self.cwd / name
        path.write_bytes(b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines))
        return path

    def lines(self, name: str) -> list[str]:
        """What jobs appended to a file of the working directory."""
        path = self.cwd / name
        return path.read_text().splitlines() if path.exists() else []

    def logs(self) -> list[str]:
        """The contents of all log files, in the order of the jobs."""
        found = sorted(self.cwd.glob("stoker-runs/*/*.log"), key=lambda path: int(path.stem.partition("-")[0]))
        return [path.read_text() for path in found]

    def wait_lines(self, name: str, count: int) -> None:
        """Wait until jobs have appended so many lines to a file."""
        wait_until(lambda: len(self.lines(name)) >= count)

    def job_processes(self) -> list[int]:
        """The jobs that live: all processes with this test's queue in their environment that are not the program."""
        marked = f"STOKER_STATE={self.home}/state\0".encode()
        found = [pid for pid in _processes() if marked in _content(pid, "environ") and not _is_program(pid)]
        return found + (forked_daemons(f"{self.home}/state") if can_fork(self.environment) else [])

    def close(self) -> None:
        """End everything that is left; a job may hold the other end of our pipes, so those go last."""
        for process in self._started:
            process.kill()
        wait_until(self._nothing_left)
        for process in self._started:
            process.communicate(timeout=PATIENCE_SECONDS)

    def _nothing_left(self) -> bool:
        for record in self.home.glob("state/*/engine.restart"):
            record.unlink(missing_ok=True)  # else a worker would start the engine again
        left = self.job_processes()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left


@pytest.fixture
def stoker(tmp_path: Path) -> Iterator[Stoker]:
    """The console script, isolated."""
    with contextlib.closing(Stoker(tmp_path)) as program:
        yield program


def until(path: str) -> str:
    """Shell text that waits for a file to appear."""
    return f"while [ ! -e {path} ]; do sleep 0.02; done"


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _is_program(pid: int) -> bool:
    return PROGRAM.encode() in _content(pid, "cmdline").split(b"\0")


def _content(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes() + b"\0"
    except OSError:
        return b""
