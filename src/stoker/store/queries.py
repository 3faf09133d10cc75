"""Read queries of front ends: listings, selections, dependencies, settings keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from stoker.core.job import Job
from stoker.core.outcomes import FAILURES
from stoker.core.settings import Policy
from stoker.store.filters import NO_FILTER, NOT_NESTED, NOT_ON_FINISH, SCOPES, Filter, Scope, condition, sql_pattern
from stoker.store.reader import Reader
from stoker.store.schema import (
    ACTIVE,
    ENDED,
    HELD,
    IN_ARRAY,
    IS_MEMBER,
    JOB,
    OF_ON_FINISH_JOBS,
    OPEN,
    AttemptRow,
    attempt_of,
    text_of,
)

# Named, because SQLite would otherwise scan the whole table.
_OPEN_JOBS, _ACTIVE_JOBS, _HELD_JOBS = (
    f"jobs INDEXED BY {name}" for name in ("jobs_open", "jobs_active", "jobs_on_hold")
)

_INDEXES = {OPEN: _OPEN_JOBS, ACTIVE: _ACTIVE_JOBS, HELD: _HELD_JOBS}
_COLUMNS = JOB.removeprefix("SELECT ").partition(" FROM")[0].split(", ")
_JOB_COLUMNS = len(_COLUMNS)
_GPU_SECONDS = "(attempts.ended - attempts.started) * json_array_length(attempts.devices)"

_PAST = (
    f"SELECT {', '.join(f'jobs.{column}' for column in _COLUMNS)},"
    f" (SELECT sum({_GPU_SECONDS}) FROM attempts WHERE attempts.job = jobs.id),"
    " measures.peak, measures.utilisation, last.*"
    " FROM jobs LEFT JOIN attempts AS last ON last.job = jobs.id AND last.number = jobs.attempts"
    " LEFT JOIN measures ON measures.job = jobs.id AND measures.number = jobs.attempts"
)

_OPEN_JOB = JOB.replace(" FROM jobs", f" FROM {_OPEN_JOBS}")
_QUEUED = "state IN ('waiting', 'held')"
_PAGE = 10_000
DRAINED = "drained "
"""Prefix of the keys of `drained_key`."""
_FAILED = "state IN ('failed', 'oom', 'timeout', 'skipped', 'lost')"
_AMONG = "id IN (SELECT value FROM json_each(?))"


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
    indices: Sequence[int]


class Past(NamedTuple):
    """An ended job, its last attempt, and the GPU-seconds of all its attempts."""

    job: Job
    last: AttemptRow | None
    gpu_seconds: float
    peak: int | None = None
    """Most bytes that the last attempt held on a GPU, if measured."""
    utilisation: int | None = None
    """Percent, of the same attempt."""


class Period(NamedTuple):
    """A selection of ended jobs."""

    since: float = 0.0
    chosen: Filter = NO_FILTER
    on_finish_jobs: bool = False
    only: Sequence[int] | None = None
    """Ids of the only jobs that are wanted."""


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


def first_jobs(reader: Reader) -> list[int]:
    """The ids by which users name batches with records."""
    return _ids(reader, "SELECT first_job FROM batches WHERE first_job IS NOT NULL")


def ids_of_batch(reader: Reader, batch: int) -> list[int]:
    """Ids of a batch's coordinator and members."""
    coordinator = "SELECT jobs.id FROM batches JOIN jobs ON jobs.id = coordinator WHERE batches.id = ?"
    members = f"SELECT id FROM jobs WHERE batch = ? AND {IS_MEMBER}"
    return sorted(_ids(reader, f"{coordinator} UNION {members}", batch, batch))


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
        " SELECT 1 FROM requests JOIN jobs ON jobs.id BETWEEN requests.job AND requests.job + requests.count - 1"
        f" WHERE batch = ? AND {IS_MEMBER} LIMIT 1"
    )
    return bool(reader.rows(query, batch, batch))


