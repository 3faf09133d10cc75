"""Engines that are seen alive exactly as long as they are, and what the dead ones left."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from stoker.core.errors import StokerError
from stoker.core.job import Assigned, Job, advance
from stoker.core.spec import Command, NewJob, Terms
from stoker.store.engine_lock import QUEUE, Presence, engine_lives
from stoker.store.ownership import Orphan, held_orphans, orphans, sweep_locks
from stoker.store.paths import Places
from stoker.store.schema import Change
from stoker.store.writer import Store, open_store
from support.local import engine_process
from support.users import finish

TRUE = NewJob(Command(("true",)), Terms())

RACER = """
import sys
from pathlib import Path
from stoker.store.paths import Places
from stoker.store.engine_lock import Presence, engine_lives
from stoker.store.writer import open_store
from stoker.store.ownership import sweep_locks
places = Places(Path(sys.argv[1]))
store = open_store(places)
for _ in range(300):
    presence = Presence(places)
    sweep_locks(places, store)
    assert engine_lives(places, presence.name), "swept alive"
    presence.close()
"""


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


@pytest.fixture
def store(places: Places) -> Iterator[Store]:
    with closing(open_store(places)) as opened:
        yield opened


def assigned(store: Store, job_id: int) -> Job:
    """The job, given to a keeper."""
    job = store.job(job_id)
    assert job
    event = Assigned("k1", (), "", 2.0)
    given = advance(job, event)
    store.record([Change(given, [(1, event)])])
    return given


class TestPresence:
    """Proof of life."""

    def test_life_and_death(self, places: Places) -> None:
        """An engine lives until it closes, and leaves nothing behind."""
        with closing(Presence(places)) as presence:
            assert engine_lives(places, presence.name)
            assert [path.name for path in places.engines.iterdir()] == [f"{presence.name}.lock"]
        assert not engine_lives(places, presence.name)
        assert list(places.engines.iterdir()) == []

    def test_no_living_engine_is_swept(self, places: Places, store: Store) -> None:
        """However many engines begin while others sweep, each is seen alive."""
        with ExitStack() as stack:
            racers = [stack.enter_context(engine_process(RACER, places.state)) for _ in range(6)]
            for racer in racers:
                finish(racer)
        assert list(places.engines.iterdir()) == []

    def test_locks_of_the_dead(self, places: Places, store: Store) -> None:
        """The lock of a dead engine goes as soon as it owns nothing; those of the living stay."""
        places.engines.mkdir()
        for name in ("owner", "poor"):
            (places.engines / f"{name}.lock").touch()
        store.add_jobs(1, "owner", [TRUE], 1.0)
        with closing(Presence(places)) as presence:
            sweep_locks(places, store)
            left = {path.stem for path in places.engines.iterdir()}
            assert left == {"owner", presence.name}

    def test_no_room_for_a_lock(self, places: Places) -> None:
        """An engine that cannot prove its life says why."""
        places.engines.touch()
        with pytest.raises(StokerError, match="cannot write to the state directory"):
            Presence(places)


class TestOrphans:
    """Jobs of dead engines."""

    def test_living_engines_have_none(self, places: Places, store: Store) -> None:
        """Jobs of a living engine are nobody else's."""
        with closing(Presence(places)) as presence:
            ids = store.add_jobs(1, presence.name, [TRUE, TRUE], 1.0)
            assigned(store, ids[0])
            assert list(orphans(places, store)) == []
            assert held_orphans(places, store) == []
        assert [orphan.job.id for orphan in orphans(places, store)] == list(ids)

    def test_held_ones(self, places: Places, store: Store) -> None:
        """Held orphans are those that keepers have; what waits is left out."""
        ids = [store.add_jobs(1, engine, [TRUE, TRUE], 1.0)[0] for engine in ("dead", "gone")]
        store.add_jobs(1, "never began", [TRUE], 1.0)
        held = [assigned(store, job_id) for job_id in ids]
        assert held_orphans(places, store) == [Orphan(held[0], "dead"), Orphan(held[1], "gone")]

    def test_what_was_submitted_is_never_one(self, places: Places, store: Store) -> None:
        """A run that comes while the queue has no engine leaves its jobs alone: none would ever start again."""
        ids = store.add_jobs(1, QUEUE, [TRUE, TRUE], 1.0)
        assigned(store, ids[0])
        assert list(orphans(places, store)) == []
        assert held_orphans(places, store) == []


def test_all_that_a_dead_engine_left_is_swept(places: Places, store: Store) -> None:
    """Its bell and what it showed of itself go with its lock, also what it was just writing; others keep theirs."""
    places.engines.mkdir()
    for name in ("1-dead.lock", "1-dead.bell", "1-dead.view", "1-dead.view.new", "1-deadly.view"):
        (places.engines / name).touch()
    sweep_locks(places, store)
    assert [path.name for path in places.engines.iterdir()] == ["1-deadly.view"]


def test_what_an_engine_had_only_begun_is_swept_when_it_is_old(places: Places, store: Store) -> None:
    """One that was killed before its lock had its name leaves a file; what is new or locked may be finished yet."""
    places.engines.mkdir()
    with ExitStack() as stack:
        for name in ("1-left.new", "2-new.new", "3-locked.new"):
            stack.enter_context((places.engines / name).open("w"))
        for name in ("1-left.new", "3-locked.new"):
            os.utime(places.engines / name, (0, 0))
        locked = stack.enter_context((places.engines / "3-locked.new").open())
        fcntl.flock(locked, fcntl.LOCK_EX)
        sweep_locks(places, store)
    assert sorted(path.name for path in places.engines.iterdir()) == ["2-new.new", "3-locked.new"]
