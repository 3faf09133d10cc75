"""A shell in a directory with a queue, a ledger and programs of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.wait import wait_until

PROGRAMS = Path(sys.executable).parent


class Running:
    """A program that runs in a session of its own, and what it printed so far."""

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        self._out, self._err = directory.parent / f"{id(self)}.out", directory.parent / f"{id(self)}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                # A test run in the background of a script has SIGINT ignored, and its children would inherit that.
                ["env", "--default-signal=INT,HUP,TERM", *command],
                cwd=directory,
                env=environment,
                stdin=stdin,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def printed(self) -> str:
        """Standard output so far."""
        return self._out.read_text()

    @property
    def said(self) -> str:
        """Standard error so far."""
        return self._err.read_text()

    def wait_printed(self, text: str) -> None:
        """Wait until standard output has the text."""
        wait_until(lambda: text in self.printed)

    def wait_said(self, text: str) -> None:
        """Wait until standard error has the text."""
        wait_until(lambda: text in self.said)

    def press(self, number: signal.Signals = signal.SIGINT) -> None:
        """Send a signal; SIGINT is what Ctrl-C does."""
        self.process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Wait: exit code, standard output and standard error."""
        self.process.communicate(timeout=60)
        return self.process.returncode, self.printed, self.said


class Queue(Running):
    """A running simple_gpu_scheduler whose standard input is open until end()."""

    def feed(self, *lines: str) -> None:
        """Append commands."""
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{line}\n" for line in lines).encode())
        self.process.stdin.flush()


class Shell:
    """A directory to work in, with a queue and a ledger of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "work"
        self.programs = directory / "programs"
        self.queues: list[Queue] = []
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
        """The result of a line typed into bash."""
        command = ["bash", "-c", line]
        return subprocess.run(
            command, cwd=self.directory, env=self.environment, input=queue, capture_output=True, timeout=60, check=False
        )

    def run(self, *commands: str, gpus: str = "0") -> tuple[int, list[str], str]:
        """Exit code, lines of standard output, and standard error for a queue of commands."""
        result = self.typed(f"simple_gpu_scheduler --gpus {gpus}", "\n".join(commands).encode())
        return result.returncode, result.stdout.decode().splitlines(), result.stderr.decode()

    def start(self, gpus: str) -> Queue:
        """Start simple_gpu_scheduler, and leave its standard input open."""
        command = ["simple_gpu_scheduler", "--gpus", gpus]
        self.queues.append(Queue(command, self.directory, self.environment, subprocess.PIPE))
        return self.queues[-1]

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
