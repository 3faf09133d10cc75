"""Jobs of a batch that follow from a pattern: until they start, only their number is in a row."""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from stoker.core.job import Job
from stoker.core.pattern import Filled, Gaps, Pattern
from stoker.core.spec import Command
from stoker.store.schema import decode, encode, text_of


class StoredPatterns:
    """The patterns of a batch. They never change."""

    def __init__(self, rows: Sequence[tuple[Any, ...]]) -> None:
        self.patterns = [decode(msgspec.json.Decoder(Pattern), body) for (body,) in rows]
        self._starts = [pattern.start for pattern in self.patterns]

    def at(self, number: int) -> Filled:
        """The job with this number."""
        return self.patterns[bisect_right(self._starts, number) - 1].at(number)

    def fields(self, job: Job, first: int) -> dict[str, Any]:
        """Of a job of the row whose first is given. A name that a user gave all of them stays."""
        assert job.member is not None
        number = job.member.number + first - job.id
        own = self.at(number)
        is_given = job.name != self.at(job.member.number).name
        return {
            "command": Command(tuple(own.words.split("\0")), job.command.shell),
            "name": job.name if is_given else own.name,
            "member": replace(job.member, number=number, params=own.params),
        }


def read_patterns(rows: Callable[..., list[tuple[Any, ...]]], batch: int) -> StoredPatterns:
    return StoredPatterns(rows("SELECT body FROM patterns WHERE batch = ? ORDER BY start", batch))


def add_patterns(connection: sqlite3.Connection, batch: int, patterns: Sequence[Pattern]) -> None:
    for pattern in patterns:
        named = replace(pattern, name=Gaps(text_of(pattern.name.text), pattern.name.columns))
        row = batch, pattern.start, encode(named)
        connection.execute("INSERT INTO patterns (batch, start, body) VALUES (?, ?, ?)", row)


def filled_of(job: Job) -> Iterator[Filled]:
    """All that a row of such jobs stands for, with the names that they have."""
    patterns = job.differences
    assert isinstance(patterns, StoredPatterns)
    assert job.member is not None
    first = job.member.number
    is_given = job.name != patterns.at(first).name
    for number in range(first, first + job.count):
        own = patterns.at(number)
        yield own._replace(name=job.name) if is_given else own
