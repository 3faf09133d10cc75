"""Ids and names of jobs for shell completion: fast, and without waiting for locks."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from stoker.store.database import has_log_without_file
from stoker.store.schema import OPEN

LIMIT = 60
"""Most hints that a shell shows."""
SCANNED = 5000
"""Newest jobs that are searched."""
_PATIENCE = 0.2


class Hint(NamedTuple):
    """A job or an array that a shell offers."""

    word: str
    meaning: str


def hints(path: Path, beginning: str, *, ended: bool) -> list[Hint]:
    """The newest jobs whose id has this prefix, an array as one entry; after a dot, the tasks of that array.

    `ended` includes ended jobs. Empty if no queue can be read.
    """
    which = "1" if ended else OPEN
    array, dot, _ = beginning.partition(".")
    within = "array != 0 AND array = ?" if dot else "? IS NOT NULL"
    columns = "id, array, task, step, size, name, state"
    query = f"SELECT {columns} FROM jobs WHERE {which} AND {within} ORDER BY id DESC LIMIT ?"
    rows = _read(path, query, int(array) if array.isdecimal() else 0, SCANNED)
    offered: dict[str, Hint] = {}
    for hint in islice(_hints(rows, whole=not dot), SCANNED):
        if hint.word.startswith(beginning):
            offered.setdefault(hint.word, hint)
    return list(offered.values())[:LIMIT]


def names(path: Path, beginning: str, *, ended: bool) -> list[str]:
    """Names of jobs with this prefix, newest jobs first."""
    which = "1" if ended else OPEN
    recent = f"SELECT id, name FROM jobs WHERE {which} AND name != '' ORDER BY id DESC LIMIT {SCANNED}"
    query = (
        f"SELECT name FROM ({recent}) WHERE substr(name, 1, length(?)) = ? GROUP BY name ORDER BY max(id) DESC LIMIT ?"
    )
    return [name for (name,) in _read(path, query, beginning, beginning, LIMIT)]


def _hints(rows: Iterable[tuple[Any, ...]], *, whole: bool) -> Iterator[Hint]:
    for job, array, task, step, size, name, state in rows:
        meaning = " ".join(filter(None, (state, name)))
        if array and whole:
            yield Hint(str(array), " ".join(filter(None, ("array", name))))
        elif array:
            yield from (Hint(f"{array}.{task - place * step}", meaning) for place in range(size))
        else:
            yield from (Hint(str(job - place), meaning) for place in range(size))


def _read(path: Path, query: str, *values: object) -> list[tuple[Any, ...]]:
    if has_log_without_file(path):
        return []
    with contextlib.suppress(sqlite3.Error):
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_PATIENCE)) as database:
            return database.execute(query, values).fetchall()
    return []
