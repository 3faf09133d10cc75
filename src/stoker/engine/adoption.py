"""What dead engines left: ends to record, and for a run that resumes, work to skip or to go on with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

import msgspec

from stoker.core.job import Active, Job, Starting, Waiting
from stoker.core.run_result import Tally
from stoker.core.spec import NewJob, content_of
from stoker.engine.loop import Engine
from stoker.store.ownership import Orphan, held_orphans, orphans
from stoker.store.paths import Paths
from stoker.store.schema import TakeOver
from stoker.store.writer import Store


class Sieve(Protocol):
    """Decides which jobs of a list are to be submitted."""

    def unfinished(self, jobs: Sequence[NewJob], tally: Tally) -> Sequence[NewJob]:
        """Those of the jobs that nobody has done, and that are not to be found anywhere."""


class Settler:
    """Records how jobs of dead engines ended, and takes up none of them."""

    def __init__(self, paths: Paths, store: Store, engine: Engine) -> None:
        take_in([orphan for orphan in held_orphans(paths, store) if engine.worker_is_dead(orphan.job)], store, engine)

    def unfinished(self, jobs: Sequence[NewJob], tally: Tally) -> Sequence[NewJob]:
        """All of them: whoever does not resume wants them run."""
        return jobs


def take_in(left: Sequence[Orphan], store: Store, engine: Engine, owner: str = "") -> list[Job]:
    """Take over jobs that workers hold, as guests, and return those that nobody else has taken before.

    `owner` is whose they are from now on, where that is not simply the engine: once it dies, they are orphans again.

    All jobs of a worker belong together, since one journal tells of them: the running one first, then what
    waits behind it in the order in which it was handed over.
    """
    won = store.take_over([TakeOver(orphan.job.id, orphan.engine) for orphan in left], owner or engine.name)
    jobs = sorted((orphan.job for orphan in left if orphan.job.id in won), key=order_of_running)
    for job in jobs:
        engine.adopt(job, adopted=True)
    return jobs


def order_of_running(job: Job) -> tuple[bool, float, int]:
    """Sorts the jobs of a worker as it has them: the one that runs, then those behind it."""
    assert isinstance(job.state, Active)
    return isinstance(job.state, Starting), job.state.since, job.id


class Supply:
    """How often each work is to be found; every find counts for one of several equal jobs."""

    def __init__(self, count: Callable[[bytes], int]) -> None:
        self._count = count
        self._left: dict[bytes, int] = {}

    def spend(self, job: NewJob) -> bool:
        """Whether one is left for the job, which is then used up."""
        content = content_of(job.command, job.spec, job.task)
        left = self._left.get(content)
        left = self._count(content) if left is None else left
        self._left[content] = max(0, left - 1)
        return left > 0


class Resumer:
    """Knows by content what was done before, and what a dead run left waiting or running."""

    def __init__(self, paths: Paths, store: Store, engine: Engine, batch: int, *, redo: bool = False) -> None:
        """`redo` counts no success of earlier."""
        self._store = store
        self._engine = engine
        self._batch = batch
        self._successes = Supply((lambda _: 0) if redo else store.times_done)
        self._elsewhere = Supply(lambda content: store.times_open(content, engine.name))
        self._running: dict[bytes, list[Job]] = {}
        for job in take_in(held_orphans(paths, store), store, engine):
            self._running.setdefault(_content(job), []).append(job)
        self._left: dict[bytes, list[Orphan]] = {}
        for orphan in orphans(paths, store):
            if isinstance(orphan.job.state, Waiting):
                self._left.setdefault(_content(orphan.job), []).append(orphan)

    def unfinished(self, jobs: Sequence[NewJob], tally: Tally) -> Sequence[NewJob]:
        """Those that neither succeeded before, nor run, nor can be taken over."""
        with self._store.writing():  # what another run ends between two looks would be in neither, and run twice
            missing = [job for job in jobs if not self._successes.spend(job)]
            idle = [job for job in missing if not self._runs(job)]
            pairs = [(job, self._orphan_of(job)) for job in idle]
            wanted = {orphan.job.id: (job, orphan) for job, orphan in pairs if orphan is not None}
            claims = [TakeOver(id_, orphan.engine, self._batch, job.spec) for id_, (job, orphan) in wanted.items()]
            won = self._store.take_over(claims, self._engine.name)
            unknown = [job for job, orphan in pairs if orphan is None]
            submitted = [job for job in unknown if not self._elsewhere.spend(job)]
        for job_id in sorted(won):
            job, orphan = wanted[job_id]
            taken = msgspec.structs.replace(orphan.job, batch=self._batch, spec=job.spec)
            self._engine.adopt(taken, adopted=False)
        tally.skipped += len(jobs) - len(missing)
        tally.given += len(missing) - len(idle) + len(won)
        tally.elsewhere += len(wanted) - len(won) + len(unknown) - len(submitted)
        return submitted

    def _runs(self, job: NewJob) -> bool:
        """Whether a worker of a dead run still holds the very work, which is then ours."""
        for candidate in _popped(self._running, job):
            if self._engine.own(candidate.id, self._batch):
                self._store.take_over([TakeOver(candidate.id, self._engine.name, self._batch)], self._engine.name)
                return True
        return False

    def _orphan_of(self, job: NewJob) -> Orphan | None:
        return next(_popped(self._left, job), None)


Left = TypeVar("Left")


def _popped(left: dict[bytes, list[Left]], job: NewJob) -> Iterator[Left]:
    """Candidates for a job, each given only once."""
    candidates = left.get(content_of(job.command, job.spec, job.task), [])
    while candidates:
        yield candidates.pop(0)


def _content(job: Job) -> bytes:
    return content_of(job.command, job.spec, job.task)


def sieve(paths: Paths, store: Store, engine: Engine, batch: int, *, resume: bool, redo: bool = False) -> Sieve:
    """What a run does about the jobs that dead engines left."""
    return Resumer(paths, store, engine, batch, redo=redo) if resume else Settler(paths, store, engine)
