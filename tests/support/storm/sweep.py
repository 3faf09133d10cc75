"""A storm over a sweep: engine, adviser, workers and trials are killed, alone or all at once, until it is over."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

from support.background import Background
from support.sweeps import broken_promises, is_over, start_sweep
from support.wait import wait_until

COUNT = 10
LONGEST_SECONDS = 150.0
TARGETS = ("everything", "adviser", "engine", "adviser and engine", "trial")


class SweepStorm:
    """Kills at random moments; the seed decides what is killed."""

    def __init__(self, background: Background, seed: int, kills: int, count: int = COUNT) -> None:
        self.blows: Counter[str] = Counter()
        self._count = count
        self._background = background
        self._dice = random.Random(seed)
        self._kills = kills

    def rage(self) -> list[str]:
        """Run a sweep through the storm to its end; returns what is wrong with it."""
        background = self._background
        words = ["--method", "tpe", "-N", str(self._count), "--grace", "1s", "--seed", str(self._dice.randrange(1000))]
        sweep = start_sweep(background, *words, "--pruner", "asha:min=2", steps=5, pause=0.06)
        for _ in range(self._kills):
            time.sleep(self._dice.uniform(0.05, 0.9))
            if is_over(background, sweep):
                break
            self._strike(self._dice.choice(TARGETS))
            background("engine", "start")
        deadline = time.monotonic() + LONGEST_SECONDS
        while not is_over(background, sweep):
            if time.monotonic() > deadline:
                return ["stuck: the sweep is not over"]
            background("engine", "start")
            with contextlib.suppress(AssertionError):
                wait_until(lambda: is_over(background, sweep), 3.0)
        return broken_promises(background, sweep, self._count)

    def _strike(self, target: str) -> None:
        """Kill all processes of a kind at once."""
        chosen = [pid for pid in self._processes() if _is(pid, target)]
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.blows[target] += bool(chosen)

    def _processes(self) -> list[int]:
        """Everything that has the state directory of this queue in its environment."""
        mark = f"STOKER_STATE={self._background.environment['STOKER_STATE']}".encode()
        found = []
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdecimal() and int(name) != os.getpid():
                    found += [int(name)] if mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0") else []
        return found


def _is(pid: int, target: str) -> bool:
    if target == "everything":
        return True
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return False
    kinds = {
        "adviser": "stoker.adviser" in words,
        "engine": words[4:6] == ["engine", "run"],
        "trial": any(word.endswith("/train.py") for word in words),
    }
    return any(kinds[kind] for kind in target.split(" and "))
