"""Submit to Stoker's queue from Python, without the command line."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence

from stoker.app.control.requests import Submission, submit
from stoker.core.spec import Command, JobSpec, NewJob
from stoker.store.engine_lock import QUEUE, wake
from stoker.store.paths import Paths
from stoker.store.writer import Store, open_store

NOTHING = Command(("true",))


def submit_all(paths: Paths, commands: Sequence[Command], variables: Mapping[str, str], cwd: str) -> float:
    """Open the queue, add the commands and wake the engine; returns the seconds that took."""
    started = time.perf_counter()
    with contextlib.closing(open_store(paths)) as store:
        submit_to(store, paths, commands, variables, cwd)
    return time.perf_counter() - started


def submit_to(store: Store, paths: Paths, commands: Sequence[Command], variables: Mapping[str, str], cwd: str) -> None:
    """One submit to an open queue."""
    paths.logs.mkdir(mode=0o700, exist_ok=True)
    out = f"{paths.logs}/%j.log"

    def jobs(environment: str) -> list[NewJob]:
        spec = JobSpec(cwd=cwd, environment=environment, out=out)
        return [NewJob(command, spec) for command in commands]

    submit(store, Submission("bench", variables, jobs), time.time())
    wake(paths, QUEUE)


def wait_until_over(paths: Paths) -> None:
    """Wait until all jobs of the queue are over."""
    with contextlib.closing(open_store(paths)) as store:
        while store.open_jobs(QUEUE, 0, 1):
            time.sleep(0.05)
