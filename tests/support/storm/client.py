"""A client of the queue during a storm, which submits, cancels, holds, releases, edits and retries jobs by chance."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stoker.app.control.requests import Submission, ask, submit
from stoker.core.requests import Again, Cancel, Edit, Hold, Release, Request
from stoker.core.spec import Command, Dependency, JobSpec, NewJob, Resources
from stoker.store.paths import Paths
from stoker.store.writer import open_store
from support.storm.job_script import command
from support.storm.jobs import FIRST_EDITION, GRACE, Work
from support.storm.request_log import AGAIN, CANCEL, EDIT, HOLD, RELEASE, RequestLog, SentRequest, SubmittedJob

RECENT = 40
"""How many of the newest jobs are changed."""


class RandomClient:
    """Opens the queue anew for everything it does, as each command of a user does."""

    def __init__(
        self, paths: Paths, work: Path, variables: Mapping[str, str], request_log: RequestLog, dice: random.Random
    ) -> None:
        self._paths = paths
        self._work = work
        self._variables = variables
        self._request_log = request_log
        self._dice = dice
        self._held: set[int] = set()
        self._editions = 0

    def submit(self, works: Sequence[Work], *, array: bool = False, held: bool = False) -> list[int]:
        """Hand jobs in by one call."""
        now = time.time()

        def jobs(digest: str) -> list[NewJob]:
            return [self._new_job(work, digest, now, at if array else None) for at, work in enumerate(works)]

        submission = Submission("storm", self._variables, jobs, array, "a storm holds it" if held else "")
        with contextlib.closing(open_store(self._paths)) as store:
            ids = submit(store, submission, now)
        for job, work in zip(ids, works, strict=True):
            self._request_log.submitted[job] = SubmittedJob(work, now, ids[0] if array else 0, held)
        self._held |= set(ids) if held else set()
        return list(ids)

    def change_jobs(self) -> None:
        """Do something to a few jobs."""
        recent = sorted(self._request_log.submitted)[-RECENT:]
        if self._dice.random() < 0.3:
            self.cancel(self._dice.choice(recent))
        if self._dice.random() < 0.3:
            self._cancel_endless()
        if self._dice.random() < 0.3:
            self._hold(self._dice.sample(recent, min(3, len(recent))))
        if self._dice.random() < 0.4:
            self.release_all()
        if self._dice.random() < 0.4:
            self._edit(self._dice.choice(recent))
        if self._dice.random() < 0.2:
            self._run_again()

    def cancel(self, job: int) -> None:
        """Cancel a job, whatever it is doing."""
        self._ask(CANCEL, Cancel(job, "a storm wants it", self._dice.choice([None, 0.1])))

    def release_all(self) -> None:
        """Let everything go on that is held."""
        for job in sorted(self._held):
            self._ask(RELEASE, Release(job))
        self._held.clear()

    def note_answers(self) -> None:
        """Write down which requests are gone by now."""
        left = {number for (number,) in self._rows("SELECT id FROM requests")}
        now = time.time()
        for number, request in list(self._request_log.unanswered()):
            if number not in left:
                request.answered = now

    def _cancel_endless(self) -> None:
        endless = [job for job, entry in self._request_log.submitted.items() if entry.work.endless]
        left = [job for job in endless if not self._request_log.of(job, CANCEL)]
        if left:
            self.cancel(self._dice.choice(left))

    def _hold(self, jobs: Sequence[int]) -> None:
        for job in jobs:
            self._ask(HOLD, Hold(job, "a storm holds it"))
            self._held.add(job)

    def _edit(self, job: int) -> None:
        """Give a job other words to say, and another place in the queue."""
        self._editions += 1
        edition = f"edition{self._editions}"
        with contextlib.closing(open_store(self._paths)) as store:
            stored = store.job(job)
        assert stored is not None
        spec = msgspec.structs.replace(
            stored.spec, extra_env=(("STORM_WORD", edition),), priority=self._dice.choice([-5, 0, 5])
        )
        self._ask(EDIT, Edit(job, spec, stored.name), edition)

    def _run_again(self) -> None:
        """Retry a job that is over and that no other was to come after."""
        over = "('done', 'failed', 'oom', 'timeout', 'cancelled', 'lost')"
        ended = [job for (job,) in self._rows(f"SELECT id FROM jobs WHERE state IN {over} ORDER BY id DESC LIMIT 30")]
        ours = [
            job
            for job in ended
            if job in self._request_log.submitted and not self._request_log.submitted[job].work.endless
        ]
        if free := [job for job in ours if not self._request_log.is_targeted(job)]:
            self._ask(AGAIN, Again(self._dice.choice(free)))

    def _ask(self, kind: str, request: Request, edition: str = "") -> None:
        now = time.time()
        with contextlib.closing(open_store(self._paths)) as store:
            for number in ask(self._paths, store, [request], now):
                self._request_log.requests[number] = SentRequest(kind, request.job, now, edition)

    def _rows(self, query: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self._paths.database)) as database:
            return database.execute(query).fetchall()

    def _new_job(self, work: Work, digest: str, now: float, task: int | None) -> NewJob:
        spec = JobSpec(
            resources=_resources(work),
            cap=work.memory is not None and work.memory.capped,
            cwd=str(self._work),
            environment=digest,
            extra_env=(("STORM_WORD", FIRST_EDITION),),
            limit=work.limit,
            grace=GRACE,
            retries=work.retries,
            retry_on=work.retry_on,
            requeue=work.requeue,
            out=str(self._work / ("%j.log" if work.memory else work.out)),
            begin=now + work.delay if work.delay else None,
            after=tuple(msgspec.convert(after._asdict(), Dependency) for after in work.after),
            at_once=work.at_once,
        )
        line = command(work.number, work.codes, work.seconds, work.kind, work.memory)
        return NewJob(Command((line,), "/bin/sh"), spec, task=task)


def _resources(work: Work) -> Resources:
    if work.memory is None:
        return Resources(gpus=work.gpus)
    return Resources(gpus=work.gpus, memory=work.memory.declared, auto=work.memory.learnt)
