"""Trials of a sweep that changed lately, found without reading the others: a sweep may have a million."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from stoker.core.errors import StokerError
from stoker.features.sweep.model.space import Params
from stoker.store.reader import Reader
from stoker.store.schema import ACTIVE, ENDED, IN_SWEEP, OPEN

_COLUMNS = "SELECT trial, id, state, params, attempts, ended FROM jobs"


class TrialJob(Struct, frozen=True):
    """A trial and the state of its job."""

    number: int
    job: int
    state: str
    params: Params
    attempt: int
    """Number of its newest attempt."""
    ended: float | None


def sweep_of_tuner(reader: Reader, job: int) -> int:
    """The sweep that a job tunes."""
    rows = reader.rows("SELECT id FROM sweeps WHERE adviser = ?", job)
    if not rows:
        raise StokerError(f"job {job} tunes no sweep", "see stoker sweep status --all")
    return int(rows[0][0])


def active_trials(reader: Reader, sweep_id: int) -> list[TrialJob]:
    """Trials that a worker has."""
    return _read(reader, f"INDEXED BY jobs_active WHERE {ACTIVE} AND sweep = ?", sweep_id)


def ended_trials(reader: Reader, sweep_id: int, since: float) -> list[TrialJob]:
    """Trials that ended at or after a moment, the oldest first."""
    where = f"INDEXED BY jobs_ended WHERE {ENDED} AND ended >= ? AND sweep = ? ORDER BY ended, id"
    return _read(reader, where, since, sweep_id)


def trials_numbered(reader: Reader, sweep_id: int, numbers: Sequence[int]) -> list[TrialJob]:
    """The trials with these numbers that are in the queue."""
    where = f"WHERE sweep = ? AND {IN_SWEEP} AND trial = ?"
    return [row for number in numbers for row in _read(reader, where, sweep_id, number)]


def all_trials(reader: Reader, sweep_id: int) -> list[TrialJob]:
    """The trials that are in the queue, by number."""
    return _read(reader, f"WHERE sweep = ? AND {IN_SWEEP} ORDER BY trial", sweep_id)


def count_queued_trials(reader: Reader, sweep_id: int) -> int:
    """How many trials no worker has, and are not over."""
    query = f"SELECT count(*) FROM jobs INDEXED BY jobs_open WHERE {OPEN} AND sweep = ? AND NOT {ACTIVE}"
    return int(reader.rows(query, sweep_id)[0][0])


def has_held_trials(reader: Reader, sweep_id: int) -> bool:
    """Whether a user holds a trial."""
    query = f"SELECT 1 FROM jobs INDEXED BY jobs_open WHERE {OPEN} AND sweep = ? AND state = 'held' LIMIT 1"
    return bool(reader.rows(query, sweep_id))


def _read(reader: Reader, where: str, *values: object) -> list[TrialJob]:
    decoder = msgspec.json.Decoder(Params)
    return [
        TrialJob(number, job, state, decoder.decode(params), attempt, ended)
        for number, job, state, params, attempt, ended in reader.rows(f"{_COLUMNS} {where}", *values)
    ]


class TrialTime(NamedTuple):
    """When the attempts of a trial ran, and for how long they had GPUs."""

    started: float | None
    """Of its last attempt."""
    ended: float | None
    gpu_seconds: float
    """Of all attempts that have ended."""
    devices: int
    """GPUs of its last attempt."""


def trial_times(reader: Reader, sweep_id: int) -> dict[int, TrialTime]:
    """Times of all trials that have started, by number."""
    query = (
        "SELECT trial, started, attempts.ended, json_array_length(devices) FROM jobs JOIN attempts ON job = jobs.id"
        f" WHERE sweep = ? AND {IN_SWEEP} AND started IS NOT NULL ORDER BY trial, number"
    )
    times: dict[int, TrialTime] = {}
    for trial, started, ended, devices in reader.rows(query, sweep_id):
        before = times[trial].gpu_seconds if trial in times else 0.0
        spent = max(0.0, ended - started) * devices if ended is not None else 0.0
        times[trial] = TrialTime(started, ended, before + spent, devices)
    return times
