"""Send requests about jobs to engines, wait for the answers, and wait until jobs are over."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from math import inf
from operator import itemgetter
from typing import NamedTuple

import msgspec

from stoker.core.errors import StokerError
from stoker.core.job import Job, ids_of, part
from stoker.core.jobs_by_id import JobsById
from stoker.core.launch import INHERIT, log_pattern
from stoker.core.ranges import Ranges, joined, ranges_of, union
from stoker.core.requests import Release, Request, merged
from stoker.core.spec import Dependency, JobSpec, NeverSatisfied, NewJob, Outcome, judge
from stoker.core.text import printable
from stoker.store import queries
from stoker.store.engine_lock import cluster_of, engine_lives, engine_of, is_background, is_served, wake
from stoker.store.paths import Paths
from stoker.store.queries import sorted_ids
from stoker.store.waiting import Backoff, wait_until
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
        return store.add_jobs(
            batch, owner, jobs, now, array=submission.array, held=submission.held, lines=not submission.array
        )


def ask(paths: Paths, store: Store, requests: Sequence[Request], now: float) -> list[int]:
    """Record requests for the engines that own the jobs, wake these, and return the numbers of the requests.

    Jobs of a dead run are first given to the engine of the queue, which may have to be started.
    """
    with store.writing():
        addressed = list(_addressed(paths, store, requests))
        numbers = store.ask(addressed, now)
    for engine in {engine for engine, _ in addressed}:
        wake(paths, engine)
    return numbers


def _addressed(paths: Paths, store: Store, requests: Sequence[Request]) -> Iterator[tuple[str, Request]]:
    """Each request with the engine that handles it; those that are alike are one."""
    owners = queries.owners_of(store, union(_ids(request) for request in requests))
    engines: list[tuple[str, Ranges]] = []
    for owner, job_ids in owners.items():
        if is_served(paths, owner):
            engines.append((owner, job_ids))
            continue
        for engine, taken, in_slots in _take_over(store, owner, job_ids):
            engines.append((engine, taken))
            yield from ((engine, Release(job_id)) for job_id in in_slots)
    there = (
        (engine, msgspec.structs.replace(request, job=part[0], count=len(part)))
        for request in requests
        for engine, job_ids in engines
        for part in Ranges([_ids(request)]).among(job_ids).parts
    )
    for engine, alike in groupby(there, itemgetter(0)):
        yield from ((engine, request) for request in merged(request for _, request in alike))


def _ids(request: Request) -> range:
    return range(request.job, request.job + request.count)


def _take_over(store: Store, owner: str, job_ids: Ranges) -> Iterator[tuple[str, Ranges, list[int]]]:
    """Give jobs of a dead run, and all jobs in their slots, to the engines of the queue: which, and those in slots."""
    active = [job.id for job in store.active_jobs(owner)]
    for cluster, taken in queries.clusters_of(store, job_ids).items():
        slots = (store.jobs_in_slot_of(job_id) for job_id in active if job_id in taken)
        in_slots = list(dict.fromkeys(chain.from_iterable(slots)))
        store.give(union((*ranges_of(in_slots).parts, *taken.parts)), owner, engine_of(cluster))
        yield engine_of(cluster), taken, in_slots


ANSWER_SECONDS = 2.0
"""Seconds that a command waits for the engine's answer, at least."""
ANSWERS_PER_SECOND = 1000
"""A command about many jobs waits so much longer, also on a busy machine."""
MANY_JOBS = 1000
PROGRESS_SECONDS = 2.0
"""Seconds between two looks at how far the engine is with many jobs, and whether it lives."""
_RECORDED = "your request is recorded; the next engine carries it out"


class Unanswered(StokerError):
    """A request is recorded, but no engine has answered it yet."""

    exit_code = 3


class Control(NamedTuple):
    """The queue, and where it is."""

    paths: Paths
    store: Store
    progress: Callable[[int, int], None] | None = None
    """Shows the user how many jobs of how many an engine has dealt with, if that takes long."""


