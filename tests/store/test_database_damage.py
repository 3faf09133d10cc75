"""Files of a damaged queue stay unchanged to the byte."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from stoker.core.errors import StokerError
from stoker.core.spec import Command, JobSpec, NewJob
from stoker.store.database import damage
from stoker.store.hints import hints
from stoker.store.schema import VERSION
from stoker.store.writer import Store

PAGE = 4096
JOBS = [NewJob(Command(("true",)), JobSpec())] * 200


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue whose engine was killed: the last changes are only in the WAL."""
    living, dead = tmp_path / "living", tmp_path / "dead"
    living.mkdir()
    with closing(Store(living / "queue.db")) as store:
        store.add_jobs(1, "queue", JOBS, 1.0)
    with closing(Store(living / "queue.db")) as store:
        store.put_setting("key", "value")
        shutil.copytree(living, dead)
    return dead / "queue.db"


def contents(path: Path) -> dict[str, bytes]:
    """The file and its WAL; the third file is only an index of the WAL."""
    return {file.name: file.read_bytes() for file in path.parent.glob("queue.db*") if not file.name.endswith("-shm")}


def junk(path: Path, first: int, last: int | None = None) -> None:
    """Overwrite pages of the file."""
    body = bytearray(path.read_bytes())
    where = slice(first * PAGE, None if last is None else last * PAGE)
    body[where] = b"\xa5" * len(body[where])
    path.write_bytes(body)


def make_newer(path: Path) -> None:
    """Write a newer schema version into the WAL."""
    copy = path.with_name("copy")
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
        shutil.copytree(path.parent, copy)
    for file in copy.iterdir():
        file.replace(path.with_name(file.name))


def use(path: Path) -> None:
    """Open the queue and read its jobs."""
    with closing(Store(path)) as store:
        store.open_jobs("queue", 0, 1000)


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize(
    ("harm", "complaint", "hint"),
    [
        (lambda path: junk(path, 0, 1), "not a queue", "queue.db-wal, queue.db-shm) away together"),
        (lambda path: junk(path, 1), "malformed", "stop the engine, then move queue.db"),
        (make_newer, "newer Stoker", "upgrade"),
        (lambda path: os.truncate(path, 0), "missing or empty", "away together"),
        (Path.unlink, "missing or empty", "away together"),
    ],
)
def test_untouched(
    path: Path, harm: Callable[[Path], object], complaint: str, hint: str, *, shared_memory: bool
) -> None:
    """Opening, reading and closing change neither the file nor its WAL; the hint says to move both aside."""
    harm(path)
    if not shared_memory:
        path.with_name("queue.db-shm").unlink()
    before = contents(path)
    assert len(before["queue.db-wal"]) > PAGE
    with pytest.raises(StokerError, match=complaint) as caught:
        use(path)
    assert damage(path)
    hints(path, "", ended=True)
    assert hint in caught.value.hint
    assert contents(path) == before


def test_writers_leave_it_alone(path: Path) -> None:
    """A writer that finds damage changes nothing and keeps no file open."""
    junk(path, 1)
    before, descriptors = contents(path), os.listdir("/proc/self/fd")
    with pytest.raises(StokerError, match="damaged"), closing(Store(path)) as store:
        store.add_jobs(1, "queue", JOBS, 2.0)
    assert contents(path) == before
    assert os.listdir("/proc/self/fd") == descriptors


def test_an_intact_queue_is_checkpointed(path: Path) -> None:
    """The WAL of an intact queue is moved into the file by the last close."""
    use(path)
    assert list(contents(path)) == ["queue.db"]


def test_moved_aside(path: Path, tmp_path: Path) -> None:
    """After moving the files aside there is a new queue, and the old files are unchanged."""
    junk(path, 0, 1)
    aside = tmp_path / "aside"
    aside.mkdir()
    for file in path.parent.glob("queue.db*"):
        file.rename(aside / file.name)
    before = contents(aside / "queue.db")
    with closing(Store(path)) as store:
        assert store.last_job() is None
    assert contents(aside / "queue.db") == before
