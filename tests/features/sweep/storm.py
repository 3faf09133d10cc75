"""A storm over a sweep: engine, tuner, workers and trials are killed, and its study is damaged, until it is over."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from features.sweep.sweeps import broken_promises, is_over, start_sweep, stored_trials
from stoker.features.sweep.store import study_path
from support.background import Background
from support.disk import fill
from support.wait import wait_until

COUNT = 10
MORE_TRIALS = 5
NOT_SERVED = 3
"""Exit code if the trials are recorded, and the engine has not answered yet."""
LONGEST_SECONDS = 150.0
TARGETS = ("everything", "tuner", "engine", "tuner and engine", "trial", "cut study", "garbled study", "no study")
FULL_SECONDS = 7.0
"""How long there is no space: longer than a tuner that has met this waits before it is started again."""


class SweepStorm:
    """Kills at random moments; the seed decides what is killed."""

    def __init__(self, background: Background, seed: int, count: int = COUNT) -> None:
        self.disruptions: Counter[str] = Counter()
        self._count = count
        self._background = background
        self._dice = random.Random(seed)
        self._sweep = 0

    def run(self, kills: int, targets: Sequence[str] = TARGETS) -> list[str]:
        """Run a sweep through the storm to its end; returns what is wrong with it.

        On a fast machine it may be over before it was struck so often: then it gets further trials.
        """
        background = self._background
        sweep = self._start("--pruner", "asha:min=2")
        for _ in range(kills):
            time.sleep(self._dice.uniform(0.05, 0.9))
            self._strike_when_there(sweep, self._dice.choice(targets))
            background("engine", "start")
            if is_over(background, sweep):
                self._extend(sweep, MORE_TRIALS)
        return self._settled(sweep)

    def fill(self, disk: Path) -> list[str]:
        """Leave no byte free on the disk of the queue while a sweep runs; returns what is wrong with it at its end."""
        sweep = self._start()  # no trial is stopped, so that the log of the tuner is empty and has no block yet
        wait_until(lambda: any(state == "done" for _, state, _ in stored_trials(self._background, sweep)))
        ballast = fill(disk)
        self.disruptions["full disk"] += 1
        time.sleep(FULL_SECONDS)
        ballast.unlink()
        return self._settled(sweep)

    @property
    def stopped(self) -> int:
        """How many trials were stopped early."""
        return sum(state == "stopped" for _, state, _ in stored_trials(self._background, self._sweep))

    def _start(self, *pruner: str) -> int:
        words = ["--method", "tpe", "-N", str(self._count), "--grace", "1s", "--seed", str(self._dice.randrange(1000))]
        self._sweep = start_sweep(self._background, *words, *pruner, steps=5, pause=0.06)
        return self._sweep

    def _settled(self, sweep: int) -> list[str]:
        """Wait for the end of the sweep, and examine it."""
        stuck = self._wait_over(sweep)
        if not stuck and any(target.endswith("study") for target in self.disruptions):
            self._extend(sweep, 1)  # repairs a study that was damaged at last
            stuck = self._wait_over(sweep)
        return stuck or broken_promises(self._background, sweep, self._count)

    def _extend(self, sweep: int, trials: int) -> None:
        self._count += trials
        said = self._background("sweep", "extend", str(sweep), str(trials))
        assert said.code in (0, NOT_SERVED), said.err

    def _wait_over(self, sweep: int) -> list[str]:
        background = self._background
        deadline = time.monotonic() + LONGEST_SECONDS
        while not is_over(background, sweep):
            if time.monotonic() > deadline:
                return ["stuck: the sweep is not over"]
            background("engine", "start")
            with contextlib.suppress(AssertionError):
                wait_until(lambda: is_over(background, sweep), 3.0)
        return []

    def _strike_when_there(self, sweep: int, target: str) -> None:
        """A process that was killed just now may not be there again yet, and on a busy machine not for a while."""
        wait_until(lambda: is_over(self._background, sweep) or self._strike(sweep, target))

    def _strike(self, sweep: int, target: str) -> bool:
        """Kill all processes of a kind at once, or damage the study; False if there is nothing to strike."""
        if target.endswith("study"):
            struck = self._damage(study_path(self._background.paths, sweep), target.split(maxsplit=1)[0])
        else:
            struck = bool(chosen := [pid for pid in self._processes() if _is(pid, target)])
            for pid in chosen:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.disruptions[target] += struck
        return struck

    def _damage(self, study: Path, how: str) -> bool:
        """Damage the study while its tuner may have it open; True if there was one."""
        try:
            size = study.stat().st_size
            if how == "no":
                study.unlink()
            elif how == "cut":
                os.truncate(study, self._dice.randrange(size))
            else:
                with study.open("r+b") as file:
                    file.seek(self._dice.randrange(size))
                    file.write(self._dice.randbytes(20))
        except (OSError, ValueError):  # there is none yet, or it is empty
            return False
        return True

    def _processes(self) -> list[int]:
        """Everything that has the state directory of this queue in its environment."""
        mark = f"STOKER_STATE={self._background.environment['STOKER_STATE']}".encode()
        pids = []
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdecimal() and int(name) != os.getpid():
                    pids += [int(name)] if mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0") else []
        return pids


def _is(pid: int, target: str) -> bool:
    if target == "everything":
        return True
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return False
    kinds = {
        "tuner": "stoker.features.sweep.tuner" in words,
        "engine": words[4:6] == ["engine", "run"],
        "trial": any(word.endswith("/train.py") for word in words),
    }
    return any(kinds[kind] for kind in target.split(" and "))
