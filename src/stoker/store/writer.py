"""The store of one queue: everything of the reader, and all changes."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from stoker.core.errors import StokerError
from stoker.core.job import Job, OnHold, State, Waiting, state_word
from stoker.core.learning import Learnt
from stoker.core.pattern import Pattern
from stoker.core.ranges import Ranges, ranges_of
from stoker.core.requests import Request
from stoker.core.spec import JobSpec, NewJob, content_of, digest_of
from stoker.store.database import Database
from stoker.store.lines import sharing_rows
from stoker.store.paths import Paths
from stoker.store.patterns import add_patterns
from stoker.store.reader import Reader
from stoker.store.schema import (
    EDIT_JOB,
    JOBS_AT_ONCE,
    MEASURE,
    MIGRATIONS,
    NAME_BATCH,
    NO_ENGINE,
    SET_CONTENT,
    SET_OWN,
    SHORTEN_JOBS,
    SPLIT_JOBS,
    START_JOB,
    UPDATE_JOB,
    Adoption,
    BatchRecord,
    Change,
    FollowUps,
    Measured,
    OwnColumns,
    SubmitKey,
    attempt_row,
    edits,
    encode,
    insert_jobs,
    job_row,
    join,
    may_share_row,
    measure_row,
    member_columns,
    needs_content,
    new_name,
    own_columns,
    text_of,
)

if TYPE_CHECKING:
    from stoker.store.samples import Sample

MANY_JOBS = 10_000
SMALL_CACHE, LARGE_CACHE = 2_000, 48_000
"""Kilobytes in which SQLite keeps pages, usually and while many jobs are added: digests go all over their index."""
NOTHING: Mapping[str, Learnt] = MappingProxyType({})


class Store(Reader):
    """One user's queue on one host. It must not be used after a fork."""

    def __init__(
        self,
        path: Path,
        patience: float = 30.0,
        *,
        durable: bool = True,
        migrations: Sequence[str] = MIGRATIONS,
    ) -> None:
        """`patience` is how many seconds a writer waits for its turn."""
        super().__init__(Database(path, patience, durable=durable, migrations=migrations))

    def close(self) -> None:
        self._database.close()

    def writing(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """One write transaction, or a part of the one that is open."""
        return self._database.writing()

    def forget_rows(self) -> None:
        """Empty the caches of specs and batches after rows of these tables were deleted."""
        self._database.forget_rows()

    def spec_id(self, spec: JobSpec) -> int:
        """The number of a spec in its table; a new spec is added."""
        return self._database.spec_id(spec)

    # -- front ends write ------------------------------------------------------------------------

    def add_batch(self, label: str, now: float) -> int:
        """Insert a batch and return its number."""
        with self.writing() as connection:
            cursor = connection.execute("INSERT INTO batches (label, created) VALUES (?, ?)", (text_of(label), now))
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def set_batch_record(self, batch: int, record: BatchRecord) -> None:
        """Let a batch whose first job is in the queue belong to a feature."""
        with self.writing() as connection:
            columns = "kind = ?, first_job = ?, name = ?, coordinator = ?, spec = ?, record = ?"
            names = record.kind, record.first_job, text_of(record.name), record.coordinator
            row = (*names, self.spec_id(record.spec), record.record, batch)
            connection.execute(f"UPDATE batches SET {columns} WHERE id = ?", row)

    def add_environment(self, variables: Mapping[str, str]) -> str:
        """Store an environment once and return its digest."""
        digest = digest_of(variables)
        with self.writing() as connection:
            body = json.dumps(dict(variables))
            connection.execute("INSERT OR IGNORE INTO environments VALUES (?, ?)", (digest, body))
        return digest

    def add_jobs(
        self,
        batch: int,
        engine: str,
        jobs: Sequence[NewJob],
        now: float,
        *,
        array: bool = False,
        held: str = "",
        arrays: dict[int, int] | None = None,
        lines: bool = False,
        patterns: Sequence[Pattern] = (),
    ) -> range:
        """Insert jobs, all or none, and return their ids. The id of an array is that of its first task.

        With `lines` jobs that differ only in their commands may share rows. Members that stand for several follow from
        the patterns.
        With `array` all jobs are tasks of one array. `arrays` maps each `NewJob.array` to the id of its array; pass the
        same dict again to add further tasks to arrays of an earlier call.
        """
        named = {} if arrays is None else arrays
        state: State = OnHold(now, held) if held else Waiting(now)
        word, detail = "held" if held else "waiting", encode(state)
        with self.writing() as connection:
            add_patterns(connection, batch, patterns)
            last = _last_id(connection)
            first = last + 1 if array else 0
            added = sharing_rows(connection, jobs, last + 1) if lines else jobs
            rows = (
                (
                    end,
                    batch,
                    engine,
                    *self._columns(job),
                    now,
                    word,
                    detail,
                    name,
                    None if job.task is None else job.task + (job.count - 1) * job.step,
                    *member_columns(job.member, job.count),
                    job.count,
                    job.step,
                )
                for end, job in _with_ends(added, last)
                for name in (named.setdefault(job.array, end - job.count + 1) if job.array else first,)
            )
            with _large_cache(connection) if len(jobs) > MANY_JOBS else contextlib.nullcontext():
                while some := list(islice(rows, JOBS_AT_ONCE)):
                    connection.execute(insert_jobs(len(some)), list(chain.from_iterable(some)))
            return range(last + 1, _last_id(connection) + 1)

    def import_jobs(self, jobs: Sequence[Job], engine: str) -> None:
        """Insert jobs of another store with their ids and counters, in place of what was imported of them before."""
        with self.writing() as connection:
            delete_jobs(connection, ranges_of(job.id for job in jobs))
            for job in jobs:
                new = NewJob(job.command, job.spec, job.name, job.task, member=job.member)
                state = state_word(job), encode(job.state)
                row = (job.id, job.batch, engine, *self._columns(new), job.submitted, *state, job.array, job.task)
                connection.execute(insert_jobs(1), (*row, *member_columns(job.member), 1, 1))
                connection.execute(UPDATE_JOB, job_row(job))
                if job.member is not None:
                    batch = (job.batch, "", job.submitted, job.member.kind, job.member.batch)
                    connection.execute(NAME_BATCH, batch)

    def add_key(self, key: str, submitted: SubmitKey) -> None:
        """Remember what was submitted under a new key; it is pruned with its first job."""
        with self.writing() as connection:
            row = (text_of(key), submitted.parts[0][0], submitted.content, json.dumps(submitted.parts))
            connection.execute("INSERT INTO keys (key, job, content, parts) VALUES (?, ?, ?, ?)", row)

    def ask(self, requests: Sequence[tuple[str, Request]], now: float) -> list[int]:
        """Insert requests to the engines that own the jobs, and return their numbers."""
        with self.writing() as connection:
            rows = [(engine, request.job, request.count, now, encode(request)) for engine, request in requests]
            ask = "INSERT INTO requests (engine, job, count, at, body) VALUES (?, ?, ?, ?, ?) RETURNING id"
            return [number for row in rows for (number,) in connection.execute(ask, row).fetchall()]

    def put_setting(self, key: str, value: Any) -> None:
        """Change a setting of all engines of this queue; None deletes it."""
        with self.writing() as connection:
            if value is None:
                connection.execute("DELETE FROM settings WHERE key = ?", (key,))
            else:
                connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (key, json.dumps(value)))

    # -- the engine writes -----------------------------------------------------------------------

    def record(
        self,
        changes: Iterable[Change],
        answered: Mapping[int, Request | None] = MappingProxyType({}),
        learnt: Mapping[str, Learnt] = NOTHING,
        follow_ups: FollowUps | None = None,
        measured: Iterable[Measured] = (),
        *,
        samples: Iterable[Sample] = (),
    ) -> None:
        """Write jobs with their attempts and events in one transaction.

        Answered requests are deleted in the same transaction, so that none is handled twice; of one that is handled in
        part, the rest stays. Measurements, samples of GPUs, what was learnt, and follow-up jobs are written in it, too.
        """
        written = _rows_of(changes)
        with self.writing() as connection:
            self._record_changes(connection, written)
            done = [(number,) for number, rest in answered.items() if rest is None]
            connection.executemany("DELETE FROM requests WHERE id = ?", done)
            rests = [(rest.job, rest.count, encode(rest), number) for number, rest in answered.items() if rest]
            connection.executemany("UPDATE requests SET job = ?, count = ?, body = ? WHERE id = ?", rests)
            news = [(signature, msgspec.json.encode(use).decode()) for signature, use in learnt.items()]
            connection.executemany("INSERT OR REPLACE INTO learnt VALUES (?, ?)", news)
            connection.executemany(MEASURE, map(measure_row, measured))
            if rows := list(samples):
                from stoker.store.samples import write_samples  # only engines write samples

                write_samples(connection, rows)
            if follow_ups is not None:
                self._follow(follow_ups)

    def _record_changes(self, connection: sqlite3.Connection, written: _Written) -> None:
        started = []
        there = written.jobs
        if len(written.jobs) > 1 and all(job.count == 1 for job in written.separate):
            made = _start(connection, written)
            there = [row for row in written.jobs if row[-1] not in made]
        else:
            made = set()
        for job in written.separate:
            own = written.started.get(job.id, OwnColumns()) if job.count == 1 else OwnColumns()
            if job.id not in made and not separate(connection, job.id, job.last, own) and own.content is not None:
                started.append((*own, job.id))
        # In order: a change of several jobs comes before changes of some of them.
        connection.executemany(UPDATE_JOB, there)
        connection.executemany("INSERT INTO events (job, count, at, body) VALUES (?, ?, ?, ?)", written.events)
        connection.executemany("UPDATE jobs SET engine = ? WHERE id BETWEEN ? AND ?", written.released)
        for statement, rows in written.attempts.items():
            connection.executemany(statement, rows)
        for job, name in written.edited:
            connection.execute(EDIT_JOB, (name, self._database.spec_id(job.spec), job.id, job.last))
        connection.executemany(SET_OWN, started)
        connection.executemany(SET_CONTENT, written.contents)

    def _follow(self, new: FollowUps) -> None:
        after_batches = [
            after_batche.job
            for after_batche in new.after_batches
            if not self.is_batch_open(after_batche.batch, after_batche.ended)
        ]
        if jobs := [*new.jobs, *after_batches]:
            self.add_jobs(self.add_batch(new.label, new.at), new.engine, jobs, new.at)

    def follow(self, new: FollowUps) -> None:
        """Add follow-up jobs by themselves."""
        with self.writing():
            self._follow(new)

    def give(self, jobs: Sequence[int], owner: str, engine: str) -> None:
        """Give jobs of a dead engine to another one, unless a third took them first."""
        with self.writing() as connection:
            for ids in ranges_of(jobs).parts:
                separate(connection, ids[0], ids[-1])
                values = engine, owner, ids[0], ids[-1]
                connection.execute("UPDATE jobs SET engine = ? WHERE engine = ? AND id BETWEEN ? AND ?", values)

    def adopt(self, wanted: Sequence[Adoption], engine: str) -> set[int]:
        """Give jobs of dead engines to another one, and return those that no other engine took first."""
        if not wanted:
            return set()
        with self.writing() as connection:
            return {request.job for request in wanted if self._take_one(connection, request, engine)}

    def _take_one(self, connection: sqlite3.Connection, wanted: Adoption, engine: str) -> bool:
        spec = None if wanted.spec is None else self._database.spec_id(wanted.spec)
        cursor = connection.execute(
            "UPDATE jobs SET engine = ?, batch = coalesce(?, batch), spec = coalesce(?, spec)"
            " WHERE id = ? AND engine = ?",
            (engine, wanted.batch, spec, wanted.job, wanted.owner),
        )
        return cursor.rowcount == 1

    def _columns(self, job: NewJob) -> tuple[bytes | None, str | None, bytes | None, str, int]:
        command, spec = job.command, job.spec
        name, shell, spec_id = text_of(job.name), command.shell, self._database.spec_id(spec)
        if job.count > 1 and job.member is not None:
            return None, None, None, shell, spec_id
        if job.count > 1 and job.task is None:
            return None, name, None, shell, spec_id
        return content_of(command, spec, job.member), name, join(command.words), shell, spec_id


