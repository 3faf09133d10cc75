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

BEHEADED = "it is gone or empty, but its log (queue.db-wal) is not"

_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_damage(kind: int) -> bool:
    """Whether SQLite complains of what the file holds."""
    return kind in _DAMAGE


def preserve(database: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """Let the connection move nothing from the log into the file any more; close what is returned after it.

    At a close SQLite does so only where no other connection has the file open, and one that only reads cannot. The
    switch for it (SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE) is out of reach before Python 3.12.
    """
    witness = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    with contextlib.suppress(sqlite3.Error):  # what matters is the lock that an attempt to read takes, and keeps
        witness.execute("PRAGMA user_version").fetchall()
    with contextlib.suppress(sqlite3.Error):
        database.execute("PRAGMA wal_autocheckpoint = 0")
    return witness


def is_beheaded(path: Path) -> bool:
    """Whether there is a log whose file is empty or gone: SQLite would delete it, even where it only reads.

    A queue is never so by itself, since its file has a first page before there is a log; so the log is looked at first.
    """
    return _size(path.with_name(f"{path.name}-wal")) > 0 and _size(path) == 0


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


_FINDINGS = 5


def damage(path: Path) -> str:
    """What is wrong with the file, in words; empty where it is whole. Nothing is written."""
    if is_beheaded(path):
        return BEHEADED
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
