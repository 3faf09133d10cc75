"""Read queries of front ends: open jobs, selections, dependencies, settings keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from glob import escape
from math import gcd
from typing import Any, NamedTuple

import msgspec

from stoker.core.job import Job, part
from stoker.core.outcomes import FAILURES, GOOD_RESULTS
from stoker.core.ranges import Ranges, joined, ranges_of, union
from stoker.core.settings import Policy
from stoker.store.filters import (
    ALL_ROWS,
    NOT_NESTED,
    NOT_ON_FINISH,
    SCOPES,
    JobRows,
    Scope,
    ids_where,
    ids_with_names,
    rows_among,
)
from stoker.store.reader import Reader
from stoker.store.schema import (
    ACTIVE,
    ENDED,
    FIRST,
    FIRST_TASK,
    HELD,
    IN_ARRAY,
    IS_MEMBER,
    JOB,
    OF_ON_FINISH_JOBS,
    OPEN,
    text_of,
)

# Named, because SQLite would otherwise scan the whole table.
_OPEN_JOBS, _ACTIVE_JOBS, _HELD_JOBS = (
    f"jobs INDEXED BY {name}" for name in ("jobs_open", "jobs_active", "jobs_on_hold")
)

_INDEXES = {OPEN: _OPEN_JOBS, ACTIVE: _ACTIVE_JOBS, HELD: _HELD_JOBS}
_OPEN_JOB = JOB.replace(" FROM jobs", f" FROM {_OPEN_JOBS}")
_QUEUED = "state IN ('waiting', 'held')"
_PAGE = 10_000
DRAINED = "drained "
"""Prefix of the keys of `drained_key`."""
_FAILED = f"state IN {(*FAILURES, 'skipped')}"


class Owned(NamedTuple):
    """A job and the engine that owns it."""

    job: Job
    engine: str


class Load(NamedTuple):
    """How many jobs of one engine are open, and how many of those are active or held."""

    open: int = 0
    active: int = 0
    held: int = 0

    @property
    def waiting(self) -> int:
        """Open jobs that are neither active nor held."""
        return self.open - self.active - self.held


class Tasks(NamedTuple):
    """Queued tasks of one array that are in the same state: the first of them, and the indices of all."""

    first: Job
    indices: Ranges


def loads(reader: Reader) -> dict[str, Load]:
    """The engines that own open jobs."""
    counted = [_counts_by_engine(reader, state) for state in (OPEN, ACTIVE, HELD)]
    return {engine: Load(*(counts.get(engine, 0) for counts in counted)) for engine in counted[0]}


def all_active(reader: Reader) -> list[Owned]:
    """All jobs that workers hold, by id."""
    query = JOB.replace(" FROM jobs", f", engine FROM {_ACTIVE_JOBS}") + ACTIVE
    owned = [Owned(reader.job_of(row[:-1]), row[-1]) for row in reader.rows(query)]
    return sorted(owned, key=lambda one: one.job.id)


def batch_by_id(reader: Reader, first_job: int) -> int | None:
    """The batch with a record that users name by the id of a job."""
    rows = reader.rows("SELECT id FROM batches WHERE first_job = ?", first_job)
    return rows[0][0] if rows else None


def batch_named(reader: Reader, name: str) -> int | None:
    """The newest batch with a record that has a name."""
    query = "SELECT id FROM batches WHERE first_job IS NOT NULL AND name = ? ORDER BY created DESC, id DESC LIMIT 1"
    rows = reader.rows(query, text_of(name))
    return rows[0][0] if rows else None


def ids_of_batch(reader: Reader, batch: int) -> Ranges:
    """Ids of a batch's coordinator and members."""
    coordinator = "SELECT jobs.id, jobs.id FROM batches JOIN jobs ON jobs.id = coordinator WHERE batches.id = ?"
    members = f"SELECT {FIRST}, id FROM jobs WHERE batch = ? AND {IS_MEMBER}"
    rows = reader.rows(f"{coordinator} UNION {members}", batch, batch)
    return union(range(first, last + 1) for first, last in rows)


def coordinator_of(reader: Reader, batch: int) -> int | None:
    """The job that ends after all members of a batch."""
    rows = reader.rows("SELECT coordinator FROM batches WHERE id = ?", batch)
    return rows[0][0] if rows else None


