"""Which jobs are meant: by numbers, arrays, names and states, each with one query however many there are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Literal

from stoker.core.job import Job
from stoker.store.reading import Reading
from stoker.store.rows import JOB, OPEN, text_of

_PAGE = 10_000
_NO_HOOK = "coalesce((SELECT json_extract(body, '$.role') FROM terms WHERE terms.id = jobs.terms), 'job') = 'job'"
_SCOPES = {"open": OPEN, "ended": "ended IS NOT NULL", "any": "1"}
_FAILED = "state IN ('failed', 'oom', 'timeout', 'skipped', 'lost')"


def ids_between(store: Reading, first: int, last: int) -> list[int]:
    """Jobs by their ids; the first id of an array stands for all its tasks."""
    rows = store._rows(
        "SELECT id FROM jobs WHERE id BETWEEN ? AND ? UNION SELECT id FROM jobs WHERE array BETWEEN ? AND ?"
        " AND array != 0 ORDER BY id",
        *(first, last, first, last),
    )
    return [job_id for (job_id,) in rows]


def ids_of_tasks(store: Reading, array: int, first: int, last: int) -> list[int]:
    """Tasks of an array by their index, in the order of their ids."""
    query = "SELECT id FROM jobs WHERE array = ? AND array != 0 AND task BETWEEN ? AND ? ORDER BY id"
    return [job_id for (job_id,) in store._rows(query, array, first, last)]


def range_of_tasks(store: Reading, array: int) -> tuple[int, int] | None:
    """The first and the last index of an array's tasks, None where it is no array."""
    ((first, last),) = store._rows("SELECT min(task), max(task) FROM jobs WHERE array = ? AND array != 0", array)
    return None if first is None else (first, last)


def newest(store: Reading) -> tuple[int, int] | None:
    """Id and array of the job submitted last."""
    rows = store._rows(f"SELECT id, array FROM jobs WHERE {_NO_HOOK} ORDER BY id DESC LIMIT 1")
    return (rows[0][0], rows[0][1]) if rows else None


def open_ids(store: Reading) -> list[int]:
    """All jobs that are not over."""
    return [job_id for (job_id,) in store._rows(f"SELECT id FROM jobs WHERE {OPEN} AND {_NO_HOOK} ORDER BY id")]


def ended_ids(store: Reading) -> list[int]:
    """All jobs that are over."""
    rows = store._rows(f"SELECT id FROM jobs WHERE ended IS NOT NULL AND {_NO_HOOK} ORDER BY id")
    return [job_id for (job_id,) in rows]


def ids_named(store: Reading, pattern: str, scope: Literal["open", "ended", "any"], *, glob: bool) -> list[int]:
    """Jobs by their name, or by a pattern with `*`, `?` and `[...]`."""
    condition = f"name {'GLOB' if glob else '='} ? AND {_SCOPES[scope]} AND {_NO_HOOK}"
    written = text_of(pattern).replace("[!", "[^") if glob else text_of(pattern)
    return [job_id for (job_id,) in store._rows(f"SELECT id FROM jobs WHERE {condition} ORDER BY id", written)]


def names(store: Reading, limit: int = 2000) -> list[str]:
    """The names of the newest jobs, each once."""
    query = "SELECT DISTINCT name FROM (SELECT name FROM jobs WHERE name != '' ORDER BY id DESC LIMIT ?)"
    return [name for (name,) in store._rows(query, limit)]


def failed_among(store: Reading, ids: Sequence[int]) -> list[int]:
    """Those of the jobs that ended badly."""
    query = f"SELECT id FROM jobs WHERE id IN (SELECT value FROM json_each(?)) AND {_FAILED} ORDER BY id"
    return [job_id for (job_id,) in store._rows(query, json.dumps(list(ids)))]


def failed_since(store: Reading, engine: str, since: float) -> list[int]:
    """Those of an engine's jobs that ended badly since a moment."""
    query = f"SELECT id FROM jobs WHERE ended >= ? AND {_FAILED} AND engine = ? AND {_NO_HOOK} ORDER BY id"
    return [job_id for (job_id,) in store._rows(query, since, engine)]


def skipped_after(store: Reading, job_id: int) -> Iterator[Job]:
    """Jobs that were skipped, of those submitted after one, in the order of their ids."""
    query = "SELECT id FROM jobs INDEXED BY jobs_ended WHERE ended IS NOT NULL AND state = 'skipped' AND id > ?"
    return jobs_of(store, sorted(found for (found,) in store._rows(query, job_id)))


def jobs_of(store: Reading, ids: Sequence[int]) -> Iterator[Job]:
    """The jobs, in the order of their ids, a page at a time."""
    for at in range(0, len(ids), _PAGE):
        page = json.dumps(list(ids[at : at + _PAGE]))
        rows = store._rows(JOB + "id IN (SELECT value FROM json_each(?)) ORDER BY id", page)
        yield from (store._job_of(row) for row in rows)


def open_among(store: Reading, ids: Sequence[int]) -> list[int]:
    """Those of the jobs that are not over."""
    query = f"SELECT id FROM jobs WHERE id IN (SELECT value FROM json_each(?)) AND {OPEN} ORDER BY id"
    return [job_id for (job_id,) in store._rows(query, json.dumps(list(ids)))]


def owners_of(store: Reading, ids: Sequence[int]) -> dict[str, list[int]]:
    """The engines that the jobs belong to, each with its jobs."""
    query = "SELECT engine, id FROM jobs WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id"
    owners: dict[str, list[int]] = {}
    for engine, job_id in store._rows(query, json.dumps(list(ids))):
        owners.setdefault(engine, []).append(job_id)
    return owners


def unanswered(store: Reading, numbers: Sequence[int]) -> int:
    """How many of the requests, which were left together, no engine has answered yet."""
    if not numbers:
        return 0
    query = "SELECT count(*) FROM requests WHERE id BETWEEN ? AND ?"
    return int(store._rows(query, min(numbers), max(numbers))[0][0])


def is_expected(store: Reading, engine: str) -> bool:
    """Whether an engine has jobs that are not over, or requests to answer."""
    query = f"SELECT 1 FROM jobs WHERE engine = ? AND {OPEN} UNION ALL SELECT 1 FROM requests WHERE engine = ? LIMIT 1"
    return bool(store._rows(query, engine, engine))
