"""A campaign: queues on trial, one after the other and a few at once, each under a fault that is drawn by a seed."""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import shutil
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from support.faults import damage, disks, driver, jobs, kills, limits, storms, syscalls
from support.faults.driver import stand_in
from support.faults.table import TABLE, Fault, missing
from support.storm.background import QueueStorm
from support.storm.settings import SIMULATED, StormSettings

MODULES = (kills, syscalls, disks, limits, damage, driver, jobs, storms)
"""What fills the table, besides the modules of features that are called `*_faults.py`."""
for path in sorted(Path(__file__).parents[2].glob("features/*/*_faults.py")):
    importlib.import_module(f"features.{path.parent.name}.{path.stem}")
LANES = 3
"""Trials at the same time: most of the time each of them waits."""
KINDS = ("double run", "lost", "wrong code", "stuck", "leak", "other")


@dataclass(frozen=True)
class Round:
    """One fault on one queue."""

    fault: Fault
    seed: int
    seconds: float
    jobs: int
    attempts: int
    disruptions: Mapping[str, int]
    findings: tuple[str, ...]
    home: Path | None
    """What is left to be looked at, where there are findings."""

    def __str__(self) -> str:
        verdict = f"{len(self.findings)} FINDINGS" if self.findings else "ok"
        counts = ", ".join(f"{times} {what}" for what, times in sorted(self.disruptions.items()) if times)
        return f"{self.fault.name} (seed {self.seed}): {verdict}, {self.seconds:.1f} s, {self.jobs} jobs; {counts}"


@dataclass
class Campaign:
    """Rounds until a number of them or a time is over."""

    seed: int
    names: Sequence[str] = ()
    """Faults to draw from; all usual ones where there are none."""
    rounds: int | None = None
    """None: each fault once."""
    minutes: float | None = None
    """Draw again and again until so much time is over."""
    lanes: int = LANES
    directory: Path | None = None
    """Where the queues are; None is the directory for temporary files."""
    say: Callable[[str], None] = print
    done: list[Round] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def run(self) -> list[Round]:
        """All rounds; the seed decides which faults there are in which order, and what each of them does."""
        drawn, turn = self._drawn(), threading.Lock()

        def lane() -> None:
            while True:
                with turn:
                    following = next(drawn, None)
                if following is None:
                    return
                done = run_round(*following, self.directory, thorough=self.minutes is not None)
                with turn:
                    self.done.append(done)
                    self.say(str(done))
                    for finding in done.findings:
                        self.say(f"    {finding}")

        with ThreadPoolExecutor(self.lanes) as pool:
            for future in [pool.submit(lane) for _ in range(self.lanes)]:
                future.result(None)
        return self.done

    def _drawn(self) -> Iterator[tuple[Fault, int]]:
        table = [TABLE[name] for name in self.names] or [each for each in TABLE.values() if each.usual]
        self.skipped = {each.name: why for each in table if (why := missing(each))}
        table = [each for each in table if each.name not in self.skipped]
        dice = random.Random(self.seed)
        until = None if self.minutes is None else time.monotonic() + 60 * self.minutes
        rounds = self.rounds or (len(table) if until is None else None)
        count = 0
        while table and (until is None or time.monotonic() < until):
            for each in dice.sample(table, len(table)):
                if count == rounds or (until is not None and time.monotonic() >= until):
                    return
                yield each, self.seed + count
                count += 1

    def findings(self) -> list[str]:
        """Everything that was found, with what to type to see it again."""
        found = [(done, finding) for done in self.done for finding in done.findings]
        return [f"{done.fault.name}, seed {done.seed}: {finding}" for done, finding in found]

    def summary(self) -> str:
        """The counts."""
        disruptions: Counter[str] = Counter()
        for done in self.done:
            disruptions.update(done.disruptions)
        kinds = Counter(kind_of(finding) for done in self.done for finding in done.findings)
        jobs, attempts = sum(done.jobs for done in self.done), sum(done.attempts for done in self.done)
        faults = Counter(done.fault.name for done in self.done)
        lines = [
            f"{len(self.done)} rounds, {jobs} jobs, {attempts} attempts",
            f"injected: {', '.join(f'{times} {what}' for what, times in sorted(disruptions.items()) if times)}",
            f"rounds by fault: {', '.join(f'{times} {what}' for what, times in sorted(faults.items()))}",
            f"found: {', '.join(f'{kinds[kind]} {kind}' for kind in KINDS)}",
            *(f"not tried: {name}: {why}" for name, why in self.skipped.items()),
        ]
        return "\n".join(lines)


def kind_of(finding: str) -> str:
    """Which of the promises is broken, in a word."""
    words = {
        "double run": (
            "double",
            " times",
            "together for",
            "before run",
            "do not go together",
            "the store does not know",
        ),
        "lost": ("lost", "is not there"),
        "wrong code": ("instead of", "as no attempt should"),
        "stuck": ("stuck", "never", "not leave", "nobody answered", "not over", "broke off"),
        "leak": ("left over",),
    }
    return next((kind for kind, parts in words.items() if any(part in finding for part in parts)), "other")


def run_round(fault: Fault, seed: int, directory: Path | None = None, *, thorough: bool = False) -> Round:
    """One fault on one fresh queue, below the directory for temporary files or another one."""
    home = Path(tempfile.mkdtemp(prefix="faults-", dir=directory))
    began = time.monotonic()
    try:
        jobs, attempts, disruptions, findings = _tried(fault, seed, home, thorough=thorough)
    except Exception:
        jobs, attempts, disruptions, findings = 0, 0, Counter[str](), [f"the round broke off: {traceback.format_exc()}"]
    if not findings:
        shutil.rmtree(home, ignore_errors=True)
    seconds = time.monotonic() - began
    return Round(fault, seed, seconds, jobs, attempts, disruptions, tuple(findings), home if findings else None)


def _tried(fault: Fault, seed: int, home: Path, *, thorough: bool) -> tuple[int, int, Counter[str], list[str]]:
    simulated = fault.devices == "simulated" or (fault.devices == "any" and seed % 2 == 0)
    settings = StormSettings(seed=seed, sim=SIMULATED if simulated else "", pause=0.2)
    environment = stand_in(home) if fault.devices == "nvml" else {}
    with contextlib.closing(QueueStorm(home, settings, environment)) as trial:
        trial.thorough = thorough
        try:
            fault.inject(trial)
            trial.finish()
            findings = trial.faults(losses_known=fault.losses_known, noisy=fault.noisy, timed=fault.timed)
        except Exception:
            findings = [*trial.broken, f"the round broke off: {traceback.format_exc()}"]
        record = trial.evidence().record if trial.paths.database.exists() else None
        jobs = len(record.jobs) if record else 0
        attempts = sum(map(len, record.attempts.values())) if record else 0
        return jobs, attempts, trial.disruptions, findings


def is_gap(campaign: Campaign) -> bool:
    """Whether CI, where nobody reads what was skipped, lacks what it could install; a clone may lack its history."""
    names = [name for name in campaign.skipped if TABLE[name].needs != ("history",)]
    return os.environ.get("CI") == "true" and bool(names)
