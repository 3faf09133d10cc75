"""Remove ended jobs, and what no job refers to any more, in steps whose work does not grow with the history."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from stoker.core.ranges import union
from stoker.store.schema import COVERING, ENDED, HAS_BATCH, HAS_SPEC, IN_ARRAY, OPEN
from stoker.store.writer import Store, delete_jobs, separate

_OLD_ROW = "SELECT ended, state, size, id, array, attempts FROM jobs WHERE "
UNUSED = {
    "batches": f"created < ? AND NOT EXISTS (SELECT 1 FROM jobs WHERE {HAS_BATCH} AND batch = batches.id)",
    "patterns": "? AND NOT EXISTS (SELECT 1 FROM batches WHERE batches.id = patterns.batch)",
    "specs": f"? AND NOT EXISTS (SELECT 1 FROM jobs WHERE {HAS_SPEC} AND spec = specs.id)"
    " AND NOT EXISTS (SELECT 1 FROM batches WHERE spec IS NOT NULL AND spec = specs.id)",
    "environments": "? AND NOT EXISTS"
    " (SELECT 1 FROM specs WHERE json_extract(body, '$.environment') = +environments.digest)",
}
"""When a row of a table is not needed, in the order in which they refer to each other; the value is a moment."""


class Position(NamedTuple):
    """Up to which ended job the search has come, as in the index of ended jobs."""

    ended: float = 0.0
    state: str = ""
    size: int = 0
    job: int = 0


class OldRow(NamedTuple):
    """A row of jobs that have ended; it may stand for several."""

    position: Position
    array: int
    attempts: int

    @property
    def ids(self) -> range:
        last, size = self.position.job, self.position.size
        return range(last - size + 1, last + 1)


class NeededJobs:
    """Jobs and arrays that open jobs depend on: their outcome must stay known. An array with such a task is needed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._needed: set[int] = set()
        self._engine: str | None = ""
        """The engine whose open jobs are being read; None if all were read that there were at first."""
        self._after = 0
        self._newest = store.last_job() or 0

    def __contains__(self, job_or_array: int) -> bool:
        return job_or_array in self._needed

    def among(self, ids: range) -> bool:
        """Whether one of these jobs is needed."""
        return ids[0] in self._needed if len(ids) == 1 else any(job in ids for job in self._needed)

    def read(self, limit: int) -> bool:
        """Read up to so many open jobs, and then those that were added; return whether all are known."""
        if self._engine is None:
            rows = self._dependencies("id > ?", self._newest, limit)
            self._newest = rows[-1][0] if rows else self._newest
            return len(rows) < limit
        rows = self._dependencies(f"{OPEN} AND engine = ? AND id > ?", self._engine, self._after, limit)
        self._after = rows[-1][0] if rows else self._after
        if len(rows) < limit:
            query = f"SELECT min(engine) FROM jobs INDEXED BY jobs_open WHERE {OPEN} AND engine > ?"
            ((self._engine,),) = self._store.rows(query, self._engine)
            self._after = 0
        return False

    def _dependencies(self, where: str, *values: Any) -> list[tuple[int, str | None]]:
        """Read the next jobs, and what they depend on."""
        after = "(SELECT json_extract(body, '$.after') FROM specs WHERE specs.id = jobs.spec)"
        rows = self._store.rows(f"SELECT id, {after} FROM jobs WHERE {where} ORDER BY id LIMIT ?", *values)
        for body in {body for _, body in rows if body}:
            self._add({dependency["target"] for dependency in json.loads(body)})
        return rows

    def _add(self, targets: Iterable[int]) -> None:
        for target in targets:
            self._needed.add(target)
            self._needed.update(
                *self._store.rows(f"SELECT array FROM jobs WHERE {COVERING} AND {IN_ARRAY}", target, target)
            )


def old_rows(store: Store, before: float, start: Position, limit: int) -> list[OldRow]:
    """The next rows of jobs that ended before a moment, in the order of the index."""
    # Many jobs may have ended at the same moment, and SQLite does not compare ids with those of the index.
    same = f"{ENDED} AND ended = ? AND state = ? AND size = ? AND id > ? ORDER BY id LIMIT ?"
    later = f"{ENDED} AND (ended, state, size) > (?, ?, ?) AND ended < ? ORDER BY ended, state, size, id LIMIT ?"
    rows = store.rows(_OLD_ROW + same, *start, limit)
    rows += store.rows(_OLD_ROW + later, *start[:3], before, limit - len(rows)) if len(rows) < limit else []
    return [OldRow(Position(*row[:4]), *row[4:]) for row in rows]