def is_coordinator(reader: Reader, job_id: int) -> bool:
    """Whether users name a batch by its coordinator, and by this job."""
    return bool(reader.rows("SELECT 1 FROM batches WHERE first_job = ? AND coordinator = first_job", job_id))


def has_open_members(reader: Reader, batch: int) -> bool:
    """Whether a member has not ended, or an engine still has to handle a request for one, such as a retry."""
    query = (
        f"SELECT 1 FROM jobs INDEXED BY jobs_open WHERE {OPEN} AND batch = ? AND {IS_MEMBER} UNION ALL"
        " SELECT 1 FROM requests JOIN jobs ON jobs.id BETWEEN requests.job AND"
        " (SELECT min(id) FROM jobs AS other WHERE other.id >= requests.job + requests.count - 1)"
        f" WHERE batch = ? AND {IS_MEMBER} LIMIT 1"
    )
    return bool(reader.rows(query, batch, batch))


def queued_jobs(reader: Reader, engine: str, after: int, limit: int) -> list[Job]:
    """The engine's jobs that no worker holds, by id, so many rows; one may stand for several jobs."""
    query = f"{_OPEN_JOB}engine = ? AND id > ? AND {OPEN} AND {_QUEUED} ORDER BY id LIMIT ?"
    return [reader.job_of(row) for row in reader.rows(query, engine, after, limit)]


def queued_on_finish_jobs(reader: Reader) -> int:
    """How many of the waiting jobs are on-finish jobs."""
    specs = on_finish_specs(reader)
    if not specs:
        return 0
    waiting = f"{OPEN} AND state = 'waiting' AND spec IN ({marks(specs)})"
    return int(reader.rows(f"SELECT {ALL_ROWS.total} FROM {_OPEN_JOBS} WHERE {waiting}", *specs)[0][0])


def last_of_array(reader: Reader, array: int) -> int:
    """The id of an array's last task; its tasks have consecutive ids."""
    ((last,),) = reader.rows(f"SELECT max(id) FROM jobs WHERE array = ? AND {IN_ARRAY}", array)
    return int(last or array)


def queued_tasks(reader: Reader, engine: str, array: int) -> list[Tasks]:
    """The tasks of an array that no worker holds: the waiting ones, then the held ones."""
    within = (engine, array, last_of_array(reader, array))
    columns = f"SELECT {FIRST}, {FIRST_TASK}, step, size FROM {_OPEN_JOBS}"
    tasks = []
    for state in ("state = 'waiting'", HELD):
        where = f"engine = ? AND id BETWEEN ? AND ? AND {OPEN} AND {state} ORDER BY id"
        if rows := reader.rows(f"{columns} WHERE {where}", *within):
            first = reader.job(rows[0][0])
            assert first is not None
            indices = Ranges(range(task, task + size * step, step) for _, task, step, size in rows)
            tasks.append(Tasks(first, indices))
    return tasks


def queued_by_batch(reader: Reader, engine: str) -> list[tuple[int, float, Ranges]]:
    """The ids of an engine's jobs that no worker holds, with the batch and the first submission."""
    columns = f"batch, submitted, {FIRST}, id"
    query = f"SELECT {columns} FROM {_OPEN_JOBS} WHERE engine = ? AND {OPEN} AND {_QUEUED} ORDER BY id"
    batches: dict[int, tuple[float, list[range]]] = {}
    for batch, submitted, first, last in reader.rows(query, engine):
        batches.setdefault(batch, (submitted, []))[1].append(range(first, last + 1))
    return [(batch, submitted, joined(parts)) for batch, (submitted, parts) in batches.items()]


def count_waiting(reader: Reader, engine: str, first: int, end: int) -> int:
    """How many waiting jobs of an engine have an id from `first` up to `end`."""
    # The row that has the last of them may end later.
    beyond = f"coalesce((SELECT min(id) FROM {_OPEN_JOBS} WHERE engine = ? AND id >= ? AND {OPEN}), ?)"
    within = f"engine = ? AND id >= ? AND id <= {beyond} AND {FIRST} < ?"
    overlap = f"min(id, ?) - max({FIRST}, ?) + 1"
    query = f"SELECT coalesce(sum({overlap}), 0) FROM {_OPEN_JOBS} WHERE {within} AND {OPEN} AND state = 'waiting'"
    values = end - 1, first, engine, first, engine, end - 1, end, end
    return int(reader.rows(query, *values)[0][0])


