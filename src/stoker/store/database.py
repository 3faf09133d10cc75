"""The SQLite file of a queue: open and migrate it, let writers take turns, explain errors, preserve damaged files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stoker.core.errors import StokerError
from stoker.core.spec import JobSpec
from stoker.store.paths import try_lock
from stoker.store.patterns import StoredPatterns, read_patterns
from stoker.store.schema import MIGRATIONS, VERSION
from stoker.store.waiting import Backoff, wait_until

DAMAGED_HINT = (
    "stop the engine, then move queue.db and its companion files (queue.db-wal, queue.db-shm) away together;"
    " Stoker then creates a new queue, and never overwrites an unreadable one"
)
NEWER_HINT = "upgrade Stoker; the queue was not changed"
LOG_WITHOUT_FILE = "it is missing or empty, but its log (queue.db-wal) is not"
_FINDINGS = 5
"""Most problems that are listed."""
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_ANOTHER_PROGRAM = "another program has locked it: end that program; nothing was written"
_YOURS = "check the permissions of the file and its directory"
_HINTS = {
    sqlite3.SQLITE_FULL: "nothing was written; free some space on its file system",
    sqlite3.SQLITE_IOERR: "check whether its disk is full or failing",
    sqlite3.SQLITE_BUSY: _ANOTHER_PROGRAM,
    sqlite3.SQLITE_LOCKED: _ANOTHER_PROGRAM,
    sqlite3.SQLITE_CANTOPEN: _YOURS,
    sqlite3.SQLITE_READONLY: _YOURS,
    sqlite3.SQLITE_PERM: _YOURS,
}

LARGEST_LOG = 64 * 2**20
"""Bytes to which the write-ahead log is cut after it has grown."""


class Database:
    """A connection and the lock of its writers. It must not be used after a fork."""

    def __init__(
        self, path: Path, patience: float, *, durable: bool = True, migrations: Sequence[str] = MIGRATIONS
    ) -> None:
        """`patience` is how many seconds a writer waits for its turn, and SQLite for its own locks.

        Only what a `durable` one has written survives a crash of the machine.
        """
        self._path = path
        self._synchronous = "FULL" if durable else "OFF"
        self._migrations = migrations
        self._specs_by_id: dict[int, JobSpec] = {}
        self._ids_by_spec: dict[JobSpec, int] = {}
        self._batch_names: dict[int, tuple[int, str]] = {}
        self._patterns: dict[int, StoredPatterns] = {}
        self._preserving = contextlib.ExitStack()
        self._preserved = False
        if has_log_without_file(path):
            raise StokerError(f"{path} is damaged: {LOG_WITHOUT_FILE}", DAMAGED_HINT)
        with contextlib.suppress(FileExistsError):  # private: SQLite gives its side files the same mode
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        with contextlib.ExitStack() as closing:
            self._write_lock = closing.enter_context(contextlib.closing(_write_lock(path, patience)))
            self.read_only = isinstance(self._write_lock, NoWriteLock)
            with self._explained("open"):
                uri = f"{path.absolute().as_uri()}{_read_only_query(path) if self.read_only else ''}"
                self._connection = sqlite3.connect(
                    uri, uri=True, isolation_level=None, timeout=patience, cached_statements=64
                )
            closing.callback(self._close_connection)
            with self._explained("open"):
                self._prepare()
            self._closing = closing.pop_all()

    def close(self) -> None:
        self._closing.close()

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._explained("read"):
            return self._connection.execute(query, values).fetchall()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """One read transaction: all queries within see the same state."""
        with self._explained("read"):
            self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One write transaction, or a part of the one that is open. The write lock gives every writer a turn."""
        if self._connection.in_transaction:
            yield self._connection
            return
        with self._explained("write"), self._write_lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    def spec(self, spec_id: int) -> JobSpec:
        """A row of `specs`. Jobs with the same row share one object."""
        known = self._specs_by_id.get(spec_id)
        if known is None:
            ((body,),) = self.rows("SELECT body FROM specs WHERE id = ?", spec_id)
            known = msgspec.convert(json.loads(body), JobSpec)
            self._remember_spec(spec_id, known)
        return known

    def spec_id(self, spec: JobSpec) -> int:
        """The row of a spec, inserted if it is missing. Call it within a write transaction."""
        known = self._ids_by_spec.get(spec)
        if known is None:
            body = json.dumps(msgspec.to_builtins(spec))
            self._connection.execute("INSERT OR IGNORE INTO specs (body) VALUES (?)", (body,))
            (known,) = self._connection.execute("SELECT id FROM specs WHERE body = ?", (body,)).fetchone()
            self._remember_spec(known, spec)
        return known

    def batch_name(self, batch: int) -> tuple[int, str]:
        """The job by which users name a batch with a record, which never changes, and the feature that made it."""
        if batch not in self._batch_names:
            rows = self.rows("SELECT first_job, kind FROM batches WHERE id = ? AND kind IS NOT NULL", batch)
            if not rows:
                return 0, ""
            self._batch_names[batch] = rows[0]
        return self._batch_names[batch]

    def patterns(self, batch: int) -> StoredPatterns:
        """How the members of a batch follow from their numbers."""
        if batch not in self._patterns:
            self._patterns[batch] = read_patterns(self.rows, batch)
        return self._patterns[batch]

    def forget_rows(self) -> None:
        """Empty the caches of specs and batches: rows of the tables were deleted or rolled back."""
        self._specs_by_id.clear()
        self._ids_by_spec.clear()
        self._batch_names.clear()
        self._patterns.clear()

    def _remember_spec(self, spec_id: int, spec: JobSpec) -> None:
        self._specs_by_id[spec_id] = spec
        self._ids_by_spec[spec] = spec_id

    def _roll_back(self) -> None:
        self.forget_rows()
        with contextlib.suppress(sqlite3.ProgrammingError):  # it was closed before the garbage collector came here
            if self._connection.in_transaction:  # SQLite may have rolled back itself, as on a full disk
                self._connection.execute("ROLLBACK")

    def _prepare(self) -> None:
        """Check the version, switch to WAL, migrate."""
        if (version := self._version()) > len(self._migrations):
            self._preserve()
            newer = f"{self._path} was written by a newer Stoker (schema {version} instead of {len(self._migrations)})"
            raise StokerError(newer, NEWER_HINT)
        if not self.read_only and self.rows("PRAGMA journal_mode") != [("wal",)]:
            with self._write_lock:  # two processes that open a new file at once would block each other
                self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        self._connection.execute(f"PRAGMA journal_size_limit = {LARGEST_LOG}")  # else one huge submit leaves it huge
        if self._version() < len(self._migrations):
            self._migrate()

    def _migrate(self) -> None:
        with self.writing() as connection:
            for statements in self._migrations[self._version() :]:  # another process may have migrated meanwhile
                for statement in statements.split(";\n"):
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(self._migrations)}")

    def _version(self) -> int:
        ((version,),) = self.rows("PRAGMA user_version")
        return int(version)

    @contextlib.contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """Turn errors of SQLite into errors that say what to do."""
        try:
            yield
        except sqlite3.Error as error:
            if _kind(error) in _DAMAGE:
                self._preserve()
            raise _explanation(doing, self._path, error) from error

    def _preserve(self) -> None:
        """Leave the files unchanged from here on, also when they are closed."""
        if not self._preserved:
            self._preserving.callback(preserve(self._connection, self._path).close)
            self._preserved = True

    def _close_connection(self) -> None:
        with self._preserving:
            self._connection.close()


