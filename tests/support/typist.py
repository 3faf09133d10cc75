"""A program on a terminal of its own (a pty), typed to and read by a test."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.cli import PROGRAM, Stoker
from support.wait import PATIENCE_SECONDS, wait_until

_ON_THE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Typist:
    """Types into the terminal of a program, and reads what it shows."""

    def __init__(self, words: Sequence[str], environment: dict[str, str], cwd: Path) -> None:
        self._master, self._slave = os.openpty()
        termios.tcsetwinsize(self._slave, (24, 80))
        self.modes = termios.tcgetattr(self._slave)
        self.seen = ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", _ON_THE_TERMINAL, *words],
            cwd=cwd,
            env=environment,
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
        )

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def resize(self, lines: int, columns: int) -> None:
        """Change the window, as a terminal does when it is dragged."""
        termios.tcsetwinsize(self._master, (lines, columns))

    def wait_for(self, text: str) -> None:
        """Read until the text was shown, and forget what was shown up to its end."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while text not in self.seen:
            assert time.monotonic() < deadline, f"never saw {text!r} in {self.seen!r}"
            self._read(0.1)
        self.seen = self.seen.partition(text)[2]

    def wait_end(self) -> int:
        """The exit code of the program."""
        wait_until(lambda: not self._read(0.01) and self.process.poll() is not None)
        wait_until(lambda: not self._read(0.0))
        return self.process.wait(PATIENCE_SECONDS)

    @property
    def restored(self) -> bool:
        """Whether the terminal is in the modes that it had before."""
        return termios.tcgetattr(self._slave) == self.modes

    def hang_up(self) -> None:
        """Close the terminal, as sshd does when the connection is lost."""
        os.close(self._slave)
        os.close(self._master)
        self._slave = self._master = -1

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_SECONDS)
        if self._master >= 0:
            self.hang_up()

    def _read(self, seconds: float) -> bool:
        """Read what is there; True where there was something."""
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        self.seen += os.read(self._master, 65536).decode(errors="replace")
        return True


@contextlib.contextmanager
def typing(stoker: Stoker, *words: str, **environment: str) -> Iterator[Typist]:
    """`stoker ...` on a terminal of its own; SHELL is bash with a prompt that a test can wait for."""
    given = {**stoker.environment, "SHELL": "/bin/bash", "HOME": str(stoker.home), "TERM": "xterm", **environment}
    (stoker.home / ".bashrc").write_text("PS1='ready> '; HISTFILE=\n")
    with contextlib.closing(Typist([PROGRAM, *words], given, stoker.cwd)) as typist:
        yield typist
