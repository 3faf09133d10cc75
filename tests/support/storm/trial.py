"""A queue on trial: jobs of all kinds go in, a storm or a fault disturbs it, and a checker says what was harmed."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from stoker.core.errors import StokerError
from stoker.store.paths import Paths, find_paths
from support import training_job
from support.cli import PROGRAM
from support.storm.checker import Evidence, faults_of_runs
from support.storm.claims import overfull
from support.storm.client import RandomClient
from support.storm.device_use import sizes_of
from support.storm.engine import RUNNING, AnyEngine, EngineProcess, FoundEngine
from support.storm.job_script import read_run_log, write_script
from support.storm.jobs import After, Work, a_bunch, followers
from support.storm.killer import Killer
from support.storm.leftovers import leftovers
from support.storm.processes import kill_and_wait, marked
from support.storm.promises import faults_of_queue
from support.storm.record import open_jobs, read_record
from support.storm.request_log import CANCEL, RequestLog
from support.storm.sharing import faults_of_sharing
from support.wait import PATIENCE_SECONDS, wait_until

DEVICES = "a,b,c,d"
CPU_JOBS = 3
IDLE_EXIT_SECONDS = 1
STUCK_SECONDS = 60.0
"""How long no job may come to its end although nobody disturbs the engine."""
LEAVING_SECONDS = 20.0
FOREIGN = 100_000
"""Numbers beyond this are of jobs in another queue, which work in the same directory."""


class Trial:
    """One queue with its jobs; what is done to it is up to the caller, who calls `finish` and reads `faults`."""

    def __init__(self, home: Path, seed: int, *, sim: str = "", environment: Mapping[str, str] | None = None) -> None:
        self.home = home
        self.sim = sim
        self.dice = random.Random(seed)
        self.request_log = RequestLog()
        self.disruptions: Counter[str] = Counter()
        self.broken: list[str] = []
        """Broken promises that were seen on the way."""
        self.closing = contextlib.ExitStack()
        """Resources that end with the trial, such as mounts."""
        self.environment = _environment(home, sim, environment or {})
        self.work = home / "work"
        self.work.mkdir()
        write_script(self.work)
        self.variables = {
            "PATH": os.environ["PATH"],
            "STORM": str(home),
            "STORM_PYTHON": sys.executable,
            "STORM_TRAIN": training_job.__file__,
        }
        self.engine: AnyEngine | None = None
        self.sizes = sizes_of(sim)
        self.wrapper: Sequence[str] = ()
        """Words before the command of each new engine, such as those of strace."""
        self.next_number = 0
        self.struck: set[tuple[int, int]] = set()
        """Jobs and runs whose own process was killed."""
        self.thorough = False
        """Whether there is time for what takes long."""
        self._first_number = 0
        self._finished = False

    @cached_property
    def paths(self) -> Paths:
        """Made when they are first used: a fault may mount a disk there before."""
        return find_paths(self.environment, socket.gethostname(), simulated=bool(self.sim))

    @cached_property
    def client(self) -> RandomClient:
        """How people reach the queue."""
        return RandomClient(self.paths, self.work, self.variables, self.request_log, self.dice)

    @cached_property
    def killer(self) -> Killer:
        """Kills workers and forkservers of this queue only."""
        return Killer(self.paths.state, self.dice)

    @property
    def ledger(self) -> Path:
        """The ledger of this trial alone."""
        return self.home / "ledger"

    @property
    def marker(self) -> str:
        """A word in the environment of all jobs."""
        return f"STORM={self.home}"

    def close(self) -> None:
        """End everything of the trial that still lives."""
        self.end_engine()
        for pid in {*(pid for _, pid in self.killer.holders()), *marked(self.marker)}:
            kill_and_wait(pid)
        self.closing.close()

    # -- jobs ------------------------------------------------------------------------------------

    def feed(self, count: int) -> None:
        """Submit until there are so many jobs."""
        while self.next_number < count:
            bunch = a_bunch(self.dice, self.next_number, memory=bool(self.sim))
            ids = self.submit(bunch.works, array=bunch.array, held=bunch.held, alike=bunch.alike)
            if bunch.chained and ids:
                one_task = bunch.alike and self.dice.random() < 0.5
                self._chain(After(self.dice.choice(ids), "") if one_task else After(ids[0], "", bunch.array))

    def submit(
        self, works: Sequence[Work], *, array: bool = False, held: bool = False, alike: bool = False
    ) -> list[int]:
        """Submit jobs by one call; none of them if the queue says that it cannot take them."""
        self.next_number = max(self.next_number, works[0].number + len(works))
        try:
            return self.client.submit(works, array=array, held=held, alike=alike)
        except StokerError:
            self.disruptions["submit refused"] += 1
            return []

    def typed(self, *words: str) -> tuple[int, str]:
        """The exit code of a command line, and all that it said."""
        run = subprocess.run(
            [PROGRAM, *words],
            env={**self.environment, **({"STOKER_SIM": self.sim} if self.sim else {})},
            cwd=self.work,
            check=False,
            capture_output=True,
            timeout=2 * PATIENCE_SECONDS,
            stdin=subprocess.DEVNULL,
        )
        return run.returncode, (run.stdout + run.stderr).decode(errors="replace")

    def _chain(self, target: After) -> None:
        """Submit jobs that come after others, and some after these."""
        for _ in range(self.dice.randint(1, 3)):
            target = target._replace(kind=self.dice.choice(["ok", "ok", "any", "notok"]))
            ids = self.submit(followers(self.dice, self.next_number, target))
            if not ids:
                return
            target = After(ids[-1], "")

    # -- the engine ------------------------------------------------------------------------------

    def at_work(self) -> AnyEngine:
        """The engine, started again if it has died or left; another one may have been faster."""
        if self.engine is None or not self.engine.lives:
            ended = self.engine.wait_end(0) if self.engine is not None else None
            self.end_engine()
            self.engine = (self._found() if ended == RUNNING else None) or self.start_engine()
        return self.engine

    def start_engine(self) -> EngineProcess:
        """One more engine, whether there is one or not."""
        arguments = ["--sim", self.sim] if self.sim else []
        return EngineProcess(arguments, self.environment, self.paths.log, self.wrapper)

    @property
    def engine_lives(self) -> bool:
        """Whether the engine lives, without starting another."""
        return self.engine is not None and self.engine.lives

    def begin_again(self) -> None:
        """Forget all jobs: the queue is gone, and the next one counts from 1."""
        self.end_engine()
        self.request_log.submitted.clear()
        self.request_log.requests.clear()
        self._first_number = self.next_number
        for made in ("paths", "client", "killer"):
            self.__dict__.pop(made, None)

    def end_engine(self) -> None:
        """Kill the engine, if there is one."""
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    def find_engine(self) -> None:
        """Take the engine that another process started as ours."""
        self.end_engine()
        self.engine = self._found()

    def _found(self) -> FoundEngine | None:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, IndexError, ValueError):  # it may be gone again
            return FoundEngine(self.killer.state / "engines" / "queue.lock")
        return None

    # -- the end ---------------------------------------------------------------------------------

    def finish(self) -> None:
        """Cancel what never ends, release what is held, and let an engine work undisturbed until it leaves."""
        if self._finished:
            return
        self._finished = True
        self.wrapper = ()
        for job, entry in self.request_log.submitted.items():
            if entry.work.endless and not self.request_log.of(job, CANCEL):
                self.client.cancel(job)
        self.client.release_all()
        self._wait_all_over()
        code = self.at_work().wait_end(IDLE_EXIT_SECONDS + LEAVING_SECONDS)
        if code == RUNNING:
            code = self.at_work().wait_end(IDLE_EXIT_SECONDS + LEAVING_SECONDS)
        if code != 0:
            self.broken.append(f"the last engine did not leave in order ({code})")

    def _wait_all_over(self) -> None:
        """Wait as long as there is progress."""
        before, since = -1, time.monotonic()
        while (left := open_jobs(self.killer.state)) and time.monotonic() - since < STUCK_SECONDS:
            if len(left) != before:
                before, since = len(left), time.monotonic()
            self.at_work()
            self.client.note_answers()
            time.sleep(0.05)
        if left:
            self.broken.append(f"stuck: jobs {left} never came to their end")

    def wait_running(self, count: int = 1) -> None:
        """Wait until so many jobs run by their own word, or all have run."""

        def enough() -> bool:
            self.at_work()
            return self.running() >= count or not open_jobs(self.killer.state)

        wait_until(enough)

    def running(self) -> int:
        """How many runs have begun and not ended by their own word."""
        lines = [line for line in read_run_log(self.work) if line.number < FOREIGN]
        ended = {line.key for line in lines if line.word == "end"}
        return len({line.key for line in lines if line.word == "start"} - ended)

    def note_overfull(self) -> None:
        """Look into the ledger at this moment."""
        self.broken += overfull(self.ledger, self.sizes)

    def evidence(self, *, losses_known: bool = True) -> Evidence:
        """The evidence of jobs, database and kills."""
        works = {job: entry.work for job, entry in self.request_log.submitted.items()}
        codes = {job: work.codes for job, work in works.items()}
        memory = {job: work.memory for job, work in works.items() if work.memory}
        lines = [line for line in read_run_log(self.work) if self._first_number <= line.number < FOREIGN]
        record = read_record(self.killer.state)
        kills = self.killer.kills if losses_known else None
        return Evidence(lines, record, kills, codes.__getitem__, memory, self.sizes, frozenset(self.struck))

    def faults(self, *, losses_known: bool = True, noisy: bool = False, timed: bool = True) -> list[str]:
        """Everything that is not as it should be, in words; an engine in a noisy trial may complain."""
        evidence = self.evidence(losses_known=losses_known)
        left = leftovers(self.killer, self.ledger, self.marker, allowed=["queue.status"])
        log = [] if noisy else self.paths.log.read_text().splitlines()
        return [
            *self.broken,
            *faults_of_runs(evidence),
            *faults_of_queue(evidence, self.request_log, CPU_JOBS, timed=timed),
            *faults_of_sharing(evidence),
            *(f"an engine said: {line}" for line in log if "Error" in line),
            *left,
        ]


def _environment(home: Path, sim: str, more: Mapping[str, str]) -> dict[str, str]:
    # Engines are started hundreds of times: what they are compiled to may be kept.
    outside = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("STOKER_") and name != "PYTHONDONTWRITEBYTECODE"
    }
    return {
        **outside,
        "STOKER_STATE": str(home / "state"),
        "STOKER_LEDGER": str(home / "ledger"),
        **({} if sim or more else {"STOKER_DEVICES": DEVICES}),
        "STOKER_CPU_JOBS": str(CPU_JOBS),
        "STOKER_IDLE_EXIT": f"{IDLE_EXIT_SECONDS}s",
        "XDG_CONFIG_HOME": str(home / "no-config"),
        **more,
    }
