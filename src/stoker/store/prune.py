"""Delete jobs that ended long ago, in small steps."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from stoker.store.schema import OPEN
from stoker.store.writer import Store


class Position(NamedTuple):
    """Up to which ended job the search has come."""

    ended: float = 0.0
    job: int = 0


class Pruned(NamedTuple):
    """What one step deleted."""

    jobs: int
    logs: list[str]
    """Log files of the deleted attempts."""
    position: Position | None
    """Where the next step begins; None after the last step."""
    ids: Sequence[int] = ()


def needed_jobs(store: Store) -> set[int]:
    """Jobs and arrays that open jobs depend on: their outcome must stay known."""
    query = f"SELECT DISTINCT body FROM specs JOIN jobs ON jobs.spec = specs.id WHERE {OPEN}"
    bodies = [json.loads(body) for (body,) in store.rows(query)]
    return {target["target"] for body in bodies for target in body.get("after", ())}


def prune(store: Store, before: float, start: Position, needed: Collection[int], limit: int) -> Pruned:
    """Delete up to `limit` jobs that ended before a moment, with their attempts, measures and events.

    An array is deleted as a whole, once the last of its tasks is old enough.
    """
    with store.writing() as connection:
        found = connection.execute(
            "SELECT ended, id, array FROM jobs WHERE ended IS NOT NULL AND (ended, id) > (?, ?) AND ended < ?"
            " ORDER BY ended, id LIMIT ?",
            (*start, before, limit),
        ).fetchall()
        kept = {array for _, _, array in found if array and _is_young(connection, array, before)}
        ids = [job for _, job, array in found if array not in kept and not {job, array} & set(needed)]
        logs = _logs(connection, ids)
        _delete(connection, ids)
    last = Position(found[-1][0], found[-1][1]) if len(found) == limit else None
    return Pruned(len(ids), logs, last, ids)


def prune_unused(store: Store, before: float, allowed: Callable[[], bool]) -> None:
    """Delete specs, environments and batches that no job refers to.

    `allowed` is called inside the write transaction: a run adds its environment before its first job.
    """
    with store.writing() as connection:
        if not allowed():
            return
        connection.execute("DELETE FROM batches WHERE created < ? AND id NOT IN (SELECT batch FROM jobs)", (before,))
        connection.execute("DELETE FROM specs WHERE id NOT IN (SELECT spec FROM jobs)")
        connection.execute(
            "DELETE FROM environments WHERE digest NOT IN (SELECT json_extract(body, '$.environment') FROM specs)"
        )
    store.forget_specs()


def unused_scripts(store: Store, folder: str, names: Sequence[str]) -> list[str]:
    """The script copies in a folder that no job runs."""
    mark = os.fsencode(folder) + b"/"
    rows = store.rows("SELECT words FROM jobs WHERE instr(words, ?)", mark)
    used = {os.fsdecode(words.partition(mark)[2].partition(b"/")[0]) for (words,) in rows}
    return [name for name in names if name not in used]


def _is_young(connection: sqlite3.Connection, array: int, before: float) -> bool:
    query = "SELECT 1 FROM jobs WHERE array = ? AND (ended IS NULL OR ended >= ?) LIMIT 1"
    return connection.execute(query, (array, before)).fetchone() is not None


def _logs(connection: sqlite3.Connection, ids: Sequence[int]) -> list[str]:
    rows = [row for job in ids for row in connection.execute("SELECT log, errors FROM attempts WHERE job = ?", (job,))]
    return [os.fsdecode(path) for row in rows for path in row if path]


def _delete(connection: sqlite3.Connection, ids: Sequence[int]) -> None:
    keys = [(job,) for job in ids]
    tables = ("attempts", "job"), ("measures", "job"), ("events", "job"), ("keys", "job"), ("jobs", "id")
    for table, column in tables:
        connection.executemany(f"DELETE FROM {table} WHERE {column} = ?", keys)
