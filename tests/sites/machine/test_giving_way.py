"""The plan's displacements carried out: who is asked to leave, and who gets the devices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from stoker.core.job import GivingWay, Running, Waiting, state_word
from stoker.core.requests import Preempt
from stoker.core.spec import Resources
from stoker.devices.detect import DeclaredDevices
from support.fakes import EngineOnFakeRunner

HOUR = 3600.0
WHOLE = Resources(gpus=2)


def long_job(world: EngineOnFakeRunner, **spec: object) -> tuple[int, str]:
    """A job on both devices that has run for two hours of ten, and can give way."""
    given: dict[str, object] = {"limit": 10 * HOUR, "preemptible": "save", "resources": WHOLE, **spec}
    (job_id,) = world.add(**given)  # type: ignore[arg-type]
    key = world.run(job_id)
    world.clock.pass_seconds(2 * HOUR)
    world.turn()
    return job_id, key


def test_a_long_job_gives_way_to_a_short_one(world: EngineOnFakeRunner) -> None:
    """It is asked with its own signal and time, the short job gets the devices, and then it goes on."""
    long, key = long_job(world, save_signal="USR2", save_time=90.0)
    (short,) = world.add(limit=60.0)
    world.turn(3)
    assert world.runner.called("give_way") == [[world.runner.workers[key], key, 12, 90.0, True]]
    state = world.job(long).state
    assert isinstance(state, Running)
    assert state.giving_way == GivingWay(world.clock(), short, devices=("0", "1"))
    (later,) = world.add(limit=60.0)
    world.clock.pass_seconds(30.0)
    world.turn(2)
    world.runner.exited(key, 75, "preempted")
    world.turn(3)
    assert isinstance(world.job(long).state, Waiting)
    assert state_word(world.job(short)) == "starting"
    assert world.job(long).kept_seconds == 2 * HOUR + 30
    assert world.parts.history.expected(world.job(long)) == 8 * HOUR - 30
    world.runner.exited(world.run(short))
    world.runner.exited(world.run(later))
    world.turn(3)
    assert state_word(world.job(long)) == "starting"
    assert world.runner.orders[f"{long}.2"].extra["STOKER_RESTART"] == "1"


def test_a_job_that_is_not_preemptible_is_left_alone(world: EngineOnFakeRunner) -> None:
    long_job(world, preemptible="")
    world.add(limit=60.0)
    world.turn(3)
    assert world.runner.called("give_way") == []


def test_nobody_is_asked_twice_for_one_job(world: EngineOnFakeRunner) -> None:
    """While a job saves, no other has to leave for the same one."""
    for _ in range(2):
        world.add(limit=10 * HOUR, preemptible="save")
    world.run(1)
    world.run(2)
    world.clock.pass_seconds(2 * HOUR)
    world.add(limit=60.0)
    world.turn(5)
    assert len(world.runner.called("give_way")) == 1


def test_the_devices_are_kept_for_the_job_that_was_named(world: EngineOnFakeRunner) -> None:
    """By hand, too: a job that goes first in the order does not take them."""
    long, key = long_job(world, limit=None)
    named, first = (
        world.add(limit=20 * HOUR, resources=WHOLE)[0],
        world.add(limit=20 * HOUR, resources=WHOLE, priority=5)[0],
    )
    world.store.ask([(world.name, Preempt(long, named))], world.clock())
    world.engine.wake()
    world.turn(2)
    assert len(world.runner.called("give_way")) == 1
    world.runner.exited(key, 75, "preempted")
    world.turn(3)
    assert (state_word(world.job(named)), state_word(world.job(first))) == ("starting", "waiting")


def test_jobs_give_way_together_to_one_that_needs_all_their_devices(tmp_path: Path) -> None:
    """What the first leaves, and what is free, is kept until the second has left, too: neither takes it again."""
    world = EngineOnFakeRunner(tmp_path, DeclaredDevices(["0", "1", "2", "3"]))
    first, second = world.add(2, preemptible="save")
    keys = [world.run(job) for job in (first, second)]
    (wide,) = world.add(resources=Resources(gpus=4))
    world.turn(2)
    world.store.ask([(world.name, Preempt(job, None)) for job in (first, second)], world.clock())
    world.engine.wake()
    world.turn(2)
    world.runner.exited(keys[0], 75, "preempted")
    world.turn(3)
    assert [state_word(world.job(job)) for job in (first, second, wide)] == ["waiting", "running", "waiting"]
    world.runner.exited(keys[1], 75, "preempted")
    world.turn(3)
    assert [state_word(world.job(job)) for job in (first, second, wide)] == ["waiting", "waiting", "starting"]
    world.close()


def test_a_job_that_stays_keeps_its_devices(world: EngineOnFakeRunner) -> None:
    """Nobody waits for it any more, and the next plan does not ask it again."""
    long, _ = long_job(world)
    world.add(limit=60.0)
    world.turn(3)
    world.clock.pass_seconds(1000.0)
    world.turn(5)
    assert (state_word(world.job(long)), world.job(long).spec.preemptible) == ("running", "")
    assert len(world.runner.called("give_way")) == 1


def test_a_clock_that_is_set_back_while_a_job_saves(world: EngineOnFakeRunner) -> None:
    """It leaves as it was asked to, and what it did before is not counted twice or below nothing."""
    long, key = long_job(world)
    (short,) = world.add(limit=60.0)
    world.turn(3)
    world.clock.pass_seconds(-5 * HOUR)
    world.turn(3)
    assert len(world.runner.called("give_way")) == 1
    world.runner.exited(key, 75, "preempted")
    world.turn(3)
    assert (state_word(world.job(long)), state_word(world.job(short))) == ("waiting", "starting")
    assert (world.job(long).kept_seconds, world.parts.history.save_seconds(world.job(long))) == (0.0, 0.0)


def test_a_clock_that_is_set_forward_while_a_job_saves(world: EngineOnFakeRunner) -> None:
    """Its time to save seems over, so it is not asked again; but it leaves, and goes on later like any other."""
    long, key = long_job(world)
    world.add(limit=60.0)
    world.turn(3)
    world.clock.pass_seconds(1000 * HOUR)
    world.turn(3)
    assert world.job(long).spec.preemptible == ""
    world.runner.exited(key, 75, "preempted")
    world.turn(3)
    assert (world.job(long).preemptions, world.job(long).failures) == (1, 0)
    assert isinstance(world.job(long).state, Waiting)


def test_a_clock_that_is_set_back_lets_a_job_run_on(world: EngineOnFakeRunner) -> None:
    """It seems to have run for less than nothing; once it has run long enough by the new time, it gives way."""
    long_job(world)
    world.clock.pass_seconds(-5 * HOUR)
    world.add(limit=60.0)
    world.turn(3)
    assert not world.runner.called("give_way")
    world.clock.pass_seconds(5 * HOUR + 60)
    world.turn(3)
    assert len(world.runner.called("give_way")) == 1


def test_how_long_a_save_takes_is_learnt(world: EngineOnFakeRunner) -> None:
    """For the next decision about such work."""
    long, key = long_job(world)
    world.add(limit=60.0)
    world.turn(3)
    world.clock.pass_seconds(42.0)
    world.runner.exited(key, 75, "preempted")
    world.turn(2)
    assert world.parts.history.save_seconds(world.job(long)) == 42.0


def test_a_job_that_takes_long_to_start_again_runs_longer_before_it_gives_way(world: EngineOnFakeRunner) -> None:
    """Ten times its switch: a minute to save, and what its kind of work needs until the GPUs compute."""
    long, key = long_job(world)
    world.parts.history.learn_start(world.job(long), 1200.0)
    world.add(limit=60.0)
    world.turn(3)
    assert not world.runner.called("give_way")
    world.clock.pass_seconds(2 * HOUR)
    world.turn(3)
    assert world.runner.called("give_way") == [[world.runner.workers[key], key, 10, 120.0, True]]


@pytest.mark.parametrize(("kept", "expected"), [(10.0, 1790.0), (2 * HOUR, 2 * HOUR)])
def test_what_is_left_of_a_job_of_unknown_duration(world: EngineOnFakeRunner, kept: float, expected: float) -> None:
    """Half an hour in all, or as long again: one that has hardly worked must not come before those that wait."""
    (job_id,) = world.add(resources=WHOLE)
    assert world.parts.history.expected(replace(world.job(job_id), kept_seconds=kept)) == expected


def write_reports(world: EngineOnFakeRunner, job_id: int, *entries: Mapping[str, object]) -> None:
    """A job has reported this, `after` so many seconds of its run."""
    state = world.job(job_id).state
    assert isinstance(state, Running)
    report = world.paths.report(job_id)
    report.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"at": state.since + float(str(entry["after"])), **entry}) for entry in entries]
    report.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.mark.parametrize(("done", "leaves"), [(None, True), (99, False), (10, True)])
def test_a_job_that_is_nearly_done_by_its_own_word_stays(
    world: EngineOnFakeRunner, done: int | None, leaves: bool
) -> None:
    """Its progress tells more than how long it has run."""
    long, _ = long_job(world, limit=None)
    if done is not None:
        write_reports(world, long, {"after": 0, "done": 0, "total": 100}, {"after": 7100, "done": done, "total": 100})
    world.clock.pass_seconds(60.0)
    world.add(limit=600.0)
    world.turn(3)
    assert bool(world.runner.called("give_way")) == leaves


def test_a_job_that_saved_by_itself_loses_only_what_it_did_since(world: EngineOnFakeRunner) -> None:
    """Without a save, two hours of work would be lost for a job of 3.9 hours; and then what is saved counts as done."""
    long, key = long_job(world, preemptible="restart")
    world.add(limit=3.9 * HOUR)
    world.turn(3)
    assert not world.runner.called("give_way")
    saves = [(1, HOUR), (1, 1.9 * HOUR), (2, 1.95 * HOUR), (1, 99 * HOUR)]
    write_reports(world, long, *({"after": after, "attempt": attempt, "saved": True} for attempt, after in saves))
    world.clock.pass_seconds(60.0)
    world.turn(3)
    assert len(world.runner.called("give_way")) == 1
    world.runner.exited(key, -15, "preempted")
    world.turn(2)
    assert world.job(long).kept_seconds == pytest.approx(1.9 * HOUR)


def test_the_next_engine_keeps_the_devices_for_the_same_job(world: EngineOnFakeRunner) -> None:
    """It asks again, since the order may have been lost, and the short job starts first."""
    long, key = long_job(world)
    (short,) = world.add(limit=60.0)
    world.turn(3)
    worker = world.runner.workers[key]
    world.restart()
    world.turn(2)
    assert [call[:2] for call in world.runner.called("give_way")] == [[worker, key]] * 2
    world.runner.workers[key] = worker
    world.runner.exited(key, 75, "preempted")
    world.turn(3)
    assert (state_word(world.job(short)), state_word(world.job(long))) == ("starting", "waiting")
