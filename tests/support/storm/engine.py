"""The engine of the queue as a process that a storm starts, awaits and kills."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.forked import MODULE, Forked
from support.wait import PATIENCE_SECONDS, wait_until

READY_SECONDS = 30.0
RUNNING = 3
"""The exit code of an engine that finds another one at work."""


class EngineProcess:
    """One engine; its process is a child of ours, in a session of its own."""

    def __init__(
        self, arguments: list[str], environment: Mapping[str, str], log: Path, wrapper: Sequence[str] = ()
    ) -> None:
        self._ready, told = os.pipe()
        with log.open("ab") as output:
            self._process = Forked(
                [*wrapper, *MODULE, "engine", "run", *arguments, "--ready-fd", str(told)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env=dict(environment),
                pass_fds=[told],
                start_new_session=True,
            )
        os.close(told)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def lives(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def wait_ready(self) -> None:
        """Wait until it works, or until it is clear that it never will."""
        select.select([self._ready], [], [], READY_SECONDS)

    def wait_end(self, seconds: float) -> int | None:
        """Its exit code, None if it does not end in time."""
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.lives, seconds)
        return self._process.poll()

    def ask(self, number: signal.Signals) -> signal.Signals:
        """Send it a signal that it understands; the signal."""
        self._process.send_signal(number)
        return number

    def kill(self) -> bool:
        """Kill it without a word; False if it had ended before."""
        lived = self.lives
        self._process.kill()
        killed = self._process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        return lived and killed

    def close(self) -> None:
        """End it, if it is still there."""
        self.kill()
        os.close(self._ready)


class FoundEngine:
    """An engine that somebody else started, known by the number that it wrote into its lock."""

    def __init__(self, lock: Path) -> None:
        self.pid = int(lock.read_text().split()[0])
        self._descriptor = os.pidfd_open(self.pid)

    @property
    def lives(self) -> bool:
        """Whether it has not ended yet."""
        return not select.select([self._descriptor], [], [], 0)[0]

    def wait_ready(self) -> None:
        """Whoever started it has waited for that."""

    def wait_end(self, seconds: float) -> int | None:
        """0 if it ends in time; the process that reaps it keeps its code."""
        return 0 if select.select([self._descriptor], [], [], seconds)[0] else None

    def ask(self, number: signal.Signals) -> signal.Signals:
        """Send it a signal that it understands; the signal."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)
        return number

    def kill(self) -> bool:
        """Kill it without a word; False if it had ended before."""
        lived = self.lives
        self.ask(signal.SIGKILL)
        assert self.wait_end(PATIENCE_SECONDS) == 0, f"process {self.pid} does not die"
        return lived

    def close(self) -> None:
        """End it, if it is still there."""
        self.kill()
        os.close(self._descriptor)


AnyEngine = EngineProcess | FoundEngine
