"""Jobs and files of dead engines, and the locks of living ones."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from stoker.core.errors import StokerError
from stoker.core.job import Assigned, Job, advance
from stoker.core.spec import Command, JobSpec, NewJob
from stoker.store.engine_lock import QUEUE, EngineLock, Orphan, engine_lives, held_orphans, orphans, sweep_locks
from stoker.store.paths import Paths
from stoker.store.schema import Change
from stoker.store.writer import Store, open_store
from support.local import engine_process
from support.users import finish

TRUE = NewJob(Command(("true",)), JobSpec())

RACER = """
import sys
from pathlib import Path
from stoker.store.paths import Paths
from stoker.store.engine_lock import EngineLock, engine_lives, sweep_locks
from stoker.store.writer import open_store
paths = Paths(Path(sys.argv[1]))
store = open_store(paths)
for _ in range(300):
    engine_lock = EngineLock(paths)
    sweep_locks(paths, store)
    assert engine_lives(paths, engine_lock.name), "swept alive"
    engine_lock.close()
"""


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path)


@pytest.fixture
def store(paths: Paths) -> Iterator[Store]:
    with closing(open_store(paths)) as opened:
        yield opened


def assigned(store: Store, job_id: int) -> Job:
    """The job, given to a worker."""
    job = store.job(job_id)
    assert job
    event = Assigned("k1", (), "", 2.0)
    given = advance(job, event)
    store.record([Change(given, [(1, event)])])
    return given


class TestPresence:
    """Locks of engines."""

    def test_life_and_death(self, paths: Paths) -> None:
        """An engine lives until it closes, and leaves nothing behind."""
        with closing(EngineLock(paths)) as engine_lock:
            assert engine_lives(paths, engine_lock.name)
            assert [path.name for path in paths.engines.iterdir()] == [f"{engine_lock.name}.lock"]
        assert not engine_lives(paths, engine_lock.name)
        assert list(paths.engines.iterdir()) == []

    def test_no_living_engine_is_swept(self, paths: Paths, store: Store) -> None:
        """Engines that start while others sweep are seen alive."""
        with ExitStack() as stack:
            racers = [stack.enter_context(engine_process(RACER, paths.state)) for _ in range(3)]
            for racer in racers:
                finish(racer)
        assert list(paths.engines.iterdir()) == []

    def test_locks_of_the_dead(self, paths: Paths, store: Store) -> None:
        """The lock of a dead engine without open jobs is removed; locks of living engines stay."""
        paths.engines.mkdir()
        for name in ("owner", "poor"):
            (paths.engines / f"{name}.lock").touch()
        store.add_jobs(1, "owner", [TRUE], 1.0)
        with closing(EngineLock(paths)) as engine_lock:
            sweep_locks(paths, store)
            left = {path.stem for path in paths.engines.iterdir()}
            assert left == {"owner", engine_lock.name}

    def test_no_room_for_a_lock(self, paths: Paths) -> None:
        """An engine that cannot create its lock says why."""
        paths.engines.touch()
        with pytest.raises(StokerError, match="cannot write to the state directory"):
            EngineLock(paths)


class TestOrphans:
    """Jobs of dead engines."""

    def test_living_engines_have_none(self, paths: Paths, store: Store) -> None:
        """Jobs of a living engine are not orphans."""
        with closing(EngineLock(paths)) as engine_lock:
            ids = store.add_jobs(1, engine_lock.name, [TRUE, TRUE], 1.0)
            assigned(store, ids[0])
            assert list(orphans(paths, store)) == []
            assert held_orphans(paths, store) == []
        assert [orphan.job.id for orphan in orphans(paths, store)] == list(ids)

    def test_held_orphans(self, paths: Paths, store: Store) -> None:
        """Held orphans are active; waiting jobs are left out."""
        ids = [store.add_jobs(1, engine, [TRUE, TRUE], 1.0)[0] for engine in ("dead", "gone")]
        store.add_jobs(1, "never began", [TRUE], 1.0)
        held = [assigned(store, job_id) for job_id in ids]
        assert held_orphans(paths, store) == [Orphan(held[0], "dead"), Orphan(held[1], "gone")]

    def test_submitted_jobs_are_never_orphans(self, paths: Paths, store: Store) -> None:
        """Submitted jobs are not orphans, also while the queue has no engine."""
        ids = store.add_jobs(1, QUEUE, [TRUE, TRUE], 1.0)
        assigned(store, ids[0])
        assert list(orphans(paths, store)) == []
        assert held_orphans(paths, store) == []


def test_all_files_of_a_dead_engine_are_removed(paths: Paths, store: Store) -> None:
    """FIFO, status file and unfinished files are removed with the lock; those of other engines stay."""
    paths.engines.mkdir()
    for name in ("1-dead.lock", "1-dead.wake", "1-dead.status", "1-dead.status.new", "1-deadly.status"):
        (paths.engines / name).touch()
    sweep_locks(paths, store)
    assert [path.name for path in paths.engines.iterdir()] == ["1-deadly.status"]


def test_old_unfinished_files_are_removed(paths: Paths, store: Store) -> None:
    """An old unfinished file of a killed engine is removed; a new or locked one stays."""
    paths.engines.mkdir()
    with ExitStack() as stack:
        for name in ("1-left.new", "2-new.new", "3-locked.new"):
            stack.enter_context((paths.engines / name).open("w"))
        for name in ("1-left.new", "3-locked.new"):
            os.utime(paths.engines / name, (0, 0))
        locked = stack.enter_context((paths.engines / "3-locked.new").open())
        fcntl.flock(locked, fcntl.LOCK_EX)
        sweep_locks(paths, store)
    assert sorted(path.name for path in paths.engines.iterdir()) == ["2-new.new", "3-locked.new"]
