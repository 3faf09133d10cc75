"""Jobs that dead engines left: record how they ended and, for a run that resumes, skip or continue them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from stoker.core.job import Job, Waiting
from stoker.core.run_result import Tally
from stoker.core.spec import NewJob, WorkKey, work_of
from stoker.engine.job_table import order_of_running
from stoker.engine.loop import Engine
from stoker.store.engine_lock import InterruptedJob, interrupted_active_jobs, interrupted_jobs, interrupted_nested_jobs
from stoker.store.paths import Paths
from stoker.store.schema import Adoption
from stoker.store.writer import Store


def adopt_gone(paths: Paths, store: Store, engine: Engine, owner: str = "") -> None:
    """Record how jobs of dead runs ended that nothing runs any more; leave those that still run."""
    here = [left for left in interrupted_active_jobs(paths, store) if left.job.spec.cluster == engine.site.cluster]
    adopt_all([left for left in here if engine.is_gone(left.job)], store, engine, owner)


def adopt_all(interrupted: Sequence[InterruptedJob], store: Store, engine: Engine, owner: str = "") -> list[Job]:
    """Adopt active jobs of dead engines at the same site, and return those that no other engine has taken before.

    `owner` is the name of their engine from now on, if that is not the engine's own: once it dies, they are interrupted
    again.

    All jobs of a worker belong together, since one journal reports on them: the running one first, then those behind
    it in the order in which they were assigned.
    """
    here = [left for left in interrupted if left.job.spec.cluster == engine.site.cluster]
    won = store.adopt([Adoption(job.id, dead) for job, dead in here], owner or engine.name)
    jobs = sorted((job for job, _ in here if job.id in won), key=order_of_running)
    for job in jobs:
        engine.adopt(job, adopted=True)
    return jobs


def end_nested(paths: Paths, store: Store, engine: Engine) -> None:
    """Cancel waiting jobs of dead runs inside jobs, if the worker of the outer job is dead.

    The next attempt of that job starts such a run again; continued by hand, it would have no GPUs of its own.
    """
    interrupted = [left for left in interrupted_nested_jobs(paths, store) if engine.is_gone(left.job)]
    won = store.adopt([Adoption(job.id, dead) for job, dead in interrupted], engine.name)
    for job in (job for job, _ in interrupted if job.id in won):
        engine.adopt(job, adopted=False)
        engine.cancel(job.id, None, "the job in which it was to run has ended")


class Supply:
    """Counts how often a piece of work is left; each counts for one of several equal jobs."""

    def __init__(self, count: Callable[[NewJob], int]) -> None:
        self._count = count
        self._left: dict[WorkKey, int] = {}

    def spend(self, job: NewJob) -> bool:
        """Use one up for the job; False if none is left."""
        work = work_of(job)
        left = self._left.get(work)
        left = self._count(job) if left is None else left
        self._left[work] = max(0, left - 1)
        return left > 0


class Resumer:
    """Finds by content what was done before, and what a dead run left waiting or running."""

    def __init__(self, paths: Paths, store: Store, engine: Engine, batch: int, *, redo: bool = False) -> None:
        """`redo` ignores earlier successes."""
        self._paths = paths
        self._store = store
        self._engine = engine
        self._batch = batch
        self._successes = Supply(lambda job: 0 if redo else store.times_done(work_of(job)))
        self._elsewhere = Supply(lambda job: store.times_open(job, engine.name))
        self._in_hand: list[NewJob] = []
        """Jobs that another run had in hand when they were looked for."""
        self._look()

    def _look(self) -> None:
        """Adopt what workers of dead runs hold, and find what these left waiting."""
        self._running: dict[WorkKey, list[Job]] = {}
        for job in adopt_all(interrupted_active_jobs(self._paths, self._store), self._store, self._engine):
            self._running.setdefault(work_of(job), []).append(job)
        self._left: dict[WorkKey, list[InterruptedJob]] = {}
        for interrupted in interrupted_jobs(self._paths, self._store):
            if isinstance(interrupted.job.state, Waiting):
                self._left.setdefault(work_of(interrupted.job), []).append(interrupted)

    def unfinished(self, jobs: Sequence[NewJob], tally: Tally) -> Sequence[NewJob]:
        """Those that did not succeed before, do not run, and were not interrupted."""
        with (
            self._store.writing()
        ):  # a job that another run ends between two queries would be in neither, and run twice
            missing = [job for job in jobs if not self._successes.spend(job)]
            unknown = self._adopt(missing, tally)
            spent = [self._elsewhere.spend(job) for job in unknown]
            self._in_hand += [job for job, elsewhere in zip(unknown, spent, strict=True) if elsewhere]
            tally.elsewhere += sum(spent)
        tally.skipped += len(jobs) - len(missing)
        return [job for job, elsewhere in zip(unknown, spent, strict=True) if not elsewhere]

    def reclaim(self, tally: Tally) -> bool:
        """Adopt jobs of other runs that were interrupted since we looked; whether there was any."""
        before = len(self._in_hand)
        if before:
            with self._store.writing():
                self._look()
                self._in_hand = self._adopt(self._in_hand, tally)
            tally.elsewhere -= before - len(self._in_hand)
        return len(self._in_hand) < before

    def _adopt(self, jobs: Sequence[NewJob], tally: Tally) -> list[NewJob]:
        """Make jobs of dead runs ours; returns those that no dead run has."""
        idle = [job for job in jobs if not self._runs(job)]
        pairs = [(job, self._interrupted(job)) for job in idle]
        wanted = {left.job.id: (job, left) for job, left in pairs if left is not None}
        claims = [Adoption(job_id, left.engine, self._batch, job.spec) for job_id, (job, left) in wanted.items()]
        won = self._store.adopt(claims, self._engine.name)
        for job_id in sorted(won):
            job, left = wanted[job_id]
            taken = msgspec.structs.replace(left.job, batch=self._batch, spec=job.spec)
            self._engine.adopt(taken, adopted=False)
        tally.given += len(jobs) - len(idle) + len(won)
        return [job for job, left in pairs if left is None or left.job.id not in won]

    def _runs(self, job: NewJob) -> bool:
        """Whether a dead run's job with the same content is active, which is then ours."""
        for candidate in _popped(self._running, job):
            if self._engine.own(candidate.id, self._batch):
                self._store.adopt([Adoption(candidate.id, self._engine.name, self._batch)], self._engine.name)
                return True
        return False

    def _interrupted(self, job: NewJob) -> InterruptedJob | None:
        return next(_popped(self._left, job), None)


Left = TypeVar("Left")


def _popped(left: dict[WorkKey, list[Left]], job: NewJob) -> Iterator[Left]:
    """Candidates for a job, each given only once."""
    candidates = left.get(work_of(job), [])
    while candidates:
        yield candidates.pop(0)
