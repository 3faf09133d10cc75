"""Read requests of front ends from the store and handle them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

from msgspec.structs import replace

from stoker.core.job import (
    Active,
    Edited,
    Ended,
    Job,
    OnHold,
    Paused,
    Queued,
    Resumed,
    Retried,
    Running,
    Stopping,
    Waiting,
    single,
)
from stoker.core.outcomes import AskedResult
from stoker.core.requests import Again, Cancel, Edit, Hold, Preempt, Release, Request, split
from stoker.core.settings import Policy
from stoker.core.spec import LIMIT_FIELDS, RUNNING_FIELDS, with_fields
from stoker.engine.job_table import Jobs
from stoker.store.changes import StoreChanges
from stoker.store.queries import end_of_rows, with_user_settings
from stoker.store.writer import Store

INTERVAL = 1.0
"""Seconds between two looks at the store; a wake-up only makes it faster."""


class RequestReader:
    """Finds out cheaply whether the store has changed, and reads each request once."""

    def __init__(self, store: Store, engine: str) -> None:
        self.due = True
        self.opened = False
        """Whether requests were ever read."""
        self._store = store
        self._engine = engine
        self._changes = StoreChanges(store)
        self._checked_at = 0.0
        self._read_up_to = 0
        self._left: deque[tuple[int, Request]] = deque()

    def has_come(self, now: float) -> bool:
        """Whether another process has written since the last check; checks once per interval."""
        if now - self._checked_at < INTERVAL:
            return False
        self._checked_at = now
        changed = self._changes.look()
        self.due = self.due or changed
        return changed

    def read(self) -> None:
        """Read the requests not read before; each stays in the store until its result is recorded."""
        self.due = False
        self.opened = True
        requests = [(number, request) for number, request in self._store.requests(self._engine) if self._is_new(number)]
        self._read_up_to = max((number for number, _ in requests), default=self._read_up_to)
        self._left.extend(requests)

    @property
    def pending(self) -> bool:
        """Whether requests were read that are not handled yet."""
        return bool(self._left)

    def take(self, rows: int) -> Iterator[tuple[int, Request, Request | None]]:
        """The next requests for so many rows of jobs: the number of each, the part to handle now, and its rest."""
        while self._left and rows > 0:
            number, request = self._left.popleft()
            end = None if request.count == 1 else end_of_rows(self._store, request.job, rows)
            part, rest = (request, None) if end is None else split(request, end - request.job + 1)
            rows -= part.count
            if rest is not None:
                self._left.appendleft((number, rest))
            yield number, part, rest

    def overlaid(self, policy: Policy) -> Policy:
        """The policy with what users have paused and drained."""
        return with_user_settings(policy, self._store.settings(), self._engine)

    def _is_new(self, number: int) -> bool:
        return number > self._read_up_to


class RequestTarget(Protocol):
    """The part of an engine that requests use, besides changing queued jobs."""

    def cancel_job(
        self, job: Job, grace: float | None, note: str, number: int = 0, result: AskedResult = "cancelled"
    ) -> None:
        """End a job of the engine, whatever its state; it may stand for several."""

    def displace(self, job: Job, to: int | None, note: str) -> bool:
        """Let a running job give way to another, None is the next that waits; False if it cannot."""

    def recall(self, job_id: int) -> None:
        """Return an active job that has not started to the queue, if its site can do that at once."""

    def set_limit(self, job: Job) -> bool:
        """Give an active job the time limit of its spec; False if its site cannot."""

    def adopt(self, job: Job, *, adopted: bool) -> None:
        """Take over a job of a dead engine."""


def handle(request: Request, engine: RequestTarget, jobs: Jobs) -> None:
    """Do what was asked of each job that is still in a state for it; several that are alike change as one."""
    first, last = request.job, request.job + request.count - 1
    if isinstance(request, Again):
        for job in jobs.between(first, last):
            for part in _one_kind(request, job):
                _run_again(request, part, jobs)
        return
    for job in jobs.between(first, last):
        if not jobs.table.knows(job.id) and not isinstance(job.state, Ended):  # a dead engine's, given to this one
            engine.adopt(job, adopted=False)
    for job in jobs.table.between(first, last):
        # The end of one may change another that started: the site returns what it has prefetched.
        current = job if job.count > 1 else jobs.table.get(job.id)
        if current is not None:
            for part in _one_kind(request, current):
                _handle(request, part, engine, jobs)


def _one_kind(request: Request, job: Job) -> Iterable[Job]:
    """Jobs that stay of one kind: lines and points of a grid do, unless they get GPUs that they had not."""
    spec = request.spec if isinstance(request, Edit | Again) else None
    if spec is None or job.differences is None or not spec.resources.gpus or job.spec.resources.gpus:
        return (job,)
    return single([job])


def _handle(request: Request, job: Job, engine: RequestTarget, jobs: Jobs) -> None:
    if isinstance(request, Cancel):
        engine.cancel_job(job, request.grace, request.note, request.signal, request.result)
        return
    if isinstance(request, Hold | Edit) and isinstance(job.state, Active):
        engine.recall(job.id)
        job = jobs.table.queued(job.id) or job
    match request, job.state:
        case Preempt(), Running():
            engine.displace(job, request.to, request.note)
        case Hold(), Waiting():
            jobs.apply(job, Paused(jobs.clock(), request.note))
        case Release(), OnHold():
            jobs.apply(job, Resumed(jobs.clock()))
        case Edit(), Waiting() | OnHold():
            jobs.apply(job, Edited(jobs.clock(), request.spec, request.name))
        case Edit(), _:
            _edit_active(request, job, engine, jobs)


def _edit_active(request: Edit, job: Job, engine: RequestTarget, jobs: Jobs) -> None:
    """Change a job that has started, if the request was made for that; a worker that cannot keeps its limit."""
    spec = request.spec
    if isinstance(job.state, Stopping) or with_fields(spec, job.spec, RUNNING_FIELDS) != job.spec:
        return
    limits = with_fields(job.spec, spec, LIMIT_FIELDS)
    if limits != job.spec and not engine.set_limit(replace(job, spec=spec)):
        spec = with_fields(spec, job.spec, LIMIT_FIELDS)
    jobs.apply(job, Edited(jobs.clock(), spec, request.name))


def _run_again(request: Again, job: Job, jobs: Jobs) -> None:
    if isinstance(job.state, Ended):
        now = jobs.clock()
        again = jobs.apply(job, Retried(now))
        if request.spec is not None and isinstance(again.state, Queued):
            jobs.apply(again, Edited(now, request.spec))
