"""Commands of lines of a list: jobs that differ in nothing else share a row, and their words are here, by id."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count, groupby, islice
from typing import Any, NamedTuple

from msgspec.structs import replace

from stoker.core.job import Job
from stoker.core.learning import alike_key
from stoker.core.spec import Command, JobSpec, NewJob
from stoker.store.schema import join, split

LEAST = 64
"""Lines that share a row, at least: a short list is not worth it."""
_PAGE = 256
"""Lines that are read at once."""
_INSERT = "INSERT INTO lines (id, words) VALUES (?, ?)"
_GONE = b"(removed from the history)"


class StoredLines:
    """The commands of lines, read a page at a time; words never change."""

    def __init__(self, rows: Callable[..., list[tuple[Any, ...]]]) -> None:
        self._rows = rows
        self._page: dict[int, bytes] = {}

    def stored(self, job_id: int) -> bytes:
        """The words as stored."""
        words = self._page.get(job_id)
        if words is None:
            first = job_id - job_id % _PAGE
            page = self._rows("SELECT id, words FROM lines WHERE id BETWEEN ? AND ?", first, first + _PAGE - 1)
            self._page = dict(page)
            words = self._page.get(job_id, _GONE)
        return words

    def fields(self, job: Job, first: int) -> dict[str, Any]:
        """Of a line of the row whose first is given."""
        return {"command": Command(split(self.stored(first)), job.command.shell)}


class _Alike(NamedTuple):
    """Equal for jobs that can share a row."""

    spec: JobSpec
    name: str
    shell: str
    kind: str


def sharing_rows(connection: sqlite3.Connection, jobs: Iterable[NewJob], first: int) -> Iterator[NewJob]:
    """The jobs with ids from the first on, where one stands for many lines; the words of these are written."""
    next_id = first
    for alike, group in groupby(jobs, _alike):
        rest = iter(group)
        some = list(islice(rest, LEAST)) if alike is not None else []
        lines = chain(some, rest)
        if len(some) < LEAST:
            for job in lines:
                yield job
                next_id += job.count
            continue
        ids = count(next_id)
        connection.executemany(
            _INSERT, ((job_id, join(job.command.words)) for job, job_id in zip(lines, ids, strict=False))
        )
        # Iteration ends when the lines do, before a further id is taken.
        after = next(ids)
        yield replace(some[0], count=after - next_id)
        next_id = after


def _alike(job: NewJob) -> _Alike | None:
    """None for a job that has a row of its own, or one that is an array already."""
    if job.task is not None or job.member is not None:
        return None
    kind = alike_key(job.command, job.spec)
    return None if kind is None else _Alike(job.spec, job.name, job.command.shell, kind)
