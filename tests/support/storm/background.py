"""A storm over the queue: jobs of all kinds come in and are meddled with while its engine is killed again and again."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

from stoker.store.paths import find_paths
from support import training_job
from support.storm.book import CANCEL, JobBook
from support.storm.checker import Evidence, faults_of_runs
from support.storm.claims import overfull
from support.storm.doors import Doors
from support.storm.engine import AnyEngine, EngineProcess, FoundEngine
from support.storm.jobs import After, Work, a_bunch, followers
from support.storm.killer import Killer
from support.storm.leftovers import leftovers
from support.storm.promises import faults_of_queue
from support.storm.record import open_jobs, read_record
from support.storm.sharing import faults_of_sharing
from support.storm.stays import sizes_of
from support.storm.typed import submit_at_once
from support.storm.weather import Weather
from support.storm.witness import read_witness, write_script
from support.wait import wait_until

DEVICES = "a,b,c,d"
CPU_JOBS = 3
IDLE_EXIT_SECONDS = 1
STUCK_SECONDS = 60.0
"""How long no job may come to its end although nobody disturbs the engine."""
EARLY_SECONDS = 0.3
"""How old an engine is at most that is killed before it works."""
LEAVING_SECONDS = 20.0
RUNNING = 3
"""The exit code of an engine that finds another one at work."""


class QueueStorm:
    """Gives jobs to the queue, and kills who works on them, by process number."""

    def __init__(self, home: Path, weather: Weather) -> None:
        self.weather = weather
        self.blows: Counter[str] = Counter()
        self.book = JobBook()
        self._home = home
        self._dice = random.Random(weather.seed)
        self._environment = _environment(home, weather.sim)
        paths = find_paths(self._environment, socket.gethostname(), simulated=bool(weather.sim))
        self._log = paths.log
        self._work = home / "work"
        self._work.mkdir()
        write_script(self._work)
        self._marker = f"STORM={home}"
        variables = {
            "PATH": os.environ["PATH"],
            "STORM": str(home),
            "STORM_PYTHON": sys.executable,
            "STORM_TRAIN": training_job.__file__,
        }
        self._doors = Doors(paths, self._work, variables, self.book, self._dice)
        self._killer = Killer(paths.state, self._dice)
        self._engine: AnyEngine | None = None
        self._next = 0
        self._sizes = sizes_of(weather.sim)
        self._stuck: list[str] = []

    def rage(self) -> None:
        """Submit and kill as often as was said, and then let all of it end."""
        blows = self.weather.blows(self._dice)
        for count, blow in enumerate(blows, 1):
            self._feed(self.weather.jobs * count // len(blows))
            self._doors.meddle()
            wait_until(partial(self._try, blow))
            self._doors.note_answers()
            self._stuck += overfull(self._home / "ledger", self._sizes)
        self._feed(self.weather.jobs)
        self._finish()

    def close(self) -> None:
        """End the engine, if it is still there."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def faults(self) -> list[str]:
        """Everything that is not as it should be, in words."""
        evidence = self.evidence()
        left = leftovers(self._killer, self._home / "ledger", self._marker, allowed=["queue.view"])
        return [
            *self._stuck,
            *faults_of_runs(evidence),
            *faults_of_queue(evidence, self.book, CPU_JOBS),
            *faults_of_sharing(evidence),
            *(f"an engine said: {line}" for line in self._log.read_text().splitlines() if "Error" in line),
            *left,
        ]

    def evidence(self) -> Evidence:
        """What jobs, database and kills tell."""
        works = {job: entry.work for job, entry in self.book.entries.items()}
        codes = {job: work.codes for job, work in works.items()}
        memory = {job: work.memory for job, work in works.items() if work.memory}
        lines, record, kills = read_witness(self._work), read_record(self._killer.state), self._killer.kills
        return Evidence(lines, record, kills, codes.__getitem__, memory, self._sizes)

    # -- jobs ------------------------------------------------------------------------------------

    def _feed(self, count: int) -> None:
        """Submit until there are so many jobs."""
        while self._next < count:
            bunch = a_bunch(self._dice, self._next, memory=bool(self.weather.sim))
            self._next += len(bunch.works)
            ids = self._doors.submit(bunch.works, array=bunch.array, held=bunch.held)
            if bunch.chained:
                self._chain(After(ids[0], "", bunch.array))

    def _chain(self, target: After) -> None:
        """Submit jobs that come after others, and some after these."""
        for _ in range(self._dice.randint(1, 3)):
            target = target._replace(kind=self._dice.choice(["ok", "ok", "any", "notok"]))
            works = followers(self._dice, self._next, target)
            self._next += len(works)
            target = After(self._doors.submit(works)[-1], "")

    # -- blows -----------------------------------------------------------------------------------

    def _try(self, blow: str) -> bool:
        """Strike at a random moment; False where there was nothing to hit."""
        strikes = {"engine": self._strike_engine, "worker": self._strike_worker, "typed": self._submit_after_kill}
        hit = strikes.get(blow, self._strike_beside)(blow)
        self.blows[blow] += hit
        if not hit:
            self._make_targets(blow)
        return hit

    def _make_targets(self, blow: str) -> None:
        """Let there be a worker by more work, or a forkserver by another engine: one comes back only for work."""
        if blow == "forkserver":
            self.blows["engine besides"] += self._at_work().kill()
        self._feed(self._next + 1)
        self._at_work().wait_ready()

    def _strike_engine(self, _: str) -> bool:
        """Very early, while it finds what others left; or later; or right after a submit."""
        engine = self._at_work()
        moment = self._dice.choice(["early", "later", "later", "submit"])
        if moment == "early":
            time.sleep(self._dice.uniform(0.0, EARLY_SECONDS))
            return engine.kill()
        engine.wait_ready()
        time.sleep(self._dice.uniform(0.0, self.weather.pause))
        if moment == "submit":
            self._feed(self._next + 1)
            time.sleep(self._dice.choice([0.0, 0.002, 0.01, 0.03]))
        return engine.kill()

    def _strike_worker(self, _: str) -> bool:
        """Whether an engine lives or not."""
        if self._dice.random() < 0.6:
            self._at_work().wait_ready()
            time.sleep(self._dice.uniform(0.0, self.weather.pause / 2))
        return self._killer.kill_worker([self._engine.pid] if self._engine is not None else [])

    def _strike_beside(self, blow: str) -> bool:
        """The forkserver of the engine, its sole right to the queue, or its will to stay."""
        engine = self._at_work()
        engine.wait_ready()
        time.sleep(self._dice.uniform(0.0, self.weather.pause / 2))
        match blow:
            case "forkserver":
                return self._killer.kill_forkserver(engine.pid)
            case "rival":
                return self._rival(engine)
            case _:
                return self._farewell(engine)

    def _submit_after_kill(self, _: str) -> bool:
        """Two people submit while there is no engine: one comes up, and both jobs are in the queue."""
        self.close()
        works = [Work(self._next), Work(self._next + 1)]
        self._next += len(works)
        environment = {**self._environment, "STORM": str(self._home)}
        self._stuck += submit_at_once(works, self._work, environment, self.book, self.weather.sim)
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # all may be over, and the engine gone again
            self._engine = FoundEngine(self._killer.state / "engines" / "queue.lock")
        return True

    def _rival(self, engine: AnyEngine) -> bool:
        with contextlib.closing(self._start()) as rival:
            code = rival.wait_end(LEAVING_SECONDS)
        if engine.lives and code != RUNNING:
            self._stuck.append(f"a second engine ended with {code} instead of {RUNNING}")
        return True

    def _farewell(self, engine: AnyEngine) -> bool:
        """Some wait until it has left, some kill it on its way, and some submit meanwhile."""
        asked = engine.ask(self._dice.choice([signal.SIGTERM, signal.SIGHUP]))
        if self._dice.random() < 0.5:
            self._feed(self._next + 1)
        if asked == signal.SIGTERM and self._dice.random() < 0.5:
            if engine.wait_end(LEAVING_SECONDS) != 0:
                self._stuck.append(f"an engine that was told to leave did not in {LEAVING_SECONDS:g} s")
            return True
        time.sleep(self._dice.uniform(0.0, self.weather.pause))
        engine.kill()
        return True

    # -- the engine ------------------------------------------------------------------------------

    def _at_work(self) -> AnyEngine:
        """The engine, started again where it has died or left."""
        if self._engine is None or not self._engine.lives:
            self.close()
            self._engine = self._start()
        return self._engine

    def _start(self) -> EngineProcess:
        arguments = ["--sim", self.weather.sim] if self.weather.sim else []
        return EngineProcess(arguments, self._environment, self._log)

    def _finish(self) -> None:
        """Cancel what never ends, release what is held, and let an engine work undisturbed until it leaves."""
        for job, entry in self.book.entries.items():
            if entry.work.endless and not self.book.of(job, CANCEL):
                self._doors.cancel(job)
        self._doors.release_all()
        self._wait_all_over()
        code = self._at_work().wait_end(IDLE_EXIT_SECONDS + LEAVING_SECONDS)
        if code != 0:
            self._stuck.append(f"the last engine did not leave in order ({code})")

    def _wait_all_over(self) -> None:
        """Wait as long as there is progress."""
        before, since = -1, time.monotonic()
        while (left := open_jobs(self._killer.state)) and time.monotonic() - since < STUCK_SECONDS:
            if len(left) != before:
                before, since = len(left), time.monotonic()
            self._at_work()
            self._doors.note_answers()
            time.sleep(0.05)
        if left:
            self._stuck.append(f"jobs {left} never came to their end")


def _environment(home: Path, sim: str) -> dict[str, str]:
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
        **({} if sim else {"STOKER_DEVICES": DEVICES}),
        "STOKER_CPU_JOBS": str(CPU_JOBS),
        "STOKER_IDLE_EXIT": f"{IDLE_EXIT_SECONDS}s",
        "XDG_CONFIG_HOME": str(home / "no-config"),
    }
