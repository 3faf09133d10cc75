"""Sweeps in the store: the record of each, its trials, and their results."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from stoker.core.spec import JobSpec
from stoker.features.sweep.model.record import SweepSpec, trial_job
from stoker.features.sweep.model.space import Scalar
from stoker.store.engine_lock import engine_of
from stoker.store.reader import Reader
from stoker.store.schema import IN_SWEEP, OPEN, decode, encode
from stoker.store.writer import Store

_SWEEP = "SELECT id, batch, created, adviser, stopped, spec, body FROM sweeps "


class StoredSweep(Struct, frozen=True):
    """A sweep and what was added to its record since it was submitted."""

    id: int
    """The id of its array of trials, or of its tuner if that chooses the trials."""
    batch: int
    created: float
    tuner: int | None
    """The job that watches the trials, and chooses them if the method is adaptive; None without one."""
    stopped: float | None
    """When the user asked to start no further trials."""
    spec: JobSpec
    """That of all trials."""
    sweep: SweepSpec


def add_sweep(store: Store, stored: StoredSweep) -> None:
    with store.writing() as connection:
        spec, body = store.spec_id(stored.spec), encode(stored.sweep)
        row = (stored.id, stored.batch, stored.created, stored.tuner, stored.stopped, spec, body)
        connection.execute("INSERT INTO sweeps VALUES (?, ?, ?, ?, ?, ?, ?)", row)


def change_sweep(store: Store, sweep_id: int, sweep: SweepSpec) -> None:
    """Replace what the user asked for, as by a larger number of trials."""
    with store.writing() as connection:
        connection.execute("UPDATE sweeps SET body = ? WHERE id = ?", (encode(sweep), sweep_id))


def stop_sweep(store: Store, sweep_id: int, now: float | None) -> None:
    """Record that no further trials are wanted; None undoes it."""
    with store.writing() as connection:
        connection.execute("UPDATE sweeps SET stopped = ? WHERE id = ?", (now, sweep_id))


def set_tuner(store: Store, sweep_id: int, tuner: int) -> None:
    with store.writing() as connection:
        connection.execute("UPDATE sweeps SET adviser = ? WHERE id = ?", (tuner, sweep_id))


def find_sweep(reader: Reader, sweep_id: int) -> StoredSweep | None:
    rows = reader.rows(_SWEEP + "WHERE id = ?", sweep_id)
    return _stored(reader, rows[0]) if rows else None


def has_sweeps(reader: Reader) -> bool:
    return bool(reader.rows("SELECT 1 FROM sweeps LIMIT 1"))


def sweep_of_content(reader: Reader, content: bytes) -> int | None:
    """The newest sweep with a trial that does this work, and succeeded or has not ended."""
    where = f"content = ? AND {IN_SWEEP} AND (state = 'done' OR {OPEN})"
    ((sweep_id,),) = reader.rows(f"SELECT max(sweep) FROM jobs INDEXED BY jobs_content WHERE {where}", content)
    return None if sweep_id is None else int(sweep_id)


def all_sweeps(reader: Reader) -> list[StoredSweep]:
    """Every sweep, the newest first."""
    return [_stored(reader, row) for row in reader.rows(_SWEEP + "ORDER BY created DESC, id DESC")]


def add_trial(
    store: Store, stored: StoredSweep, number: int, point: Mapping[str, Scalar], now: float, *, held: str = ""
) -> int:
    """Add the trial with this number to the queue and return its job; one that is there is not added again."""
    with store.writing() as connection:
        query = f"SELECT id FROM jobs WHERE sweep = ? AND trial = ? AND {IN_SWEEP}"
        row = connection.execute(query, (stored.id, number)).fetchone()
        if row:
            return int(row[0])
        job = trial_job(stored.sweep, stored.spec, number, point, stored.id)
        return store.add_jobs(stored.batch, engine_of(stored.spec.cluster), [job], now, held=held)[0]


def set_trial_result(store: Store, sweep_id: int, number: int, body: Mapping[str, Any]) -> None:
    """Keep what is known about the result of a trial, in place of what was known before."""
    with store.writing() as connection:
        row = (sweep_id, number, msgspec.json.encode(body).decode())
        connection.execute("INSERT OR REPLACE INTO trials VALUES (?, ?, ?)", row)


def trial_results(reader: Reader, sweep_id: int) -> dict[int, dict[str, Any]]:
    """The recorded results of trials, by number."""
    rows = reader.rows("SELECT number, body FROM trials WHERE sweep = ? ORDER BY number", sweep_id)
    return {number: msgspec.json.decode(body) for number, body in rows}


def _stored(reader: Reader, row: tuple[Any, ...]) -> StoredSweep:
    sweep_id, batch, created, tuner, stopped, spec, body = row
    return StoredSweep(sweep_id, batch, created, tuner, stopped, reader.spec(spec), decode(_sweeps(), body))


@cache
def _sweeps() -> msgspec.json.Decoder[SweepSpec]:
    return msgspec.json.Decoder(SweepSpec)
