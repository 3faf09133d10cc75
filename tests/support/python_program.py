"""A queue as Python programs use it: this process is one of them, and others are run as scripts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.python.connection import leave_all
from support.background import Background
from support.wait import PATIENCE_SECONDS

TIMEOUT_SECONDS = PATIENCE_SECONDS


class Programs(Background):
    """The queue of the environment that the test itself has, with an engine on two simulated GPUs."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self._scripts: list[subprocess.Popen[str]] = []

    def script(self, text: str) -> subprocess.Popen[str]:
        """Start a Python program with the same queue, and leave it running."""
        program = self.cwd / f"program_{len(list(self.cwd.glob('program_*')))}.py"
        program.write_text(textwrap.dedent(text))
        process = subprocess.Popen(
            [sys.executable, program],
            cwd=self.cwd,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._scripts.append(process)
        return process

    def run_script(self, text: str) -> str:
        """What a Python program with the same queue prints."""
        process = self.script(text)
        out, err = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 0, err
        return out

    def end_scripts(self) -> None:
        """End the programs that are left, as where a test failed, with all that they forked."""
        for process in self._scripts:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=PATIENCE_SECONDS)


@contextlib.contextmanager
def programs_in(home: Path) -> Iterator[Programs]:
    """A queue in a directory, which is that of this process meanwhile."""
    with contextlib.closing(Programs(home)) as made, pytest.MonkeyPatch.context() as here:
        made.environment["XDG_CONFIG_HOME"] = str(home / "config")
        for name in ("STOKER_STATE", "STOKER_LEDGER", "STOKER_SIM", "SHELL", "XDG_CONFIG_HOME"):
            here.setenv(name, made.environment[name])
        here.chdir(made.cwd)
        try:
            yield made
        finally:
            made.end_scripts()
            leave_all()
