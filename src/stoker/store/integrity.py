"""Whether the queue's file is whole."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from stoker.store.preserving import BEHEADED, is_beheaded
from stoker.store.rows import VERSION

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