@contextlib.contextmanager
def opened(paths: Paths, progress: Callable[[int, int], None] | None = None) -> Iterator[Control]:
    with contextlib.closing(open_store(paths)) as store:
        yield Control(paths, store, progress)


def carry_out(control: Control, requests: Sequence[Request]) -> None:
    """Send requests and wait for the answers; the engine of the queue is started if needed."""
    if not requests:
        return
    numbers = ask(control.paths, control.store, requests, time.time())
    start_expected(control, _RECORDED)
    _wait_answered(control, numbers, sum(request.count for request in requests))


def change(control: Control, jobs: Sequence[Job], requests: Sequence[Request]) -> list[tuple[Job, Job]]:
    """Send requests, wait for the answers, and return each job before and after."""
    carry_out(control, requests)
    return list(before_and_after(control.store, jobs))


def before_and_after(store: Store, jobs: Sequence[Job]) -> Iterator[tuple[Job, Job]]:
    """Jobs as they were, and as they are now; what stood for several jobs may be in parts now."""
    left = deque(jobs)
    for now in queries.jobs_by_state(store, joined(range(job.id, job.last + 1) for job in jobs)):
        first = now.id
        while first <= now.last:
            before = left.popleft()
            last = min(before.last, now.last)
            yield part(before, first, last), part(now, first, last)
            if last < before.last:
                left.appendleft(part(before, last + 1, before.last))
            first = last + 1


def start_expected(control: Control, otherwise: str) -> None:
    """Start the background engines that have open jobs or requests, unless they live."""
    for engine in queries.expected_engines(control.store):
        if is_background(engine):
            start_for(control, otherwise, cluster_of(engine))


def start_for(control: Control, otherwise: str, cluster: str = "") -> None:
    """Start a background engine unless it lives; the error of a failed start ends with `otherwise`."""
    if engine_lives(control.paths, engine_of(cluster)):
        return
    from stoker.app.control.engine_process import start_engine

    try:
        start_engine(control.paths, cluster)
    except StokerError as error:
        raise Unanswered(f"{error.message}; {otherwise}", error.hint) from error


def warn(text: str) -> None:
    print(f"stoker: {printable(text)}", file=sys.stderr, flush=True)


def _wait_answered(control: Control, numbers: Sequence[int], jobs: int) -> None:
    look_at = time.monotonic() + PROGRESS_SECONDS if jobs >= MANY_JOBS else inf

    def is_answered() -> bool:
        nonlocal look_at
        left = queries.unanswered(control.store, numbers)
        if left and time.monotonic() >= look_at:
            look_at = time.monotonic() + PROGRESS_SECONDS
            start_expected(control, _RECORDED)  # it may have been killed meanwhile
            if control.progress is not None:
                control.progress(jobs - left, jobs)
        return not left

    if not wait_until(is_answered, ANSWER_SECONDS + jobs / ANSWERS_PER_SECOND, Backoff(0.002, 0.05)):
        raise Unanswered(
            "the engine has not answered yet; your request is recorded and will be carried out",
            "see stoker engine status",
        )


def interrupted(control: Control, jobs: Sequence[Job]) -> Ranges:
    """Ids of the jobs whose foreground run is dead."""
    owners = queries.owners_of(control.store, ids_of(jobs))
    gone = [owner for owner in owners if not is_served(control.paths, owner)]
    return union(part for owner in gone for part in owners[owner].parts)


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
    ids, again = sorted_ids(ids_of(jobs)), JobsById()
    arrays = {job.array for job in jobs if job.array}
    for job in jobs:
        again.add(job)
    along = []

    def is_again(dependency: Dependency) -> bool:
        return dependency.target in arrays if dependency.array else dependency.target in again

    def outcome(dependency: Dependency) -> Outcome:
        return "open" if is_again(dependency) else store.outcome(dependency)

    for job in queries.skipped_after(store, min(ids[:1], default=0)):  # a job depends only on earlier ones
        new = job.id not in ids and any(map(is_again, job.spec.after))
        if new and not isinstance(judge(job.spec.after, outcome), NeverSatisfied):
            along.append(job)
            again.add(job)
            arrays |= {job.array} if job.array else set()
    return along
