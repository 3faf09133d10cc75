"""A real terminal for tests: tmux, with a server of its own for each test."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.optional import require
from support.wait import PATIENCE_SECONDS


class Terminal:
    """A terminal in which one command runs; its exit code is shown when it ends."""

    def __init__(self, socket: str, environment: dict[str, str], directory: Path) -> None:
        self._tmux = ["tmux", "-u", "-f", "/dev/null", "-S", socket]
        self._environment = environment
        self._directory = directory

    def start(self, words: Sequence[str], width: int, height: int) -> None:
        """Open the terminal with a command in it; it stays open after the command's end."""
        # The trap keeps the shell alive when Ctrl-C is meant for the command.
        line = f"trap : INT; {shlex.join(words)}; echo exit code $?; exec sleep 600"
        self._do("new-session", "-d", "-x", str(width), "-y", str(height), "sh", "-c", line)

    def screen(self) -> str:
        """What can be seen now."""
        return self._do("capture-pane", "-p")

    def painted(self) -> str:
        """The same with its colours, as escape sequences."""
        return self._do("capture-pane", "-p", "-e")

    def modes(self) -> str:
        """Whether the alternate screen, the mouse and the cursor are on, each as 0 or 1."""
        return self._do("display-message", "-p", "#{alternate_on} #{mouse_any_flag} #{cursor_flag}").strip()

    def process(self) -> int:
        """The shell in which the command runs."""
        return int(self._do("display-message", "-p", "#{pane_pid}"))

    def press(self, key: str) -> None:
        """Press a key, in tmux's words."""
        self._do("send-keys", key)

    def wait_for(self, *texts: str) -> str:
        """The screen as soon as it shows all the texts."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not all(text in (screen := self.screen()) for text in texts):
            assert time.monotonic() < deadline, f"never saw {texts} on\n{screen}"
            time.sleep(0.05)
        return screen

    def close(self) -> None:
        """Take the terminal away from whatever still runs in it."""
        subprocess.run(
            [*self._tmux, "kill-server"],
            env=self._environment,
            capture_output=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )

    def _do(self, *words: str) -> str:
        done = subprocess.run(
            [*self._tmux, *words],
            env=self._environment,
            cwd=self._directory,
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_SECONDS,
        )
        return done.stdout


@contextmanager
def open_terminal(directory: Path, **variables: str) -> Iterator[Terminal]:
    """A terminal whose programs keep their state in the directory."""
    require("tmux")
    environment = {**isolated(directory), "LC_ALL": "C.UTF-8", **variables}
    with tempfile.TemporaryDirectory(prefix="tmux") as short:
        terminal = Terminal(f"{short}/socket", environment, directory)
        try:
            yield terminal
        finally:
            terminal.close()


def isolated(directory: Path) -> dict[str, str]:
    """An environment in which nothing outside the directory is touched, nor any option set from outside."""
    ledger = directory / "ledger"
    if not ledger.exists():
        ledger.mkdir()
        ledger.chmod(0o1777)
    told = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "TMUX"))}
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        told.pop(name, None)
    return {**told, "STOKER_STATE": str(directory / "state"), "STOKER_LEDGER": str(ledger)}
