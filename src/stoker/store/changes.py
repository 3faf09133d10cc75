"""Whether a store has changed, and which jobs changed since a moment."""

from __future__ import annotations

from typing import NamedTuple

from stoker.core.ranges import Ranges, union
from stoker.store.reader import Reader
from stoker.store.schema import FIRST
from stoker.store.waiting import Backoff


class StoreChanges:
    """Notices cheaply that another process has written to the store, and how long to wait before the next look."""

    def __init__(self, store: Reader) -> None:
        self._store = store
        self._version = -1
        self._pauses = Backoff()

    @property
    def is_current(self) -> bool:
        """Whether nothing was written since the last look."""
        return self._version == self._store.version_of_data()

    def look(self) -> bool:
        """Whether something was written since the last look; true at the first one."""
        version, self._version = self._version, self._store.version_of_data()
        return version != self._version

    def hurry(self) -> None:
        """Look again soon: what the caller waits for has happened, and more may follow."""
        self._pauses.reset()

    def wait(self, deadline: float | None = None) -> None:
        """Pause until the next look is due, longer each time."""
        self._pauses.wait(deadline)


class Cursor(NamedTuple):
    """A moment in the life of a store: the last event and the last job that were written."""

    event: int = 0
    job: int = 0


def cursor_now(reader: Reader) -> Cursor:
    ((event, job),) = reader.rows(
        "SELECT coalesce((SELECT max(id) FROM events), 0), coalesce((SELECT max(id) FROM jobs), 0)"
    )
    return Cursor(event, job)


def jobs_changed_since(reader: Reader, cursor: Cursor, limit: int) -> Ranges:
    """Ids of up to `limit` jobs that were submitted or had an event since then, in order."""
    rows = reader.rows(
        "SELECT * FROM (SELECT DISTINCT job, job + count FROM events WHERE id > ? LIMIT ?)"
        f" UNION SELECT * FROM (SELECT {FIRST}, id + 1 FROM jobs WHERE id > ? LIMIT ?)",
        *(cursor.event, limit, cursor.job, limit),
    )
    return union(range(first, end) for first, end in rows)[:limit]
