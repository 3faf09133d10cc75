"""Read queries of front ends: listings, selections, dependencies, settings keys."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from stoker.core.job import Job
from stoker.core.planner.policy import Policy
from stoker.store.reader import Reading
from stoker.store.schema import (
    ACTIVE,
    ENDED,
    HELD,
    IN_ARRAY,
    JOB,
    OF_ON_FINISH_JOBS,
    OPEN,
    AttemptRow,
    attempt_of,
    text_of,
)

# Named, because SQLite likes to go through the whole table instead.
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


class Owned(NamedTuple):
    """A job and the engine that it belongs to."""

    job: Job
    engine: str


class Load(NamedTuple):
    """How many jobs of one engine are not over, and how many of those workers have or somebody holds back."""

    open: int = 0
    active: int = 0
    held: int = 0

    @property
    def waiting(self) -> int:
        """Jobs that no worker has and nobody holds back."""
        return self.open - self.active - self.held


class Tasks(NamedTuple):
    """Tasks of one array that are in the same state of waiting."""

    size: int
    first: Job
    last: Job


class Past(NamedTuple):
    """A job that is over, its last attempt if there was one, and the seconds that all attempts had GPUs for."""

    job: Job
    last: AttemptRow | None
    gpu_seconds: float
    peak: int | None = None
    """Bytes that the last attempt held at most on a GPU, where that was measured..."""
    utilisation: int | None = None
    """... and how busy it kept it, in percent."""


class Period(NamedTuple):
    """Which jobs that are over are meant."""

    since: float = 0.0
    states: tuple[str, ...] = ()
    """How they ended; empty is in any way."""
    on_finish_jobs: bool = False


class Listing(Reading):
    """Answers that stay fast however many jobs there are."""

    @contextlib.contextmanager
    def glance(self) -> Iterator[None]:
        """All answers within are about one moment."""
        with self._explained("read"):
            self._database.execute("BEGIN")
        try:
            yield
        finally:
            self._database.execute("ROLLBACK")

    def loads(self) -> dict[str, Load]:
        """The engines that own jobs which are not over."""
        counted = [self._counts_by_engine(state) for state in (OPEN, ACTIVE, HELD)]
        return {engine: Load(*(counts.get(engine, 0) for counts in counted)) for engine in counted[0]}

    def all_active(self) -> list[Owned]:
        """All jobs that workers have, in the order of their ids."""
        query = JOB.replace(" FROM jobs", f", engine FROM {_ACTIVE_JOBS}") + ACTIVE
        return sorted((self._owned(row) for row in self._rows(query)), key=lambda one: one.job.id)

    def queued_jobs(self, engine: str, after: int, limit: int) -> list[Job]:
        """The engine's jobs that no worker has, in the order of their ids."""
        query = f"{_OPEN_JOB}engine = ? AND id > ? AND {OPEN} AND {_QUEUED} ORDER BY id LIMIT ?"
        return [self._job_of(row) for row in self._rows(query, engine, after, limit)]

    def queued_on_finish_jobs(self) -> int:
        """How many of the jobs that wait are hooks."""
        on_finish_jobs = self._on_finish_spec()
        if not on_finish_jobs:
            return 0
        which = ", ".join("?" * len(on_finish_jobs))
        query = f"SELECT count(*) FROM {_OPEN_JOBS} WHERE {OPEN} AND state = 'waiting' AND spec IN ({which})"
        return int(self._rows(query, *on_finish_jobs)[0][0])

    def last_of_array(self, array: int) -> int:
        """The id of an array's last task; its tasks have consecutive ids."""
        ((last,),) = self._rows(f"SELECT max(id) FROM jobs WHERE array = ? AND {IN_ARRAY}", array)
        return int(last or array)

    def queued_tasks(self, engine: str, array: int) -> list[Tasks]:
        """The tasks of an array that no worker has: those that wait, then those held back."""
        within = (engine, array, self.last_of_array(array))
        counted = [self._count_within(state, within) for state in (OPEN, ACTIVE, HELD)]
        groups = ((counted[0] - counted[1] - counted[2], "state = 'waiting'"), (counted[2], HELD))
        return [self._tasks(count, state, within) for count, state in groups if count]

    def past(self, period: Period, limit: int) -> list[Past]:
        """The jobs that ended last, newest first."""
        where, values = self._within(period)
        query = f"{_PAST} WHERE {where} ORDER BY jobs.ended DESC, jobs.id DESC LIMIT ?"
        return [self._past_of(row) for row in self._rows(query, *values, limit)]

    def past_counts(self, period: Period) -> dict[str, int]:
        """How many jobs ended, by how."""
        where, values = self._within(period)
        return dict(self._rows(f"SELECT state, count(*) FROM jobs WHERE {where} GROUP BY state", *values))

    def past_gpu_seconds(self, period: Period) -> float:
        """The seconds that all attempts of jobs which are over had GPUs for."""
        where, values = self._within(period)
        query = f"SELECT sum({_GPU_SECONDS}) FROM jobs JOIN attempts ON attempts.job = jobs.id WHERE {where}"
        return float(self._rows(query, *values)[0][0] or 0.0)

    # -- inside ----------------------------------------------------------------------------------

    def _counts_by_engine(self, state: str) -> dict[str, int]:
        """One engine after the other: SQLite takes twice as long to count in groups, and engines are few."""
        count = f"SELECT count(*) FROM {_INDEXES[state]} WHERE {state}"
        engines = list(self._engines_with(state))
        if len(engines) == 1:  # nearly always; half the time again goes into comparing the names
            return {engines[0]: self._rows(count)[0][0]}
        return {engine: self._rows(f"{count} AND engine = ?", engine)[0][0] for engine in engines}

    def _engines_with(self, state: str) -> Iterator[str]:
        """From one name to the next, without going through the jobs between them."""
        following = f"SELECT engine FROM {_INDEXES[state]} WHERE {state} AND engine > ? ORDER BY engine LIMIT 1"
        engine = ""
        while found := self._rows(following, engine):
            ((engine,),) = found
            yield engine

    def _count_within(self, state: str, within: tuple[str, int, int]) -> int:
        query = f"SELECT count(*) FROM {_INDEXES[state]} WHERE engine = ? AND id BETWEEN ? AND ? AND {state}"
        return int(self._rows(query, *within)[0][0])

    def _tasks(self, count: int, state: str, within: tuple[str, int, int]) -> Tasks:
        query = f"{_OPEN_JOB}engine = ? AND id BETWEEN ? AND ? AND {OPEN} AND {state} ORDER BY id"
        (first,), (last,) = (self._rows(f"{query} {order} LIMIT 1", *within) for order in ("ASC", "DESC"))
        return Tasks(count, self._job_of(first), self._job_of(last))

    def _within(self, period: Period) -> tuple[str, list[Any]]:
        where, values = f"jobs.{ENDED} AND jobs.ended >= ?", [period.since]
        if period.states:
            where += f" AND jobs.state IN ({', '.join('?' * len(period.states))})"
        on_finish_jobs = [] if period.on_finish_jobs else self._on_finish_spec()
        if on_finish_jobs:
            where += f" AND jobs.spec NOT IN ({', '.join('?' * len(on_finish_jobs))})"
        return where, [*values, *period.states, *on_finish_jobs]

    def _on_finish_spec(self) -> list[int]:
        """Terms that only hooks have: there are few, where there are any."""
        query = f"SELECT id FROM specs WHERE {OF_ON_FINISH_JOBS}"
        return [spec for (spec,) in self._rows(query)]

    def _past_of(self, row: tuple[Any, ...]) -> Past:
        gpu_seconds, peak, utilisation, *attempt = row[_JOB_COLUMNS:]
        last = None if attempt[0] is None else attempt_of(tuple(attempt))
        return Past(self._job_of(row[:_JOB_COLUMNS]), last, float(gpu_seconds or 0.0), peak, utilisation)

    def _owned(self, row: tuple[Any, ...]) -> Owned:
        return Owned(self._job_of(row[:-1]), row[-1])


