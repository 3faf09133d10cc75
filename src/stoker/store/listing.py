"""Pages of jobs in any order; SQLite sorts and counts, so that only the jobs of one page are read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from stoker.store.filters import NO_FILTER, OF_GROUP, SCOPES, Filter, Group, Scope, condition
from stoker.store.reader import Reader
from stoker.store.schema import IN_ARRAY, OF_ON_FINISH_JOBS, OPEN

_QUEUED = "(state = 'waiting' OR state = 'held')"
_STATES = "instr('running stopping starting waiting held', state)"
_OF_SPEC = "(SELECT json_extract(body, '$.{}') FROM specs WHERE specs.id = jobs.spec)"
_STARTED = "(SELECT started FROM attempts WHERE attempts.job = jobs.id AND attempts.number = jobs.attempts)"
_PEAK = "(SELECT peak FROM measures WHERE measures.job = jobs.id AND measures.number = jobs.attempts)"
SORTS = {
    "id": "min(id)",
    "name": "name COLLATE NOCASE",
    "state": _STATES,
    "priority": f"coalesce({_OF_SPEC.format('priority')}, 0)",
    "group": f"coalesce({_OF_SPEC.format('group')}, '')",
    "submitted": "submitted",
    "started": _STARTED,
    "ended": "ended",
    "seconds": f"coalesce(ended, 86400.0 * (julianday('now') - 2440587.5)) - {_STARTED}",
    "memory": _PEAK,
}
"""Columns to sort by; a minus before the name reverses the order."""
_FROM: dict[Scope, str] = {
    "open": "jobs INDEXED BY jobs_open",
    "ended": "jobs INDEXED BY jobs_ended",
    "any": "jobs",
}


class Listing(NamedTuple):
    """Which jobs are wanted, as lines: a job, or the tasks of an array that wait alike."""

    scope: Scope = "open"
    chosen: Filter = NO_FILTER
    each_task: bool = False
    """Whether every task has its own line."""
    only: Sequence[int] | None = None
    """Restricts the jobs that the filter chooses to these ids."""
    without: Sequence[int] = ()
    """Ids that are left out."""
    listed: Sequence[int] = ()
    """Jobs and arrays whose waiting jobs are left out, since they are listed already."""
    on_finish_jobs: bool = False


def count_lines(reader: Reader, listing: Listing) -> int:
    where, values = _where(reader, listing)
    jobs = int(reader.rows(f"SELECT count(*) FROM {_FROM[listing.scope]} WHERE {where}", *values)[0][0])
    if listing.each_task or listing.scope == "ended":
        return jobs
    # Tasks older than every open job are passed over in the index, without reading their rows.
    oldest = f"(SELECT min(id) FROM jobs INDEXED BY jobs_open WHERE {OPEN})"
    query = (
        "SELECT count(*), count(DISTINCT array || state || engine) FROM jobs INDEXED BY jobs_array"
        f" WHERE {IN_ARRAY} AND id >= {oldest} AND {_QUEUED} AND {where}"
    )
    ((tasks, lines),) = reader.rows(query, *values)
    return jobs - int(tasks) + int(lines)


def counts_of_array(reader: Reader, array: int) -> dict[str, int]:
    """How many tasks of an array are in each state, as stored."""
    return dict(reader.rows("SELECT state, count(*) FROM jobs WHERE array = ? GROUP BY state ORDER BY state", array))


def page_of_lines(reader: Reader, listing: Listing, sort: str, offset: int, limit: int) -> list[Group]:
    """Lines in an order of `SORTS`, then by id."""
    where, values = _where(reader, listing)
    together = "id" if listing.each_task else f"CASE WHEN array != 0 AND {_QUEUED} THEN -array ELSE id END"
    order = f"{SORTS[sort.removeprefix('-')]} {'DESC' if sort.startswith('-') else 'ASC'}"
    query = (
        f"SELECT {OF_GROUP} FROM {_FROM[listing.scope]} WHERE {where}"
        f" GROUP BY {together}, state, engine ORDER BY {order}, min(id) LIMIT ? OFFSET ?"
    )
    return [Group(*row) for row in reader.rows(query, *values, limit, offset)]


def waiting_with_conditions(reader: Reader, limit: int) -> list[int]:
    """Ids of waiting jobs that may wait for other jobs or for a time."""
    conditions = "json_array_length(body, '$.after') > 0 OR json_extract(body, '$.begin') IS NOT NULL"
    query = (
        f"SELECT id FROM jobs INDEXED BY jobs_open WHERE {OPEN} AND state = 'waiting'"
        f" AND spec IN (SELECT id FROM specs WHERE {conditions}) LIMIT ?"
    )
    return [job_id for (job_id,) in reader.rows(query, limit)]


def _where(reader: Reader, listing: Listing) -> tuple[str, list[Any]]:
    matching, values = condition(listing.chosen)
    parts = [SCOPES[listing.scope], *([] if listing.chosen == NO_FILTER else [matching])]
    query = f"SELECT id FROM specs WHERE {OF_ON_FINISH_JOBS}"
    if on_finish := [] if listing.on_finish_jobs else [spec for (spec,) in reader.rows(query)]:
        parts.append("spec NOT IN (SELECT value FROM json_each(?))")
        values.append(json.dumps(on_finish))
    if listing.only is not None:
        parts.append("id IN (SELECT value FROM json_each(?))")
        values.append(json.dumps(list(listing.only)))
    if listing.without:
        parts.append("id NOT IN (SELECT value FROM json_each(?))")
        values.append(json.dumps(list(listing.without)))
    if listing.listed:
        key = "CASE WHEN array != 0 THEN array ELSE id END"
        parts.append(f"NOT (state = 'waiting' AND {key} IN (SELECT value FROM json_each(?)))")
        values.append(json.dumps(list(listing.listed)))
    return " AND ".join(parts), values