def queued_jobs(reader: Reader, engine: str, after: int, limit: int) -> list[Job]:
    """The engine's jobs that no worker holds, by id."""
    query = f"{_OPEN_JOB}engine = ? AND id > ? AND {OPEN} AND {_QUEUED} ORDER BY id LIMIT ?"
    return [reader.job_of(row) for row in reader.rows(query, engine, after, limit)]


def queued_on_finish_jobs(reader: Reader) -> int:
    """How many of the waiting jobs are on-finish jobs."""
    specs = _on_finish_specs(reader)
    if not specs:
        return 0
    query = f"SELECT count(*) FROM {_OPEN_JOBS} WHERE {OPEN} AND state = 'waiting' AND spec IN ({_marks(specs)})"
    return int(reader.rows(query, *specs)[0][0])


def last_of_array(reader: Reader, array: int) -> int:
    """The id of an array's last task; its tasks have consecutive ids."""
    ((last,),) = reader.rows(f"SELECT max(id) FROM jobs WHERE array = ? AND {IN_ARRAY}", array)
    return int(last or array)


def queued_tasks(reader: Reader, engine: str, array: int) -> list[Tasks]:
    """The tasks of an array that no worker holds: the waiting ones, then the held ones."""
    within = (engine, array, last_of_array(reader, array))
    total, active, held = (_count_within(reader, state, within) for state in (OPEN, ACTIVE, HELD))
    groups = ((total - active - held, "state = 'waiting'"), (held, HELD))
    return [_tasks(reader, count, state, within) for count, state in groups if count]


def queued_by_batch(reader: Reader, engine: str) -> list[tuple[int, float, list[int]]]:
    """The ids of an engine's jobs that no worker holds, with the batch and the first submission."""
    query = f"SELECT batch, submitted, id FROM {_OPEN_JOBS} WHERE engine = ? AND {OPEN} AND {_QUEUED} ORDER BY id"
    found: dict[int, tuple[int, float, list[int]]] = {}
    for batch, submitted, job_id in reader.rows(query, engine):
        found.setdefault(batch, (batch, submitted, []))[2].append(job_id)
    return list(found.values())


def count_waiting(reader: Reader, engine: str, first: int, end: int) -> int:
    """How many waiting jobs of an engine have an id from `first` up to `end`."""
    query = (
        f"SELECT count(*) FROM {_OPEN_JOBS} WHERE engine = ? AND id >= ? AND id < ? AND {OPEN} AND state = 'waiting'"
    )
    return int(reader.rows(query, engine, first, end)[0][0])


def past(reader: Reader, period: Period, limit: int, offset: int = 0) -> list[Past]:
    """The jobs that ended last, newest first, after the first `offset` of them."""
    where, values = in_period(reader, period)
    ids = f"SELECT jobs.id FROM jobs WHERE {where} ORDER BY jobs.ended DESC, jobs.id DESC LIMIT ? OFFSET ?"
    query = f"{_PAST} WHERE jobs.id IN ({ids}) ORDER BY jobs.ended DESC, jobs.id DESC"
    return [_past(reader, row) for row in reader.rows(query, *values, limit, offset)]


def _past(reader: Reader, row: tuple[Any, ...]) -> Past:
    gpu_seconds, peak, utilisation, *attempt = row[_JOB_COLUMNS:]
    last = None if attempt[0] is None else attempt_of(tuple(attempt))
    return Past(reader.job_of(row[:_JOB_COLUMNS]), last, float(gpu_seconds or 0.0), peak, utilisation)


class PastTasks(NamedTuple):
    """The ended tasks of an array that a period selects."""

    counts: dict[str, int]
    """By result."""
    indices: Sequence[int]
    telling: Past
    """The last one that failed, or else the last one."""
    started: float | None
    ended: float
    gpu_seconds: float
    peak: int | None