_PAGE = 10_000

_NOT_ON_FINISH = "coalesce((SELECT json_extract(body, '$.role') FROM specs WHERE specs.id = jobs.spec), 'job') = 'job'"

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
    rows = store._rows(f"SELECT id, array FROM jobs WHERE {_NOT_ON_FINISH} ORDER BY id DESC LIMIT 1")
    return (rows[0][0], rows[0][1]) if rows else None


def open_ids(store: Reading) -> list[int]:
    """All jobs that are not over."""
    return [job_id for (job_id,) in store._rows(f"SELECT id FROM jobs WHERE {OPEN} AND {_NOT_ON_FINISH} ORDER BY id")]


def ended_ids(store: Reading) -> list[int]:
    """All jobs that are over."""
    rows = store._rows(f"SELECT id FROM jobs WHERE ended IS NOT NULL AND {_NOT_ON_FINISH} ORDER BY id")
    return [job_id for (job_id,) in rows]


def ids_named(store: Reading, pattern: str, scope: Literal["open", "ended", "any"], *, glob: bool) -> list[int]:
    """Jobs by their name, or by a pattern with `*`, `?` and `[...]`."""
    condition = f"name {'GLOB' if glob else '='} ? AND {_SCOPES[scope]} AND {_NOT_ON_FINISH}"
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
    query = f"SELECT id FROM jobs WHERE ended >= ? AND {_FAILED} AND engine = ? AND {_NOT_ON_FINISH} ORDER BY id"
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


def arrays_of(store: Reading, ids: Sequence[int]) -> dict[int, int]:
    """The array of each of the jobs, 0 where it is in none, in the order of their ids."""
    query = "SELECT id, array FROM jobs WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id"
    return {int(job_id): int(array) for job_id, array in store._rows(query, json.dumps(list(ids)))}


def tasks_in(store: Reading, array: int) -> int:
    """How many tasks an array has."""
    return int(store._rows("SELECT count(*) FROM jobs WHERE array = ? AND array != 0", array)[0][0])


def paused_key(engine: str) -> str:
    """The setting that keeps an engine from starting anything."""
    return f"paused {engine}"


def drained_key(device_id: str) -> str:
    """The setting that keeps all engines of this queue off a device."""
    return _DRAINED + device_id


def with_user_settings(policy: Policy, settings: Mapping[str, Any], engine: str) -> Policy:
    """The policy of an engine with what users have paused and drained."""
    paused = settings.get(paused_key(engine), {}).get("note", "")
    drained = {key.removeprefix(_DRAINED): value for key, value in settings.items() if key.startswith(_DRAINED)}
    closed = {device: value.get("note", "drained") for device, value in drained.items()}
    return msgspec.structs.replace(policy, paused=paused, closed=closed)


_DRAINED = "drained "
