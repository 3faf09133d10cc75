"""Sweeps for tests: a training script with a known best point, and what the queue and the study know of its trials."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import optuna
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import FrozenTrial

from stoker.core.job import Ended
from stoker.features.sweep.store import all_trials, find_sweep, study_path
from support.background import Background
from support.wait import PATIENCE_SECONDS, wait_until

TRAINING = """\
import fcntl, math, os, sys, time
lr, depth, steps, pause = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
trial = os.environ["STOKER_TRIAL"]
lock = open(f"lock-{trial}", "w")
book = os.open("book", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    os.write(book, f"double {trial}\\n".encode())
os.write(book, f"begin {trial} {lr} {depth}\\n".encode())
for step in range(1, steps + 1):
    loss = (math.log10(lr) + 2) ** 2 + 0.1 * abs(depth - 4) + 1 / step
    print(f"step {step} loss={loss:.6f}", flush=True)
    time.sleep(pause)
os.write(book, f"end {trial} {loss:.6f}\\n".encode())
"""
SPACE = ("lr=1e-4..1:log", "depth=2..6")
LOSS = "regex:loss=([-+.0-9a-z]+)"


def write_training(folder: Path) -> Path:
    """The script; its words are lr, depth, the number of steps, and the seconds of each."""
    path = folder / "train.py"
    path.write_text(TRAINING)
    return path


def start_sweep(background: Background, *words: str, steps: int = 4, pause: float = 0.02) -> int:
    """Start a sweep of the script with these options, and return its id."""
    script = write_training(background.cwd)
    command = ["python3", "-S", str(script), "{lr}", "{depth}", str(steps), str(pause)]
    said = background("sweep", "--parsable", *SPACE, "--objective", LOSS, *words, "--", *command)
    assert said.code == 0, said.err
    return int(said.out)


def sweep_status(background: Background, sweep: int) -> dict[str, Any]:
    """What `stoker sweep status --json` says."""
    said = background("sweep", "status", str(sweep), "--json")
    assert said.code == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


def wait_sweep(background: Background, sweep: int, seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
    """Wait until a sweep is over."""
    wait_until(lambda: is_over(background, sweep), seconds)
    return sweep_status(background, sweep)


def is_over(background: Background, sweep: int) -> bool:
    """Whether the tuner and all trials have ended."""
    with background.open_store() as store:
        stored = find_sweep(store, sweep)
        assert stored is not None
        tuner = store.job(stored.tuner) if stored.tuner is not None else None
        trials = [row.ended for row in all_trials(store, stored.batch)]
    return bool(trials) and None not in trials and (tuner is None or isinstance(tuner.state, Ended))


def stored_trials(background: Background, sweep: int) -> list[tuple[int, str, dict[str, Any]]]:
    """Number, state and parameters of the trials, read without our code."""
    database = sqlite3.connect(f"file:{background.paths.database}?mode=ro", uri=True)
    try:
        rows = database.execute(
            "SELECT member, state, params FROM jobs JOIN batches ON batches.id = batch"
            " WHERE first_job = ? AND member IS NOT NULL ORDER BY member",
            (sweep,),
        )
        return [(number, state, json.loads(params)) for number, state, params in rows]
    finally:
        database.close()


def study_trials(background: Background, sweep: int) -> list[FrozenTrial]:
    """The trials of the study, read by Optuna alone."""
    storage = JournalStorage(JournalFileBackend(str(study_path(background.paths, sweep))))
    (name,) = optuna.get_all_study_names(storage)
    return optuna.load_study(study_name=name, storage=storage).get_trials(deepcopy=False)


def broken_promises(background: Background, sweep: int, count: int) -> list[str]:
    """What is wrong with a sweep that is over: trials that are missing, double, or without an end."""
    jobs, trials = stored_trials(background, sweep), study_trials(background, sweep)
    book = (background.cwd / "book").read_text().splitlines()
    found = [f"double run: {line}" for line in book if line.startswith("double")]
    if [number for number, _, _ in jobs] != list(range(count)):
        found.append(f"lost or double: the queue has the trials {[number for number, _, _ in jobs]}")
    if [trial.number for trial in trials] != list(range(count)):
        found.append(f"lost or double: the study has the trials {[trial.number for trial in trials]}")
    found += [f"stuck: trial {trial.number} is {trial.state.name}" for trial in trials if not trial.state.is_finished()]
    for (number, state, params), trial in zip(jobs, trials, strict=False):
        expected = {"done": "COMPLETE", "stopped": "PRUNED"}.get(state, "FAIL")
        if trial.state.name != expected:
            found.append(f"trial {number} is {state} in the queue and {trial.state.name} instead of {expected}")
        if {name: float(f"{value:.6g}") for name, value in trial.params.items()} != params:
            found.append(f"trial {number} has {params} in the queue and {trial.params} in the study")
        ends = [line.split()[2] for line in book if line.startswith(f"end {number} ")]
        if state == "done" and trial.value is not None and f"{trial.value:.6f}" not in ends:
            found.append(f"trial {number} has the value {trial.value} instead of {ends}")
    return found
