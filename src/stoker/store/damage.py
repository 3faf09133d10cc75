"""Detect a damaged or newer database and leave its files unchanged."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from stoker.store.schema import VERSION

DAMAGED_HINT = (
    "stop the engine, then move queue.db and the files beside it (queue.db-wal, queue.db-shm) aside together, and"
    " Stoker makes a new one; it never overwrites what it cannot read"
)

NEWER_HINT = "upgrade Stoker; the queue was left as it is"

LOG_WITHOUT_FILE = "it is gone or empty, but its log (queue.db-wal) is not"

_FINDINGS = 5
"""Most problems that are listed."""
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_damage(kind: int) -> bool:
    """Whether an error of SQLite is about the contents of the file."""
    return kind in _DAMAGE


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
    """What is wrong with the file; empty where it is intact. Only reads."""
    if has_log_without_file(path):
        return LOG_WITHOUT_FILE
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as database:
            ((version,),) = database.execute("PRAGMA user_version").fetchall()
            if version > VERSION:
                return f"it was written by a newer Stoker (schema {version} instead of {VERSION})"
            found = [text for (text,) in database.execute(f"PRAGMA quick_check({_FINDINGS})")]
            return "" if found == ["ok"] else "; ".join(found)
    except sqlite3.Error as error:
        return str(error)
