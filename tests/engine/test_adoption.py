"""What becomes of jobs that dead engines left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.job import Assigned, Event, Exited, Started, Waiting, advance
from stoker.core.run_result import Tally
from stoker.core.spec import Command, JobSpec, NewJob
from stoker.engine.adoption import Resumer, Supply, adopt_all, adopt_gone
from stoker.store.engine_lock import interrupted_active_jobs
from stoker.store.schema import Change
from support.fakes import START, EngineAtFakeSite

DEAD = "dead-1"
ASSIGNED = Assigned("w1 - 0", ("0",), "/log", START)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[EngineAtFakeSite]:
    """An engine beside the jobs of a dead one."""
    (tmp_path / "engines").mkdir()
    made = EngineAtFakeSite(tmp_path, room=0)
    yield made
    made.close()


def work(name: str) -> NewJob:
    return NewJob(Command((name,)), JobSpec())


def left(world: EngineAtFakeSite, name: str, *events: Event, engine: str = DEAD) -> int:
    """A job of a dead engine, after these events."""
    batch = world.store.add_batch("dead", START)
    (job_id,) = world.store.add_jobs(batch, engine, [work(name)], START)
    job = world.job(job_id)
    for event in events:
        job = advance(job, event)
    world.store.record([Change(job, [(1, event) for event in events])])
    return job_id


class TestAdoptGone:
    """A run that does not resume, and the background engine."""

    def test_only_what_nothing_runs_any_more_is_adopted(self, world: EngineAtFakeSite) -> None:
        """What still runs is left for a run that resumes."""
        gone, alive, waiting = left(world, "a", ASSIGNED), left(world, "b", ASSIGNED), left(world, "c")
        world.site.gone = {gone, waiting}
        adopt_gone(world.paths, world.store, world.engine)
        assert world.site.called("adopt") == [[gone]]
        assert [job.id for job in world.store.active_jobs(DEAD)] == [alive]
        assert world.engine.at_rest, "only the end of an adopted job matters"

    def test_a_job_is_adopted_by_one_engine(self, world: EngineAtFakeSite) -> None:
        """Another engine that saw the same interrupted job comes too late."""
        left(world, "a", ASSIGNED)
        found = interrupted_active_jobs(world.paths, world.store)
        assert len(adopt_all(found, world.store, world.engine)) == 1
        assert adopt_all(found, world.store, world.engine) == []

    def test_the_running_job_comes_first(self, world: EngineAtFakeSite) -> None:
        """Then those behind it, in the order in which they were assigned."""
        last = left(world, "c", Assigned("w1 - 0", ("0",), "/log", START + 2))
        second = left(world, "b", Assigned("w1 - 0", ("0",), "/log", START + 1))
        runs = left(world, "a", ASSIGNED, Started(1, START + 5))
        adopt_all(interrupted_active_jobs(world.paths, world.store), world.store, world.engine)
        assert world.site.called("adopt") == [[runs], [second], [last]]


def test_a_supply_counts_equal_jobs() -> None:
    """Each find is for one of them, and is looked for once."""
    asked: list[NewJob] = []

    def count(wanted: NewJob) -> int:
        asked.append(wanted)
        return 2

    supply = Supply(count)
    assert [supply.spend(work("a")) for _ in range(4)] == [True, True, False, False]
    assert len(asked) == 1


class TestResumer:
    """`--resume`: by content."""

    def resume(self, world: EngineAtFakeSite, *names: str, redo: bool = False) -> tuple[list[str], Tally]:
        """Which of the jobs are to be submitted."""
        tally = Tally()
        batch = world.store.add_batch("new", START)
        resumer = Resumer(world.paths, world.store, world.engine, batch, redo=redo)
        left_over = resumer.unfinished([work(name) for name in names], tally)
        return [job.command.words[0] for job in left_over], tally

    def test_what_was_done_is_skipped(self, world: EngineAtFakeSite) -> None:
        """As often as it was done, unless it shall be done again."""
        left(world, "a", ASSIGNED, Started(1, START), Exited(1, 0, 0, START))
        left(world, "b", ASSIGNED, Started(1, START), Exited(1, 1, 0, START))
        submitted, tally = self.resume(world, "a", "a", "b")
        assert (submitted, tally.skipped) == (["a", "b"], 1)
        assert self.resume(world, "a", redo=True)[0] == ["a"]

    def test_what_waits_is_taken_over(self, world: EngineAtFakeSite) -> None:
        """It keeps its id, and is now ours."""
        job = left(world, "a")
        submitted, tally = self.resume(world, "a")
        assert (submitted, tally.given) == ([], 1)
        assert world.engine.waiting == 1
        assert [each.id for each in world.store.open_jobs(world.name, 0, 9)] == [job]
        assert isinstance(world.job(job).state, Waiting)

    def test_what_runs_becomes_ours(self, world: EngineAtFakeSite) -> None:
        """Its end counts for this run."""
        job = left(world, "a", ASSIGNED, Started(1, START))
        submitted, tally = self.resume(world, "a")
        assert (submitted, tally.given) == ([], 1)
        assert world.site.called("adopt") == [[job]]
        assert [each.id for each in world.engine.active_jobs] == [job]

    def test_what_runs_and_is_not_listed_stays_adopted(self, world: EngineAtFakeSite) -> None:
        """The engine does not wait for it."""
        left(world, "a", ASSIGNED, Started(1, START))
        assert self.resume(world, "b")[0] == ["b"]
        assert (world.engine.active_jobs, world.engine.at_rest) == ([], True)
