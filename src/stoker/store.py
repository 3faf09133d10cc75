"""The only SQL: jobs, attempts and events in one SQLite file; a job and its event change in one transaction."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from stoker.core.errors import StokerError
from stoker.core.job import (
    Assigned,
    Command,
    Event,
    Exited,
    Job,
    Started,
    State,
    Terms,
    Waiting,
    event_word,
    state_word,
)

VERSION = 1

_SCHEMA = """
CREATE TABLE engines (
  id TEXT PRIMARY KEY, pid INTEGER NOT NULL, kind TEXT NOT NULL, started REAL NOT NULL
) STRICT;
CREATE TABLE batches (
  id INTEGER PRIMARY KEY AUTOINCREMENT, label TEXT NOT NULL, created REAL NOT NULL
) STRICT;
CREATE TABLE environments (digest TEXT PRIMARY KEY, variables TEXT NOT NULL) STRICT;
CREATE TABLE terms (id INTEGER PRIMARY KEY, body TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE jobs (
  id INTEGER PRIMARY KEY AUTOINCREMENT, batch INTEGER NOT NULL, engine TEXT NOT NULL, content BLOB NOT NULL,
  name TEXT NOT NULL, words BLOB NOT NULL, shell TEXT NOT NULL, terms INTEGER NOT NULL, submitted REAL NOT NULL,
  state TEXT NOT NULL, detail BLOB NOT NULL, attempts INTEGER NOT NULL DEFAULT 0,
  failures INTEGER NOT NULL DEFAULT 0, losses INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX jobs_open ON jobs(engine, id) WHERE state NOT IN (
  'done', 'failed', 'oom', 'timeout', 'cancelled', 'skipped', 'lost');
CREATE INDEX jobs_done ON jobs(content) WHERE state = 'done';
CREATE TABLE attempts (
  job INTEGER NOT NULL, number INTEGER NOT NULL, keeper TEXT NOT NULL, devices TEXT NOT NULL, log BLOB NOT NULL,
  assigned REAL NOT NULL, started REAL, ended REAL, code INTEGER, signal INTEGER, why TEXT, peak_memory INTEGER,
  note TEXT, PRIMARY KEY (job, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE events (
  id INTEGER PRIMARY KEY, job INTEGER NOT NULL, at REAL NOT NULL, body BLOB NOT NULL
) STRICT;
CREATE INDEX events_job ON events(job);
"""

_JOB = "SELECT id, batch, name, words, shell, terms, submitted, detail, attempts, failures, losses FROM jobs WHERE "
_OPEN = "state NOT IN ('done', 'failed', 'oom', 'timeout', 'cancelled', 'skipped', 'lost')"

_encode = msgspec.json.Encoder().encode
_decode_state = msgspec.json.Decoder(State).decode
_decode_event = msgspec.json.Decoder(Event).decode


class NewJob(Struct, frozen=True):
    """A job that has no id yet."""

    command: Command
    terms: Terms
    name: str = ""


class Change(Struct, frozen=True):
    """A job as it is now, and what happened to it since it was written last."""

    job: Job
    events: Sequence[tuple[int, Event]]
    """Each event with the number of the attempt it belongs to."""


class AttemptRow(Struct, frozen=True):
    """What is kept of one run of a job."""

    job: int
    number: int
    keeper: str
    devices: tuple[str, ...]
    log: str
    assigned: float
    started: float | None
    ended: float | None
    code: int | None
    signal: int | None
    why: str | None
    peak_memory: int | None
    note: str | None


def content_of(command: Command, terms: Terms) -> bytes:
    """What makes two jobs the same work: the command, the place and the variables given to it."""
    parts = [command.shell and "shell", terms.cwd, *command.words]
    parts += [f"{key}={value}" for key, value in sorted(terms.extra_env)]
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).digest()[:16]


def digest_of(variables: Mapping[str, str]) -> str:
    """The name under which an environment is kept."""
    text = "\0".join(f"{key}={value}" for key, value in sorted(variables.items()))
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


class Store:
    """One user's queue on one host. Not to be carried over a fork."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._create_private(path)
        self._turnstile = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._database = sqlite3.connect(path, isolation_level=None, timeout=30.0, cached_statements=64)
        self._terms_by_id: dict[int, Terms] = {}
        self._ids_by_terms: dict[Terms, int] = {}
        try:
            self._prepare()
        except sqlite3.DatabaseError as error:
            self.close()
            raise StokerError(
                f"{path} is not a queue that Stoker can read: {error}",
                "move it aside; nothing in it was changed",
            ) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._database.close()
        os.close(self._turnstile)

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One write transaction. A short flock in front of it gives every writer a fair turn."""
        fcntl.flock(self._turnstile, fcntl.LOCK_EX)
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise StokerError(f"cannot write {self._path}: {error}", "nothing was written; free some space") from error
        finally:
            fcntl.flock(self._turnstile, fcntl.LOCK_UN)

    # -- doors write -----------------------------------------------------------------------------

    def add_engine(self, engine: str, pid: int, kind: str, now: float) -> None:
        """Remember an engine, so that its jobs can be told from those of others."""
        with self.writing() as database:
            database.execute("INSERT INTO engines VALUES (?, ?, ?, ?)", (engine, pid, kind, now))

    def add_batch(self, label: str, now: float) -> int:
        """A new batch's number."""
        with self.writing() as database:
            cursor = database.execute("INSERT INTO batches (label, created) VALUES (?, ?)", (label, now))
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
        waiting = _encode(Waiting(now))
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
        with self.writing() as database:
            for change in changes:
                self._record_one(database, change)

    def take_over(self, jobs: Iterable[int], engine: str) -> None:
        """Give jobs of a dead engine to another one."""
        with self.writing() as database:
            database.executemany("UPDATE jobs SET engine = ? WHERE id = ?", [(engine, job) for job in jobs])

    # -- anybody reads ---------------------------------------------------------------------------

    def job(self, job_id: int) -> Job | None:
        """One job, or None."""
        row = self._database.execute(_JOB + "id = ?", (job_id,)).fetchone()
        return self._job_of(row) if row else None

    def last_job(self) -> int | None:
        """The newest job's id."""
        (last,) = self._database.execute("SELECT max(id) FROM jobs").fetchone()
        return None if last is None else int(last)

    def open_jobs(self, engine: str, after: int, limit: int) -> list[Job]:
        """The engine's jobs that are not over, in the order of their ids."""
        rows = self._database.execute(
            _JOB + "engine = ? AND id > ? AND " + _OPEN + " ORDER BY id LIMIT ?",
            (engine, after, limit),
        )
        return [self._job_of(row) for row in rows]

    def engines_with_open_jobs(self) -> list[str]:
        """Ids of the engines that own jobs which are not over."""
        rows = self._database.execute("SELECT DISTINCT engine FROM jobs WHERE " + _OPEN)
        return [engine for (engine,) in rows]

    def times_done(self, content: bytes) -> int:
        """How often this very work has succeeded."""
        (count,) = self._database.execute(
            "SELECT count(*) FROM jobs WHERE content = ? AND state = 'done'", (content,)
        ).fetchone()
        return int(count)

    def environment(self, digest: str) -> dict[str, str]:
        """The variables kept under a digest."""
        row = self._database.execute("SELECT variables FROM environments WHERE digest = ?", (digest,)).fetchone()
        variables: dict[str, str] = json.loads(row[0])
        return variables

    def attempts(self, job_id: int) -> list[AttemptRow]:
        """A job's attempts, oldest first."""
        rows = self._database.execute("SELECT * FROM attempts WHERE job = ? ORDER BY number", (job_id,))
        return [_attempt_of(row) for row in rows]

    def events(self, job_id: int) -> list[Event]:
        """A job's story, oldest first."""
        rows = self._database.execute("SELECT body FROM events WHERE job = ? ORDER BY id", (job_id,))
        return [_decode_event(body) for (body,) in rows]

    # -- inside ----------------------------------------------------------------------------------

    @staticmethod
    def _create_private(path: Path) -> None:
        """SQLite gives its side files the mode of the main one, so that one is made private first."""
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))

    def _prepare(self) -> None:
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        if self._version() == 0:
            with self.writing() as database:
                if self._version() == 0:
                    for statement in _SCHEMA.split(";\n"):
                        database.execute(statement)
                    database.execute(f"PRAGMA user_version = {VERSION}")
        if self._version() > VERSION:
            raise StokerError(
                f"{self._path} was written by a newer Stoker (schema {self._version()} instead of {VERSION})",
                "upgrade Stoker; the queue was left as it is",
            )

    def _version(self) -> int:
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        return int(version)

    def _record_one(self, database: sqlite3.Connection, change: Change) -> None:
        job = change.job
        database.execute(
            "UPDATE jobs SET state = ?, detail = ?, attempts = ?, failures = ?, losses = ? WHERE id = ?",
            (state_word(job), _encode(job.state), job.attempts, job.failures, job.losses, job.id),
        )
        for number, event in change.events:
            database.execute("INSERT INTO events (job, at, body) VALUES (?, ?, ?)", (job.id, event.at, _encode(event)))
            _record_attempt(database, job.id, number, event)

    def _columns(self, database: sqlite3.Connection, job: NewJob) -> tuple[bytes, str, bytes, str, int]:
        content = content_of(job.command, job.terms)
        return content, job.name, _join(job.command.words), job.command.shell, self._terms_id(database, job.terms)

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
            (body,) = self._database.execute("SELECT body FROM terms WHERE id = ?", (terms_id,)).fetchone()
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
            command=Command(_split(words), shell),
            terms=self._terms(terms),
            state=_decode_state(detail),
            submitted=submitted,
            name=name,
            attempts=attempts,
            failures=failures,
            losses=losses,
        )


def _record_attempt(database: sqlite3.Connection, job: int, number: int, event: Event) -> None:
    match event:
        case Assigned():
            database.execute(
                "INSERT INTO attempts (job, number, keeper, devices, log, assigned) VALUES (?, ?, ?, ?, ?, ?)",
                (job, number, event.keeper, json.dumps(event.devices), os.fsencode(event.log), event.at),
            )
        case Started():
            database.execute("UPDATE attempts SET started = ? WHERE job = ? AND number = ?", (event.at, job, number))
        case Exited():
            database.execute(
                "UPDATE attempts SET ended = ?, code = ?, signal = ?, why = ?, peak_memory = ?, note = ?"
                " WHERE job = ? AND number = ?",
                (event.at, event.code, event.signal, event.why, event.peak_memory, event.note, job, number),
            )
        case _:
            database.execute(
                "UPDATE attempts SET why = ? WHERE job = ? AND number = ?",
                (event_word(event), job, number),
            )


def _attempt_of(row: tuple[Any, ...]) -> AttemptRow:
    job, number, keeper, devices, log, *rest = row
    return AttemptRow(job, number, keeper, tuple(json.loads(devices)), os.fsdecode(log), *rest)


def _join(words: Sequence[str]) -> bytes:
    return "\0".join(words).encode(errors="surrogateescape")


def _split(words: bytes) -> tuple[str, ...]:
    return tuple(words.decode(errors="surrogateescape").split("\0"))
