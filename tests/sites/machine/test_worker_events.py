"""What workers report, and what it means for jobs, allocations and history."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.app.views.failure import failure_text
from stoker.core.device import Reading, Snapshot
from stoker.core.job import Ended, Exited, Running, Waiting
from stoker.core.spec import Resources
from stoker.runner.interface import AttemptExited, AttemptReturned, AttemptStarted
from support.build import GIB, simulated
from support.fakes import EngineOnFakeRunner, FakeDevices


def test_a_journal_that_is_read_twice_changes_nothing(world: EngineOnFakeRunner) -> None:
    """A new engine gets all events of a worker again, also those of older attempts."""
    (job,) = world.add()
    key = world.run(job)
    for _ in range(2):
        world.runner.started(key)
    world.turn()
    assert world.kinds(job) == ["Assigned", "Started"]
    for _ in range(2):
        world.runner.exited(key)
        world.runner.returned(key)
    world.runner.report("w1", AttemptStarted("1.7", world.clock()))
    world.runner.report("w1", AttemptReturned("99.1", world.clock()))
    world.turn()
    assert world.kinds(job) == ["Assigned", "Started", "Exited"]


def test_start_and_end_in_one_poll(world: EngineOnFakeRunner) -> None:
    """Both are recorded, with the times of the worker."""
    (job,) = world.add()
    world.turn()
    key, began = f"{job}.1", world.clock()
    world.runner.report("w1", AttemptStarted(key, began + 1))
    world.runner.report("w1", AttemptExited(key, began + 3, 7, 0, "exited", 123, "worker's note"))
    world.turn()
    exited = world.store.events(job)[-1]
    assert isinstance(exited, Exited)
    assert (exited.at, exited.code, exited.peak_memory, exited.note) == (began + 3, 7, 123, "worker's note")
    attempt = world.store.attempts(job)[-1]
    assert (attempt.started, attempt.ended) == (began + 1, began + 3)


@pytest.mark.parametrize(
    ("code", "note", "said"), [(1, "", "ValueError: no data"), (1, "worker's note", ""), (0, "", "")]
)
def test_the_reason_outlives_the_log(world: EngineOnFakeRunner, code: int, note: str, said: str) -> None:
    """Of a failure without a note, the telling line of the log is stored with the end."""
    (job,) = world.add()
    key = world.run(job)
    log = Path(world.store.attempts(job)[-1].log)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("Traceback (most recent call last):\nValueError: no data\n")
    world.runner.report("w1", AttemptExited(key, world.clock(), code, 0, "exited", 0, note))
    world.turn()
    log.unlink()
    after = world.job(job)
    assert isinstance(after.state, Ended)
    assert after.state.said == said
    assert failure_text(world.store, after) == (note or said)


def test_durations_are_learnt_from_success(world: EngineOnFakeRunner) -> None:
    """Not from failures."""
    for code in (1, 0):
        (job,) = world.add()
        key = world.run(job)
        world.clock.pass_seconds(40)
        world.runner.exited(key, code)
        world.turn()
        assert world.store.has_learnt() == (code == 0)


def test_a_retry_waits_for_a_free_device(world: EngineOnFakeRunner) -> None:
    """A failed job with retries is queued again, and its place is free."""
    (job,) = world.add(retries=1)
    key = world.run(job)
    world.runner.exited(key, 1)
    world.turn()
    assert world.kinds(job)[-1] == "Assigned"
    assert world.runner.called("start")[-1] == ["w1", f"{job}.2"]


def test_a_returned_attempt_frees_its_place(world: EngineOnFakeRunner) -> None:
    """The job waits again, as if it had not been assigned."""
    (job,) = world.add()
    world.turn()
    world.engine.draining = True  # else it is assigned again at once
    world.runner.returned(f"{job}.1")
    world.turn()
    assert isinstance(world.job(job).state, Waiting)
    assert world.ledger.live().leases == {}


def test_jobs_behind_a_lost_one_never_started(world: EngineOnFakeRunner) -> None:
    """The running job is lost, the prefetched ones are returned."""
    for job in world.add(6):
        key = world.run(job)
        world.clock.pass_seconds(0.01)
        world.runner.exited(key)
        world.turn(2)
    ids = world.add(4)
    world.turn(2)
    head = ids[0]
    worker = world.runner.workers[f"{head}.1"]
    behind = [job for job in ids[1:] if world.runner.workers[f"{job}.1"] == worker]
    assert behind
    world.runner.started(f"{head}.1")
    world.turn()
    world.engine.drain()
    world.runner.lost(worker)
    world.turn()
    assert world.kinds(head)[-1] == "Lost"
    assert {world.kinds(job)[-1] for job in behind} == {"Returned"}


@pytest.mark.parametrize("why", ["timeout", "stopped"])
def test_the_log_counts_only_if_the_job_failed_by_itself(tmp_path: Path, why: str) -> None:
    """A job that was killed at its limit may have written anything before."""
    devices = FakeDevices(*simulated(24))
    devices.shown = Snapshot(0.0, devices.shown.devices, {"0": Reading(used=0)})
    world = EngineOnFakeRunner(tmp_path, devices)
    (job,) = world.add(resources=Resources(memory=10 * GIB))
    key = world.run(job)
    assert isinstance(world.job(job).state, Running)
    (tmp_path / f"{job}.log").write_text("RuntimeError: CUDA out of memory. Tried to allocate 4.00 GiB\n")
    world.runner.exited(key, 1, why)
    world.turn()
    exited = world.store.events(job)[-1]
    assert isinstance(exited, Exited)
    assert (exited.why, exited.cause) == (why, "")
    world.close()


def test_a_neighbour_of_another_engine_counts_at_the_last_moment(tmp_path: Path) -> None:
    """Its lease may be newer than the last observation."""
    devices = FakeDevices(*simulated(24))
    devices.shown = Snapshot(0.0, devices.shown.devices, {"0": Reading(used=0)})
    world = EngineOnFakeRunner(tmp_path, devices)
    (job,) = world.add(resources=Resources(memory=10 * GIB))
    key = world.run(job)
    (allocation,) = world.parts.allocations
    held = world.ledger.claim(allocation.claims, "other", world.clock(), allocation.capacities)
    assert held is not None
    (tmp_path / f"{job}.log").write_text("RuntimeError: CUDA out of memory. Tried to allocate 4.00 GiB\n")
    world.runner.exited(key, 1)
    world.turn()
    exited = world.store.events(job)[-1 if world.kinds(job)[-1] == "Exited" else -2]
    assert isinstance(exited, Exited)
    assert (exited.cause, exited.shared) == ("oom", True)
    world.ledger.release(held)
    world.close()
