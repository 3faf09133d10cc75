"""The file of a queue: opened, locked and written atomically; damage changes nothing."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest

from stoker.core.errors import StokerError
from stoker.core.job import (
    Job,
    Waiting,
)
from stoker.core.spec import Command, JobSpec, NewJob
from stoker.store.database import WriteLock
from stoker.store.schema import VERSION
from stoker.store.writer import Store
from support.disk import fill, small_disk
from support.local import engine_process
from support.store import EVENTS, TRUE, added, after
from support.users import next_line
from support.wait import PATIENCE_SECONDS, wait_until

WRITER = """
import sys, time
from pathlib import Path
from stoker.core.spec import Command, JobSpec
from stoker.core.spec import NewJob
from stoker.store.writer import Store
store = Store(Path(sys.argv[1]))
job = NewJob(Command(("true",)), JobSpec())
print("ready", flush=True)
sys.stdin.readline()
for _ in range(100):
    store.add_jobs(1, sys.argv[2], [job], time.time())
store.close()
"""

HOLDER = """
import sys
from pathlib import Path
from stoker.store.writer import Store
with Store(Path(sys.argv[1])).writing():
    print("inside", flush=True)
    sys.stdin.readline()
print("outside", flush=True)
"""


def is_locked(path: Path) -> bool:
    """Whether another process holds the file's lock."""
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class TestFile:
    """The file itself."""

    def test_modes(self, store: Store, path: Path) -> None:
        """Other users cannot read the queue or SQLite's files beside it."""
        added(store)
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        assert modes == dict.fromkeys(["queue.db", "queue.db-wal", "queue.db-shm", "queue.lock", "queue.next"], 0o600)

    def test_schema(self, store: Store, path: Path) -> None:
        """The file has the schema version, and all tables are strict."""
        with closing(sqlite3.connect(path)) as database:
            assert database.execute("PRAGMA user_version").fetchone() == (VERSION,)
            assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            tables = database.execute("SELECT strict FROM pragma_table_list WHERE name NOT LIKE 'sqlite%'").fetchall()
        assert len(tables) == 15
        assert set(tables) == {(1,)}

    def test_commits_reach_the_disk(self, store: Store) -> None:
        """Every commit waits for the disk."""
        with store.writing() as database:
            assert database.execute("PRAGMA synchronous").fetchone() == (2,)

    def test_opened_again(self, store: Store, path: Path) -> None:
        """Another process finds what was written, while the first has the file open."""
        (job,) = added(store)
        with closing(Store(path)) as other:
            assert other.job(job.id) == job

    def test_newer_schema(self, path: Path) -> None:
        """A queue of a newer version is refused with a hint, and no byte changes."""
        with closing(sqlite3.connect(path)) as database:
            database.executescript(f"CREATE TABLE future (x); PRAGMA user_version = {VERSION + 1}")
        before = path.read_bytes()
        with pytest.raises(StokerError, match="newer Stoker") as caught:
            Store(path)
        assert "upgrade" in caught.value.hint
        assert path.read_bytes() == before

    @pytest.mark.parametrize("damage", [lambda _: b"not a database" * 1000, lambda good: b"\xff" * 50 + good[50:]])
    def test_damaged_file(self, path: Path, damage: Callable[[bytes], bytes]) -> None:
        """An unreadable file is refused with a hint, and no byte changes."""
        Store(path).close()
        path.write_bytes(damage(path.read_bytes()))
        before = path.read_bytes()
        with pytest.raises(StokerError, match="not a queue") as caught:
            Store(path)
        assert "away together" in caught.value.hint
        assert path.read_bytes() == before

    @pytest.mark.parametrize("with_log", [False, True])
    def test_read_only_file_system(self, store: Store, path: Path, tmp_path: Path, with_log: bool) -> None:
        """What was written before can be read, from the log too; a write is refused with the reason."""
        added(store)
        with small_disk(tmp_path / "disk", "size=30m") as disk:
            if not with_log:
                store.close()
            for file in path.parent.glob(f"{path.name}*"):
                shutil.copy(file, disk)
            assert (disk / f"{path.name}-wal").exists() == with_log
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True, timeout=PATIENCE_SECONDS)
            with closing(Store(disk / path.name)) as shown:
                assert (shown.read_only, shown.last_job()) == (True, 1)
                with pytest.raises(StokerError, match="is read-only"), shown.writing():
                    pass

    def test_directory_in_its_place(self, path: Path) -> None:
        """A file that cannot be opened gives a readable error, and nothing stays open."""
        path.mkdir()
        before = os.listdir("/proc/self/fd")
        with pytest.raises(StokerError, match="unable to open"):
            Store(path)
        assert os.listdir("/proc/self/fd") == before