def _counts_by_engine(reader: Reader, state: str) -> dict[str, int]:
    """Count per engine: a GROUP BY takes SQLite twice as long, and engines are few."""
    total = "count(*)" if state == ACTIVE else ALL_ROWS.total
    count = f"SELECT {total} FROM {_INDEXES[state]} WHERE {state}"
    engines = list(_engines_with(reader, state))
    if len(engines) == 1:  # nearly always; comparing the names would take half as long again
        return {engines[0]: reader.rows(count)[0][0]}
    return {engine: reader.rows(f"{count} AND engine = ?", engine)[0][0] for engine in engines}


def _engines_with(reader: Reader, state: str) -> Iterator[str]:
    """Step from one name to the next in the index, without scanning the jobs between them."""
    following = f"SELECT engine FROM {_INDEXES[state]} WHERE {state} AND engine > ? ORDER BY engine LIMIT 1"
    engine = ""
    while rows := reader.rows(following, engine):
        ((engine,),) = rows
        yield engine


def on_finish_specs(reader: Reader) -> list[int]:
    """JobRows of specs that only on-finish jobs have; there are few."""
    return [spec for (spec,) in reader.rows(f"SELECT id FROM specs WHERE {OF_ON_FINISH_JOBS}")]


def marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def ids_between(reader: Reader, first: int, last: int) -> Ranges:
    """Jobs by their ids; the first id of an array stands for all its tasks."""
    meant = ids_where(reader, rows_among(range(first, last + 1)), "1")
    arrays = ids_where(reader, ALL_ROWS, f"array BETWEEN ? AND ? AND {IN_ARRAY}", first, last)
    return union((*meant.parts, *arrays.parts))


def ids_of_tasks(reader: Reader, array: int, first: int, last: int, step: int = 1) -> Ranges:
    """The tasks of an array with indices from the first to the last, or every so many."""
    columns = f"SELECT {FIRST}, {FIRST_TASK}, step, size FROM jobs"
    within = f"{IN_ARRAY} AND array = ? AND task >= ? AND {FIRST_TASK} <= ? ORDER BY id"
    wanted, parts = range(first, last + 1, step), list[range]()
    for job_id, task, distance, size in reader.rows(f"{columns} WHERE {within}", array, first, last):
        places = _common_places(range(task, task + size * distance, distance), wanted)
        ids = range(job_id + places.start, job_id + places.stop, places.step)
        parts += [ids] if ids.step == 1 else ranges_of(ids).parts
    return joined(parts)


