"""Ids and names of jobs for a shell that completes them: read fast, and never in anybody's way."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

from stoker.store.rows import OPEN

LIMIT = 60
"""Nobody reads more of them in a shell."""
_PATIENCE = 0.2


class Hint(NamedTuple):
    """A job as a shell may offer it: an array by its first task."""

    word: str
    name: str
    state: str


def hints(path: Path, beginning: str, *, ended: bool) -> list[Hint]:
    """The newest jobs whose id begins so; with `ended` also those that are over. Nothing where there is no queue."""
    which = "1" if ended else OPEN
    begins = "AND CAST(id AS TEXT) LIKE ? || '%'" if beginning else "AND ? = ''"
    query = f"SELECT id, array, task, name, state FROM jobs WHERE {which} {begins} ORDER BY id DESC LIMIT ?"
    return [_hint(*row) for row in _read(path, query, beginning, LIMIT)]


def names(path: Path, beginning: str, *, ended: bool) -> list[str]:
    """Names of jobs that begin so, those of the newest jobs first."""
    which = "1" if ended else OPEN
    recent = f"SELECT id, name FROM jobs WHERE {which} AND name != '' ORDER BY id DESC LIMIT 1000"
    query = (
        f"SELECT name FROM ({recent}) WHERE substr(name, 1, length(?)) = ? GROUP BY name ORDER BY max(id) DESC LIMIT ?"
    )
    return [name for (name,) in _read(path, query, beginning, beginning, LIMIT)]


def _hint(job: int, array: int, task: int | None, name: str, state: str) -> Hint:
    return Hint(f"{array}.{task}" if array else str(job), name, state)


def _read(path: Path, query: str, *values: object) -> list[tuple[Any, ...]]:
    with contextlib.suppress(sqlite3.Error):
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_PATIENCE)) as database:
            return database.execute(query, values).fetchall()
    return []
