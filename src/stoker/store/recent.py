"""Which jobs changed since a moment, by the order in which events and jobs were written."""

from __future__ import annotations

from typing import NamedTuple

from stoker.store.reader import Reader


class Cursor(NamedTuple):
    """A moment in the life of a store: the last event and the last job that were written."""

    event: int = 0
    job: int = 0


def cursor_now(reader: Reader) -> Cursor:
    ((event, job),) = reader.rows(
        "SELECT coalesce((SELECT max(id) FROM events), 0), coalesce((SELECT max(id) FROM jobs), 0)"
    )
    return Cursor(event, job)


def jobs_changed_since(reader: Reader, cursor: Cursor, limit: int) -> list[int]:
    """Ids of up to `limit` jobs that were submitted or had an event since then, in order."""
    rows = reader.rows(
        "SELECT * FROM (SELECT DISTINCT job FROM events WHERE id > ? LIMIT ?)"
        " UNION SELECT * FROM (SELECT id FROM jobs WHERE id > ? LIMIT ?) ORDER BY 1 LIMIT ?",
        *(cursor.event, limit, cursor.job, limit, limit),
    )
    return [job_id for (job_id,) in rows]
