"""A seeded storm: short jobs under `stoker run --resume` while engines, forkservers and keepers are killed.

By hand, for larger ones: `PYTHONPATH=tests python -m support.storm --seed 7 --jobs 600 --engine-kills 40`.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import random
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from support.cli import PROGRAM, Stoker
from support.wait import wait_until

DEVICES = "a,b,c,d"
ALWAYS_FAILS = 6
"""Jobs whose number leaves this rest by 7 never succeed; the others fail at most once, with their rest as code."""
LONG_SECONDS = 0.8
LOSSES_ALLOWED = 3
"""How often a job that loses its keeper is promised to be queued again."""
END_SECONDS = 60.0
"""How long a run that nobody disturbs may take to its end."""
_LEAVING_SECONDS = 5.0

_JOB = """\
say() { echo "$1 $id $STOKER_JOB_ID $STOKER_ATTEMPT $CUDA_VISIBLE_DEVICES $$ $(date +%s.%N) $2" >> diary; }
id=$1 code=$2 seconds=$3 kind=$4
say start 0
if [ "$kind" = child ]; then
  setsid sh -c 'sleep 0.04; echo "after $1 $STOKER_JOB_ID $STOKER_ATTEMPT $CUDA_VISIBLE_DEVICES $$ $(date +%s.%N) 0" \
>> diary' child "$id" &
fi
sleep "$seconds"
[ "$kind" = fails ] || mkdir "tried.$id" 2> /dev/null || code=0
say end "$code"
exit "$code"
"""


@dataclass(frozen=True)
class Weather:
    """How much of everything there is."""

    seed: int = 1
    jobs: int = 150
    engine_kills: int = 12
    forkserver_kills: int = 4
    keeper_kills: int = 4
    pause: float = 0.5
    """Seconds between two blows at most."""
    lists: int = 1
    engines: int = 1
    """How many runs there are at once; each takes one of the lists in turn."""


@dataclass(frozen=True)
class KeeperKill:
    """A keeper that was killed, and the attempts that it had begun and not ended."""

    keeper: str
    open: tuple[str, ...]


@dataclass(frozen=True)
class Line:
    """What a job itself wrote down."""

    word: str
    number: int
    job: int
    attempt: int
    device: str
    at: float
    code: int

    @property
    def key(self) -> tuple[int, int]:
        """Job and attempt, of which there must be one run only."""
        return self.job, self.attempt


@dataclass
class Storm:
    """Runs lists to their end against a chaos that kills by process number what this storm started."""

    stoker: Stoker
    weather: Weather
    kills: list[KeeperKill] = field(default_factory=list)
    blows: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.weather.seed)
        self._engines: list[subprocess.Popen[bytes] | None] = [None] * self.weather.engines
        self._lists = self._write_lists()
        self._log = self.stoker.cwd.parent / "engines.log"

    @property
    def state(self) -> Path:
        """The state directory below the one that was named: there is one host only."""
        (state,) = Path(self.stoker.environment["STOKER_STATE"]).iterdir()
        return state

    @property
    def ledger(self) -> Path:
        """Where the leases are."""
        return Path(self.stoker.environment["STOKER_LEDGER"])

    def rage(self) -> None:
        """Kill as often as was said, starting engines again as they die, and then let all of it end."""
        for blow in self._schedule():
            wait_until(partial(self._try, blow))
        self._start_missing()
        for engine in self._engines:
            assert engine is not None
            engine.wait(END_SECONDS)

    def resume(self) -> None:
        """One undisturbed run of each list after the other: what nobody has looked at yet is settled by these."""
        for jobs in self._lists:
            self._start(jobs).wait(END_SECONDS)

    def close(self) -> None:
        """End what is left of the engines."""
        for engine in self._engines:
            if engine is not None:
                engine.kill()
                engine.wait()

    def _write_lists(self) -> list[Path]:
        (self.stoker.cwd / "job.sh").write_text(_JOB)
        numbers = range(self.weather.jobs)
        return [
            self.stoker.write(f"jobs{at}.txt", *(self._line(number) for number in numbers[at :: self.weather.lists]))
            for at in range(self.weather.lists)
        ]

    def _line(self, number: int) -> str:
        code = number % 7
        seconds = LONG_SECONDS if number % 23 == 5 else self._dice.uniform(0.005, 0.05)
        kind = "fails" if code == ALWAYS_FAILS else "child" if number % 5 == 0 else "plain"
        return f"exec sh job.sh {number} {code} {seconds:.3f} {kind}"

    def _schedule(self) -> list[str]:
        weather = self.weather
        blows = ["engine"] * weather.engine_kills + ["forkserver"] * weather.forkserver_kills
        blows += ["keeper"] * weather.keeper_kills
        self._dice.shuffle(blows)
        return blows

    # -- engines ---------------------------------------------------------------------------------

    def _start_missing(self) -> None:
        """Start again what died or came to its end."""
        for index, engine in enumerate(self._engines):
            if engine is None or engine.poll() is not None:
                self._engines[index] = self._start(self._lists[index % len(self._lists)])

    def _start(self, jobs: Path) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [PROGRAM, "run", "--devices", DEVICES, "--retries", "1", "--resume", jobs.name],
                cwd=self.stoker.cwd,
                env=self.stoker.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    # -- blows -----------------------------------------------------------------------------------

    def _try(self, blow: str) -> bool:
        """Strike at a random moment; False where there was nothing to hit."""
        self._start_missing()
        time.sleep(self._dice.uniform(0.0, self.weather.pause))
        hit = self._strike(blow)
        self.blows[blow] += hit
        if hit and blow == "engine" and self._dice.random() < 0.3:
            self.blows["keeper without engine"] += self._kill_keeper()
        return hit

    def _strike(self, blow: str) -> bool:
        if blow == "keeper":
            return self._kill_keeper()
        engine = self._dice.choice(self._engines)
        assert engine is not None
        return self._kill_engine(engine) if blow == "engine" else self._kill_forkserver(engine)

    @staticmethod
    def _kill_engine(engine: subprocess.Popen[bytes]) -> bool:
        lives = engine.poll() is None
        engine.kill()
        engine.wait()
        return lives

    @staticmethod
    def _kill_forkserver(engine: subprocess.Popen[bytes]) -> bool:
        servers = [child for child in _children(engine.pid) if _is_forked(child)]
        for server in servers:
            _kill_and_wait(server)
        return bool(servers)

    def _kill_keeper(self) -> bool:
        """Kill one, and read in its journal, which nobody writes any more, what it leaves open."""
        keepers = sorted(self._keepers().items())
        if not keepers:
            return False
        name, pid = self._dice.choice(keepers)
        folder = self.state / "keepers" / name
        with contextlib.ExitStack() as closing:
            try:
                journal, lock = [closing.enter_context((folder / file).open("rb")) for file in ("journal", "lock")]
            except FileNotFoundError:
                return False
            _kill_and_wait(pid)
            wait_until(lambda: _is_free(lock.fileno()))  # a child it was just starting has it until it executes
            self.kills.append(KeeperKill(name, _open_attempts(journal.read())))
        return True

    def _keepers(self) -> dict[str, int]:
        """The living keepers by name; forkservers and children that are just being started hold journals too."""
        holders = list(self._journal_holders())
        others = {child for engine in self._engines if engine for child in _children(engine.pid)}
        others |= {child for _, pid in holders if pid not in others for child in _children(pid)}
        return {name: pid for name, pid in holders if pid not in others}

    def _journal_holders(self) -> Iterator[tuple[str, int]]:
        state = Path(self.stoker.environment["STOKER_STATE"])
        for pid in _processes():
            for path in _open_files(pid) if _is_forked(pid) else ():
                if path.name == "journal" and path.is_relative_to(state):
                    yield path.parent.name, pid

    # -- what is left ----------------------------------------------------------------------------

    def leftovers(self) -> list[str]:
        """Files and processes that should not be there once all is over; those about to leave may do so."""
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self._leftovers(), _LEAVING_SECONDS)
        return self._leftovers()

    def _leftovers(self) -> list[str]:
        files = [*(self.state / "keepers").iterdir(), *(self.state / "engines").iterdir()]
        files += [path for path in self.ledger.iterdir() if path.name != "mutex"]
        processes = [*self.stoker.job_processes(), *(pid for _, pid in self._journal_holders())]
        return [*map(str, files), *(f"process {pid}" for pid in processes)]


class Judgement:
    """Compares what the jobs wrote down with what the store says, sharing no code with either."""

    def __init__(self, storm: Storm) -> None:
        self._storm = storm
        self._lines = [_parse(line) for line in storm.stoker.lines("diary")]
        with contextlib.closing(sqlite3.connect(storm.state / "queue.db")) as database:
            self.integrity = [row[0] for row in database.execute("PRAGMA integrity_check")]
            self._jobs = {
                job: (int(words.split()[3]), state, json.loads(detail))
                for job, words, state, detail in database.execute("SELECT id, words, state, detail FROM jobs")
            }
            self._attempts = database.execute(
                "SELECT job, number, keeper, devices, code, why FROM attempts ORDER BY job, number"
            ).fetchall()
            self._lost = Counter(
                (job, json.loads(body)["attempt"])
                for job, body in database.execute("SELECT job, body FROM events")
                if json.loads(body)["type"] == "lost"
            )

    def faults(self) -> list[str]:
        """Everything that is not as it should be, in words."""
        steps = [
            self._integrity(),
            self._runs_twice(),
            self._runs_against_store(),
            self._results(),
            self._losses(),
            self._overlaps(),
            (f"left over: {what}" for what in self._storm.leftovers()),
        ]
        return [fault for step in steps for fault in step]

    def repeated(self) -> dict[int, int]:
        """How often each job of the lists succeeded, where that is more than once."""
        done = Counter(number for number, state, _ in self._jobs.values() if state == "done")
        return {number: times for number, times in done.items() if times > 1}

    def counts(self) -> str:
        """What there was, in one line."""
        whys = Counter(why for *_, why in self._attempts)
        return f"{len(self._lines)} lines, {len(self._jobs)} rows, attempts {dict(whys)}, {dict(self._storm.blows)}"

    def _integrity(self) -> Iterator[str]:
        if self.integrity != ["ok"]:
            yield f"the store is damaged: {self.integrity}"

    def _runs_twice(self) -> Iterator[str]:
        for word in ("start", "end", "after"):
            counts = Counter(line.key for line in self._lines if line.word == word)
            yield from (f"{word} of job {key} {times} times" for key, times in counts.items() if times > 1)

    def _runs_against_store(self) -> Iterator[str]:
        """Every run is an attempt of the store on the same device, and every exit code is the one that was given."""
        starts = {line.key: line for line in self._lines if line.word == "start"}
        ends = {line.key: line for line in self._lines if line.word == "end"}
        for key, (devices, code, why) in self._ran().items():
            start, end = starts.pop(key, None), ends.get(key)
            if start is not None and [start.device] != devices:
                yield f"job {key} ran on {start.device} instead of {devices}"
            if why != "lost" and (start is None or end is None or end.code != code):
                yield f"job {key} {why} with {code}, but wrote down {start} and {end}"
        yield from (f"job {key} ran and the store does not know" for key in starts)

    def _ran(self) -> dict[tuple[int, int], tuple[list[str], int, str]]:
        """The attempts that began, numbered as the jobs see them: what was given back does not count."""
        ran: dict[tuple[int, int], tuple[list[str], int, str]] = {}
        seen: Counter[int] = Counter()
        for job, _, _, devices, code, why in self._attempts:
            if why != "returned":
                seen[job] += 1
                ran[job, seen[job]] = (json.loads(devices), code, why)
        return ran

    def _results(self) -> Iterator[str]:
        """Each job of the lists has succeeded, or failed with its own code; none is still open."""
        done = {number for number, state, _ in self._jobs.values() if state == "done"}
        for job, (number, state, detail) in self._jobs.items():
            if state not in ("done", "failed") and not (state == "lost" and self._losses_of(job) > LOSSES_ALLOWED):
                yield f"job {job} is {state}: {detail}"
            elif state == "failed" and (number % 7, detail["code"]) != (ALWAYS_FAILS, ALWAYS_FAILS):
                yield f"job {job} (number {number}) failed: {detail}"
        for number in range(self._storm.weather.jobs):
            if (number in done) == (number % 7 == ALWAYS_FAILS):
                yield f"number {number} {'succeeded' if number in done else 'never succeeded'}"

    def _losses_of(self, job: int) -> int:
        return sum(times for (lost, _), times in self._lost.items() if lost == job)

    def _losses(self) -> Iterator[str]:
        """What a killed keeper had begun is lost and queued again; nothing else is."""
        whys = {f"{job}.{number}": why for job, number, *_, why in self._attempts}
        expected = {attempt for kill in self._storm.kills for attempt in kill.open}
        told = {f"{job}.{number}": times for (job, number), times in self._lost.items()}
        for attempt in expected | set(told):
            if attempt not in expected:
                yield f"attempt {attempt} is told as lost, though no kill hit it"
            elif told.get(attempt) != 1 or whys.get(attempt) != "lost":
                yield f"attempt {attempt} was hit, and told as {whys.get(attempt)} ({told.get(attempt)} events)"
            elif not self._followed(attempt):
                yield f"attempt {attempt} was not queued again"

    def _followed(self, attempt: str) -> bool:
        """Whether a lost attempt had another one after it, unless its job was lost too often for that."""
        job, number = map(int, attempt.split("."))
        last = max(found for of, found, *_ in self._attempts if of == job)
        return last > number or self._losses_of(job) > LOSSES_ALLOWED

    def _overlaps(self) -> Iterator[str]:
        """No two runs on one device at a time, what a command leaves behind included."""
        runs: dict[tuple[int, int], list[Line]] = defaultdict(list)
        for line in self._lines:
            runs[line.key].append(line)
        spans: dict[str, list[tuple[float, float, tuple[int, int]]]] = defaultdict(list)
        for key, lines in runs.items():
            times = [line.at for line in lines]
            spans[lines[0].device].append((min(times), max(times), key))
        for device, intervals in spans.items():
            intervals.sort()
            for (_, end, first), (begin, _, second) in pairwise(intervals):
                if begin < end:
                    yield f"jobs {first} and {second} on {device} together for {end - begin:.3f} s"


def _parse(line: str) -> Line:
    word, number, job, attempt, device, _, at, code = line.split()
    return Line(word, int(number), int(job), int(attempt), device, float(at), int(code))


def _open_attempts(journal: bytes) -> tuple[str, ...]:
    """Attempts that a journal begins and does not end."""
    found: dict[str, None] = {}
    for line in journal.partition(b"\0")[0].decode().splitlines():
        kind, attempt, *_ = line.split(" ")
        if kind == "S":
            found[attempt] = None
        else:
            found.pop(attempt, None)
    return tuple(found)


def _is_free(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _kill_and_wait(pid: int) -> None:
    """Kill a process that is no child of ours, and come back when it is dead."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [])
        finally:
            os.close(descriptor)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _is_forked(pid: int) -> bool:
    """Whether it is a forkserver or a keeper, of anybody."""
    try:
        return b"stoker.backends.forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _open_files(pid: int) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield Path(os.readlink(f"/proc/{pid}/fd/{name}").removesuffix(" (deleted)"))


def main(arguments: Sequence[str] | None = None) -> int:
    """A storm by hand; its directory is kept where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in vars(Weather()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    weather = Weather(**vars(parser.parse_args(arguments)))
    home = Path(tempfile.mkdtemp(prefix="storm-"))
    with contextlib.closing(Stoker(home)) as stoker, contextlib.closing(Storm(stoker, weather)) as storm:
        faults = _weather_it(storm)
        print(*faults, sep="\n")
    if faults:
        print(f"see {home}")
    else:
        shutil.rmtree(home)
    return 1 if faults else 0


def _weather_it(storm: Storm) -> list[str]:
    stuck = []
    try:
        storm.rage()
        if storm.weather.engines > 1:  # each has left what the others had when it looked
            storm.resume()
    except subprocess.TimeoutExpired as error:
        stuck = [f"a run never came to its end: {error}"]
    judgement = Judgement(storm)
    faults = stuck + judgement.faults()
    print(f"seed {storm.weather.seed}: {judgement.counts()}; {len(judgement.repeated())} succeeded more than once")
    return faults


if __name__ == "__main__":
    sys.exit(main())
