"""Jobs that are given up because they did not start in time."""

from __future__ import annotations

import msgspec
import pytest

from stoker.core.job import Ended, OnHold, Running, Waiting
from stoker.core.requests import Edit, Hold, Release
from support.fakes import EngineAtFakeSite

HOUR = 3600.0


def expired(world: EngineAtFakeSite, *ids: int) -> list[bool]:
    return [isinstance(state := world.job(job).state, Ended) and state.result == "expired" for job in ids]


def pass_time(world: EngineAtFakeSite, seconds: float) -> None:
    world.clock.now += seconds
    world.turn(2)


def ask(world: EngineAtFakeSite, request: Edit | Hold | Release) -> None:
    world.store.ask([(world.name, request)], world.clock())
    world.engine.wake()
    world.turn(2)


def test_only_those_that_are_late(world: EngineAtFakeSite) -> None:
    (late,), (later,), (patient,) = world.add(start_within=60.0), world.add(start_within=HOUR), world.add()
    world.turn()
    pass_time(world, 59.0)
    assert expired(world, late, later, patient) == [False, False, False]
    pass_time(world, 1.0)
    assert expired(world, late, later, patient) == [True, False, False]
    assert world.ended(late).note == "did not start within 0:01:00"
    assert world.engine._due_in() == pytest.approx(HOUR - 60.0)


def test_one_that_can_start_is_started(world: EngineAtFakeSite) -> None:
    """Also if it is late when the engine begins; and one that has started may run as long as it likes."""
    world.site.room = 1
    first, second = *world.add(start_within=60.0), *world.add(start_within=60.0)
    pass_time(world, HOUR)
    world.site.start(first)
    world.turn()
    assert isinstance(world.job(first).state, Running)
    assert expired(world, second) == [True]


def test_a_retry_may_wait(world: EngineAtFakeSite) -> None:
    """A job that has run once was in time."""
    world.site.room = 1
    (job,) = world.add(start_within=60.0, retries=1)
    world.turn()
    world.site.start(job)
    world.turn()
    world.site.exit(job, 1)
    world.turn()
    pass_time(world, HOUR)
    assert isinstance(world.job(job).state, Waiting)


def test_at_once(world: EngineAtFakeSite) -> None:
    world.site.room = 1
    started, refused = *world.add(nonblock=True), *world.add(nonblock=True)
    world.turn()
    pass_time(world, 1.0)
    assert expired(world, started, refused) == [False, True]
    assert world.ended(refused).note == "would have had to wait"


def test_time_counts_from_the_begin(world: EngineAtFakeSite) -> None:
    (job,) = world.add(start_within=60.0, begin=world.clock() + HOUR)
    world.turn()
    pass_time(world, HOUR)
    assert expired(world, job) == [False]
    pass_time(world, 60.0)
    assert expired(world, job) == [True]


def test_a_hold_stops_the_time(world: EngineAtFakeSite) -> None:
    (job,) = world.add(start_within=60.0)
    world.turn()
    ask(world, Hold(job))
    pass_time(world, HOUR)
    assert isinstance(world.job(job).state, OnHold)
    ask(world, Release(job))
    pass_time(world, 59.0)
    assert expired(world, job) == [False]
    pass_time(world, 1.0)
    assert expired(world, job) == [True]


@pytest.mark.parametrize(("changed", "gone"), [(None, False), (30.0, True), (2 * HOUR, False)])
def test_an_edit_counts_from_submit(world: EngineAtFakeSite, changed: float | None, gone: bool) -> None:
    (job,) = world.add(start_within=60.0)
    world.turn()
    pass_time(world, 40.0)
    ask(world, Edit(job, msgspec.structs.replace(world.job(job).spec, start_within=changed), ""))
    world.turn()
    assert expired(world, job) == [gone]
    pass_time(world, HOUR)
    assert expired(world, job) == [gone]


def test_another_engine_goes_on(world: EngineAtFakeSite) -> None:
    """It counts from submit too."""
    (job,) = world.add(start_within=60.0)
    world.turn()
    world.clock.now += 61.0
    world.restart()
    world.site.room = 0
    world.turn(2)
    assert expired(world, job) == [True]


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_a_clock_that_was_set(world: EngineAtFakeSite, jump: float) -> None:
    """The engine's clock goes on; a job submitted by the new time has its whole time, and no more."""
    world.turn()
    pass_time(world, 1.0)
    world.clock.now += jump
    (job,) = world.add(start_within=60.0)
    world.clock.now -= jump
    world.turn()
    pass_time(world, 55.0)
    assert expired(world, job) == [False]
    pass_time(world, 6.0)
    assert expired(world, job) == [True]


def test_a_full_disk(world: EngineAtFakeSite) -> None:
    """The end is recorded once that is possible."""
    (job,) = world.add(start_within=60.0)
    world.turn()
    with world.full_disk():
        pass_time(world, 60.0)
        assert expired(world, job) == [False]
    pass_time(world, 2.0)
    assert expired(world, job) == [True]


def test_several_in_a_row(world: EngineAtFakeSite) -> None:
    """The tasks of an array share a row; those that have not started are given up together."""
    world.site.room = 1
    ids = world.add(3, start_within=60.0)
    world.turn()
    pass_time(world, 60.0)
    assert expired(world, *ids) == [False, True, True]
