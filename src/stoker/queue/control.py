"""Send requests about jobs to engines, wait for the answers, and wait until jobs are over."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

import msgspec

from stoker.core.errors import StokerError
from stoker.core.job import Active, Ended, Job, OnHold, Waiting, id_text
from stoker.core.launch import INHERIT, log_pattern
from stoker.core.requests import Release, Request
from stoker.core.spec import Dependency, JobSpec, NeverSatisfied, NewJob, Outcome, judge
from stoker.core.text import printable
from stoker.queue.select import jobs_in_order
from stoker.store import queries
from stoker.store.engine_lock import QUEUE, cluster_of, engine_lives, engine_of, is_background, is_served, wake
from stoker.store.paths import Paths
from stoker.store.schema import TakeOver
from stoker.store.writer import Store, open_store


class Submission(NamedTuple):
    """Jobs that are submitted together, all or none."""

    label: str
    environment: Mapping[str, str]
    jobs: Callable[[str], Sequence[NewJob]]
    """Makes the jobs from the digest of their environment."""
    array: bool = False
    held: str = ""
    """Why they must not start yet, in words; empty if they may."""


def submit(store: Store, submission: Submission, now: float) -> range:
    """Put jobs into the queue, all or none; returns their ids."""
    with store.writing():
        jobs = submission.jobs(store.add_environment(submission.environment))
        batch = store.add_batch(submission.label, now)
        owner = engine_of(jobs[0].spec.cluster if jobs else "")
        return store.add_jobs(batch, owner, jobs, now, array=submission.array, held=submission.held)


def ask(paths: Paths, store: Store, requests: Sequence[Request], now: float) -> list[int]:
    """Record requests for the engines that own the jobs, wake these, and return the numbers of the requests.

    Jobs of a dead run are first given to the engine of the queue, which may have to be started.
    """
    with store.writing():
        addressed = [one for request in requests for one in _addressed(paths, store, request)]
        numbers = store.ask(addressed, now)
    for engine in {engine for engine, _ in addressed}:
        wake(paths, engine)
    return numbers


def _addressed(paths: Paths, store: Store, request: Request) -> list[tuple[str, Request]]:
    owner = store.owner(request.job)
    if is_served(paths, owner):
        return [(owner, request)]
    left, job = store.jobs_in_slot_of(request.job), store.job(request.job)
    engine = engine_of(job.spec.cluster if job else "")
    store.take_over([TakeOver(job_id, owner) for job_id in (*left, request.job)], engine)
    return [*((engine, Release(job_id)) for job_id in left), (engine, request)]


ANSWER_SECONDS = 2.0
"""How long a command waits for the engine's answer..."""
ANSWERS_PER_SECOND = 2000
"""... and longer if it sends many requests at once."""


class Unanswered(StokerError):
    """A request is recorded, but no engine has answered it yet."""

    exit_code = 3


class Control(NamedTuple):
    """The queue, and how to start its engine."""

    paths: Paths
    store: Store
    sim: str | None


@contextlib.contextmanager
def opened(sim: str | None) -> Iterator[Control]:
    """Open the queue of this user, or that of the simulated GPUs."""
    from stoker.queue.engine_process import simulated_gpus
    from stoker.store.paths import paths_here

    paths = paths_here(bool(sim))
    with contextlib.closing(open_store(paths)) as store:
        yield Control(paths, store, simulated_gpus(sim, paths))


def carry_out(control: Control, requests: Sequence[Request]) -> None:
    """Send requests and wait for the answers; the engine of the queue is started if needed."""
    if not requests:
        return
    numbers = ask(control.paths, control.store, requests, time.time())
    start_expected(control, "your request is recorded; the next engine carries it out")
    _wait_answered(control.store, numbers)


def change(control: Control, jobs: Sequence[Job], requests: Sequence[Request]) -> list[tuple[Job, Job]]:
    """Send requests, wait for the answers, and return each job before and after."""
    carry_out(control, requests)
    return list(zip(jobs, jobs_in_order(control.store, [job.id for job in jobs]), strict=True))