class TestTroubles:
    """Full disks and concurrent writers."""

    def test_full_disk(self, tmp_path: Path) -> None:
        """On a full disk nothing is written, the error says so, and writing works again after space is freed."""
        with small_disk(tmp_path / "disk", "size=1m") as disk, closing(Store(disk / "queue.db")) as store:
            (job,) = added(store)
            ballast = fill(disk)
            large = NewJob(Command(("x" * 100_000,)), JobSpec(cwd="/new"))
            with pytest.raises(StokerError, match="disk is full") as caught:
                store.add_jobs(1, "e1", [large] * 3, 1.0)
            assert "free some space" in caught.value.hint
            assert store.last_job() == job.id
            ballast.unlink()
            (next_job,) = added(store, large)
            assert (next_job.id, next_job.spec.cwd) == (job.id + 1, "/new")

    def test_no_room_for_a_queue(self, tmp_path: Path) -> None:
        """On a full disk a new queue is not reported as damaged."""
        with small_disk(tmp_path / "disk", "size=64k") as disk:
            fill(disk)
            with pytest.raises(StokerError) as caught:
                Store(disk / "queue.db")
            assert "aside" not in caught.value.hint

    def test_two_writers(self, store: Store, path: Path) -> None:
        """Two busy writers both progress, and no write is lost."""
        with engine_process(WRITER, path, "one") as one, engine_process(WRITER, path, "other") as other:
            for writer in (one, other):
                next_line(writer)
            for writer in (one, other):
                assert writer.stdin
                writer.stdin.write("go\n")
                writer.stdin.flush()
            wait_until(lambda: one.poll() is not None or other.poll() is not None)
            progress = [len(store.open_jobs(engine, 0, 1000)) for engine in ("one", "other")]
            assert [one.wait(60), other.wait(60)] == [0, 0]
        assert min(progress) > 0
        assert [len(store.open_jobs(engine, 0, 1000)) for engine in ("one", "other")] == [100, 100]

    def test_a_stopped_writer(self, store: Store, path: Path) -> None:
        """Waiting for a stopped writer ends with an error that names it; continuing it helps."""
        with engine_process(HOLDER, path) as holder, closing(Store(path, patience=0.1)) as other:
            next_line(holder)
            holder.send_signal(signal.SIGSTOP)
            with pytest.raises(StokerError, match=rf"queue\.lock .* by process {holder.pid};") as caught:
                added(other)
            assert f"kill -CONT {holder.pid}" in caught.value.hint
            assert other.last_job() is None
            holder.send_signal(signal.SIGCONT)
            holder.communicate("go on\n", timeout=PATIENCE_SECONDS)
            added(other)

    def test_the_error_names_the_holder(self, store: Store, path: Path) -> None:
        """The error names the process that holds the lock, not the one that waits before."""
        blames_the_holder = pytest.raises(StokerError, match="by process")
        with engine_process(HOLDER, path) as holder:
            next_line(holder)
            with engine_process(HOLDER, path) as waiting:
                wait_until(lambda: is_locked(path.with_suffix(".next")))
                with closing(Store(path, patience=0.1)) as other, blames_the_holder as caught:
                    added(other)
                assert f"process {holder.pid}" in str(caught.value)
                holder.communicate("go on\n", timeout=PATIENCE_SECONDS)
                assert next_line(waiting) == "inside"

    def test_locked_by_another_program(self, path: Path) -> None:
        """A lock of another program is reported as such."""
        with closing(Store(path, patience=0.1)) as store, closing(sqlite3.connect(path)) as shell:
            shell.execute("BEGIN IMMEDIATE")
            with pytest.raises(StokerError, match=r"cannot write .*queue\.db: database is locked") as caught:
                added(store)
            assert "another program" in caught.value.hint
            assert "space" not in caught.value.hint
            shell.rollback()
            added(store)

    @pytest.mark.parametrize(
        "use",
        [
            lambda store: store.job(1),
            lambda store: store.open_jobs("e1", 0, 9),
            lambda store: store.add_jobs(1, "e1", [TRUE], 1.0),
            lambda store: store.record([after(Job(1, 1, TRUE.command, TRUE.spec, Waiting(1.0), 1.0), EVENTS)]),
        ],
    )
    def test_damaged_inside(self, path: Path, use: Callable[[Store], object]) -> None:
        """Damage found by readers and writers gives a hint; nothing is overwritten."""
        with closing(Store(path)) as store:
            added(store, *[TRUE] * 100)
        good = path.read_bytes()
        page = 4096
        path.write_bytes(good[:page] + b"\xa5" * (len(good) - page))
        before = path.read_bytes()
        with pytest.raises(StokerError, match="damaged") as caught, closing(Store(path)) as store:
            use(store)
        assert "away together" in caught.value.hint
        assert path.read_bytes() == before

    def test_tables_of_another_program(self, path: Path) -> None:
        """A database without our tables gives a readable error."""
        with closing(sqlite3.connect(path)) as database:
            database.execute(f"PRAGMA user_version = {VERSION}")
        with closing(Store(path)) as store, pytest.raises(StokerError, match="no such table") as caught:
            store.last_job()
        assert "move the file away" in caught.value.hint


def test_a_lock_that_cannot_be_released(tmp_path: Path) -> None:
    """The block has done its work, so no error is raised; the next writer gets the lock."""
    with closing(WriteLock(tmp_path / "x.lock", 1.0)) as lock, closing(WriteLock(tmp_path / "x.lock", 1.0)) as other:
        with mock.patch("stoker.store.database.fcntl.flock", wraps=fcntl.flock) as flock, lock:
            flock.side_effect = OSError(errno.ENOLCK, "No locks available")
        for one in (other, lock):
            with one:
                pass


def test_transaction_that_is_never_left(tmp_path: Path) -> None:
    """An interrupt can leave a transaction to the garbage collector, after the store was closed: that is silent."""
    store = Store(tmp_path / "queue.db")
    abandoned = store.writing()
    abandoned.__enter__()
    store.close()
    del abandoned  # what it raised would fail this test, as an unraisable exception
    with closing(Store(tmp_path / "queue.db")) as again, again.writing():
        pass
