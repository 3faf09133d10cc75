"""Measures what files of a group cost each engine: reading the ledger, a plan, a claim, with and without them.

The files are written by hand, so that the script also measures earlier versions of Stoker (PYTHONPATH).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from bars import Bar, bars_shown, table
from machine import exit_code, parser, workshop
from stoker.core.device import Device, Snapshot
from stoker.core.job import Job, Waiting
from stoker.core.lease import Claim
from stoker.core.planner.plan import plan
from stoker.core.planner.queue import WaitingJobs
from stoker.core.settings import Policy
from stoker.core.spec import Command, JobSpec, Resources
from stoker.ledger import Ledger, prepare_ledger

GPUS, GIB = 8, 2**30
FIRST_UID = 20_000
DAYS = 35
MOST = 1.1
"""With these files by the same files of engines that publish none."""


def main() -> None:
    options = _options()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with workshop(options.directory) as directory, contextlib.ExitStack() as held:
        ledgers = {name: prepare_ledger(directory / name) for name in ("before", "with")}
        for name, path in ledgers.items():
            for user in range(options.users):
                for file, told in _files(user, options.jobs, lab=name == "with"):
                    held.enter_context(_held(path / file, _uid(user), told))
        seconds = _measured(ledgers, options.rounds)
    print(f"\n{options.users} users, {options.jobs} jobs each, {options.rounds} rounds, milliseconds of processor time")
    rows = [[what, *(f"{1000 * median(times[what]):.1f}" for times in seconds.values())] for what in seconds["before"]]
    print(table(["", *seconds], rows))
    bars = []
    for what in seconds["before"]:
        ratios = [after / before for before, after in zip(*(times[what] for times in seconds.values()), strict=True)]
        bars.append(Bar(f"{what}, with / before", median(ratios), MOST, at_most=True))
    print(bars_shown(bars))


def _uid(user: int) -> int:
    """Another one for each user, if this is root; else readers count all files as those of one user."""
    return os.geteuid() or FIRST_UID + user


def _files(user: int, jobs: int, *, lab: bool) -> Iterator[tuple[str, object]]:
    """The files of a user's engine: what every engine had before, and what it publishes for a group."""
    uid, now = _uid(user), time.time()
    names = [f"{uid}.{user:08x}{number:08x}.lease" for number in range(jobs)]
    for number, name in enumerate(names):
        claims = [{"name": f"GPU-{number % GPUS}", "memory": 1, "share": 10_000}]
        yield name, {"version": 1, "claims": claims, "pid": 1000 + user, "what": "stoker", "since": now}
    yield (
        f"{uid}.{user:016x}.demand",
        {"version": 1, "usage": 100.0 * user, "since": now, "gpus": 1, "pid": 1000 + user, "what": "stoker"},
    )
    expected = {"expected": now // 60 * 60 + 1800} if lab else {}
    told = {
        name: {"job": str(number), "pid": 2000 + number, "until": now + 3600, **expected}
        for number, name in enumerate(names)
    }
    yield f"{uid}.{user:016x}.jobs", {"version": 1, "waiting": 5, "leases": told}
    if lab:
        running = [
            {"job": str(number), "pid": 2000 + number, "since": now, "utilisation": 90} for number in range(jobs)
        ]
        waiting = [{"jobs": 5, "gpus": 1, "since": now}]
        yield f"{uid}.{user:016x}.board", {"version": 1, "jobs": running, "waiting": waiting, "more": 0}
        days = [[739_900 + day, f"GPU-{gpu}", 12.5, 1.5, 3.5] for day in range(DAYS) for gpu in range(GPUS)]
        yield f"{uid}.{user:016x}.usage", {"version": 1, "queue": "0" * 16, "at": now, "gpus": days, "groups": []}


@contextlib.contextmanager
def _held(path: Path, uid: int, told: object) -> Iterator[None]:
    with path.open("w") as file:
        json.dump(told, file)
        file.flush()
        os.chown(path, uid, uid)
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _measured(ledgers: dict[str, Path], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Processor seconds by ledger and task, in turns, so that noise of the machine hits both alike."""
    times: dict[str, dict[str, list[float]]] = {name: {} for name in ledgers}
    opened = {name: Ledger(path) for name, path in ledgers.items()}
    for number in range(rounds + 1):
        for name, ledger in opened.items():
            for what, seconds in _round(ledger):
                if number:  # the first look fills caches
                    times[name].setdefault(what, []).append(seconds)
    return times


def _round(ledger: Ledger) -> Iterator[tuple[str, float]]:
    view = None

    def read() -> None:
        nonlocal view
        view = ledger.live()

    yield "read the ledger", _timed(read)
    assert view is not None
    leases = tuple(view.leases.values())
    yield "plan", _timed(lambda: _plan(leases))

    def claim() -> None:
        held = ledger.claim((Claim(f"GPU-{GPUS}"),), "bench", time.time())
        assert held is not None
        ledger.release(held)

    yield "claim", _timed(claim)


def _plan(leases: tuple[object, ...]) -> None:
    devices = tuple(
        Device(f"GPU-{gpu}", str(gpu), str(gpu), (f"GPU-{gpu}",), "nvidia", memory=80 * GIB) for gpu in range(GPUS)
    )
    now = time.time()
    waiting = WaitingJobs()
    for number in range(100):
        resources = Resources(1 + number % 2, number * GIB // 2)
        waiting.add(Job(number + 1, 0, Command(("true",)), JobSpec(resources), Waiting(now), now))
    plan(waiting, [], Snapshot(now, devices), leases, Policy(), now)  # type: ignore[arg-type]


def _timed(task: Callable[[], None]) -> float:
    began = time.process_time()
    task()
    return time.process_time() - began


def _options() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--users", type=int, default=50)
    options.add_argument("--jobs", type=int, default=100)
    options.add_argument("--rounds", type=int, default=30)
    return options.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
