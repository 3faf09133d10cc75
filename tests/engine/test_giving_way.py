"""Running jobs that are asked to leave: by a request, again after a crash, and those that stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.core.device import Snapshot
from stoker.core.job import Exited, GivingWay, Job, Running, Waiting, state_word
from stoker.core.planner.order import QueuePosition
from stoker.core.requests import Cancel, Preempt
from stoker.engine.giving_way import ANSWER_SECONDS
from stoker.sites.interface import SiteStatus
from support.fakes import START, EngineAtFakeSite


@pytest.fixture
def world(tmp_path: Path) -> Iterator[EngineAtFakeSite]:
    made = EngineAtFakeSite(tmp_path, room=1)
    yield made
    made.close()


def running(world: EngineAtFakeSite, **spec: Any) -> int:
    """A job that runs and can give way, unless the spec says otherwise."""
    (job_id,) = world.add(**{"preemptible": "save", **spec})
    world.turn()
    world.site.start(job_id)
    world.turn()
    return job_id


def preempt(world: EngineAtFakeSite, job_id: int, to: int | None = None) -> None:
    world.store.ask([(world.name, Preempt(job_id, to, "by you"))], world.clock())
    world.engine.wake()
    world.turn()


def leave(world: EngineAtFakeSite, job_id: int, code: int = 1) -> None:
    """The worker says that the job left."""

    def exited(job: Job) -> Exited:
        return Exited(job.attempts, code, 0, world.clock(), why="preempted")

    world.site.pending.append(lambda: world.site._apply(job_id, exited))
    world.turn()


def way_of(world: EngineAtFakeSite, job_id: int) -> GivingWay | None:
    state = world.job(job_id).state
    return state.giving_way if isinstance(state, Running) else state.gave_way if isinstance(state, Waiting) else None


def test_a_request_asks_a_job_to_leave(world: EngineAtFakeSite) -> None:
    """It is asked once, leaves for the job that was named, and waits again."""
    job_id = running(world)
    (other,) = world.add()
    preempt(world, job_id, other)
    preempt(world, job_id, other)
    assert world.site.called("give_way") == [[job_id]]
    assert way_of(world, job_id) == GivingWay(START, other, "by you", ("0",))
    leave(world, job_id)
    assert way_of(world, job_id) == GivingWay(START, other, "by you", ("0",))
    assert (world.job(job_id).preemptions, world.job(job_id).failures) == (1, 0)


def test_without_a_name_it_leaves_for_the_first_that_waits(world: EngineAtFakeSite) -> None:
    """One that needs no GPU is not meant."""
    job_id = running(world)
    order = [QueuePosition(9, 1, 0, START, 60.0, False, 0), QueuePosition(8, 1, 0, START, 60.0, False, 1)]
    world.site.shown = SiteStatus(Snapshot(START, ()), order=order)
    preempt(world, job_id)
    way = way_of(world, job_id)
    assert way is not None
    assert way.to == 8


def test_a_job_that_is_not_preemptible_is_not_asked(world: EngineAtFakeSite) -> None:
    job_id = running(world, preemptible="")
    preempt(world, job_id)
    assert (world.site.called("give_way"), way_of(world, job_id)) == ([], None)


def test_a_job_that_stays_is_never_asked_again(world: EngineAtFakeSite) -> None:
    """It keeps its GPUs, also under the next engine."""
    job_id = running(world, save_time=60.0)
    preempt(world, job_id)
    world.clock.pass_seconds(60.0 + ANSWER_SECONDS - 0.1)
    world.turn()
    assert way_of(world, job_id) is not None
    world.clock.pass_seconds(0.2)
    world.turn()
    assert (way_of(world, job_id), world.job(job_id).spec.preemptible) == (None, "")
    world.restart()
    preempt(world, job_id)
    assert world.site.called("give_way") == []


def test_the_next_engine_asks_again(world: EngineAtFakeSite) -> None:
    """The first one may have died before it sent the order."""
    job_id = running(world, save_time=60.0)
    preempt(world, job_id)
    world.restart()
    world.turn()
    assert world.site.called("give_way") == [[job_id]]
    world.clock.pass_seconds(60.0 + ANSWER_SECONDS)
    world.turn()
    assert world.job(job_id).spec.preemptible == ""


@pytest.mark.parametrize("jump", [-7200.0, 7200.0])
def test_the_clock_is_set_between_two_engines(world: EngineAtFakeSite, jump: float) -> None:
    """The job has its time to save, and no more."""
    job_id = running(world, save_time=60.0)
    preempt(world, job_id)
    world.clock.now += jump
    world.restart()
    world.turn()
    assert way_of(world, job_id) is not None
    world.clock.pass_seconds(60.0 + ANSWER_SECONDS)
    world.turn()
    assert (way_of(world, job_id), world.job(job_id).spec.preemptible) == (None, "")


def test_an_engine_that_died_before_it_recorded_the_order(world: EngineAtFakeSite) -> None:
    """The worker says why the job left, so it is no failure."""
    job_id = running(world)
    leave(world, job_id)
    assert way_of(world, job_id) == GivingWay(START, devices=("0",))


def test_a_job_that_ends_before_the_order_comes(world: EngineAtFakeSite) -> None:
    """It is over as it would have been, also where it failed."""
    job_id = running(world)
    preempt(world, job_id)
    world.site.exit(job_id, 3)
    world.turn()
    assert (state_word(world.job(job_id)), world.job(job_id).failures) == ("failed", 1)


def test_a_cancel_ends_a_job_that_saves(world: EngineAtFakeSite) -> None:
    job_id = running(world)
    preempt(world, job_id)
    world.store.ask([(world.name, Cancel(job_id))], world.clock())
    world.engine.wake()
    world.turn()
    leave(world, job_id)
    assert state_word(world.job(job_id)) == "cancelled"
    world.clock.pass_seconds(1000.0)
    world.turn()
