"""Jobs that hold GPUs and do not use them: what the engine says of them and does about them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.core.job import Idled, Job, Running, Stopping, Waiting
from stoker.core.spec import Command, IdleRule, JobSpec, NewJob
from stoker.engine.recorder import FollowUp
from support.fakes import EngineAtFakeSite

HOUR = 3600.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[EngineAtFakeSite]:
    made = EngineAtFakeSite(tmp_path)
    yield made
    made.close()


def run(world: EngineAtFakeSite, **spec: Any) -> int:
    """A job that runs, and whose GPU is idle from now on."""
    (job,) = world.add(**spec)
    world.turn()
    world.site.start(job)
    world.turn()
    world.site.idle = {job: world.clock()}
    return job


def pass_time(world: EngineAtFakeSite, seconds: float) -> None:
    world.clock.pass_seconds(seconds)
    world.turn(2)


def reports(world: EngineAtFakeSite, job: int) -> list[str]:
    return [event.note for event in world.store.events(job) if isinstance(event, Idled)]


def test_it_is_reported_once(world: EngineAtFakeSite) -> None:
    """After half an hour, and again only if the GPU was used meanwhile."""
    job = run(world)
    pass_time(world, 1799.0)
    assert reports(world, job) == []
    pass_time(world, 1.0)
    pass_time(world, HOUR)
    assert reports(world, job) == ["has held GPU 0 for 30m at 0 %"]
    state = world.job(job).state
    assert isinstance(state, Running)
    assert state.idle_since == world.clock() - HOUR - 1800.0
    world.site.idle = {job: None}
    pass_time(world, 2.0)
    assert reports(world, job) == ["has held GPU 0 for 30m at 0 %", ""]
    world.site.idle = {job: world.clock()}
    pass_time(world, HOUR)
    assert reports(world, job)[-1] == "has held GPU 0 for 1h at 0 %"


def test_another_engine_does_not_repeat_it(world: EngineAtFakeSite) -> None:
    """It begins to count anew, and what was reported stays reported."""
    job = run(world)
    pass_time(world, HOUR)
    world.restart()
    world.site.idle = {job: world.clock()}
    pass_time(world, HOUR)
    assert len(reports(world, job)) == 1


def test_it_can_be_off(world: EngineAtFakeSite) -> None:
    job = run(world, idle=IdleRule(0.0))
    pass_time(world, 100 * HOUR)
    assert reports(world, job) == []


def test_a_session_is_not_watched(world: EngineAtFakeSite) -> None:
    """It has an --idle of its own, to which keys count too."""
    job = run(world, terminal="/dev/pts/1")
    pass_time(world, HOUR)
    assert reports(world, job) == []


def test_it_is_stopped(world: EngineAtFakeSite) -> None:
    """With a result of its own, and only if the user wants that."""
    job = run(world, idle=IdleRule(60.0, "stop"))
    pass_time(world, 60.0)
    assert isinstance(world.job(job).state, Stopping)
    assert world.site.called("stop") == [[job, None, 0]]
    world.site.exit(job, 143)
    world.turn()
    assert (world.ended(job).result, world.ended(job).note) == ("idle", "has held GPU 0 for 1m at 0 %")


def test_it_gives_way_to_those_that_wait(world: EngineAtFakeSite) -> None:
    """A preemptible job leaves if another waits; else it is only reported."""
    job = run(world, idle=IdleRule(60.0, "preempt"), preemptible="save")
    pass_time(world, HOUR)
    state = world.job(job).state
    assert isinstance(state, Running)
    assert state.giving_way is None
    (other,) = world.add()
    pass_time(world, 2.0)
    state = world.job(job).state
    assert isinstance(state, Running)
    assert state.giving_way is not None
    assert isinstance(world.job(other).state, Waiting)


def test_one_that_cannot_give_way_stays(world: EngineAtFakeSite) -> None:
    job = run(world, idle=IdleRule(60.0, "preempt"))
    world.add()
    pass_time(world, HOUR)
    assert isinstance(world.job(job).state, Running)
    assert len(reports(world, job)) == 1


def test_its_user_is_told(world: EngineAtFakeSite) -> None:
    """By a job that sends the sentence, if the job has targets; it is told once."""
    told: list[tuple[int, str]] = []

    def tell(job: Job, sentence: str) -> NewJob:
        told.append((job.id, sentence))
        return NewJob(Command(("tell", sentence)), JobSpec(role="hook"))

    world.jobs.recorder.follow_up = FollowUp(world.name, None, None, tell)
    silent = run(world)
    world.site.room = 1
    told_of = run(world, notify=("mail",))
    world.site.idle = dict.fromkeys((silent, told_of), world.clock())
    pass_time(world, HOUR)
    pass_time(world, HOUR)
    assert told == [(told_of, "has held GPU 0 for 1h at 0 %")]
    teller = world.store.job(told_of + 1)
    assert teller is not None
    assert teller.command.words[0] == "tell"
