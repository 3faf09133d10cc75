"""How an engine does what doors ask of its jobs."""

from __future__ import annotations

from typing import Protocol

from stoker.book import Book
from stoker.core.job import Edited, Ended, Job, OnHold, Paused, Queued, Resumed, Retried, Waiting
from stoker.core.request import Again, Cancel, Edit, Hold, Release, Request


class Servant(Protocol):
    """What an engine can do for a request beside changing its book."""

    @property
    def now(self) -> float:
        """The moment by its own clock."""

    def cancel(self, job_id: int, grace: float | None, note: str, number: int = 0) -> None:
        """End one job, whatever it is doing."""

    def adopt(self, job: Job, *, guest: bool) -> None:
        """Take over a job of a dead engine."""


def answer(request: Request, engine: Servant, book: Book) -> None:
    """Do what was asked, where the job is still in a state for it."""
    if isinstance(request, Again):
        _run_again(request, engine.now, book)
        return
    left = book.stored(request.job)
    if left is not None and not isinstance(left.state, Ended):  # a dead engine left it, and somebody gave it to us
        engine.adopt(left, guest=False)
    match request:
        case Cancel():
            engine.cancel(request.job, request.grace, request.note, request.signal)
        case Hold():
            book.change_queued(request.job, Waiting, Paused(engine.now, request.note))
        case Release():
            book.change_queued(request.job, OnHold, Resumed(engine.now))
        case Edit():
            book.change_queued(request.job, Queued, Edited(engine.now, request.terms, request.name))


def _run_again(request: Again, now: float, book: Book) -> None:
    job = book.stored(request.job)
    if job is not None and isinstance(job.state, Ended):
        book.happen(job, Retried(now))
        if request.terms is not None:
            book.change_queued(job.id, Queued, Edited(now, request.terms, job.name))
