"""Sweeps in the store: a sweep is a batch with a record, a trial is a member, and its result the member's record."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from stoker.core.errors import StokerError
from stoker.core.job import Job
from stoker.core.ranges import Ranges, joined, ranges_of, union
from stoker.core.spec import JobSpec
from stoker.features.sweep.model.record import SweepSpec, read_params, trial_job
from stoker.features.sweep.model.space import Params, Scalar
from stoker.store.engine_lock import engine_of
from stoker.store.filters import ALL_ROWS, JobRows, rows_among
from stoker.store.paths import Paths
from stoker.store.queries import ids_of_batch
from stoker.store.reader import Reader
from stoker.store.schema import ACTIVE, ENDED, IN_PATTERN, IS_MEMBER, JOB, OPEN, BatchRecord, decode, encode
from stoker.store.writer import Store

KIND = "sweep"
"""Of the batches that are sweeps."""
_IS_SWEEP = f"first_job IS NOT NULL AND kind = '{KIND}'"  # the first part lets SQLite use the index
_SWEEP = f"SELECT first_job, id, created, coordinator, spec, record FROM batches WHERE {_IS_SWEEP}"
_VALUES = "SELECT value FROM json_each(?)"
_ACTIVE_ROWS, _ENDED_ROWS = (JobRows(f"jobs INDEXED BY {index}") for index in ("jobs_active", "jobs_ended"))


class StoredSweep(Struct, frozen=True):
    """A sweep and what was added to its record since it was submitted."""

    id: int
    """The id of its array of trials, or of its tuner if that chooses the trials."""
    batch: int
    created: float
    tuner: int | None
    """The job that watches the trials, and chooses them if the method is adaptive; None without one."""
    spec: JobSpec
    """That of all trials."""
    sweep: SweepSpec
    stopped: float | None = None
    """When the user asked to start no further trials."""


class _SweepRecord(Struct, frozen=True):
    """The record of the batch."""

    sweep: SweepSpec
    stopped: float | None = None


def add_sweep(store: Store, stored: StoredSweep) -> None:
    """Make a sweep of a batch whose jobs are in the queue."""
    body = encode(_SweepRecord(stored.sweep, stored.stopped))
    record = BatchRecord(KIND, stored.id, stored.sweep.name, stored.tuner, stored.spec, body)
    store.set_batch_record(stored.batch, record)


def change_sweep(store: Store, batch: int, sweep: SweepSpec) -> None:
    """Replace what the user asked for, as by a larger number of trials; the sweep goes on if it was stopped."""
    _set_record(store, batch, _SweepRecord(sweep))


def stop_sweep(store: Store, batch: int, now: float) -> None:
    """Record that no further trials are wanted."""
    with store.writing():
        ((body,),) = store.rows("SELECT record FROM batches WHERE id = ?", batch)
        _set_record(store, batch, _SweepRecord(decode(_records(), body).sweep, now))


def _set_record(store: Store, batch: int, record: _SweepRecord) -> None:
    with store.writing() as connection:
        connection.execute("UPDATE batches SET record = ? WHERE id = ?", (encode(record), batch))


def set_tuner(store: Store, batch: int, tuner: int) -> None:
    with store.writing() as connection:
        connection.execute("UPDATE batches SET coordinator = ? WHERE id = ?", (tuner, batch))


def find_sweep(reader: Reader, sweep_id: int) -> StoredSweep | None:
    rows = reader.rows(f"{_SWEEP} AND first_job = ?", sweep_id)
    return _stored(reader, rows[0]) if rows else None


def sweep_of_tuner(reader: Reader, job: int) -> int:
    """The sweep that a job tunes."""
    rows = reader.rows(f"{_SWEEP} AND coordinator = ?", job)
    if not rows:
        raise StokerError(f"job {job} tunes no sweep", "see stoker sweep status --all")
    return int(rows[0][0])


def has_sweeps(reader: Reader) -> bool:
    return bool(reader.rows(f"{_SWEEP} LIMIT 1"))


def sweep_of_content(reader: Reader, content: bytes) -> int | None:
    """The newest sweep with a trial that does this work, and succeeded or has not ended."""
    where = f"content = ? AND {IS_MEMBER} AND (state = 'done' OR {OPEN}) AND {_IS_SWEEP}"
    query = "SELECT max(first_job) FROM jobs INDEXED BY jobs_content JOIN batches ON batches.id = batch"
    ((sweep_id,),) = reader.rows(f"{query} WHERE {where}", content)
    return None if sweep_id is None else int(sweep_id)


def all_sweeps(reader: Reader) -> list[StoredSweep]:
    """Every sweep, the newest first."""
    return [_stored(reader, row) for row in reader.rows(f"{_SWEEP} ORDER BY created DESC, first_job DESC")]


def jobs_of_sweep(reader: Reader, sweep_id: int) -> Ranges:
    """Ids of its tuner and its trials."""
    stored = find_sweep(reader, sweep_id)
    return ids_of_batch(reader, stored.batch) if stored else Ranges()


def _stored(reader: Reader, row: tuple[Any, ...]) -> StoredSweep:
    sweep_id, batch, created, tuner, spec, body = row
    record = decode(_records(), body)
    return StoredSweep(sweep_id, batch, created, tuner, reader.spec(spec), record.sweep, record.stopped)


@cache
def _records() -> msgspec.json.Decoder[_SweepRecord]:
    return msgspec.json.Decoder(_SweepRecord)


def study_path(paths: Paths, sweep_id: int) -> Path:
    """The file of the Optuna study of a sweep, beside the lock of its tuner."""
    return paths.batch(sweep_id) / "study"


# -- trials ----------------------------------------------------------------------------------------


class TrialJob(Struct, frozen=True):
    """A trial and the state of its job."""

    number: int
    job: int
    state: str
    params: Params
    attempt: int
    """Number of its newest attempt."""
    ended: float | None


def add_trial(
    store: Store, stored: StoredSweep, number: int, point: Mapping[str, Scalar], now: float, *, held: str = ""
) -> int:
    """Add the trial with this number to the queue and return its job; one that is there is not added again."""
    with store.writing():
        if there := trials_numbered(store, stored.batch, [number]):
            return there[0].job
        job = trial_job(stored.sweep, stored.spec, number, point)
        return store.add_jobs(stored.batch, engine_of(stored.spec.cluster), [job], now, held=held)[0]


def active_trials(reader: Reader, batch: int) -> list[TrialJob]:
    """Trials that a worker has. A sweep may have a million trials, so this and the next read no others."""
    return _trials(reader, batch, f"{ACTIVE} AND batch = ?", batch, rows=_ACTIVE_ROWS)


def ended_trials(reader: Reader, batch: int, since: float) -> list[TrialJob]:
    """Trials that ended at or after a moment, the oldest first."""
    where = f"{ENDED} AND ended >= ? AND batch = ? ORDER BY ended, id"
    return _trials(reader, batch, where, since, batch, rows=_ENDED_ROWS)


def trials_numbered(reader: Reader, batch: int, numbers: Sequence[int]) -> list[TrialJob]:
    """The trials with these numbers that are in the queue."""
    where = "batch = ? AND member >= ? AND member - size < ? ORDER BY member LIMIT 1"
    rows = ((number, row) for number in numbers for row in _rows(reader, where, batch, number, number))
    parts = [row._replace(number=number, first=row.first + number - row.number) for number, row in rows]
    return [trial for part in parts for trial in _each(reader, batch, part._replace(last=part.first))]


def all_trials(reader: Reader, batch: int) -> list[TrialJob]:
    """The trials that are in the queue, by number."""
    return _trials(reader, batch, "batch = ? ORDER BY member", batch)


def open_trials(reader: Reader, batch: int) -> tuple[Ranges, Ranges]:
    """The jobs of trials that have not ended: those that no worker has, and the others."""
    rows = _rows(reader, f"{OPEN} AND batch = ? ORDER BY id", batch)
    queued = [row.state in ("waiting", "held") for row in rows]
    waiting, running = (
        joined(row.jobs for row, is_queued in zip(rows, queued, strict=True) if is_queued == wanted)
        for wanted in (True, False)
    )
    return waiting, running


def count_queued_trials(reader: Reader, batch: int) -> int:
    """How many trials no worker has, and are not over."""
    where = f"{OPEN} AND batch = ? AND {IS_MEMBER} AND NOT {ACTIVE}"
    query = f"SELECT coalesce(sum(size), 0) FROM jobs INDEXED BY jobs_open WHERE {where}"
    return int(reader.rows(query, batch)[0][0])


def has_held_trials(reader: Reader, batch: int) -> bool:
    """Whether a user holds a trial."""
    where = f"{OPEN} AND batch = ? AND {IS_MEMBER} AND state = 'held'"
    return bool(reader.rows(f"SELECT 1 FROM jobs INDEXED BY jobs_open WHERE {where} LIMIT 1", batch))


class _Row(NamedTuple):
    """A row of trials: one, or several that never started and follow from the patterns of their batch."""

    number: int
    """Of the first."""
    first: int
    last: int
    state: str
    attempt: int
    ended: float | None
    params: str | None

    @property
    def numbers(self) -> range:
        return range(self.number, self.number + len(self.jobs))

    @property
    def jobs(self) -> range:
        return range(self.first, self.last + 1)


def _rows(reader: Reader, where: str, *values: object, rows: JobRows = ALL_ROWS) -> list[_Row]:
    columns = f"member - (jobs.id - {rows.first}), {rows.first}, {rows.last}, state, attempts, ended, params"
    query = f"SELECT {columns} FROM {rows.tables} WHERE {IS_MEMBER} AND {where}"
    return [_Row(*row) for row in reader.rows(query, *rows.values, *values)]


def _trials(reader: Reader, batch: int, where: str, *values: object, rows: JobRows = ALL_ROWS) -> list[TrialJob]:
    return [trial for row in _rows(reader, where, *values, rows=rows) for trial in _each(reader, batch, row)]


def _each(reader: Reader, batch: int, row: _Row) -> Iterator[TrialJob]:
    for number, job in zip(row.numbers, row.jobs, strict=True):
        params = read_params(_params(reader, batch, row, number))
        yield TrialJob(number, job, row.state, params, row.attempt, row.ended)


def _params(reader: Reader, batch: int, row: _Row, number: int) -> str:
    return reader.patterns(batch).at(number).params if row.params is None else row.params


class TrialState(NamedTuple):
    """A trial without its parameters, which take longest to read."""

    number: int
    job: int
    state: str
    attempt: int
    ended: float | None

    @property
    def is_untouched(self) -> bool:
        """Whether nothing has happened to it."""
        return self.state == "waiting" and not self.attempt


def _states(rows: Sequence[_Row]) -> list[TrialState]:
    return [
        TrialState(number, job, row.state, row.attempt, row.ended)
        for row in rows
        for number, job in zip(row.numbers, row.jobs, strict=True)
    ]


def count_trials(reader: Reader, batch: int) -> int:
    query = f"SELECT coalesce(sum(size), 0) FROM jobs WHERE batch = ? AND {IS_MEMBER}"
    return int(reader.rows(query, batch)[0][0])


def touched_trials(reader: Reader, batch: int) -> list[TrialState]:
    """The trials that something has happened to."""
    return _states(_rows(reader, "batch = ? AND NOT (state = 'waiting' AND attempts = 0)", batch))


def trials_among(reader: Reader, batch: int, jobs: Collection[int]) -> list[TrialState]:
    """Those of the jobs that are trials of a sweep."""
    return _states(_rows(reader, "+batch = ?", batch, rows=_among(jobs)))


def trial_params(reader: Reader, batch: int, jobs: Collection[int] | None = None) -> list[tuple[int, int, Params]]:
    """Number, job and parameters of trials, by number: of some jobs, or of all."""
    where, among = ("batch = ?", ALL_ROWS) if jobs is None else ("+batch = ?", _among(jobs))
    rows = _rows(reader, f"{where} ORDER BY member, 2", batch, rows=among)
    return [
        (number, job, read_params(_params(reader, batch, row, number)))
        for row in rows
        for number, job in zip(row.numbers, row.jobs, strict=True)
    ]


def params_at_ends(reader: Reader, batch: int, most: int) -> list[Params]:
    """The parameters of the first and the last trials."""
    params: list[Params] = []
    for way in (1, -1):
        order = "ASC" if way > 0 else "DESC"
        rows = _rows(reader, f"batch = ? ORDER BY member {order} LIMIT ?", batch, most)
        numbered = ((row, number) for row in rows for number in row.numbers[::way])
        params += [read_params(_params(reader, batch, row, number)) for row, number in islice(numbered, most)]
    return params


def trials_without(reader: Reader, batch: int, numbers: Collection[int], limit: int, offset: int) -> list[int]:
    """The jobs of trials by number, a part of them, without some numbers, which are of trials that started."""
    where = "batch = ? AND (size > 1 OR member NOT IN (SELECT value FROM json_each(?))) ORDER BY member LIMIT ?"
    rows = _rows(reader, where, batch, _listed(numbers), offset + limit)
    return list(Ranges(row.jobs for row in rows)[offset : offset + limit])


def first_untouched(reader: Reader, batch: int, limit: int, *, last: bool = False) -> list[tuple[int, int]]:
    """Number and job of the first trials that nothing has happened to, or of the last ones, the last first."""
    order, way = ("DESC", -1) if last else ("ASC", 1)
    where = f"batch = ? AND state = 'waiting' AND attempts = 0 ORDER BY member {order} LIMIT ?"
    rows = _rows(reader, where, batch, limit)
    numbered = (pair for row in rows for pair in zip(row.numbers[::way], row.jobs[::way], strict=True))
    return list(islice(numbered, limit))


def numbers_done_or_open(reader: Reader, batch: int, where: tuple[str, tuple[tuple[str, str], ...]]) -> Ranges:
    """The trials that succeeded or have not ended, in a directory and with extra variables."""
    columns = "SELECT spec, member - size + 1, member + 1 FROM jobs"
    rows = reader.rows(f"{columns} WHERE batch = ? AND {IS_MEMBER} AND (state = 'done' OR {OPEN})", batch)
    specs = {spec_id: reader.spec(spec_id) for spec_id in {row[0] for row in rows}}
    return union(
        range(first, end) for spec_id, first, end in rows if (specs[spec_id].cwd, specs[spec_id].extra_env) == where
    )


def queued_in_patterns(reader: Reader, batch: int) -> list[Job]:
    """Trials that never started and share rows."""
    return [reader.job_of(row) for row in reader.rows(f"{JOB}batch = ? AND {IN_PATTERN} AND {OPEN}", batch)]


def _among(jobs: Collection[int]) -> JobRows:
    return rows_among(jobs if isinstance(jobs, Ranges) else ranges_of(sorted(jobs)))


class TrialTime(NamedTuple):
    """When the attempts of a trial ran, and for how long they had GPUs."""

    started: float | None
    """Of its last attempt."""
    ended: float | None
    gpu_seconds: float
    """Of all attempts that have ended."""
    devices: int
    """GPUs of its last attempt."""


def trial_times(reader: Reader, batch: int, jobs: Collection[int] | None = None) -> dict[int, TrialTime]:
    """Times of trials that have started, by job: of some jobs, or of all."""
    members = f"SELECT id FROM jobs WHERE batch = ? AND {IS_MEMBER}" if jobs is None else _VALUES
    query = (
        "SELECT job, started, ended, json_array_length(devices) FROM attempts"
        f" WHERE job IN ({members}) AND started IS NOT NULL ORDER BY job, number"
    )
    times: dict[int, TrialTime] = {}
    for job, started, ended, devices in reader.rows(query, batch if jobs is None else _listed(jobs)):
        before = times[job].gpu_seconds if job in times else 0.0
        spent = max(0.0, ended - started) * devices if ended is not None else 0.0
        times[job] = TrialTime(started, ended, before + spent, devices)
    return times


def _listed(numbers: Collection[int]) -> str:
    return msgspec.json.encode(list(numbers)).decode()


# -- results ---------------------------------------------------------------------------------------


def set_trial_result(store: Store, batch: int, number: int, body: Mapping[str, Any]) -> None:
    """Keep what is known about the result of a trial, in place of what was known before.

    What was written of an attempt that is over stays: summaries do not read it again.
    """
    with store.writing() as connection:
        row = (batch, number, msgspec.json.encode(body).decode())
        connection.execute("INSERT OR REPLACE INTO member_records VALUES (?, ?, ?)", row)


def trial_results(reader: Reader, batch: int) -> dict[int, dict[str, Any]]:
    """The recorded results of trials, by number."""
    rows = reader.rows("SELECT number, body FROM member_records WHERE batch = ? ORDER BY number", batch)
    return {number: msgspec.json.decode(body) for number, body in rows}


def result_bodies(reader: Reader, batch: int, numbers: Collection[int] | None = None) -> dict[int, str]:
    """The recorded results as they are stored: of some trials, or of all."""
    query = "SELECT number, body FROM member_records WHERE batch = ?"
    if numbers is None:
        return dict(reader.rows(query, batch))
    return dict(reader.rows(f"{query} AND number IN ({_VALUES})", batch, _listed(numbers)))


# -- changes ---------------------------------------------------------------------------------------


def event_at(reader: Reader, event: int) -> list[tuple[int, float]]:
    """Job and time of an event: another one may get its id after it was deleted."""
    return [(job, at) for job, at in reader.rows("SELECT job, at FROM events WHERE id = ?", event)]
