"""Takes out of the queue's file what ended long ago, a little at a time."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from stoker.store.schema import OPEN
from stoker.store.writer import Store


class Position(NamedTuple):
    """How far the oldest ends have been looked through."""

    ended: float = 0.0
    job: int = 0


class Pruned(NamedTuple):
    """What one step took out."""

    jobs: int
    logs: list[str]
    """The files that its attempts wrote to."""
    position: Position | None
    """Where to go on; None when that was all."""
    ids: Sequence[int] = ()
    """Which jobs these were."""


def needed_jobs(store: Store) -> set[int]:
    """Jobs and arrays that others which are not over depend on: what became of them must be known."""
    query = f"SELECT DISTINCT body FROM specs JOIN jobs ON jobs.spec = specs.id WHERE {OPEN}"
    bodies = [json.loads(body) for (body,) in store._rows(query)]
    return {target["target"] for body in bodies for target in body.get("after", ())}


def prune(store: Store, before: float, start: Position, needed: Collection[int], limit: int) -> Pruned:
    """Take out some of the jobs that ended before a moment, with all that is known of them.

    An array goes as a whole, once the last of its tasks is old enough.
    """
    with store.writing() as database:
        found = database.execute(
            "SELECT ended, id, array FROM jobs WHERE ended IS NOT NULL AND (ended, id) > (?, ?) AND ended < ?"
            " ORDER BY ended, id LIMIT ?",
            (*start, before, limit),
        ).fetchall()
        kept = {array for _, _, array in found if array and _is_young(database, array, before)}
        ids = [job for _, job, array in found if array not in kept and not {job, array} & set(needed)]
        logs = _logs(database, ids)
        _delete(database, ids)
    last = Position(found[-1][0], found[-1][1]) if len(found) == limit else None
    return Pruned(len(ids), logs, last, ids)


def prune_unused(store: Store, before: float, allowed: Callable[[], bool]) -> None:
    """Take out terms, environments and batches that no job has any more.

    Whether that is allowed is asked where nobody else can write: a run may have left its environment here, and its
    first job comes later.
    """
    with store.writing() as database:
        if not allowed():
            return
        database.execute("DELETE FROM batches WHERE created < ? AND id NOT IN (SELECT batch FROM jobs)", (before,))
        database.execute("DELETE FROM specs WHERE id NOT IN (SELECT spec FROM jobs)")
        database.execute(
            "DELETE FROM environments WHERE digest NOT IN (SELECT json_extract(body, '$.environment') FROM specs)"
        )
    store._specs_by_id.clear()
    store._ids_by_spec.clear()


def unused_scripts(store: Store, folder: str, names: Sequence[str]) -> list[str]:
    """Which of the copies in a folder no job runs."""
    mark = os.fsencode(folder) + b"/"
    rows = store._rows("SELECT words FROM jobs WHERE instr(words, ?)", mark)
    used = {os.fsdecode(words.partition(mark)[2].partition(b"/")[0]) for (words,) in rows}
    return [name for name in names if name not in used]


def _is_young(database: sqlite3.Connection, array: int, before: float) -> bool:
    query = "SELECT 1 FROM jobs WHERE array = ? AND (ended IS NULL OR ended >= ?) LIMIT 1"
    return database.execute(query, (array, before)).fetchone() is not None


def _logs(database: sqlite3.Connection, ids: Sequence[int]) -> list[str]:
    rows = [row for job in ids for row in database.execute("SELECT log, errors FROM attempts WHERE job = ?", (job,))]
    return [os.fsdecode(path) for row in rows for path in row if path]


def _delete(database: sqlite3.Connection, ids: Sequence[int]) -> None:
    keys = [(job,) for job in ids]
    for table, column in (("attempts", "job"), ("measures", "job"), ("events", "job"), ("jobs", "id")):
        database.executemany(f"DELETE FROM {table} WHERE {column} = ?", keys)