def past_by_array(reader: Reader, period: Period, limit: int) -> list[Past | PastTasks]:
    """The jobs and arrays that ended last, newest first; an array counts as one, whose end is that of its last task."""
    where, values = in_period(reader, period)
    key = "CASE WHEN array != 0 THEN array ELSE id END"
    query = (
        f"SELECT {key}, count(*), max(id) FROM jobs WHERE {where} GROUP BY 1 ORDER BY max(ended) DESC, 3 DESC LIMIT ?"
    )
    groups = reader.rows(query, *values, limit)
    single = [last for _, size, last in groups if size == 1]
    alone = {one.job.id: one for one in past_of(reader, single)}
    return [alone[last] if size == 1 else _past_tasks(reader, period, array) for array, size, last in groups]


def past_of(reader: Reader, ids: Sequence[int]) -> list[Past]:
    """Those of the jobs that are over."""
    query = f"{_PAST} WHERE jobs.{_AMONG} AND jobs.{ENDED}"
    return [_past(reader, row) for row in reader.rows(query, json.dumps(list(ids)))]


def _past_tasks(reader: Reader, period: Period, array: int) -> PastTasks:
    where, values = in_period(reader, period)
    where, values = f"jobs.array = ? AND {IN_ARRAY} AND {where}", [array, *values]
    rows = reader.rows(
        f"SELECT state, count(*), min(task), max(task), max(id), max(ended) FROM jobs WHERE {where} GROUP BY state",
        *values,
    )
    failed = [row for row in rows if row[0] in FAILURES]
    (telling,) = past_of(reader, [max(row[4] for row in failed or rows)])
    ((gpu_seconds, started, peak),) = reader.rows(
        f"SELECT sum({_GPU_SECONDS}), min(attempts.started), max(measures.peak)"
        " FROM jobs JOIN attempts ON attempts.job = jobs.id LEFT JOIN measures"
        f" ON measures.job = jobs.id AND measures.number = attempts.number WHERE {where}",
        *values,
    )
    counts = {state: count for state, count, *_ in rows}
    first, last = min(row[2] for row in rows), max(row[3] for row in rows)
    indices = consecutive(first, last, sum(counts.values()))
    if indices is None:
        indices = _ids(reader, f"SELECT task FROM jobs WHERE {where} ORDER BY task", *values)
    ended = max(row[5] for row in rows)
    return PastTasks(counts, indices, telling, started, ended, float(gpu_seconds or 0.0), peak)


def past_counts(reader: Reader, period: Period) -> dict[str, int]:
    """How many jobs ended, by result."""
    where, values = in_period(reader, period)
    return dict(reader.rows(f"SELECT state, count(*) FROM jobs WHERE {where} GROUP BY state", *values))


def past_gpu_seconds(reader: Reader, period: Period) -> float:
    """GPU-seconds of all attempts of ended jobs."""
    where, values = in_period(reader, period)
    query = f"SELECT sum({_GPU_SECONDS}) FROM jobs JOIN attempts ON attempts.job = jobs.id WHERE {where}"
    return float(reader.rows(query, *values)[0][0] or 0.0)


def _counts_by_engine(reader: Reader, state: str) -> dict[str, int]:
    """Count per engine: a GROUP BY takes SQLite twice as long, and engines are few."""
    count = f"SELECT count(*) FROM {_INDEXES[state]} WHERE {state}"
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


def _count_within(reader: Reader, state: str, within: tuple[str, int, int]) -> int:
    query = f"SELECT count(*) FROM {_INDEXES[state]} WHERE engine = ? AND id BETWEEN ? AND ? AND {state}"
    return int(reader.rows(query, *within)[0][0])


def _tasks(reader: Reader, count: int, state: str, within: tuple[str, int, int]) -> Tasks:
    query = f"{_OPEN_JOB}engine = ? AND id BETWEEN ? AND ? AND {OPEN} AND {state} ORDER BY id"
    (first, last) = (reader.job_of(reader.rows(f"{query} {order} LIMIT 1", *within)[0]) for order in ("ASC", "DESC"))
    if (indices := consecutive(first.task or 0, last.task or 0, count)) is None:
        where = f"engine = ? AND id BETWEEN ? AND ? AND {OPEN} AND {state}"
        indices = _ids(reader, f"SELECT task FROM {_OPEN_JOBS} WHERE {where} ORDER BY id", *within)
    return Tasks(first, indices)


