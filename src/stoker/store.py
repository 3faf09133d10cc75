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
from typing import Any, TypeVar

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
  errors BLOB NOT NULL, assigned REAL NOT NULL, started REAL, ended REAL, code INTEGER, signal INTEGER, why TEXT,
  peak_memory INTEGER, note TEXT, PRIMARY KEY (job, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE events (
  id INTEGER PRIMARY KEY, job INTEGER NOT NULL, at REAL NOT NULL, body BLOB NOT NULL
) STRICT;
CREATE INDEX events_job ON events(job);
"""

_JOB = "SELECT id, batch, name, words, shell, terms, submitted, detail, attempts, failures, losses FROM jobs WHERE "
_OPEN = "state NOT IN ('done', 'failed', 'oom', 'timeout', 'cancelled', 'skipped', 'lost')"

_Kept = TypeVar("_Kept")
_encoder = msgspec.json.Encoder()
_states: msgspec.json.Decoder[State] = msgspec.json.Decoder(State)
_events: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_UPDATE_JOB = "UPDATE jobs SET state = ?, detail = ?, attempts = ?, failures = ?, losses = ? WHERE id = ?"
_INSERT_ATTEMPT = (
    "INSERT INTO attempts (keeper, devices, log, errors, assigned, job, number) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_START_ATTEMPT = "UPDATE attempts SET started = ? WHERE job = ? AND number = ?"
_END_ATTEMPT = (
    "UPDATE attempts SET ended = ?, code = ?, signal = ?, why = ?, peak_memory = ?, note = ?"
    " WHERE job = ? AND number = ?"
)
_LEAVE_ATTEMPT = "UPDATE attempts SET why = ? WHERE job = ? AND number = ?"


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


class TakeOver(Struct, frozen=True):
    """A job of a dead engine that another one wants, and what becomes different for it."""

    job: int
    owner: str
    batch: int | None = None
    terms: Terms | None = None


class AttemptRow(Struct, frozen=True):
    """What is kept of one run of a job."""

    job: int
    number: int
    keeper: str
    devices: tuple[str, ...]
    log: str
    errors: str
    """File of the standard error, where it is apart from the log."""
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
    parts = [command.shell and "shell", terms.cwd, str(len(command.words)), *command.words]
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
        self._terms_by_id: dict[int, Terms] = {}
        self._ids_by_terms: dict[Terms, int] = {}
        with contextlib.ExitStack() as closing:
            self._create_private(path)
            self._turnstile = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            closing.callback(os.close, self._turnstile)
            try:
                self._database = sqlite3.connect(path, isolation_level=None, timeout=30.0, cached_statements=64)
                closing.callback(self._database.close)
                self._prepare()
            except sqlite3.DatabaseError as error:
                raise _unreadable(path, error) from error
            self._closing = closing.pop_all()

    def close(self) -> None:
        """Close the file."""
        self._closing.close()

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One write transaction. A short flock in front of it gives every writer a fair turn."""
        fcntl.flock(self._turnstile, fcntl.LOCK_EX)
        try:
            self._database.execute("BEGIN IMMEDIATE")
            yield self._database
            self._database.execute("COMMIT")
        except sqlite3.OperationalError as error:
            self._roll_back()
            raise StokerError(f"cannot write {self._path}: {error}", "nothing was written; free some space") from error
        except BaseException:
            self._roll_back()
            raise
        finally:
            fcntl.flock(self._turnstile, fcntl.LOCK_UN)

    def _roll_back(self) -> None:
        """Undo what the transaction did, here too: the ids of terms that were first written in it are void."""
        if self._database.in_transaction:  # SQLite may have done it already, as on a full disk
            self._database.execute("ROLLBACK")
        self._terms_by_id.clear()
        self._ids_by_terms.clear()

    # -- doors write -----------------------------------------------------------------------------

    def add_engine(self, engine: str, pid: int, kind: str, now: float) -> None:
        """Remember an engine, so that its jobs can be told from those of others."""
        with self.writing() as database:
            database.execute("INSERT INTO engines VALUES (?, ?, ?, ?)", (engine, pid, kind, now))

    def add_batch(self, label: str, now: float) -> int:
        """A new batch's number."""
        with self.writing() as database:
            cursor = database.execute("INSERT INTO batches (label, created) VALUES (?, ?)", (_text(label), now))
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
        jobs: list[tuple[Any, ...]] = []
        events: list[tuple[Any, ...]] = []
        attempts: dict[str, list[tuple[Any, ...]]] = {}
        for change in changes:
            jobs.append(_job_row(change.job))
            for number, event in change.events:
                events.append((change.job.id, event.at, _encode(event)))
                statement, row = _attempt_row(event)
                attempts.setdefault(statement, []).append((*row, change.job.id, number))
        with self.writing() as database:
            database.executemany(_UPDATE_JOB, jobs)
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
        row = self._database.execute(_JOB + "id = ?", (job_id,)).fetchone()
        return self._job_of(row) if row else None

    def last_job(self) -> int | None:
        """The newest job's id."""
        (last,) = self._database.execute("SELECT max(id) FROM jobs").fetchone()
        return None if last is None else int(last)

    def open_jobs(self, engine: str, after: int, limit: int) -> list[Job]:
        """The engine's jobs that are not over, in the order of their ids."""
        query = _JOB + "engine = ? AND id > ? AND " + _OPEN + " ORDER BY id LIMIT ?"
        rows = self._database.execute(query, (engine, after, limit))
        return [self._job_of(row) for row in rows]

    def engines_with_open_jobs(self) -> list[str]:
        """Ids of the engines that own jobs which are not over."""
        rows = self._database.execute("SELECT DISTINCT engine FROM jobs WHERE " + _OPEN)
        return [engine for (engine,) in rows]

    def keepers(self) -> set[str]:
        """Names of the keepers that jobs which are not over were given to."""
        keeper = "json_extract(CAST(detail AS TEXT), '$.keeper')"
        return {name for (name,) in self._database.execute(f"SELECT {keeper} FROM jobs WHERE {_OPEN}") if name}

    def times_done(self, content: bytes) -> int:
        """How often this very work has succeeded."""
        query = "SELECT count(*) FROM jobs WHERE content = ? AND state = 'done'"
        (count,) = self._database.execute(query, (content,)).fetchone()
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
        return [_decode(_events, body) for (body,) in rows]

    # -- inside ----------------------------------------------------------------------------------

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
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        if self._version() == 0:
            with self.writing() as database:
                if self._version() == 0:
                    for statement in _SCHEMA.split(";\n"):
                        database.execute(statement)
                    database.execute(f"PRAGMA user_version = {VERSION}")

    def _version(self) -> int:
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
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
        content, words = content_of(command, terms), _join(command.words)
        return content, _text(job.name), words, command.shell, self._terms_id(database, terms)

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
            state=_decode(_states, detail),
            submitted=submitted,
            name=name,
            attempts=attempts,
            failures=failures,
            losses=losses,
        )


