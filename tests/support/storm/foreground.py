"""A storm over foreground runs: `stoker run --resume` of lists, started again and again as engines are killed."""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from support.cli import PROGRAM, Stoker
from support.forked import Forked
from support.storm.checker import LOSSES_ALLOWED, Evidence, faults_of_runs
from support.storm.job_script import command, read_run_log, write_script
from support.storm.jobs import Work
from support.storm.killer import Killer
from support.storm.leftovers import leftovers
from support.storm.record import Record, read_record
from support.storm.replay import JobReplay, faults_of_replay
from support.storm.settings import StormSettings
from support.wait import PATIENCE_SECONDS, wait_until

DEVICES = "a,b,c,d"
ALWAYS_FAILS = 6
"""Jobs whose number leaves this rest by 7 never succeed; the others fail at most once, with their rest as code."""
LONG_SECONDS = 0.8
END_SECONDS = 60.0
"""How long a run that nobody disturbs may take to its end."""
WORKER_TOO = 0.3
"""How often a worker is killed right after its engine."""


@dataclass
class RunStorm:
    """Runs lists to their end against a chaos that kills by process number what this storm started."""

    stoker: Stoker
    settings: StormSettings
    disruptions: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.settings.seed)
        self._engines: list[subprocess.Popen[bytes] | None] = [None] * self.settings.engines
        self._lists = self._write_lists()
        self._log = self.stoker.cwd.parent / "engines.log"
        self._killer = Killer(Path(self.stoker.environment["STOKER_STATE"]), self._dice)

    def run(self) -> None:
        """Kill as often as was said, starting engines again as they die, and then let all of it end."""
        for disruption in self.settings.disruptions(self._dice):
            wait_until(partial(self._try, disruption))
        self._start_missing()
        for engine in self._engines:
            assert engine is not None
            engine.wait(END_SECONDS)
        if self.settings.engines > 1:  # each has left what the others had when it looked
            self._resume()

    def close(self) -> None:
        """End what is left of the engines."""
        for engine in self._engines:
            if engine is not None:
                engine.kill()
                engine.wait(PATIENCE_SECONDS)

    def faults(self) -> list[str]:
        """Everything that is not as it should be, in words."""
        evidence = self.evidence()
        ledger = Path(self.stoker.environment["STOKER_LEDGER"])
        return [
            *faults_of_runs(evidence),
            *_results(evidence.record, self.settings.jobs),
            *_stories(evidence),
            *self._repeated(evidence.record),
            *leftovers(self._killer, ledger, f"STOKER_STATE={self.stoker.environment['STOKER_STATE']}"),
        ]

    def evidence(self) -> Evidence:
        """The evidence of jobs, database and kills."""
        record = read_record(self._killer.state)
        codes = {job: _codes(row.number) for job, row in record.jobs.items()}
        return Evidence(read_run_log(self.stoker.cwd), record, self._killer.kills, codes.__getitem__)

    def _repeated(self, record: Record) -> Iterator[str]:
        """A single run never does again what succeeded; of several at once each looks only when it starts."""
        done = Counter(row.number for row in record.jobs.values() if row.state == "done")
        if self.settings.engines == 1:
            yield from (f"number {number} succeeded {times} times" for number, times in done.items() if times > 1)

    def _write_lists(self) -> list[Path]:
        write_script(self.stoker.cwd)
        numbers = range(self.settings.jobs)
        return [
            self.stoker.write(f"jobs{at}.txt", *(self._line(number) for number in numbers[at :: self.settings.lists]))
            for at in range(self.settings.lists)
        ]

    def _line(self, number: int) -> str:
        seconds = LONG_SECONDS if number % 23 == 5 else self._dice.uniform(0.005, 0.05)
        return command(number, _codes(number), seconds, "child" if number % 5 == 0 else "plain")

    # -- engines ---------------------------------------------------------------------------------

    def _resume(self) -> None:
        """One undisturbed run of each list after the other: what nobody has looked at yet is settled by these."""
        for jobs in self._lists:
            self._start(jobs).wait(END_SECONDS)

    def _start_missing(self) -> None:
        """Start again what died or came to its end."""
        for index, engine in enumerate(self._engines):
            if engine is None or engine.poll() is not None:
                self._engines[index] = self._start(self._lists[index % len(self._lists)])

    def _start(self, jobs: Path) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return Forked(
                [PROGRAM, "run", "--devices", DEVICES, "--retries", "1", "--resume", jobs.name],
                cwd=self.stoker.cwd,
                env=self.stoker.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    # -- disruptions -----------------------------------------------------------------------------

    def _try(self, disruption: str) -> bool:
        """Strike at a random moment; False if there was nothing to hit."""
        self._start_missing()
        self._find_state()
        time.sleep(self._dice.uniform(0.0, self.settings.pause))
        hit = self._strike(disruption)
        self.disruptions[disruption] += hit
        if hit and disruption == "engine" and self._dice.random() < WORKER_TOO:
            self.disruptions["worker without engine"] += self._killer.kill_worker(self._living)
        return hit

    def _strike(self, disruption: str) -> bool:
        engine = self._dice.choice(self._engines)
        assert engine is not None
        if disruption == "worker":
            return self._killer.kill_worker(self._living)
        if disruption == "forkserver":
            return self._killer.kill_forkserver(engine.pid)
        lives = engine.poll() is None
        engine.kill()
        engine.wait(PATIENCE_SECONDS)
        return lives

    @property
    def _living(self) -> list[int]:
        return [engine.pid for engine in self._engines if engine is not None]

    def _find_state(self) -> None:
        """The state directory is below the one that was named, in one of the host's name."""
        named = Path(self.stoker.environment["STOKER_STATE"])
        wait_until(lambda: named.is_dir() and any(named.iterdir()))
        (self._killer.state,) = named.iterdir()


def _codes(number: int) -> tuple[str, ...]:
    rest = number % 7
    return (str(rest),) if rest == ALWAYS_FAILS else (str(rest), "0")


def _stories(evidence: Evidence) -> Iterator[str]:
    """Each job went the way that its events tell; so what lost its worker was queued again."""
    for job, row in evidence.record.jobs.items():
        yield from faults_of_replay(evidence, job, JobReplay(Work(row.number, retries=1)))


def _results(record: Record, jobs: int) -> Iterator[str]:
    """Each job of the lists has succeeded, or failed with its own code; none is still open."""
    done = {row.number for row in record.jobs.values() if row.state == "done"}
    losses = Counter(int(attempt.partition(".")[0]) for attempt in record.lost())
    for job, row in record.jobs.items():
        if row.state not in ("done", "failed") and not (row.state == "lost" and losses[job] > LOSSES_ALLOWED):
            yield f"job {job} is {row.state}: {row.detail}"
        elif row.state == "failed" and (row.number % 7, row.detail["code"]) != (ALWAYS_FAILS, ALWAYS_FAILS):
            yield f"job {job} (number {row.number}) failed: {row.detail}"
    for number in range(jobs):
        if (number in done) == (number % 7 == ALWAYS_FAILS):
            yield f"number {number} {'succeeded' if number in done else 'never succeeded'}"
