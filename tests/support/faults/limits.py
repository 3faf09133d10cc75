"""Few descriptors, a clock that jumps, and locks of others on the database."""

from __future__ import annotations

import contextlib
import sqlite3
import time

from support.faults.kills import ONCE
from support.faults.table import faketime_library, fault
from support.storm.background import QueueStorm

DAY = 86_400


@fault("few-descriptors", ONCE, noisy=True)
def few_descriptors(trial: QueueStorm) -> None:
    """All engines may open only a few files (EMFILE)."""
    limit = trial.dice.choice([32, 40, 64])
    trial.wrapper = ("prlimit", f"--nofile={limit}:{limit}")
    trial.feed(20)
    trial.at_work().wait_ready()
    trial.disruptions["EMFILE"] += 1
    time.sleep(2.0)


@fault("little-memory", ONCE, devices="declared", noisy=True)
def little_memory(trial: QueueStorm) -> None:
    """An engine and all that it starts may have only so much memory as it needs to start, or less."""
    size = trial.dice.choice([30, 33, 36, 40]) * 10**6
    trial.wrapper = ("prlimit", f"--as={size}:{size}")
    trial.feed(20)
    trial.at_work().wait_ready()
    trial.disruptions["little memory"] += 1
    time.sleep(2.0)
    trial.end_engine()


@fault(
    "clock-jumps",
    "no job starts early, times out or is lost because of the clock",
    needs=("faketime",),
    devices="declared",
    timed=False,
)
def clock_jumps(trial: QueueStorm) -> None:
    """The engine's clock goes a day forwards, two days back, and right again; jobs have the true one."""
    clock = trial.home / "clock"
    _set_clock(trial, 0)
    trial.environment |= {
        "LD_PRELOAD": str(faketime_library()),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    for seconds in (DAY, -DAY, 0):
        trial.feed(trial.next_number + 6)
        trial.at_work().wait_ready()
        _set_clock(trial, seconds)
        trial.feed(trial.next_number + 3)
        time.sleep(trial.dice.uniform(0.3, 1.0))
        trial.disruptions["clock jump"] += 1
        trial.disruptions["engine"] += trial.dice.random() < 0.5 and trial.at_work().kill()


def _set_clock(trial: QueueStorm, seconds: int) -> None:
    draft = trial.home / "clock.draft"
    draft.write_text(f"{seconds:+d}\n")
    draft.rename(trial.home / "clock")


@fault("foreign-lock", ONCE, noisy=True)
def foreign_lock(trial: QueueStorm) -> None:
    """Another program holds an exclusive lock on the database for a while."""
    trial.feed(12)
    trial.wait_running()
    with contextlib.closing(sqlite3.connect(trial.paths.database, isolation_level=None)) as database:
        database.execute("BEGIN EXCLUSIVE")
        trial.disruptions["database locked"] += 1
        time.sleep(trial.dice.uniform(0.5, 3.0))
        trial.disruptions["engine"] += trial.dice.random() < 0.5 and trial.at_work().kill()
        trial.at_work()
        database.execute("ROLLBACK")
