"""Send requests about jobs to engines and wait for the result."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from stoker.core.errors import StokerError
from stoker.core.job import Job
from stoker.core.launch import INHERIT, log_pattern
from stoker.core.requests import Release, Request
from stoker.core.spec import Dependency, JobSpec, NeverSatisfied, NewJob, Outcome, judge
from stoker.store import queries
from stoker.store.engine_lock import QUEUE, engine_lives, wake
from stoker.store.ownership import (
    is_served,
)
from stoker.store.paths import Paths
from stoker.store.schema import TakeOver
from stoker.store.writer import Store, open_store


class Submission(NamedTuple):
    """What one call hands in."""

    label: str
    environment: Mapping[str, str]
    jobs: Callable[[str], Sequence[NewJob]]
    """The jobs, made with the digest of their environment."""
    array: bool = False
    held: str = ""
    """Why they shall not start yet, in words; empty when they may."""


def submit(store: Store, submission: Submission, now: float) -> range:
    """Put jobs into the queue of the background, all or none; returns their ids."""
    with store.writing():
        jobs = submission.jobs(store.add_environment(submission.environment))
        batch = store.add_batch(submission.label, now)
        return store.add_jobs(batch, QUEUE, jobs, now, array=submission.array, held=submission.held)


def ask(paths: Paths, store: Store, requests: Sequence[Request], now: float) -> list[int]:
    """Leave requests for the engines that own the jobs, wake those, and return the requests' numbers.

    What a dead run left is given to the engine of the queue, which may have to be started for it.
    """
    with store.writing():
        wishes = [wish for request in requests for wish in _wishes(paths, store, request)]
        numbers = store.ask(wishes, now)
    for engine in {engine for engine, _ in wishes}:
        wake(paths, engine)
    return numbers


def _wishes(paths: Paths, store: Store, request: Request) -> list[tuple[str, Request]]:
    owner = store.owner(request.job)
    if is_served(paths, owner):
        return [(owner, request)]
    left = store.jobs_in_slot_of(request.job)
    store.take_over([TakeOver(job_id, owner) for job_id in (*left, request.job)], QUEUE)
    return [*((QUEUE, Release(job_id)) for job_id in left), (QUEUE, request)]


ANSWER_SECONDS = 2.0
"""How long a verb waits for the engine's answer..."""

ANSWERS_PER_SECOND = 2000
"""... and more, where it asks for much at once."""


class Unheard(StokerError):
    """A wish is recorded, but there is no engine that carries it out now."""

    exit_code = 3


class Control(NamedTuple):
    """The queue, and how to start its engine."""

    paths: Paths
    store: Store
    sim: str | None


@contextlib.contextmanager
def opened(sim: bool) -> Iterator[Control]:
    """The queue of this user, or that of the simulated GPUs."""
    from stoker.store.paths import paths_for

    given = os.environ.get("STOKER_SIM")
    simulated = sim or bool(given)
    paths = paths_for("simulated" if simulated else None)
    with contextlib.closing(open_store(paths)) as store:
        yield Control(paths, store, (given or _sim_before(paths)) if simulated else None)


def carry_out(control: Control, requests: Sequence[Request]) -> None:
    """Leave the requests, and wait until the engines have answered them; one for the queue is started if needed."""

    if not requests:
        return
    numbers = ask(control.paths, control.store, requests, time.time())
    if queries.is_expected(control.store, QUEUE):
        start_for(control, "your wish is recorded and will be carried out by the next engine")
    _wait_answered(control.store, numbers)


def start_for(control: Control, otherwise: str) -> None:
    """Start the engine of the queue unless it lives; `otherwise` is what to know where it cannot be started."""
    if engine_lives(control.paths, QUEUE):
        return
    from stoker.queue.engine_process import start_engine

    try:
        start_engine(control.paths, control.sim)
    except StokerError as error:
        raise Unheard(f"{error.message}; {otherwise}", error.hint) from error


def warn(text: str) -> None:
    """A word beside the data."""
    print(f"stoker: {text}", file=sys.stderr, flush=True)


def _wait_answered(store: Store, numbers: Sequence[int]) -> None:
    deadline = time.monotonic() + ANSWER_SECONDS + len(numbers) / ANSWERS_PER_SECOND
    pause = 0.002
    while queries.unanswered(store, numbers):
        if time.monotonic() > deadline:
            raise Unheard(
                "the engine has not answered yet; your wish is recorded and will be carried out",
                "see stoker engine status",
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _sim_before(paths: Paths) -> str:
    """The simulated GPUs that the last engine had."""
    from stoker.store.status_file import read_status

    view = read_status(paths.status_file(QUEUE))
    sizes = [device.memory for device in view.devices if device.memory] if view else []
    return ",".join(f"1x{size // 2**20}M" for size in sizes) or "1x24G"


def abandoned(control: Control, jobs: Sequence[Job]) -> set[int]:
    """Ids of those jobs whose foreground run is gone."""
    owners = queries.owners_of(control.store, [job.id for job in jobs])
    gone = [owner for owner in owners if not is_served(control.paths, owner)]
    return {job_id for owner in gone for job_id in owners[owner]}


def specs_in_the_queue(control: Control, spec: JobSpec) -> JobSpec:
    """The same terms, with a log file in place of the terminal that the run had."""
    if INHERIT not in (spec.out, spec.err):
        return spec
    control.paths.logs.mkdir(mode=0o700, exist_ok=True)
    log = default_log(control)
    out = log if spec.out == INHERIT else spec.out
    return msgspec.structs.replace(spec, out=out, err="" if spec.err == INHERIT else spec.err)


def default_log(control: Control) -> str:
    """Where the output of a job goes that says nothing about it."""
    return log_pattern(control.paths.logs)


def skipped_because(store: Store, jobs: Sequence[Job]) -> list[Job]:
    """Jobs that were skipped because of these, or of others that were; but for those that would be skipped again."""
    ids = {job.id for job in jobs}
    again = {target for job in jobs for target in _as_targets(job)}
    along = []

    def outcome(dependency: Dependency) -> Outcome:
        return "open" if (dependency.target, dependency.array) in again else store.outcome(dependency)

    for job in queries.skipped_after(store, min(ids, default=0)):  # nobody waits for a job that came later
        targets = {(one.target, one.array) for one in job.spec.after}
        if job.id not in ids and targets & again and not isinstance(judge(job.spec.after, outcome), NeverSatisfied):
            along.append(job)
            again |= _as_targets(job)
    return along


def _as_targets(job: Job) -> set[tuple[int, bool]]:
    """What others may wait for: the job, and the array that it is a task of."""
    return {(job.id, False), (job.array, True)} if job.array else {(job.id, False)}
