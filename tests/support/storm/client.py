"""A client of the queue during a storm, which submits, cancels, holds, releases, edits and retries jobs by chance."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from stoker.app.control.requests import Submission, ask, submit
from stoker.core.ranges import ranges_of
from stoker.core.requests import Again, Cancel, Edit, Hold, Preempt, Release, Request
from stoker.core.spec import Command, Dependency, JobSpec, NewJob, Resources, tasks_of
from stoker.store import lines
from stoker.store.paths import Paths
from stoker.store.writer import open_store
from support.storm.job_script import WARM_SCRIPT, command
from support.storm.jobs import FIRST_EDITION, GRACE, Work
from support.storm.request_log import AGAIN, CANCEL, EDIT, HOLD, PREEMPT, RELEASE, RequestLog, SentRequest, SubmittedJob

SAVE_SECONDS = 0.5
RECENT = 40
"""How many of the newest jobs are changed."""
CHANGES = (CANCEL, RELEASE, AGAIN, HOLD, HOLD, EDIT, EDIT)
"""What is asked of tasks of an array, some of it more often."""


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
        self._arrays: list[Sequence[int]] = []
        """The tasks of each array whose tasks are alike, and the lines of each list of such."""
        self._editions = 0

    def submit(
        self, works: Sequence[Work], *, array: bool = False, held: bool = False, alike: bool = False
    ) -> list[int]:
        """Hand jobs in by one call; tasks and lines that are alike share a row."""
        now = time.time()

        def jobs(digest: str) -> list[NewJob]:
            if alike and array:
                return tasks_of(self._new_job(works[0], digest, now, None), range(len(works)))
            return [self._new_job(work, digest, now, at if array else None) for at, work in enumerate(works)]

        submission = Submission("storm", self._variables, jobs, array, "a storm holds it" if held else "")
        with contextlib.closing(open_store(self._paths)) as store, patch.object(lines, "LEAST", 2):
            ids = submit(store, submission, now)
        self.enter(ids, works, now, array=array, held=held, alike=alike)
        return list(ids)

    def enter(
        self,
        ids: Sequence[int],
        works: Sequence[Work],
        at: float,
        *,
        array: bool = False,
        held: bool = False,
        alike: bool = False,
    ) -> None:
        """Write down jobs that were submitted, by this client or another one."""
        for job, work in zip(ids, works, strict=True):
            self._request_log.submitted[job] = SubmittedJob(work, at, ids[0] if array else 0, held)
        self._held |= set(ids) if held else set()
        self._arrays += [ids] if alike else []

    def change_jobs(self) -> None:
        """Do something to a few jobs."""
        recent = sorted(self._request_log.submitted)[-RECENT:]
        if self._dice.random() < 0.3:
            self.cancel(self._dice.choice(recent))
        if self._dice.random() < 0.3:
            self._cancel_endless()
        if self._dice.random() < 0.3:
            for job in self._dice.sample(recent, min(3, len(recent))):
                self._hold(job)
        if self._dice.random() < 0.4:
            self.release_all()
        if self._dice.random() < 0.4:
            self._edit(self._dice.choice(recent))
        if self._dice.random() < 0.2:
            self._run_again()
        for _ in range(self._dice.choice([0, 1, 2])):
            self.change_tasks()

    def change_tasks(self, kinds: Sequence[str] = CHANGES) -> None:
        """Ask something of tasks with consecutive ids."""
        if not self._arrays:
            return
        waiting = self._rows("SELECT id - size + 1, id + 1 FROM jobs WHERE size > 1 AND ended IS NULL")
        in_one_row = waiting and self._dice.random() < 0.7
        tasks = range(*self._dice.choice(waiting)) if in_one_row else self._dice.choice(self._arrays[-3:])
        first, last = sorted(self._dice.choices(tasks, k=2))
        count = last - first + 1
        kind = self._dice.choice(kinds)
        if kind == CANCEL:
            self.cancel(first, count)
        elif kind == HOLD:
            self._hold(first, count)
        elif kind == RELEASE:
            self._ask(RELEASE, Release(first, count=count))
        elif kind == EDIT:
            self._edit(first, count)
        elif not any(map(self._request_log.is_targeted, range(first, last + 1))):
            self._ask(AGAIN, Again(first, count=count))

    def cancel(self, job: int, count: int = 1) -> None:
        """Cancel jobs with consecutive ids, whatever they are doing."""
        self._ask(CANCEL, Cancel(job, "a storm wants it", self._dice.choice([None, 0.1]), count=count))

    def preempt_running(self) -> int:
        """Let all jobs give way that run and can; how many that were."""
        running = [job for (job,) in self._rows("SELECT id FROM jobs WHERE state = 'running'")]
        chosen = [job for job in running if self._request_log.submitted[job].work.preemptible]
        for job in chosen:
            self._ask(PREEMPT, Preempt(job, note="a storm wants it"))
        return len(chosen)

    def release_all(self) -> None:
        """Let everything go on that is held."""
        for jobs in ranges_of(sorted(self._held)).parts:
            self._ask(RELEASE, Release(jobs[0], count=len(jobs)))
        self._held.clear()

    @property
    def last_request(self) -> int:
        """The number of the last request of any client."""
        rows = self._rows("SELECT seq FROM sqlite_sequence WHERE name = 'requests'")
        return int(rows[0][0]) if rows else 0

    def note_request(self, kind: str, jobs: range, asked: float, since: int) -> bool:
        """Write down what another client asked since a request, by its last one; False if it did not come so far."""
        last = self.last_request
        if last > since:
            self._request_log.requests[last] = SentRequest(kind, jobs.start, asked, count=len(jobs))
            self._held |= set(jobs) if kind == HOLD else set()
        return last > since

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

    def _hold(self, job: int, count: int = 1) -> None:
        self._ask(HOLD, Hold(job, "a storm holds it", count=count))
        self._held |= set(range(job, job + count))

    def _edit(self, job: int, count: int = 1) -> None:
        """Give jobs that are alike other words to say, and another place in the queue."""
        self._editions += 1
        edition = f"edition{self._editions}"
        with contextlib.closing(open_store(self._paths)) as store:
            stored = store.job(job)
        assert stored is not None
        spec = msgspec.structs.replace(
            stored.spec, extra_env=(("STORM_WORD", edition),), priority=self._dice.choice([-5, 0, 5])
        )
        self._ask(EDIT, Edit(job, spec, stored.name, count=count), edition)

    def _run_again(self) -> None:
        """Retry a job that is over and that no other was to come after."""
        over = "('done', 'failed', 'oom', 'timeout', 'cancelled', 'lost')"
        columns = "id - size + 1, id"
        rows = self._rows(f"SELECT {columns} FROM jobs WHERE state IN {over} ORDER BY id DESC LIMIT 30")
        ended = [job for first, last in rows for job in range(first, last + 1)]
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
                self._request_log.requests[number] = SentRequest(kind, request.job, now, edition, count=request.count)

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
            preemptible=work.preemptible,
            save_time=SAVE_SECONDS,
        )
        line = command(work.number, work.codes, work.seconds, work.kind, work.memory)
        if work.warm:
            line = " ".join([sys.executable, "-u", WARM_SCRIPT, *line.split()[3:]])
            spec = msgspec.structs.replace(spec, warm=("json",))
        return NewJob(Command((line,), "/bin/sh"), spec, task=task)


def _resources(work: Work) -> Resources:
    if work.memory is None:
        return Resources(gpus=work.gpus)
    return Resources(gpus=work.gpus, memory=work.memory.declared, auto=work.memory.learnt)