def _job_row(job: Job) -> tuple[Any, ...]:
    return state_word(job), _encode(job.state), job.attempts, job.failures, job.losses, job.id


def _attempt_row(event: Event) -> tuple[str, tuple[Any, ...]]:
    """The statement that an event means for its attempt, and its values but for job and number, which come last."""
    match event:
        case Assigned():
            devices, log, errors = json.dumps(event.devices), os.fsencode(event.log), os.fsencode(event.errors)
            return _INSERT_ATTEMPT, (event.keeper, devices, log, errors, event.at)
        case Started():
            return _START_ATTEMPT, (event.at,)
        case Exited():
            return _END_ATTEMPT, (event.at, event.code, event.signal, event.why, event.peak_memory, _text(event.note))
        case _:
            return _LEAVE_ATTEMPT, (event_word(event),)


def _attempt_of(row: tuple[Any, ...]) -> AttemptRow:
    job, number, keeper, devices, log, errors, *rest = row
    return AttemptRow(job, number, keeper, tuple(json.loads(devices)), os.fsdecode(log), os.fsdecode(errors), *rest)


def _unreadable(path: Path, error: sqlite3.DatabaseError) -> StokerError:
    if isinstance(error, sqlite3.OperationalError):
        return StokerError(f"cannot open {path}: {error}", "see whether the disk is full and the directory is yours")
    return StokerError(f"{path} is not a queue that Stoker can read: {error}", "move it aside; nothing was changed")


def _encode(value: State | Event) -> bytes:
    """JSON; names that are no UTF-8 need escapes that only the standard library writes and reads."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value)).encode()


def _decode(decoder: msgspec.json.Decoder[_Kept], body: bytes) -> _Kept:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError:
        return msgspec.convert(json.loads(body), decoder.type)


def _text(words: str) -> str:
    """Words for people, in a form that a TEXT column takes."""
    return words.encode(errors="backslashreplace").decode()


def _join(words: Sequence[str]) -> bytes:
    return "\0".join(words).encode(errors="surrogateescape")


def _split(words: bytes) -> tuple[str, ...]:
    return tuple(words.decode(errors="surrogateescape").split("\0"))