def last_tasks(store: Store, array: int, before: float, limit: int) -> list[OldRow] | None:
    """The last rows of an array, last first; None if one of them is not of jobs that ended before a moment."""
    tasks = store.rows(f"{_OLD_ROW}{IN_ARRAY} AND array = ? ORDER BY id DESC LIMIT ?", array, limit)
    if any(ended is None or ended >= before for ended, *_ in tasks):
        return None
    return [OldRow(Position(*row[:4]), *row[4:]) for row in tasks]


def last_lines(store: Store, row: OldRow, most: int) -> OldRow:
    """A row, or if it stands for more lines of a list, a new one of its last lines."""
    last, size = row.position.job, row.position.size
    if size <= most:
        return row
    with store.writing() as connection:
        separate(connection, last - most + 1, last)
    return row._replace(position=row.position._replace(size=most))


def young_among(store: Store, array: int, before: float, after: int, limit: int) -> tuple[bool, int | None]:
    """Whether one of the next rows of an array ended too late or not at all, and after which job to go on."""
    tasks = f"FROM jobs WHERE {IN_ARRAY} AND array = ? AND id > ? ORDER BY id LIMIT ?"
    rows = store.rows(f"SELECT id, ended IS NULL OR ended >= ? {tasks}", before, array, after, limit)
    return any(is_young for _, is_young in rows), rows[-1][0] if len(rows) == limit else None


def logs_of(store: Store, ids: range) -> list[str]:
    """Log files of all attempts."""
    rows = store.rows("SELECT log, errors FROM attempts WHERE job BETWEEN ? AND ?", ids[0], ids[-1])
    return [os.fsdecode(path) for row in rows for path in row if path]


def prune(store: Store, rows: Sequence[OldRow]) -> int:
    """Delete jobs with their attempts, measures, events and keys; return how many."""
    ids = union(row.ids for row in rows)
    with store.writing() as connection:
        delete_jobs(connection, ids)
    return len(ids)


def prune_unused(
    store: Store, table: str, after: int, limit: int, *, before: float, allowed: Callable[[], bool]
) -> int | None:
    """Delete what no job refers to among the next rows of a table in `UNUSED`; return after which row to go on.

    `allowed` is called inside the write transaction: a run adds its environment before its first job.
    """
    with store.writing() as connection:
        some = f"SELECT rowid AS number FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT ?"
        query = f"SELECT max(number), count(*) FROM ({some})"
        last, count = connection.execute(query, (after, limit)).fetchone()
        if not count or not allowed():
            return None
        query = f"DELETE FROM {table} WHERE rowid > ? AND rowid <= ? AND {UNUSED[table]}"
        deleted = connection.execute(query, (after, last, before)).rowcount
    if deleted:
        store.forget_rows()
    return int(last) if count == limit else None


def prune_member_records(store: Store, after: int, limit: int) -> int | None:
    """Delete up to so many records of members of a batch that is gone; return after which batch to go on."""
    with store.writing() as connection:
        (batch,) = connection.execute("SELECT min(batch) FROM member_records WHERE batch > ?", (after,)).fetchone()
        if batch is None or connection.execute("SELECT 1 FROM batches WHERE id = ?", (batch,)).fetchone():
            return None if batch is None else int(batch)
        some = "SELECT number FROM member_records WHERE batch = ? ORDER BY number LIMIT ?"
        query = f"DELETE FROM member_records WHERE batch = ? AND number IN ({some})"
        deleted = connection.execute(query, (batch, batch, limit)).rowcount
    return int(batch) if deleted < limit else after


def used_scripts(store: Store, folder: str, after: int, limit: int) -> tuple[set[str], int, bool]:
    """The script copies in a folder that the next jobs run, the last of these jobs, and whether it is the newest."""
    mark = os.fsencode(folder) + b"/"
    own = "SELECT id, words FROM jobs WHERE id > ? AND words IS NOT NULL"
    # The commands of members that follow from patterns are in these; they count for the last job of their batch.
    members = "SELECT (SELECT max(id) FROM jobs WHERE batch > 0 AND batch = patterns.batch) AS id, body FROM patterns"
    others = f"SELECT id, words FROM lines WHERE id > ? UNION ALL SELECT id, body FROM ({members}) WHERE id > ?"
    words = f"{own} UNION ALL {others}"
    query = f"SELECT id, CASE WHEN instr(words, ?) THEN words END FROM ({words}) ORDER BY id LIMIT ?"
    rows = store.rows(query, mark, after, after, after, limit)
    used = {os.fsdecode(words.partition(mark)[2].partition(b"/")[0]) for _, words in rows if words}
    return used, rows[-1][0] if rows else after, len(rows) < limit