def consecutive(first: int, last: int, count: int) -> Sequence[int] | None:
    """The indices from the first to the last; None if there are fewer of them."""
    return range(first, last + 1) if last - first + 1 == count else None


def in_period(reader: Reader, period: Period) -> tuple[str, list[Any]]:
    matching, values = condition(period.chosen)
    where = f"jobs.{ENDED} AND jobs.ended >= ? AND {matching}"
    specs = [] if period.on_finish_jobs else _on_finish_specs(reader)
    if specs:
        where += f" AND jobs.spec NOT IN ({_marks(specs)})"
    only = [] if period.only is None else [json.dumps(list(period.only))]
    return where + f" AND jobs.{_AMONG}" * len(only), [period.since, *values, *specs, *only]


def _on_finish_specs(reader: Reader) -> list[int]:
    """Rows of specs that only on-finish jobs have; there are few."""
    return [spec for (spec,) in reader.rows(f"SELECT id FROM specs WHERE {OF_ON_FINISH_JOBS}")]


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def ids_between(reader: Reader, first: int, last: int) -> list[int]:
    """Jobs by their ids; the first id of an array stands for all its tasks."""
    return _ids(
        reader,
        "SELECT id FROM jobs WHERE id BETWEEN ? AND ? UNION SELECT id FROM jobs WHERE array BETWEEN ? AND ?"
        " AND array != 0 ORDER BY id",
        *(first, last, first, last),
    )


def ids_of_tasks(reader: Reader, array: int, first: int, last: int, step: int = 1) -> list[int]:
    within = "task BETWEEN ? AND ? AND (task - ?) % ? = 0"
    query = f"SELECT id FROM jobs WHERE array = ? AND array != 0 AND {within} ORDER BY id"
    return _ids(reader, query, array, first, last, first, step)


def range_of_tasks(reader: Reader, array: int) -> tuple[int, int] | None:
    """The first and the last index of an array's tasks; None if there is no such array."""
    ((first, last),) = reader.rows("SELECT min(task), max(task) FROM jobs WHERE array = ? AND array != 0", array)
    return None if first is None else (first, last)


def newest(reader: Reader) -> tuple[int, int] | None:
    """Id and array of the job submitted last; one of a run inside a job was submitted by that job, not by the user."""
    rows = reader.rows(f"SELECT id, array FROM jobs WHERE {NOT_ON_FINISH} AND {NOT_NESTED} ORDER BY id DESC LIMIT 1")
    return (rows[0][0], rows[0][1]) if rows else None


def all_ids(reader: Reader, scope: Scope) -> list[int]:
    return _ids(reader, f"SELECT id FROM jobs WHERE {SCOPES[scope]} AND {NOT_ON_FINISH} ORDER BY id")


def ids_named(reader: Reader, pattern: str, scope: Scope, *, glob: bool) -> list[int]:
    """Jobs by their name, or by a pattern with `*`, `?` and `[...]`."""
    condition = f"name {'GLOB' if glob else '='} ? AND {SCOPES[scope]} AND {NOT_ON_FINISH}"
    written = sql_pattern(pattern) if glob else text_of(pattern)
    return _ids(reader, f"SELECT id FROM jobs WHERE {condition} ORDER BY id", written)


def names(reader: Reader, limit: int = 2000) -> list[str]:
    """The names of the newest jobs, each once."""
    query = "SELECT DISTINCT name FROM (SELECT name FROM jobs WHERE name != '' ORDER BY id DESC LIMIT ?)"
    return [name for (name,) in reader.rows(query, limit)]


def failed_among(reader: Reader, ids: Sequence[int]) -> list[int]:
    query = f"SELECT id FROM jobs WHERE {_AMONG} AND {_FAILED} ORDER BY id"
    return _ids(reader, query, json.dumps(list(ids)))


