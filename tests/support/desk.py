"""A place to type commands in: a directory with a queue, a ledger and programs of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.wait import wait_until

PROGRAMS = Path(sys.executable).parent


class Scheduler:
    """A running simple_gpu_scheduler whose queue is open, and what it said so far."""

    def __init__(self, gpus: str, directory: Path, environment: dict[str, str]) -> None:
        self._out, self._err = directory / f"{id(self)}.out", directory / f"{id(self)}.err"
        command = ["simple_gpu_scheduler", "--gpus", gpus]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command, cwd=directory, env=environment, stdin=subprocess.PIPE, stdout=out, stderr=err
            )

    def feed(self, *lines: str) -> None:
        """Append to its queue."""
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{line}\n" for line in lines).encode())
        self.process.stdin.flush()

    def wait_printed(self, text: str) -> None:
        """Wait until standard output has the text."""
        wait_until(lambda: text in self._out.read_text())

    def wait_said(self, text: str) -> None:
        """Wait until standard error has the text."""
        wait_until(lambda: text in self._err.read_text())

    def end(self) -> tuple[int, list[str], str]:
        """Close its queue and wait: exit code, lines of standard output, and standard error."""
        self.process.communicate(timeout=60)
        return self.process.returncode, self._out.read_text().splitlines(), self._err.read_text()


class JobBuilder:
    """A directory to work in, with a queue and a ledger of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "work"
        self.programs = directory / "programs"
        self.schedulers: list[Scheduler] = []
        self.directory.mkdir()
        self.programs.mkdir()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "CUDA_"))}
        self.environment = {
            **inherited,
            "PATH": f"{self.programs}:{PROGRAMS}:{os.environ['PATH']}",
            "SHELL": "/bin/bash",
            "STOKER_STATE": str(directory / "state"),
            "STOKER_LEDGER": str(directory / "ledger"),
        }

    def typed(self, line: str, queue: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """What becomes of a line typed into bash."""
        command = ["bash", "-c", line]
        return subprocess.run(
            command, cwd=self.directory, env=self.environment, input=queue, capture_output=True, timeout=60, check=False
        )

    def run(self, *commands: str, gpus: str = "0") -> tuple[int, list[str], str]:
        """Exit code, lines of standard output, and standard error for a queue of commands."""
        result = self.typed(f"simple_gpu_scheduler --gpus {gpus}", "\n".join(commands).encode())
        return result.returncode, result.stdout.decode().splitlines(), result.stderr.decode()

    def start(self, gpus: str) -> Scheduler:
        """Start a scheduler whose queue stays open."""
        self.schedulers.append(Scheduler(gpus, self.directory, self.environment))
        return self.schedulers[-1]

    def program(self, name: str, script: str) -> None:
        """Put a shell script on the search path."""
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def text(self, name: str) -> str:
        """Contents of a file, empty where there is none."""
        path = self.directory / name
        return path.read_text() if path.exists() else ""

    def open_gate(self, name: str) -> None:
        """Let a gated command go on."""
        (self.directory / name).touch()