def start_expected(control: Control, otherwise: str) -> None:
    """Start the background engines that have open jobs or requests, unless they live."""
    for engine in queries.expected_engines(control.store):
        if is_background(engine):
            start_for(control, otherwise, cluster_of(engine))


def start_for(control: Control, otherwise: str, cluster: str = "") -> None:
    """Start a background engine unless it lives; the error of a failed start ends with `otherwise`."""
    if engine_lives(control.paths, engine_of(cluster)):
        return
    from stoker.queue.engine_process import start_engine

    try:
        start_engine(control.paths, control.sim, cluster=cluster)
    except StokerError as error:
        raise Unanswered(f"{error.message}; {otherwise}", error.hint) from error


def warn(text: str) -> None:
    print(f"stoker: {text}", file=sys.stderr, flush=True)


def _wait_answered(store: Store, numbers: Sequence[int]) -> None:
    deadline = time.monotonic() + ANSWER_SECONDS + len(numbers) / ANSWERS_PER_SECOND
    pause = 0.002
    while queries.unanswered(store, numbers):
        if time.monotonic() > deadline:
            raise Unanswered(
                "the engine has not answered yet; your request is recorded and will be carried out",
                "see stoker engine status",
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def abandoned(control: Control, jobs: Sequence[Job]) -> set[int]:
    """Ids of the jobs whose foreground run is dead."""
    owners = queries.owners_of(control.store, [job.id for job in jobs])
    gone = [owner for owner in owners if not is_served(control.paths, owner)]
    return {job_id for owner in gone for job_id in owners[owner]}


def spec_in_queue(control: Control, spec: JobSpec) -> JobSpec:
    """The spec with a log file in place of the terminal of the foreground run."""
    if INHERIT not in (spec.out, spec.err):
        return spec
    control.paths.on(spec.cluster).logs.mkdir(mode=0o700, exist_ok=True)
    log = default_log(control, spec)
    out = log if spec.out == INHERIT else spec.out
    return msgspec.structs.replace(spec, out=out, err="" if spec.err == INHERIT else spec.err)


def default_log(control: Control, spec: JobSpec) -> str:
    return log_pattern(control.paths.on(spec.cluster).logs)


def skipped_because(store: Store, jobs: Sequence[Job]) -> list[Job]:
    """Jobs that were skipped because of these, directly or not, and would not be skipped again."""
    ids = {job.id for job in jobs}
    again = {target for job in jobs for target in _as_targets(job)}
    along = []

    def outcome(dependency: Dependency) -> Outcome:
        return "open" if (dependency.target, dependency.array) in again else store.outcome(dependency)

    for job in queries.skipped_after(store, min(ids, default=0)):  # a job depends only on earlier ones
        targets = {(one.target, one.array) for one in job.spec.after}
        if job.id not in ids and targets & again and not isinstance(judge(job.spec.after, outcome), NeverSatisfied):
            along.append(job)
            again |= _as_targets(job)
    return along


def _as_targets(job: Job) -> set[tuple[int, bool]]:
    """What others may depend on: the job, and the array that it is a task of."""
    return {(job.id, False), (job.array, True)} if job.array else {(job.id, False)}


# -- wait until jobs are over ----------------------------------------------------------------------

SHORTEST_PAUSE = 0.02
LONGEST_PAUSE = 0.5
WARNINGS = 10
WHY_DELAY = 0.5
"""Seconds before the first message why jobs wait: most start at once."""
LOOKED_AT = 1000
ENGINE_INTERVAL = 1.0
"""Seconds between two checks that an engine works on the jobs."""


class Watch:
    """Jobs that are waited for."""

    def __init__(self, control: Control, ids: Sequence[int], say: Callable[[str], None] = warn) -> None:
        """`say` tells the user why jobs wait or do not start."""
        self.left = list(ids)
        self._control = control
        self._say = say
        self._version = -1
        self._pause = SHORTEST_PAUSE
        self._engine_at = 0.0
        self._warned = False
        self._why_at = time.monotonic() + WHY_DELAY

    def wait_over(self, deadline: float | None, show: Callable[[], None] = lambda: None) -> bool:
        """Wait until all are over; False if the deadline came first. `show` is called again and again meanwhile."""
        while self.look():
            show()
            if deadline is not None and time.monotonic() >= deadline:
                return False
            if time.monotonic() >= self._why_at:
                self._why_at = inf
                self._say_why()
            self.sleep(deadline)
        return True

    def look(self) -> bool:
        """Whether any are not over yet; reads the jobs only if the store has changed."""
        version, self._version = self._version, self._control.store.version_of_data()
        if version != self._version:
            before = len(self.left)
            self.left = queries.open_among(self._control.store, self.left)
            if len(self.left) < before:
                self._pause = SHORTEST_PAUSE
        if self.left:
            self._ensure_engine()
        return bool(self.left)

    def sleep(self, deadline: float | None = None) -> None:
        """Sleep, longer each time until something happens to the jobs."""
        left = LONGEST_PAUSE if deadline is None else max(0.0, deadline - time.monotonic())
        time.sleep(min(self._pause, left))
        self._pause = min(1.5 * self._pause, LONGEST_PAUSE)

    def hurry(self) -> None:
        self._pause = SHORTEST_PAUSE

    def _say_why(self) -> None:
        """Say what the first job waits for, if none of them runs."""
        jobs, left = self._jobs(LOOKED_AT)
        if jobs and not any(isinstance(job.state, Active | Ended) or _stuck(job, left) for job in jobs):
            self._say(printable(why_waits(self._control, jobs[0])))

    def _ensure_engine(self) -> None:
        """Restart a dead engine; warn once of jobs that no engine would start."""
        now = time.monotonic()
        if now < self._engine_at:
            return
        self._engine_at = now + ENGINE_INTERVAL
        if not self._warned:
            self._warned = True
            jobs, left = self._jobs()
            stuck = [words for job in jobs if (words := _stuck(job, left))]
            more = [f"and {len(stuck) - WARNINGS} more like that"] if len(stuck) > WARNINGS else []
            for words in (*stuck[:WARNINGS], *more):
                self._say(words)
        for cluster in self._needed_engines():
            start_for(self._control, "the jobs are safe in the queue", cluster)

    def _jobs(self, most: int | None = None) -> tuple[list[Job], set[int]]:
        """Jobs that are not over, and which of them were left by dead runs."""
        jobs = list(queries.jobs_of(self._control.store, self.left[:most]))
        return jobs, abandoned(self._control, jobs)

    def _needed_engines(self) -> set[str]:
        """The clusters, or this machine, whose engine must run some of them, or record their ends, and is dead."""
        engines = queries.owners_of(self._control.store, self.left)
        dead = [engine for engine in engines if is_background(engine) and not engine_lives(self._control.paths, engine)]
        if dead or engine_lives(self._control.paths, QUEUE):
            return {cluster_of(engine) for engine in dead}
        jobs, left = self._jobs()
        return {""} if any(job.id in left and isinstance(job.state, Active) for job in jobs) else set()


def why_waits(control: Control, job: Job) -> str:
    """What a job waits for, as on the screens."""
    from stoker.queue.knowledge import known

    with known(control.paths, simulated=control.sim is not None) as knowledge:
        _, why = knowledge.situation(job, control.store.owner(job.id))
    return f"{id_text(job)} waits: {why}"


def _stuck(job: Job, left: set[int]) -> str:
    """Why a job will not start by itself, and what to type; empty if it will."""
    shown = id_text(job)
    if isinstance(job.state, OnHold):
        return f"{shown} is {printable(job.state.note) or 'held'}; to release it: stoker resume {shown}"
    if isinstance(job.state, Waiting) and job.id in left:
        return f"its 'stoker run' stopped; continue: stoker resume {shown}"
    return ""