class _Written(NamedTuple):
    """Rows to write for changes of jobs."""

    jobs: list[tuple[Any, ...]]
    events: list[tuple[Any, ...]]
    attempts: dict[str, list[tuple[Any, ...]]]
    """By statement."""
    separate: list[Job]
    """Jobs that may be in a row with others."""
    edited: list[tuple[Job, str | None]]
    """With their new names."""
    contents: list[tuple[bytes, int, int]]
    started: dict[int, OwnColumns]
    """Of jobs that start for the first time and shared a row."""
    released: list[tuple[str, int, int]]


def _rows_of(changes: Iterable[Change]) -> _Written:
    """Before the transaction, since others wait for that."""
    written = _Written([], [], {}, [], [], [], {}, [])
    for change in changes:
        job = change.job
        written.jobs.append(job_row(job))
        if may_share_row(change):
            written.separate.append(job)
        if change.released:
            written.released.append((NO_ENGINE, job.id, job.last))
        if edits(change):
            written.edited.append((job, new_name(change)))
        if needs_content(change):
            if job.differences is not None and may_share_row(change):
                written.started[job.id] = own_columns(job)
            else:
                written.contents.append((content_of(job.command, job.spec, job.member), job.id, job.last))
        for number, event in change.events:
            written.events.append((job.id, job.count, event.at, encode(event)))
            if row := attempt_row(event):
                written.attempts.setdefault(row[0], []).append((*row[1], job.id, number))
    return written


