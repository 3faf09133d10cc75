"""The only SQL: jobs, attempts and events in one SQLite file; a job and its event change in one transaction."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from stoker.core.errors import StokerError
from stoker.core.job import Job, OnHold, State, Waiting
from stoker.core.learning import Learnt
from stoker.core.requests import Request
from stoker.core.spec import JobSpec, NewJob, content_of, digest_of
from stoker.store.damage import BEHEADED, DAMAGED_HINT, NEWER_HINT, is_beheaded
from stoker.store.paths import Paths
from stoker.store.queries import Listing
from stoker.store.schema import (
    EDIT_JOB,
    JOBS_AT_ONCE,
    MEASURE,
    MIGRATIONS,
    UPDATE_JOB,
    VERSION,
    Change,
    FollowUps,
    Measured,
    TakeOver,
    attempt_row,
    edits,
    encode,
    insert_jobs,
    job_row,
    join,
    measure_row,
    text_of,
)
from stoker.store.write_lock import Turnstile

NOTHING: Mapping[str, Learnt] = MappingProxyType({})


class Store(Listing):
    """One user's queue on one host. Not to be carried over a fork."""

    def __init__(self, path: Path, patience: float = 30.0) -> None:
        """`patience` is how many seconds a writer waits for its turn."""
        with contextlib.ExitStack() as closing:
            if is_beheaded(path):
                raise StokerError(f"{path} is damaged: {BEHEADED}", DAMAGED_HINT)
            self._create_private(path)
            self._turnstile = closing.enter_context(contextlib.closing(Turnstile(path.with_suffix(".lock"), patience)))
            super().__init__(path, patience)
            closing.callback(self._close_files)
            with self._explained("open"):
                self._prepare()
            self._closing = closing.pop_all()

    def close(self) -> None:
        """Close the file."""
        self._closing.close()

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One write transaction, or a part of the one that is open. A short lock in front gives every writer a turn."""
        if self._database.in_transaction:
            yield self._database
            return
        with self._explained("write"), self._turnstile.passed():
            try:
                self._database.execute("BEGIN IMMEDIATE")
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    # -- doors write -----------------------------------------------------------------------------

    def add_batch(self, label: str, now: float) -> int:
        """A new batch's number."""
        with self.writing() as database:
            cursor = database.execute("INSERT INTO batches (label, created) VALUES (?, ?)", (text_of(label), now))
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def add_environment(self, variables: Mapping[str, str]) -> str:
        """Keep an environment once and return its digest."""
        digest = digest_of(variables)
        with self.writing() as database:
            body = json.dumps(dict(variables))
            database.execute("INSERT OR IGNORE INTO environments VALUES (?, ?)", (digest, body))
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
    ) -> range:
        """Put jobs in the queue, all or none; returns their ids. The first id of an array names it.

        With `array` all of them are one; `arrays` knows the names of those whose first tasks came before, and learns.
        """
        named = {} if arrays is None else arrays
        state: State = OnHold(now, held) if held else Waiting(now)
        word, detail = "held" if held else "waiting", encode(state)
        with self.writing() as database:
            (last,) = database.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name='jobs'").fetchone()
            ids = range(last + 1, last + 1 + len(jobs))
            first = last + 1 if array else 0
            rows = (
                (job_id, batch, engine, *self._columns(database, job), now, word, detail, name, job.task)
                for job_id, job in zip(ids, jobs, strict=True)
                for name in (named.setdefault(job.array, job_id) if job.array else first,)
            )
            while some := list(islice(rows, JOBS_AT_ONCE)):
                database.execute(insert_jobs(len(some)), list(chain.from_iterable(some)))
        return ids

    def ask(self, wishes: Sequence[tuple[str, Request]], now: float) -> list[int]:
        """Leave requests for the engines that own the jobs, and return their numbers."""
        with self.writing() as database:
            rows = [(engine, request.job, now, encode(request)) for engine, request in wishes]
            ask = "INSERT INTO requests (engine, job, at, body) VALUES (?, ?, ?, ?) RETURNING id"
            return [number for row in rows for (number,) in database.execute(ask, row).fetchall()]

    def put_setting(self, key: str, value: Any) -> None:
        """Set something for all engines of this queue; None takes it back."""
        with self.writing() as database:
            if value is None:
                database.execute("DELETE FROM settings WHERE key = ?", (key,))
            else:
                database.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (key, json.dumps(value)))

    # -- the engine writes -----------------------------------------------------------------------

    def record(
        self,
        changes: Iterable[Change],
        answered: Iterable[int] = (),
        learnt: Mapping[str, Learnt] = NOTHING,
        follow_ups: FollowUps | None = None,
        measured: Iterable[Measured] = (),
    ) -> None:
        """Write what happened: each job, its attempts and its events, all in one transaction.

        Requests that were answered by it go in the same transaction, so that none is obeyed twice, and so does what
        was measured and learnt from it, and the jobs that follow from it.
        """
        jobs: list[tuple[Any, ...]] = []
        events: list[tuple[Any, ...]] = []
        attempts: dict[str, list[tuple[Any, ...]]] = {}
        edited: list[Job] = []
        for change in changes:
            jobs.append(job_row(change.job))
            if edits(change):
                edited.append(change.job)
            for number, event in change.events:
                events.append((change.job.id, event.at, encode(event)))
                if written := attempt_row(event):
                    attempts.setdefault(written[0], []).append((*written[1], change.job.id, number))
        with self.writing() as database:
            database.executemany(UPDATE_JOB, jobs)
            database.executemany("INSERT INTO events (job, at, body) VALUES (?, ?, ?)", events)
            for statement, rows in attempts.items():
                database.executemany(statement, rows)
            for job in edited:
                content = content_of(job.command, job.spec, job.task)
                database.execute(EDIT_JOB, (text_of(job.name), self._spec_id(database, job.spec), content, job.id))
            database.executemany("DELETE FROM requests WHERE id = ?", [(number,) for number in answered])
            news = [(signature, msgspec.json.encode(known).decode()) for signature, known in learnt.items()]
            database.executemany("INSERT OR REPLACE INTO learnt VALUES (?, ?)", news)
            database.executemany(MEASURE, map(measure_row, measured))
            if follow_ups is not None:
                self.add_jobs(
                    self.add_batch(follow_ups.label, follow_ups.at), follow_ups.engine, follow_ups.jobs, follow_ups.at
                )

    def take_over(self, wanted: Sequence[TakeOver], engine: str) -> set[int]:
        """Give jobs of dead engines to another one; returns those that nobody else has taken before."""
        if not wanted:
            return set()
        with self.writing() as database:
            return {one.job for one in wanted if self._take_one(database, one, engine)}

    # -- inside ----------------------------------------------------------------------------------

    def _roll_back(self) -> None:
        """Undo what the transaction did, here too: the ids of terms that were first written in it are void."""
        self._specs_by_id.clear()
        self._ids_by_spec.clear()
        if self._database.in_transaction:  # SQLite may have done it already, as on a full disk
            self._database.execute("ROLLBACK")

    @staticmethod
    def _create_private(path: Path) -> None:
        """SQLite gives its side files the mode of the main one, so that one is made private first."""
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))

    def _prepare(self) -> None:
        if (found := self._version()) > VERSION:
            self._preserve()
            newer = f"{self._path} was written by a newer Stoker (schema {found} instead of {VERSION})"
            raise StokerError(newer, NEWER_HINT)
        if self._rows("PRAGMA journal_mode") != [("wal",)]:
            with self._turnstile.passed():  # two that open a new file at once would find it locked by the other
                self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        if self._version() < VERSION:
            with self.writing() as database:
                for number in range(self._version(), VERSION):  # asked again: somebody may have been faster
                    for statement in MIGRATIONS[number].split(";\n"):
                        database.execute(statement)
                database.execute(f"PRAGMA user_version = {VERSION}")

    def _version(self) -> int:
        ((version,),) = self._rows("PRAGMA user_version")
        return int(version)

    def _take_one(self, database: sqlite3.Connection, wanted: TakeOver, engine: str) -> bool:
        spec = None if wanted.spec is None else self._spec_id(database, wanted.spec)
        cursor = database.execute(
            "UPDATE jobs SET engine = ?, batch = coalesce(?, batch), spec = coalesce(?, spec)"
            " WHERE id = ? AND engine = ?",
            (engine, wanted.batch, spec, wanted.job, wanted.owner),
        )
        return cursor.rowcount == 1

    def _columns(self, database: sqlite3.Connection, job: NewJob) -> tuple[bytes, str, bytes, str, int]:
        command, spec = job.command, job.spec
        content, words = content_of(command, spec, job.task), join(command.words)
        return content, text_of(job.name), words, command.shell, self._spec_id(database, spec)

    def _spec_id(self, database: sqlite3.Connection, spec: JobSpec) -> int:
        known = self._ids_by_spec.get(spec)
        if known is None:
            body = json.dumps(msgspec.to_builtins(spec))
            database.execute("INSERT OR IGNORE INTO specs (body) VALUES (?)", (body,))
            (known,) = database.execute("SELECT id FROM specs WHERE body = ?", (body,)).fetchone()
            self._remember_spec(known, spec)
        return known


def open_store(paths: Paths) -> Store:
    """The queue of this user on this host, made where there is none."""
    try:
        return Store(paths.database)
    except OSError as error:
        raise StokerError(
            f"cannot open the queue {paths.database}: {error.strerror}",
            "set STOKER_STATE to a directory of yours",
        ) from error