def _explanation(doing: str, path: Path, error: sqlite3.Error) -> StokerError:
    kind = _kind(error)
    if kind in _DAMAGE:
        return StokerError(f"{path} is damaged, or not a queue of Stoker: {error}", DAMAGED_HINT)
    hint = _HINTS.get(kind, "try again; if this persists, move the file away and report this")
    return StokerError(f"cannot {doing} {path}: {error}", hint)


def _kind(error: sqlite3.Error) -> int:
    """The primary result code: the lower byte. Errors of the sqlite3 module itself have no code."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def preserve(database: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """Stop the connection from moving the log (WAL) into the file. Close the returned connection after it.

    On close SQLite checkpoints only when no other connection has the file open, and a read-only one never does. The
    switch for it (SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE) needs Python 3.12.
    """
    witness = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    with contextlib.suppress(sqlite3.Error):  # reading takes and keeps the lock, even where it fails
        witness.execute("PRAGMA user_version").fetchall()
    with contextlib.suppress(sqlite3.Error):
        database.execute("PRAGMA wal_autocheckpoint = 0")
    return witness


def has_log_without_file(path: Path) -> bool:
    """Whether the WAL exists but its file is empty or missing: SQLite would delete the WAL, even when it only reads.

    A healthy queue never looks like this, since its file gets a first page before the WAL exists. The order of the two
    checks matters: the WAL first.
    """
    return _size(path.with_name(f"{path.name}-wal")) > 0 and _size(path) == 0


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def damage(path: Path) -> str:
    """Find damage in the file, without writing; empty if it is intact."""
    if has_log_without_file(path):
        return LOG_WITHOUT_FILE
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as database:
            ((version,),) = database.execute("PRAGMA user_version").fetchall()
            if version > VERSION:
                return f"it was written by a newer Stoker (schema {version} instead of {VERSION})"
            findings = [text for (text,) in database.execute(f"PRAGMA quick_check({_FINDINGS})")]
            return "" if findings == ["ok"] else "; ".join(findings)
    except sqlite3.Error as error:
        return str(error)


class WriteLock:
    """A lock for one writer at a time. Waiting has a time limit, since the holder may be a stopped process.

    The next writer in line holds a second lock, so that a busy writer cannot overtake it again and again.
    """

    def __init__(self, path: Path, patience: float) -> None:
        self._path = path
        self._patience = patience
        self._open()

    def _open(self) -> None:
        with contextlib.ExitStack() as closing:
            files = self._path, self._path.with_suffix(".next")
            self._lock, self._next = (_opened(file, closing) for file in files)
            self._closing = closing.pop_all()
        self._is_open = True

    def _reopen(self) -> None:
        """Release the lock by closing its file."""
        self.close()
        self._open()

    def close(self) -> None:
        self._is_open = False
        self._closing.close()

    def __enter__(self) -> None:
        deadline = time.monotonic() + self._patience
        self._take(self._next, deadline)
        try:
            self._take(self._lock, deadline)
        finally:
            fcntl.flock(self._next, fcntl.LOCK_UN)

    def __exit__(self, *_: object) -> None:
        if self._is_open:  # Ctrl-C within a with statement can leave its end to the garbage collector, after close()
            try:
                fcntl.flock(self._lock, fcntl.LOCK_UN)
            except OSError:  # the transaction is over: an error here would make the caller repeat it
                self._reopen()

    def _take(self, descriptor: int, deadline: float) -> None:
        if not wait_until(lambda: try_lock(descriptor), deadline - time.monotonic(), Backoff(0.001, 0.01)):
            raise self._timed_out()

    def _timed_out(self) -> StokerError:
        message = f"{self._path} has been locked for {self._patience:g} s"
        holder = _holder(self._lock) or _holder(self._next)
        if holder is None:
            return StokerError(message, "end the Stoker that holds it; nothing was written")
        hint = f"continue it (kill -CONT {holder}) or kill it (kill -KILL {holder}); nothing was written"
        return StokerError(f"{message} by process {holder}", hint)


class NoWriteLock:
    """Takes the place of the lock on a read-only file system, which no process can write to."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        raise StokerError(
            f"the file system of {self._path} is read-only",
            "nothing was written; the disk may be failing (see dmesg): mount it read-write again",
        )

    def __exit__(self, *_: object) -> None:
        """Nothing was taken."""

    def close(self) -> None:
        """Nothing is open."""


def _write_lock(path: Path, patience: float) -> WriteLock | NoWriteLock:
    try:
        return WriteLock(path.with_suffix(".lock"), patience)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return NoWriteLock(path)


def _read_only_query(path: Path) -> str:
    """How SQLite opens a file that cannot change; without a log it would need one that it cannot make."""
    return "?mode=ro" if _size(path.with_name(f"{path.name}-wal")) else "?mode=ro&immutable=1"


def _opened(path: Path, closing: contextlib.ExitStack) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    closing.callback(os.close, descriptor)
    return descriptor


def _holder(descriptor: int) -> int | None:
    """The process that holds the lock of a file, if /proc/locks shows it."""
    with contextlib.suppress(OSError):
        inode = os.fstat(descriptor).st_ino
        match = re.search(rf" FLOCK .* WRITE (\d+) \S+:{inode} ", Path("/proc/locks").read_text())
        return int(match[1]) if match else None
    return None
