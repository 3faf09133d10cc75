"""What a trial of an adaptive sweep costs beside its own run time, against Optuna's `study.optimize(n_jobs=4)`.

Both choose by TPE, run the same command four at a time, and read its value from its output. Stoker's trials are jobs of
the durable queue on four simulated GPUs; Optuna's are subprocesses of one Python process that ends with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import optuna
from optuna.storages.journal import JournalFileBackend, JournalStorage

from machine import parser, workshop

STOKER = str(Path(sys.executable).parent / "stoker")
SLOTS = 4
SECONDS = 0.5
TRIAL = f"sleep {SECONDS}; echo depth={{depth}} loss={{lr}}"
COMMANDS = (
    "optuna in memory",
    "optuna with a journal file",
    "stoker sweep, first start to last end",
    "stoker sweep, with start-up and `wait`",
)


def by_hand(count: int, storage: JournalStorage | None) -> float:
    """Seconds of `study.optimize` with subprocesses."""
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0), storage=storage)

    def run(trial: optuna.Trial) -> float:
        lr, depth = trial.suggest_float("lr", 1e-4, 1, log=True), trial.suggest_int("depth", 2, 6)
        line = TRIAL.format(lr=f"{lr:.6g}", depth=depth)
        said = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True).stdout
        return float(re.findall(r"loss=(\S+)", said)[-1])

    began = time.perf_counter()
    study.optimize(run, n_trials=count, n_jobs=SLOTS)
    return time.perf_counter() - began


def by_stoker(count: int, home: Path) -> tuple[float, float]:
    """Seconds from the first start to the last end of a trial, and from the command to the end of the sweep."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("STOKER_")}
    environment = {
        **own,
        "STOKER_STATE": str(home),
        "STOKER_LEDGER": str(home / "ledger"),
        "STOKER_SIM": f"{SLOTS}x24G",
    }

    def type_in(*words: str) -> str:
        done = subprocess.run([STOKER, *words], env=environment, cwd=home, capture_output=True, text=True, check=True)
        return done.stdout

    type_in("engine", "start")
    began = time.perf_counter()
    space = (
        "lr=1e-4..1:log",
        "depth=2..6",
        "--method",
        "tpe",
        "-N",
        str(count),
        "--objective",
        "regex:loss=([-0-9.e]+)",
    )
    sweep = type_in("sweep", "--parsable", *space, "--", "sh", "-c", TRIAL).strip()
    type_in("wait", sweep)
    whole = time.perf_counter() - began
    view = json.loads(type_in("sweep", "status", sweep, "--json"))
    assert view["counts"] == {"done": count}, view["counts"]
    (database,) = home.glob("*/queue.db")
    with contextlib.closing(sqlite3.connect(database)) as connection:
        query = "SELECT min(started), max(attempts.ended) FROM attempts JOIN jobs ON jobs.id = job WHERE sweep != 0"
        ((first, last),) = connection.execute(query).fetchall()
    type_in("engine", "stop")
    return last - first, whole


def overhead(seconds: float, count: int) -> float:
    """Milliseconds of a slot for each trial beyond its sleep."""
    return 1000 * (SLOTS * seconds - count * SECONDS) / count


def main() -> int:
    """Measure in rounds, and print."""
    options = parser(__doc__ or "")
    options.add_argument("--trials", type=int, default=60, help="in each round, default %(default)s")
    options.add_argument("--rounds", type=int, default=3, help="default %(default)s")
    chosen = options.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    found: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with workshop(chosen.directory) as directory:
        for number in range(chosen.rounds):
            home = directory / str(number)
            home.mkdir()
            journal = JournalStorage(JournalFileBackend(str(home / "study")))
            trials, whole = by_stoker(chosen.trials, home)
            seconds = by_hand(chosen.trials, None), by_hand(chosen.trials, journal), trials, whole
            for name, value in zip(COMMANDS, seconds, strict=True):
                found[name].append(overhead(value, chosen.trials))
        print(f"\n{chosen.trials} trials of {SECONDS} s, {SLOTS} at a time\n")
        print("| | ms of a slot per trial, median | all rounds |\n|---|---|---|")
        for name, values in found.items():
            print(f"| {name} | {median(values):.0f} | {', '.join(f'{value:.0f}' for value in values)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