def failed_since(reader: Reader, engine: str, since: float) -> list[int]:
    """An engine's jobs that ended without success since a moment."""
    query = f"SELECT id FROM jobs WHERE ended >= ? AND {_FAILED} AND engine = ? AND {NOT_ON_FINISH} ORDER BY id"
    return _ids(reader, query, since, engine)


def skipped_after(reader: Reader, job_id: int) -> Iterator[Job]:
    """Skipped jobs that were submitted after a job, by id."""
    query = "SELECT id FROM jobs INDEXED BY jobs_ended WHERE ended IS NOT NULL AND state = 'skipped' AND id > ?"
    return jobs_of(reader, sorted(_ids(reader, query, job_id)))


def jobs_of(reader: Reader, ids: Sequence[int]) -> Iterator[Job]:
    """The jobs by id, read one page at a time."""
    for at in range(0, len(ids), _PAGE):
        page = json.dumps(list(ids[at : at + _PAGE]))
        rows = reader.rows(f"{JOB}{_AMONG} ORDER BY id", page)
        yield from (reader.job_of(row) for row in rows)


def jobs_of_batch(reader: Reader, batch: int) -> list[Job]:
    return [reader.job_of(row) for row in reader.rows(f"{JOB}batch = ? ORDER BY id", batch)]


def last_named(reader: Reader, name: str) -> Job | None:
    """The newest job with a name."""
    rows = reader.rows(f"{JOB}name = ? ORDER BY id DESC LIMIT 1", name)
    return reader.job_of(rows[0]) if rows else None


def open_among(reader: Reader, ids: Sequence[int]) -> list[int]:
    return _ids(reader, f"SELECT id FROM jobs WHERE {_AMONG} AND {OPEN} ORDER BY id", json.dumps(list(ids)))


def counts_among(reader: Reader, ids: Sequence[int]) -> dict[str, int]:
    """How many of these jobs are in each state, as stored."""
    query = f"SELECT state, count(*) FROM jobs WHERE {_AMONG} GROUP BY state"
    return dict(reader.rows(query, json.dumps(list(ids))))


def alike_among(reader: Reader, ids: Sequence[int]) -> list[tuple[str, int, int]]:
    """These jobs by state and spec, which decide on the word that users see: the state, the first id, the number."""
    query = f"SELECT state, min(id), count(*) FROM jobs WHERE {_AMONG} GROUP BY state, spec ORDER BY 2"
    return [(state, first, count) for state, first, count in reader.rows(query, json.dumps(list(ids)))]


def owners_of(reader: Reader, ids: Sequence[int]) -> dict[str, list[int]]:
    """The jobs by the engine that owns them."""
    owners: dict[str, list[int]] = {}
    for engine, job_id in reader.rows(f"SELECT engine, id FROM jobs WHERE {_AMONG} ORDER BY id", json.dumps(list(ids))):
        owners.setdefault(engine, []).append(job_id)
    return owners


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


def clusters_of(reader: Reader, ids: Sequence[int]) -> dict[str, list[int]]:
    """The jobs by the cluster that they are for; the empty name is this machine."""
    clusters: dict[str, list[int]] = {}
    for spec_id, job_id in reader.rows(f"SELECT spec, id FROM jobs WHERE {_AMONG} ORDER BY id", json.dumps(list(ids))):
        clusters.setdefault(reader.spec(spec_id).cluster, []).append(job_id)
    return clusters


def arrays_of(reader: Reader, ids: Sequence[int]) -> dict[int, int]:
    """The array of each job by id; 0 for a job outside of arrays."""
    return dict(reader.rows(f"SELECT id, array FROM jobs WHERE {_AMONG} ORDER BY id", json.dumps(list(ids))))


def tasks_in(reader: Reader, array: int) -> int:
    return int(reader.rows("SELECT count(*) FROM jobs WHERE array = ? AND array != 0", array)[0][0])


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


def _ids(reader: Reader, query: str, *values: object) -> list[int]:
    return [job_id for (job_id,) in reader.rows(query, *values)]