def _start(connection: sqlite3.Connection, written: _Written) -> set[int]:
    """Give jobs at the front of a row that start together rows of their own at once; returns which."""
    made: set[int] = set()
    rows = {row[-1]: row for row in written.jobs}
    for ids in ranges_of(sorted(job.id for job in written.separate)).parts:
        query = "SELECT id, size FROM jobs WHERE id >= ? ORDER BY id LIMIT 1"
        last, size = connection.execute(query, (ids[0],)).fetchone() or (0, 0)
        if last - size + 1 != ids[0]:
            continue
        here = range(ids[0], min(ids.stop, last))
        own = (written.started.get(job_id, OwnColumns()) for job_id in here)
        values = (
            (*owned, *rows[job_id][:11], job_id, job_id, job_id, last) for owned, job_id in zip(own, here, strict=True)
        )
        connection.executemany(START_JOB, values)
        if here:
            connection.execute(SHORTEN_JOBS, {"last": here[-1], "row": last})
        made.update(here)
    return made


@contextlib.contextmanager
def _large_cache(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute(f"PRAGMA cache_size = -{LARGE_CACHE}")
    try:
        yield
    finally:
        connection.execute(f"PRAGMA cache_size = -{SMALL_CACHE}")


def _with_ends(jobs: Iterable[NewJob], end: int) -> Iterator[tuple[int, NewJob]]:
    """Each with the id of the last job that it stands for; `end` is the last id before them."""
    for job in jobs:
        end += job.count
        yield end, job


def _last_id(connection: sqlite3.Connection) -> int:
    (last,) = connection.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name='jobs'").fetchone()
    return int(last)


def separate(connection: sqlite3.Connection, first: int, last: int, own: OwnColumns | None = None) -> bool:
    """Let no row stand for jobs in and outside of a range of ids.

    If the jobs are cut off at their end, their row gets these columns; returns whether that is so.
    """
    row = connection.execute("SELECT id, size FROM jobs WHERE id >= ? ORDER BY id LIMIT 1", (first,)).fetchone()
    if row is not None and row[0] - row[1] + 1 < first:
        _split(connection, row[0], first - 1, OwnColumns())
    if row is not None and row[0] < last:
        row = connection.execute("SELECT id, size FROM jobs WHERE id >= ? ORDER BY id LIMIT 1", (last,)).fetchone()
    if row is None or row[0] == last or row[0] - row[1] + 1 > last:
        return False
    _split(connection, row[0], last, own or OwnColumns())
    return True


def _split(connection: sqlite3.Connection, row: int, last: int, own: OwnColumns) -> None:
    parts = {"last": last, "row": row, **own._asdict()}
    connection.execute(SPLIT_JOBS, parts)
    connection.execute(SHORTEN_JOBS, parts)


def open_store(paths: Paths, *, durable: bool = True) -> Store:
    """The queue of this user on this host, created if it is missing."""
    try:
        return Store(paths.database, durable=durable)
    except OSError as error:
        raise StokerError(
            f"cannot open the queue {paths.database}: {error.strerror}",
            "set STOKER_STATE to your own directory",
        ) from error


def open_existing(paths: Paths) -> Store:
    """The queue, for a viewer that has seen it: one that was removed is not made again."""
    check_existing(paths)
    return open_store(paths)


def check_existing(paths: Paths) -> None:
    """Refuse to go on without the queue, which a viewer has seen."""
    if not paths.database.exists():
        what = f"the queue is gone: {paths.database}"
        raise StokerError(what, "it was removed; stoker submit creates a new one")


def delete_jobs(connection: sqlite3.Connection, ids: Ranges) -> None:
    """Delete jobs, whole rows of them, with their attempts, measures, events and keys."""
    keys = [(part[0], part[-1]) for part in ids.parts]
    by_job = [(table, "job") for table in ("attempts", "measures", "events", "keys")]
    for table, column in (*by_job, ("jobs", "id"), ("lines", "id")):
        connection.executemany(f"DELETE FROM {table} WHERE {column} BETWEEN ? AND ?", keys)
