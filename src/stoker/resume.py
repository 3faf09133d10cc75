"""What dead engines left: ends to record, and for a run that resumes, work to skip or to go on with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from stoker.core.job import Held, Waiting
from stoker.engine import Engine
from stoker.places import Places
from stoker.queue import Orphan, orphans
from stoker.store import NewJob, Store, TakeOver, content_of
from stoker.tally import Tally


class Sieve(Protocol):
    """Decides which jobs of a list are to be submitted."""

    def unfinished(self, jobs: Sequence[NewJob], tally: Tally) -> Sequence[NewJob]:
        """Those of the jobs that nobody has done, and that are not to be found anywhere."""


class Settler:
    """Records how jobs of dead engines ended, and takes up none of them."""

    def __init__(self, places: Places, store: Store, engine: Engine) -> None:
        ended = [orphan for orphan in orphans(places, store) if engine.keeper_is_dead(orphan.job)]
        won = store.take_over([TakeOver(orphan.job.id, orphan.engine) for orphan in ended], engine.name)
        for orphan in ended:
            if orphan.job.id in won:
                engine.adopt(orphan.job, guest=True)

    def unfinished(self, jobs: Sequence[NewJob], tally: Tally) -> Sequence[NewJob]:
        """All of them: whoever does not resume wants them run."""
        return jobs


class Successes:
    """How often each work has succeeded before; each success counts for one of several equal jobs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._left: dict[bytes, int] = {}

    def spend(self, job: NewJob) -> bool:
        """Whether there is a success left for the job, which is then used up."""
        content = content_of(job.command, job.terms)
        left = self._left.get(content)
        left = self._store.times_done(content) if left is None else left
        self._left[content] = max(0, left - 1)
        return left > 0


class Resumer:
    """Knows by content what was done before, and what a dead run left waiting or running."""

    def __init__(self, places: Places, store: Store, engine: Engine, batch: int) -> None:
        self._store = store
        self._engine = engine
        self._batch = batch
        self._successes = Successes(store)
        self._left: dict[bytes, list[Orphan]] = {}
        for orphan in orphans(places, store):
            content = content_of(orphan.job.command, orphan.job.terms)
            self._left.setdefault(content, []).append(orphan)

    def unfinished(self, jobs: Sequence[NewJob], tally: Tally) -> Sequence[NewJob]:
        """Those that neither succeeded before nor can be taken over."""
        missing = [job for job in jobs if not self._successes.spend(job)]
        tally.skipped += len(jobs) - len(missing)
        pairs = [(job, self._orphan_of(job)) for job in missing]
        wanted = {orphan.job.id: (job, orphan) for job, orphan in pairs if orphan is not None}
        won = self._store.take_over([self._claim(job, orphan) for job, orphan in wanted.values()], self._engine.name)
        for job_id in sorted(won):
            self._go_on(*wanted[job_id], tally)
        return [job for job, orphan in pairs if orphan is None or orphan.job.id not in won]

    def _orphan_of(self, job: NewJob) -> Orphan | None:
        left = self._left.get(content_of(job.command, job.terms))
        return left.pop(0) if left else None

    def _claim(self, job: NewJob, orphan: Orphan) -> TakeOver:
        """One that still waits runs under the terms of the run that takes it up."""
        terms = job.terms if isinstance(orphan.job.state, Waiting) else None
        return TakeOver(orphan.job.id, orphan.engine, self._batch, terms)

    def _go_on(self, job: NewJob, orphan: Orphan, tally: Tally) -> None:
        taken = msgspec.structs.replace(orphan.job, batch=self._batch)
        if not isinstance(taken.state, Held):
            taken = msgspec.structs.replace(taken, terms=job.terms)
        tally.take_over(taken)
        self._engine.adopt(taken, guest=False)


def sieve(places: Places, store: Store, engine: Engine, batch: int, *, resume: bool) -> Sieve:
    """What a run does about the jobs that dead engines left."""
    return Resumer(places, store, engine, batch) if resume else Settler(places, store, engine)