def _common_places(indices: range, wanted: range) -> range:
    """Where in a range are the numbers that another one has, too."""
    period = wanted.step // gcd(indices.step, wanted.step)
    begin = max(0, -((indices.start - wanted.start) // indices.step))  # of the first that is not too small
    starts = (place for place in range(begin, begin + period) if (indices.start + place * indices.step) in wanted)
    first = next(starts, len(indices))
    end = min(len(indices), (wanted[-1] - indices.start) // indices.step + 1)
    return range(first, max(first, end), period)


def range_of_tasks(reader: Reader, array: int) -> tuple[int, int] | None:
    """The first and the last index of an array's tasks; None if there is no such array."""
    query = f"SELECT min({FIRST_TASK}), max(task) FROM jobs WHERE array = ? AND {IN_ARRAY}"
    ((first, last),) = reader.rows(query, array)
    return None if first is None else (first, last)


def newest(reader: Reader) -> tuple[int, int] | None:
    """Id and array of the job submitted last; one of a run inside a job was submitted by that job, not by the user."""
    rows = reader.rows(f"SELECT id, array FROM jobs WHERE {NOT_ON_FINISH} AND {NOT_NESTED} ORDER BY id DESC LIMIT 1")
    return (rows[0][0], rows[0][1]) if rows else None


def all_ids(reader: Reader, scope: Scope) -> Ranges:
    return ids_where(reader, ALL_ROWS, f"{SCOPES[scope]} AND {NOT_ON_FINISH}")


def ids_named(reader: Reader, pattern: str, scope: Scope, *, glob: bool) -> Ranges:
    """Jobs by their name, or by a pattern with `*`, `?` and `[...]`."""
    named = ids_with_names(reader, [pattern if glob else escape(pattern)], scope)
    return ids_where(reader, rows_among(named), NOT_ON_FINISH)


def names(reader: Reader, limit: int = 2000) -> list[str]:
    """The names of the newest jobs, each once."""
    query = "SELECT DISTINCT name FROM (SELECT name FROM jobs WHERE name != '' ORDER BY id DESC LIMIT ?)"
    return [name for (name,) in reader.rows(query, limit)]


def failed_among(reader: Reader, ids: Sequence[int]) -> Ranges:
    return ids_where(reader, rows_among(sorted_ids(ids)), _FAILED)


def failed_since(reader: Reader, engine: str, since: float) -> Ranges:
    """An engine's jobs that ended without success since a moment."""
    return ids_where(reader, ALL_ROWS, f"ended >= ? AND {_FAILED} AND engine = ? AND {NOT_ON_FINISH}", since, engine)


def skipped_after(reader: Reader, job_id: int) -> Iterator[Job]:
    """Skipped jobs that were submitted after a job, by id; one may stand for several."""
    query = "SELECT id FROM jobs INDEXED BY jobs_ended WHERE ended IS NOT NULL AND state = 'skipped' AND id > ?"
    rows = reader.rows(f"{JOB}id IN ({query}) ORDER BY id", job_id)
    return (reader.job_of(row) for row in rows)


def jobs_of(reader: Reader, ids: Sequence[int]) -> Iterator[Job]:
    """The jobs in the order of the ids, read one page at a time; one may stand for several of them."""
    columns = JOB.replace("SELECT id", "SELECT jobs.id").removesuffix(" FROM jobs WHERE ")
    for rows in _pages(reader, ids):
        query = f"{columns}, low, high FROM {rows.tables}"
        yield from (part(reader.job_of(row[:-2]), *row[-2:]) for row in reader.rows(query, *rows.values))


def jobs_by_state(reader: Reader, ids: Sequence[int]) -> Iterator[Job]:
    """The jobs in the order of the ids, for commands that look at their states; one may stand for several of them.

    That is also so for consecutive jobs of a batch that never started and differ only in their commands: the command
    and the time of their state are those of the first.
    """
    single_jobs = "array = 0 AND member IS NULL AND attempts = 0"
    first, last, before = 0, 0, None
    for rows in _pages(reader, ids):
        columns = f"{rows.first}, {rows.last}, batch, name, spec, state, {single_jobs}"
        for next_first, next_last, *alike in reader.rows(f"SELECT {columns} FROM {rows.tables}", *rows.values):
            if alike == before and alike[-1] and next_first == last + 1:
                last = next_last
                continue
            if before is not None:
                yield _standing_for(reader, first, last)
            first, last, before = next_first, next_last, alike
    if before is not None:
        yield _standing_for(reader, first, last)


def _standing_for(reader: Reader, first: int, last: int) -> Job:
    job = reader.job(first)
    assert job is not None
    return msgspec.structs.replace(job, count=last - first + 1, differences=None)


def _pages(reader: Reader, ids: Sequence[int]) -> Iterator[JobRows]:
    """The rows of the jobs, about so many at once."""
    page: list[range] = []
    for ids_of_page in ranges_of(ids).parts:
        left = ids_of_page
        while len(left) > _PAGE and (end := end_of_rows(reader, left[0], _PAGE)) is not None and end < left[-1]:
            yield rows_among(Ranges([*page, range(left[0], end + 1)]))
            page, left = [], range(end + 1, left.stop)
        page.append(left)
        if len(left) > _PAGE or len(page) == _PAGE:
            yield rows_among(Ranges(page))
            page = []
    if page:
        yield rows_among(Ranges(page))


def jobs_of_batch(reader: Reader, batch: int) -> list[Job]:
    """All jobs of a batch; one may stand for several."""
    return [reader.job_of(row) for row in reader.rows(f"{JOB}batch = ? ORDER BY id", batch)]


def last_named(reader: Reader, name: str) -> Job | None:
    """The newest job with a name."""
    rows = reader.rows("SELECT max(id) FROM jobs WHERE name = ?", name)
    return None if rows[0][0] is None else reader.job(rows[0][0])


def end_of_rows(reader: Reader, first: int, count: int) -> int | None:
    """The last id of the next so many rows, from that of a job on; None if there are fewer."""
    rows = reader.rows("SELECT id FROM jobs WHERE id >= ? ORDER BY id LIMIT 1 OFFSET ?", first, count - 1)
    return rows[0][0] if rows else None


def unsuccessful_among(reader: Reader, ids: Sequence[int]) -> Ranges:
    """Jobs that ended without success, also those that were cancelled."""
    good = ", ".join(f"'{result}'" for result in GOOD_RESULTS)
    return ids_where(reader, rows_among(sorted_ids(ids)), f"{ENDED} AND state NOT IN ({good})")


def open_among(reader: Reader, ids: Sequence[int]) -> Ranges:
    return ids_where(reader, rows_among(sorted_ids(ids)), OPEN)


def counts_among(reader: Reader, ids: Sequence[int]) -> dict[str, int]:
    """How many of these jobs are in each state, as stored."""
    rows = rows_among(ids)
    return dict(reader.rows(f"SELECT state, {rows.total} FROM {rows.tables} GROUP BY state", *rows.values))


def alike_among(reader: Reader, ids: Sequence[int]) -> list[tuple[str, int, int]]:
    """These jobs by state and spec, which decide on the word that users see: the state, the first id, the number."""
    rows = rows_among(ids)
    query = f"SELECT state, min({rows.first}), {rows.total} FROM {rows.tables} GROUP BY state, spec ORDER BY 2"
    return [(state, first, count) for state, first, count in reader.rows(query, *rows.values)]


def owners_of(reader: Reader, ids: Sequence[int]) -> dict[str, Ranges]:
    """The jobs by the engine that owns them."""
    return _ids_by(reader, "engine", ids)


def _ids_by(reader: Reader, column: str, ids: Sequence[int]) -> dict[Any, Ranges]:
    rows = rows_among(sorted_ids(ids))
    parts: dict[Any, list[range]] = {}
    query = f"SELECT {column}, {rows.first}, {rows.last} FROM {rows.tables}"
    for value, first, last in reader.rows(query, *rows.values):
        parts.setdefault(value, []).append(range(first, last + 1))
    return {value: joined(ranges) for value, ranges in parts.items()}


def sorted_ids(ids: Sequence[int]) -> Ranges:
    return Ranges(sorted(ranges_of(ids).parts, key=lambda part: part[0]))


def unanswered(reader: Reader, numbers: Sequence[int]) -> int:
    """For how many jobs no engine has handled these requests yet, which were inserted in one transaction."""
    if not numbers:
        return 0
    query = "SELECT coalesce(sum(count), 0) FROM requests WHERE id BETWEEN ? AND ?"
    return int(reader.rows(query, min(numbers), max(numbers))[0][0])


def expected_engines(reader: Reader) -> list[str]:
    """The engines that have open jobs or unhandled requests."""
    rows = reader.rows(f"SELECT DISTINCT engine FROM {_OPEN_JOBS} WHERE {OPEN} UNION SELECT engine FROM requests")
    return [engine for (engine,) in rows]


def clusters_of(reader: Reader, ids: Sequence[int]) -> dict[str, Ranges]:
    """The jobs by the cluster that they are for; the empty name is this machine."""
    clusters: dict[str, list[range]] = {}
    for spec_id, jobs in _ids_by(reader, "spec", ids).items():
        clusters.setdefault(reader.spec(spec_id).cluster, []).extend(jobs.parts)
    return {cluster: union(parts) for cluster, parts in clusters.items()}


def arrays_of(reader: Reader, ids: Sequence[int]) -> dict[int, Ranges]:
    """The jobs by their array; 0 stands for those outside of arrays."""
    return _ids_by(reader, "array", ids)


def tasks_in(reader: Reader, array: int) -> int:
    query = f"SELECT {ALL_ROWS.total} FROM jobs WHERE array = ? AND {IN_ARRAY}"
    return int(reader.rows(query, array)[0][0])


def paused_key(engine: str) -> str:
    """The setting that keeps an engine from starting anything."""
    return f"paused {engine}"


def drained_key(device_id: str) -> str:
    """The setting that keeps all engines of this queue off a device."""
    return DRAINED + device_id


def with_user_settings(policy: Policy, settings: Mapping[str, Any], engine: str) -> Policy:
    """The policy of an engine with what users have paused and drained."""
    paused = settings.get(paused_key(engine), {}).get("note", "")
    drained = {key.removeprefix(DRAINED): value for key, value in settings.items() if key.startswith(DRAINED)}
    closed = {device: value.get("note", "drained") for device, value in drained.items()}
    return msgspec.structs.replace(policy, paused=paused, closed=closed)
