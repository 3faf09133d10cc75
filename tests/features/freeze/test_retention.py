"""Snapshots stay as long as a job needs them, and no longer than the disk allows."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from features.freeze.repository import plain, repository, write
from stoker.app.service.doctor import Subject
from stoker.core.job import Assigned, Event, Exited, Job, Started, advance
from stoker.core.spec import Command, JobSpec, NewJob
from stoker.features.freeze.listing import USUAL
from stoker.features.freeze.retention import YOUNG_SECONDS, check, disk_use, forget
from stoker.features.freeze.snapshots import CodeSnapshot, SnapshotStore
from stoker.features.freeze.take import take
from stoker.store.engine_lock import QUEUE
from stoker.store.paths import UNFINISHED, Paths
from stoker.store.schema import BatchRecord, Change
from stoker.store.writer import Store

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


class World:
    """A queue, its snapshots, and a project that they are taken of."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.paths = Paths(folder / "state")
        self.store = store
        self.snapshots = SnapshotStore(self.paths.code)
        self.project = repository(folder / "project", {"a.py": "0"})
        self.moment = 0.0

    def snapshot(self, size: int = 10_000) -> CodeSnapshot:
        """Take one of a new content; each was used an hour after the one before."""
        self.moment += YOUNG_SECONDS
        write(self.project, {"a.py": f"{self.moment}" * (size // 5)})
        made = take(str(self.project), self.snapshots, plain(), USUAL).snapshot
        assert self.snapshots.keep(made)
        os.utime(self.snapshots.tree(made.id), (self.moment, self.moment))
        return made

    def job(self, snapshot: CodeSnapshot, how: str = "", *, ended: bool = False) -> Job:
        """Add a job with this code."""
        spec = JobSpec(code=f"{snapshot.id}{how}", cwd=str(self.project))
        (job_id,) = self.store.add_jobs(self.store.add_batch("x", 0.0), QUEUE, [NewJob(Command(("true",)), spec)], 0.0)
        job = self.store.job(job_id)
        assert job is not None
        if ended:
            events: list[Event] = [Assigned("w", (), "/nowhere", 1.0), Started(1, 2.0), Exited(1, 0, 0, 3.0)]
            for event in events:
                job = advance(job, event)
            self.store.record([Change(job, [(1, event) for event in events])])
        return job

    def forget(self, hours: float = 1000.0) -> None:
        """A round of pruning so many hours later."""
        from time import time

        for _ in forget(self.paths, self.store, time() + hours * 3600):
            pass

    def left(self) -> set[str]:
        return {tree.name for tree in self.snapshots.trees.iterdir()}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    (tmp_path / "state/clusters").mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("STOKER_CODE_LIMIT", raising=False)
    with contextlib.closing(Store(Paths(tmp_path / "state").database)) as store:
        yield World(tmp_path, store)


def test_what_no_job_has(world: World) -> None:
    """It is removed with its contents; what any job has stays, also of one that has ended."""
    unused, of_ended, of_queued = world.snapshot(), world.snapshot(), world.snapshot()
    world.job(of_ended, ended=True)
    world.job(of_queued, " tree")
    world.forget()
    assert world.left() == {of_ended.id, of_queued.id}
    assert world.snapshots.has(of_ended.files[0])
    assert not world.snapshots.has(unused.files[0])


def test_what_is_young(world: World) -> None:
    """A submit takes the snapshot before it adds the jobs; half trees of dead ones are removed later."""
    made = world.snapshot()
    os.utime(world.snapshots.tree(made.id))
    (world.snapshots.trees / f"{UNFINISHED}x/project").mkdir(parents=True)
    world.forget(hours=0.5)
    assert world.left() == {made.id, f"{UNFINISHED}x"}
    assert world.snapshots.keep(made)
    world.forget(hours=2)
    assert world.left() == set()


def test_the_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest of ended jobs go first, and never those of a job in the queue or of a batch that goes on."""
    first, queued, batch, second, last = [world.snapshot(100_000) for _ in range(5)]
    for snapshot in (first, second, last):
        world.job(snapshot, ended=True)
    world.job(queued)
    member = world.job(batch, ended=True)
    coordinator = world.job(queued)
    with world.store.writing() as connection:
        connection.execute("UPDATE jobs SET batch = ? WHERE id = ?", (member.batch, coordinator.id))
    record = BatchRecord("test", member.id, "", coordinator.id, member.spec, b"")
    world.store.set_batch_record(member.batch, record)
    monkeypatch.setenv("STOKER_CODE_LIMIT", f"{disk_use(world.paths.code) // 1024 - 50}K")
    world.forget()
    assert world.left() == {queued.id, batch.id, second.id, last.id}
    monkeypatch.setenv("STOKER_CODE_LIMIT", "1K")
    world.forget()
    assert world.left() == {queued.id, batch.id}


def test_the_check(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """`stoker engine check` tells how much they take; several names of a content count once."""
    world.job(world.snapshot(100_000))
    assert 100_000 < disk_use(world.paths.code) < 200_000
    (verdict,) = check(Subject(world.paths, os.environ))
    assert verdict.level == "ok"
    assert "1 snapshot of frozen code: 1" in verdict.text
    (verdict,) = check(Subject(world.paths, {**os.environ, "STOKER_CODE_LIMIT": "1K"}))
    assert verdict.level == "note"
    assert "more than code_limit (1K)" in verdict.text
