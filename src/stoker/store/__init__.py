"""The only SQL: jobs, attempts and events in one SQLite file; a job and its event change in one transaction."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stoker.core.errors import StokerError
from stoker.core.job import Command, Event, Job, Terms, Waiting
from stoker.core.submission import NewJob, content_of, digest_of
from stoker.store.rows import (
    EVENTS,
    HELD,
    JOB,
    OPEN,
    SCHEMA,
    STATES,
    UPDATE_JOB,
    VERSION,
    AttemptRow,
    Change,
    TakeOver,
    attempt_of,
    attempt_row,
    decode,
    encode,
    job_row,
    join,
    split,
    text_of,
)
from stoker.store.turnstile import Turnstile

__all__ = ["VERSION", "AttemptRow", "Change", "Store", "TakeOver"]


_ANOTHER_PROGRAM = "another program keeps it locked: end that one; nothing was written"
_YOURS = "see whether the file and its directory are yours to write"
_HINTS = {
    sqlite3.SQLITE_FULL: "nothing was written; free some space on its file system",
    sqlite3.SQLITE_IOERR: "see whether its disk is full or failing",
    sqlite3.SQLITE_BUSY: _ANOTHER_PROGRAM,
    sqlite3.SQLITE_LOCKED: _ANOTHER_PROGRAM,
    sqlite3.SQLITE_CANTOPEN: _YOURS,
    sqlite3.SQLITE_READONLY: _YOURS,
    sqlite3.SQLITE_PERM: _YOURS,
}
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_DAMAGED_HINT = "move it aside, and Stoker makes a new one; it never overwrites what it cannot read"


class Store:
    """One user's queue on one host. Not to be carried over a fork."""

    def __init__(self, path: Path, patience: float = 30.0) -> None:
        """`patience` is how many seconds a writer waits for its turn."""
        self._path = path
        self._terms_by_id: dict[int, Terms] = {}
        self._ids_by_terms: dict[Terms, int] = {}
        with contextlib.ExitStack() as closing:
            self._create_private(path)
            self._turnstile = closing.enter_context(contextlib.closing(Turnstile(path.with_suffix(".lock"), patience)))
            with self._explained("open"):
                self._database = sqlite3.connect(path, isolation_level=None, timeout=patience, cached_statements=64)
                closing.callback(self._database.close)
                self._prepare()
            self._closing = closing.pop_all()

    def close(self) -> None:
        """Close the file."""
        self._closing.close()

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One write transaction. A short lock in front of it gives every writer a fair turn."""
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

    def add_jobs(self, batch: int, engine: str, jobs: Sequence[NewJob], now: float) -> range:
        """Put jobs in the queue, all or none; returns their ids."""
        waiting = encode(Waiting(now))
        with self.writing() as database:
            (last,) = database.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name='jobs'").fetchone()
            ids = range(last + 1, last + 1 + len(jobs))
            database.executemany(
                "INSERT INTO jobs (id, batch, engine, content, name, words, shell, terms, submitted, state, detail)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'waiting', ?)",
                (
                    (job_id, batch, engine, *self._columns(database, job), now, waiting)
                    for job_id, job in zip(ids, jobs, strict=True)
                ),
            )
        return ids

    # -- the engine writes -----------------------------------------------------------------------

    def record(self, changes: Iterable[Change]) -> None:
        """Write what happened: each job, its attempts and its events, all in one transaction."""
        jobs: list[tuple[Any, ...]] = []
        events: list[tuple[Any, ...]] = []
        attempts: dict[str, list[tuple[Any, ...]]] = {}
        for change in changes:
            jobs.append(job_row(change.job))
            for number, event in change.events:
                events.append((change.job.id, event.at, encode(event)))
                statement, row = attempt_row(event)
                attempts.setdefault(statement, []).append((*row, change.job.id, number))
        with self.writing() as database:
            database.executemany(UPDATE_JOB, jobs)
            database.executemany("INSERT INTO events (job, at, body) VALUES (?, ?, ?)", events)
            for statement, rows in attempts.items():
                database.executemany(statement, rows)

    def take_over(self, wanted: Sequence[TakeOver], engine: str) -> set[int]:
        """Give jobs of dead engines to another one; returns those that nobody else has taken before."""
        if not wanted:
            return set()
        with self.writing() as database:
            return {one.job for one in wanted if self._take_one(database, one, engine)}

    # -- anybody reads ---------------------------------------------------------------------------

    def job(self, job_id: int) -> Job | None:
        """One job, or None."""
        rows = self._rows(JOB + "id = ?", job_id)
        return self._job_of(rows[0]) if rows else None

    def last_job(self) -> int | None:
        """The newest job's id."""
        ((last,),) = self._rows("SELECT max(id) FROM jobs")
        return None if last is None else int(last)

    def open_jobs(self, engine: str, after: int, limit: int) -> list[Job]:
        """The engine's jobs that are not over, in the order of their ids."""
        query = JOB + "engine = ? AND id > ? AND " + OPEN + " ORDER BY id LIMIT ?"
        return [self._job_of(row) for row in self._rows(query, engine, after, limit)]

    def engines_with_open_jobs(self) -> list[str]:
        """Ids of the engines that own jobs which are not over."""
        return [engine for (engine,) in self._rows("SELECT DISTINCT engine FROM jobs WHERE " + OPEN)]

    def held_jobs(self, engine: str) -> list[Job]:
        """The engine's jobs that were given to keepers and are not over, in the order of their ids."""
        rows = self._rows(JOB + "engine = ? AND " + HELD + " ORDER BY id", engine)
        return [self._job_of(row) for row in rows]

    def engines_with_held_jobs(self) -> list[str]:
        """Ids of the engines that own jobs which keepers hold."""
        return [engine for (engine,) in self._rows("SELECT DISTINCT engine FROM jobs WHERE " + HELD)]

    def keepers(self) -> set[str]:
        """Names of the keepers that jobs which are not over were given to."""
        keeper = "json_extract(CAST(detail AS TEXT), '$.keeper')"
        return {name for (name,) in self._rows(f"SELECT {keeper} FROM jobs WHERE {HELD}")}

    def times_done(self, content: bytes) -> int:
        """How often this very work has succeeded."""
        query = "SELECT count(*) FROM jobs WHERE content = ? AND state = 'done'"
        ((count,),) = self._rows(query, content)
        return int(count)

    def times_open(self, content: bytes, engine: str) -> int:
        """How often this very work is in the hands of other engines."""
        query = "SELECT count(*) FROM jobs WHERE content = ? AND engine != ? AND " + OPEN
        return int(self._rows(query, content, engine)[0][0])

    def environment(self, digest: str) -> dict[str, str]:
        """The variables kept under a digest."""
        ((body,),) = self._rows("SELECT variables FROM environments WHERE digest = ?", digest)
        variables: dict[str, str] = json.loads(body)
        return variables

    def attempts(self, job_id: int) -> list[AttemptRow]:
        """A job's attempts, oldest first."""
        rows = self._rows("SELECT * FROM attempts WHERE job = ? ORDER BY number", job_id)
        return [attempt_of(row) for row in rows]

    def events(self, job_id: int) -> list[Event]:
        """A job's story, oldest first."""
        rows = self._rows("SELECT body FROM events WHERE job = ? ORDER BY id", job_id)
        return [decode(EVENTS, body) for (body,) in rows]

    # -- inside ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """Whatever SQLite has to complain of becomes an error that says what to do."""
        try:
            yield
        except sqlite3.Error as error:
            raise _explanation(doing, self._path, error) from error

    def _roll_back(self) -> None:
        """Undo what the transaction did, here too: the ids of terms that were first written in it are void."""
        self._terms_by_id.clear()
        self._ids_by_terms.clear()
        if self._database.in_transaction:  # SQLite may have done it already, as on a full disk
            self._database.execute("ROLLBACK")

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._explained("read"):
            return self._database.execute(query, values).fetchall()

    @staticmethod
    def _create_private(path: Path) -> None:
        """SQLite gives its side files the mode of the main one, so that one is made private first."""
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))

    def _prepare(self) -> None:
        if self._version() > VERSION:
            raise StokerError(
                f"{self._path} was written by a newer Stoker (schema {self._version()} instead of {VERSION})",
                "upgrade Stoker; the queue was left as it is",
            )
        if self._rows("PRAGMA journal_mode") != [("wal",)]:
            with self._turnstile.passed():  # two that open a new file at once would find it locked by the other
                self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        if self._version() == 0:
            with self.writing() as database:
                if self._version() == 0:
                    for statement in SCHEMA.split(";\n"):
                        database.execute(statement)
                    database.execute(f"PRAGMA user_version = {VERSION}")

    def _version(self) -> int:
        ((version,),) = self._rows("PRAGMA user_version")
        return int(version)

    def _take_one(self, database: sqlite3.Connection, wanted: TakeOver, engine: str) -> bool:
        terms = None if wanted.terms is None else self._terms_id(database, wanted.terms)
        cursor = database.execute(
            "UPDATE jobs SET engine = ?, batch = coalesce(?, batch), terms = coalesce(?, terms)"
            " WHERE id = ? AND engine = ?",
            (engine, wanted.batch, terms, wanted.job, wanted.owner),
        )
        return cursor.rowcount == 1

    def _columns(self, database: sqlite3.Connection, job: NewJob) -> tuple[bytes, str, bytes, str, int]:
        command, terms = job.command, job.terms
        content, words = content_of(command, terms), join(command.words)
        return content, text_of(job.name), words, command.shell, self._terms_id(database, terms)

    def _terms_id(self, database: sqlite3.Connection, terms: Terms) -> int:
        known = self._ids_by_terms.get(terms)
        if known is None:
            body = json.dumps(msgspec.to_builtins(terms))
            database.execute("INSERT OR IGNORE INTO terms (body) VALUES (?)", (body,))
            (known,) = database.execute("SELECT id FROM terms WHERE body = ?", (body,)).fetchone()
            self._remember_terms(known, terms)
        return known

    def _terms(self, terms_id: int) -> Terms:
        known = self._terms_by_id.get(terms_id)
        if known is None:
            ((body,),) = self._rows("SELECT body FROM terms WHERE id = ?", terms_id)
            known = msgspec.convert(json.loads(body), Terms)
            self._remember_terms(terms_id, known)
        return known

    def _remember_terms(self, terms_id: int, terms: Terms) -> None:
        self._terms_by_id[terms_id] = terms
        self._ids_by_terms[terms] = terms_id

    def _job_of(self, row: tuple[Any, ...]) -> Job:
        job_id, batch, name, words, shell, terms, submitted, detail, attempts, failures, losses = row
        return Job(
            id=job_id,
            batch=batch,
            command=Command(split(words), shell),
            terms=self._terms(terms),
            state=decode(STATES, detail),
            submitted=submitted,
            name=name,
            attempts=attempts,
            failures=failures,
            losses=losses,
        )


def _explanation(doing: str, path: Path, error: sqlite3.Error) -> StokerError:
    # Errors of the module itself have no code; the lower byte is the kind, the rest tells where it came up.
    kind = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if kind in _DAMAGE:
        return StokerError(f"{path} is damaged, or not a queue of Stoker: {error}", _DAMAGED_HINT)
    hint = _HINTS.get(kind, "try again; if it stays so, move the file aside and report this")
    return StokerError(f"cannot {doing} {path}: {error}", hint)
