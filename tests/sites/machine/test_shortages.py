"""Starts that the machine is short for: no failure of a job, and tried again after a pause."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.job import Starting, Waiting
from stoker.core.planner.reasons import OutOfResources
from stoker.core.spec import Resources
from stoker.runner.interface import ShortOfResources
from stoker.sites.machine.shortages import FIRST_PAUSE, LONGEST_PAUSE
from support.fakes import EngineOnFakeRunner

CPU = Resources(gpus=0)
NO_PROCESS = "cannot start a process: Resource temporarily unavailable"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[EngineOnFakeRunner]:
    """An engine with two named devices."""
    (tmp_path / "state").mkdir()
    made = EngineOnFakeRunner(tmp_path / "state")
    yield made
    made.close()


def fail(world: EngineOnFakeRunner, key: str, number: int = errno.EAGAIN, note: str = NO_PROCESS) -> None:
    """The worker says that it was about to start the attempt, and that it could not."""
    world.runner.started(key)
    world.runner.returned(key, number, note)
    world.turn(2)


def succeed(world: EngineOnFakeRunner, key: str) -> None:
    world.runner.started(key)
    world.runner.pids[key] = 4711
    world.turn(2)


def sent(world: EngineOnFakeRunner) -> list[str]:
    return [attempt for _, attempt in world.runner.called("start")]


def fail_nine(world: EngineOnFakeRunner) -> None:
    """Nine jobs are started together, and none can be."""
    world.add(9, resources=CPU)
    world.turn()
    for key in sent(world):
        world.runner.started(key)
        world.runner.returned(key, errno.EAGAIN, NO_PROCESS)
    world.turn(2)


def test_no_job_starts_during_the_pause(world: EngineOnFakeRunner) -> None:
    """All of them wait for the same reason, also those that were not tried; the user is told."""
    (first,) = world.add(resources=CPU)
    world.turn()
    fail(world, f"{first}.1")
    (second,) = world.add(resources=CPU)
    world.turn(2)
    assert sent(world) == [f"{first}.1"]
    for job in (first, second):
        assert isinstance(world.job(job).state, Waiting)
        assert world.engine.reason(world.job(job)) == OutOfResources(NO_PROCESS)
    assert NO_PROCESS in world.engine.trouble
    assert world.engine._due_in() == pytest.approx(FIRST_PAUSE)


def test_an_attempt_that_was_returned_counts_for_nothing(world: EngineOnFakeRunner) -> None:
    """Neither as a try nor as a failure nor as a loss, however often."""
    (job,) = world.add(resources=CPU)
    world.turn()
    for number in range(1, 10):
        fail(world, f"{job}.{number}")
        world.clock.pass_seconds(LONGEST_PAUSE)
        world.turn(2)
    known = world.job(job)
    assert (known.attempts, known.tries, known.failures, known.losses) == (10, 0, 0, 0)
    assert isinstance(known.state, Starting)


def test_pauses_grow_and_one_start_tries_each_time(world: EngineOnFakeRunner) -> None:
    """1, 2, 4 ... 60 seconds, in which nothing is started."""
    fail_nine(world)
    before = len(sent(world))
    for pause in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        world.clock.pass_seconds(pause - 0.01)
        world.turn(2)
        assert len(sent(world)) == before
        world.clock.pass_seconds(0.02)
        world.turn(3)
        before += 1
        assert len(sent(world)) == before
        fail(world, sent(world)[-1])


def test_one_start_that_succeeds_ends_the_pause(world: EngineOnFakeRunner) -> None:
    """All others start at once, also those that failed before."""
    fail_nine(world)
    count = len(sent(world))
    world.clock.pass_seconds(FIRST_PAUSE)
    world.turn(3)
    succeed(world, sent(world)[-1])
    world.turn(2)
    assert len(sent(world)) == count + 9
    assert world.engine.trouble == ""


def test_a_full_disk_pauses_only_those_who_write_there(world: EngineOnFakeRunner, tmp_path: Path) -> None:
    """Others start as ever; the next try is made by another job than the one that failed last."""
    note = f"cannot write its output to {tmp_path}/full: No space left on device"
    first, second = world.add(2, resources=CPU, out=str(tmp_path / "full" / "%j.log"))
    world.turn()
    for job in (first, second):
        fail(world, f"{job}.1", errno.ENOSPC, note)
    (other,) = world.add(resources=CPU)
    world.turn(2)
    assert sent(world)[-1] == f"{other}.1"
    assert world.engine.reason(world.job(first)) == OutOfResources(note)
    world.clock.pass_seconds(FIRST_PAUSE)
    world.turn(3)
    assert sent(world)[-1] == f"{first}.2"
    fail(world, f"{first}.2", errno.ENOSPC, note)
    world.clock.pass_seconds(2 * FIRST_PAUSE)
    world.turn(3)
    assert sent(world)[-1] == f"{second}.2"
    succeed(world, f"{second}.2")
    world.turn(2)
    assert sent(world)[-1] == f"{first}.3"


def test_a_full_state_directory_pauses_all(world: EngineOnFakeRunner) -> None:
    """There the logs of most jobs are."""
    (job,) = world.add(resources=CPU)
    world.turn()
    fail(world, f"{job}.1", errno.ENOSPC, "no inode")
    world.add(resources=CPU)
    world.turn(2)
    assert sent(world) == [f"{job}.1"]


def test_a_job_that_fails_alone_stops_no_other(world: EngineOnFakeRunner) -> None:
    """After others could be started, its next failure is its own."""
    (odd,) = world.add(resources=CPU)
    world.turn()
    fail(world, f"{odd}.1", errno.ENOMEM, "too large")
    (good,) = world.add(resources=CPU)
    world.turn(2)
    world.clock.pass_seconds(FIRST_PAUSE)
    world.turn(3)
    assert sent(world) == [f"{odd}.1", f"{good}.1"]
    succeed(world, f"{good}.1")
    world.turn(2)
    fail(world, f"{odd}.2", errno.ENOMEM, "too large")
    (another,) = world.add(resources=CPU)
    world.turn(2)
    assert sent(world)[-1] == f"{another}.1"


def test_a_worker_that_cannot_be_started(world: EngineOnFakeRunner) -> None:
    """The reason is that of the waiting jobs, and pauses grow too."""
    world.runner.fails = ShortOfResources("cannot prepare a worker", "look at the limits")
    (job,) = world.add()
    world.turn()
    assert world.engine.reason(world.job(job)) == OutOfResources("cannot prepare a worker; look at the limits")
    assert world.ledger.live().leases == {}
    world.clock.pass_seconds(FIRST_PAUSE)
    world.turn(2)
    world.runner.fails = None
    world.clock.pass_seconds(FIRST_PAUSE)
    world.turn(2)
    assert not sent(world)
    world.clock.pass_seconds(FIRST_PAUSE)
    world.turn(2)
    succeed(world, f"{job}.1")
    assert world.engine.trouble == ""


def test_no_process_for_a_worker(world: EngineOnFakeRunner) -> None:
    """The forkserver's answer leads to the same pause."""
    (job,) = world.add()
    world.turn()
    world.runner.lost("w1", errno.EAGAIN)
    world.turn(2)
    assert world.kinds(job) == ["Assigned", "Returned"]
    assert os.strerror(errno.EAGAIN) in world.engine.trouble
    assert isinstance(world.engine.reason(world.job(job)), OutOfResources)


def test_a_job_that_waited_under_another_engine(world: EngineOnFakeRunner, tmp_path: Path) -> None:
    """A new engine does not know the old shortage, and tries."""
    (job,) = world.add(resources=CPU)
    world.turn()
    fail(world, f"{job}.1")
    world.jobs.table.withdraw(job)
    world.engine._last_accepted = 0
    world.engine.wake()
    world.turn(2)
    assert world.kinds(job)[-1] == "Resumed"


def test_a_cancelled_job_is_not_tried(world: EngineOnFakeRunner) -> None:
    """The next one is."""
    first, second = world.add(2, resources=CPU)
    world.turn()
    for job in (first, second):
        world.runner.started(f"{job}.1")
        world.runner.returned(f"{job}.1", errno.EAGAIN, NO_PROCESS)
    world.turn(2)
    world.engine.cancel(first, None, "")
    world.clock.pass_seconds(FIRST_PAUSE)
    world.turn(3)
    assert world.ended(first).result == "cancelled"
    assert sent(world)[-1] == f"{second}.2"
