"""The machine site behind an engine, on a fake runner: placing, sending, stopping, adopting, losing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.core.device import Reading, Snapshot
from stoker.core.errors import StokerError
from stoker.core.job import Active, Assigned, Running, Starting, Stopping, Waiting, advance
from stoker.core.lease import Claim
from stoker.core.planner.reasons import Crowded, Leased, Unclaimable
from stoker.core.settings import Policy
from stoker.core.spec import Resources
from stoker.ledger import LedgerUnusable
from stoker.runner.interface import AttemptStarted
from stoker.sites.interface import RETRY_INTERVAL
from stoker.sites.machine.allocations import OVERDUE
from stoker.sites.machine.observation import REFRESH_INTERVAL
from stoker.sites.machine.ref import WorkerRef, read_ref
from stoker.sites.machine.site import PREFETCHED_INTERVAL, SOON
from stoker.store.schema import Change
from support.build import GIB, simulated
from support.fakes import EngineOnFakeRunner, FakeDevices


def warm_up(world: EngineOnFakeRunner, count: int = 6) -> None:
    """Let some short jobs run, so that more are prefetched."""
    for job in world.add(count):
        key = world.run(job)
        world.clock.pass_seconds(0.01)
        world.runner.exited(key)
        world.turn(2)
    assert world.engine.idle
    world.runner.calls.clear()


class TestPlacing:
    """From the plan to the worker."""

    def test_jobs_get_devices_workers_and_leases(self, world: EngineOnFakeRunner) -> None:
        """Each its own; what does not fit waits for a reason."""
        first, second, third = world.add(3)
        world.turn()
        states = [world.job(job).state for job in (first, second)]
        assert [state.devices for state in states if isinstance(state, Starting)] == [("0",), ("1",)]
        assert world.runner.called("start") == [["w1", f"{first}.1"], ["w2", f"{second}.1"]]
        assert isinstance(world.job(third).state, Waiting)
        assert isinstance(world.engine.reason(world.job(third)), Crowded)
        assert len(world.ledger.live().leases) == 2

    def test_the_ref_names_worker_lease_and_log(self, world: EngineOnFakeRunner, tmp_path: Path) -> None:
        """So that another engine can adopt the attempt."""
        (job,) = world.add()
        (tmp_path / f"{job}.log").write_text("what an earlier job wrote")
        world.turn()
        state = world.job(job).state
        assert isinstance(state, Active)
        (lease,) = world.ledger.live().leases
        assert read_ref(state.ref) == WorkerRef("w1", lease, len("what an earlier job wrote"))

    def test_an_order_is_sent_after_it_is_recorded(self, world: EngineOnFakeRunner) -> None:
        """While the store cannot be written no worker hears of it."""
        (job,) = world.add()
        with world.full_disk():
            world.turn(2)
            assert not world.runner.called("start")
        world.clock.pass_seconds(RETRY_INTERVAL)
        world.turn()
        assert world.runner.called("start") == [["w1", f"{job}.1"]]

    def test_the_order_has_what_the_job_needs(self, world: EngineOnFakeRunner) -> None:
        """Its device, its ids and where it may report."""
        (job,) = world.add()
        world.turn()
        extra = world.runner.orders[f"{job}.1"].extra
        assert (extra["CUDA_VISIBLE_DEVICES"], extra["STOKER_JOB_ID"]) == ("0", str(job))
        assert extra["STOKER_REPORT"] == str(world.paths.report(job))

    def test_a_device_that_another_engine_just_claimed_is_planned_around(self, world: EngineOnFakeRunner) -> None:
        """The ledger is read again a moment later."""
        world.turn()
        held = world.ledger.claim((Claim("name:0"),), "other", world.clock())
        assert held is not None
        (job,) = world.add()
        world.turn(2)
        assert world.engine._due_in() == pytest.approx(SOON)
        world.clock.pass_seconds(SOON)
        world.turn()
        state = world.job(job).state
        assert isinstance(state, Starting)
        assert state.devices == ("1",)
        world.ledger.release(held)

    def test_a_worker_that_cannot_start_is_tried_again_later(self, world: EngineOnFakeRunner) -> None:
        """The job waits, the user is told, and the lease is free meanwhile."""
        world.runner.fails = StokerError("no processes", "raise the limit")
        (job,) = world.add()
        world.turn()
        assert world.engine.trouble == "no processes; raise the limit"
        assert (world.ledger.live().leases, isinstance(world.job(job).state, Waiting)) == ({}, True)
        world.runner.fails = None
        world.turn()
        assert not world.runner.called("start")
        world.clock.pass_seconds(RETRY_INTERVAL)
        world.turn()
        assert world.runner.called("start")
        assert world.engine.trouble == ""

    def test_a_broken_ledger_delays_only_jobs_with_gpus(self, world: EngineOnFakeRunner) -> None:
        """Jobs without GPUs start, also behind them and within -j; cancels are done; the others have a true reason."""
        world.engine.policy = Policy(max_running=2)
        path, away = world.ledger.path, world.ledger.path.with_name("away")
        path.rename(away)
        path.write_text("planted by another user")
        first, second, third = world.add(3)
        (without,) = world.add(resources=Resources(0))
        world.turn(2)
        assert isinstance(world.job(without).state, Starting)
        assert world.runner.called("start") == [["w1", f"{without}.1"]]
        reason = world.engine.reason(world.job(first))
        assert reason == Unclaimable(f"{path} is a file or a symbolic link, not a directory")
        assert reason in [reason for _, reason in world.engine.site.status().waits]
        assert world.engine.trouble.startswith(reason.problem)
        world.engine.cancel(second, None, "")
        world.turn()
        assert world.ended(second).result == "cancelled"
        path.unlink()
        away.rename(path)
        (later,) = world.add(resources=Resources(0))
        world.runner.exited(world.run(without))
        world.turn(2)
        assert isinstance(world.job(later).state, Starting)
        assert isinstance(world.job(third).state, Waiting)
        world.clock.pass_seconds(RETRY_INTERVAL)
        world.turn(2)
        assert isinstance(world.job(first).state, Starting)
        assert world.engine.trouble == ""

    def test_a_demand_that_cannot_be_published_stops_nothing(
        self, world: EngineOnFakeRunner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The user is told; jobs keep their reasons."""

        def refuse(*_: object) -> None:
            raise LedgerUnusable("the ledger is full", "free some space")

        monkeypatch.setattr("stoker.sites.machine.fairshare.Sharing.publish", refuse)
        jobs = world.add(3)
        world.turn(2)
        assert world.engine.trouble == "the ledger is full; free some space"
        assert [type(world.job(job).state) for job in jobs] == [Starting, Starting, Waiting]
        assert isinstance(world.engine.reason(world.job(jobs[2])), Crowded)

    def test_an_idle_engine_holds_no_lease(self, world: EngineOnFakeRunner) -> None:
        """The device is free for others in the turn in which the job ends."""
        (job,) = world.add()
        key = world.run(job)
        world.runner.exited(key)
        world.turn()
        assert (world.ended(job).result, world.ledger.live().leases) == ("done", {})

    def test_the_next_job_starts_in_the_turn_of_an_end(self, world: EngineOnFakeRunner) -> None:
        """On the same worker and under the same lease."""
        first, _, third = world.add(3)
        key = world.run(first)
        world.runner.exited(key)
        world.turn()
        assert world.runner.called("start")[-1] == ["w1", f"{third}.1"]
        assert len(world.runner.called("start_worker")) == 2


class TestPrefetch:
    """Short jobs are sent ahead."""

    def test_short_jobs_are_sent_behind_running_ones(self, world: EngineOnFakeRunner) -> None:
        """More than there are devices."""
        warm_up(world)
        world.add(10)
        world.turn(2)
        assert len(world.runner.called("start")) == 10
        assert world.engine._due_in() == pytest.approx(PREFETCHED_INTERVAL)

    def test_they_come_back_from_behind_a_long_one(self, world: EngineOnFakeRunner) -> None:
        """And are started elsewhere, under a new attempt."""
        warm_up(world)
        ids = world.add(4)
        world.turn(2)
        head = world.runner.workers[f"{ids[0]}.1"]
        behind = next(job for job in ids[1:] if world.runner.workers[f"{job}.1"] == head)
        world.runner.started(f"{ids[0]}.1")
        world.turn()
        world.clock.pass_seconds(OVERDUE + 0.1)
        world.turn()
        assert [head] in world.runner.called("recall")
        for job in ids:
            if job not in (ids[0], behind) and world.runner.workers[f"{job}.1"] != head:
                world.runner.started(f"{job}.1")
                world.runner.exited(f"{job}.1")
        world.runner.returned(f"{behind}.1")
        world.turn(2)
        assert world.runner.workers[f"{behind}.2"] != head

    def test_draining_recalls_them(self, world: EngineOnFakeRunner) -> None:
        """What runs may finish, what waits behind it does not start."""
        warm_up(world)
        world.add(6)
        world.turn(2)
        world.engine.drain()
        workers = [worker for worker, _ in world.runner.called("start")]
        assert sorted(world.runner.called("recall")) == [[worker] for worker in sorted({*workers})]

    def test_draining_returns_what_was_not_sent(self, world: EngineOnFakeRunner) -> None:
        """A job that was assigned in the same turn waits on."""
        world.engine._notify = lambda _: world.engine.drain()
        (job,) = world.add()
        world.turn(2)
        assert not world.runner.called("start")
        assert world.kinds(job) == ["Assigned", "Returned"]
        assert isinstance(world.job(job).state, Waiting)
        assert world.engine.at_rest


class TestStopping:
    """Cancel reaches the worker."""

    def test_with_the_grace_of_the_job_or_another(self, world: EngineOnFakeRunner) -> None:
        """And with the signal that was asked for."""
        (job,) = world.add(grace=7.0)
        key = world.run(job)
        world.engine.cancel(job, None, "")
        world.engine.cancel(job, 1.0, "", 2)
        assert world.runner.called("stop") == [["w1", key, 7.0, 0], ["w1", key, 1.0, 2]]

    def test_a_job_that_was_not_sent_yet_is_stopped_after_it_is(self, world: EngineOnFakeRunner) -> None:
        """The worker hears of both in order."""
        (job,) = world.add()
        with world.full_disk():
            world.turn()
            world.engine.cancel(job, 5.0, "not wanted")
        world.clock.pass_seconds(RETRY_INTERVAL)
        world.runner.calls.clear()
        world.turn()
        # The stop is on its way at once; orders go with the flush at the end of the turn.
        assert world.runner.called("stop") == [["w1", f"{job}.1", 0.0, 0]]
        assert world.runner.called("start") == [["w1", f"{job}.1"]]

    def test_the_process_is_known_from_the_runner(self, world: EngineOnFakeRunner) -> None:
        """While the job is active."""
        (job,) = world.add()
        key = world.run(job)
        world.runner.pids[key] = 77
        assert world.site.process_of(world.job(job)) == 77
        world.runner.exited(key)
        world.turn()
        assert world.site.process_of(world.job(job)) is None


class TestLosing:
    """Workers that die."""

    def test_a_started_job_is_lost_and_runs_again(self, world: EngineOnFakeRunner) -> None:
        """The folder of the worker is removed after its events are recorded."""
        (job,) = world.add()
        world.run(job)
        world.runner.lost("w1")
        with world.full_disk():
            world.turn()
            assert not world.runner.called("forget")
        world.clock.pass_seconds(RETRY_INTERVAL)
        world.turn()
        assert world.runner.called("forget") == [["w1"]]
        world.turn()
        assert world.kinds(job) == ["Assigned", "Started", "Lost", "Assigned"]
        assert world.runner.called("start")[-1] == ["w2", f"{job}.2"]

    def test_a_job_that_had_not_started_is_returned(self, world: EngineOnFakeRunner) -> None:
        """And not tried again at once, since the next worker may die as fast."""
        (job,) = world.add()
        world.turn()
        world.runner.lost("w1")
        world.turn()
        assert world.kinds(job) == ["Assigned", "Returned"]
        assert world.engine.trouble == "a worker died before it started a job; retrying"
        world.clock.pass_seconds(RETRY_INTERVAL)
        world.turn()
        assert world.kinds(job) == ["Assigned", "Returned", "Assigned"]

    def test_an_idle_worker_is_no_loss(self, world: EngineOnFakeRunner) -> None:
        """The next job gets another."""
        warm_up(world, 1)
        world.runner.lost("w1")
        world.turn()
        (job,) = world.add()
        world.turn()
        assert world.runner.called("start") == [["w2", f"{job}.1"]]


class TestAdopting:
    """Attempts that another engine began."""

    def left(self, world: EngineOnFakeRunner, ref: str = "old-1 - 0", device: str = "0") -> int:
        """A job that a dead engine of the same queue had assigned."""
        (job_id,) = world.add(engine="dead")
        event = Assigned(ref, (device,), "/log", world.clock())
        world.store.record([Change(advance(world.job(job_id), event), [(1, event)])])
        return job_id

    def test_its_worker_is_asked(self, world: EngineOnFakeRunner) -> None:
        """It tells the events again, gets the limit again, and returns an attempt that it never got."""
        job = self.left(world)
        world.engine.adopt(world.job(job), adopted=False)
        limit = ("set_limits", "old-1", f"{job}.1", None)
        assert world.runner.calls == [("adopt", "old-1"), limit, ("account", "old-1", f"{job}.1")]
        world.runner.report("old-1", AttemptStarted(f"{job}.1", world.clock()))
        world.turn()
        assert isinstance(world.job(job).state, Running)
        world.runner.exited(f"{job}.1", 7)
        world.turn()
        assert world.ended(job).code == 7
        assert world.runner.called("stop_worker") == [["old-1"]]

    def test_its_device_is_taken(self, world: EngineOnFakeRunner) -> None:
        """The plan puts others elsewhere."""
        job = self.left(world)
        world.engine.adopt(world.job(job), adopted=False)
        first, second = world.add(2)
        world.turn()
        state = world.job(first).state
        assert isinstance(state, Starting)
        assert state.devices == ("1",)
        assert isinstance(world.job(second).state, Waiting)

    def test_several_of_one_worker(self, world: EngineOnFakeRunner) -> None:
        """It is taken over once."""
        jobs = [self.left(world) for _ in range(3)]
        for job in jobs:
            world.engine.adopt(world.job(job), adopted=False)
        assert world.runner.called("adopt") == [["old-1"]]
        assert [attempt for _, attempt in world.runner.called("account")] == [f"{job}.1" for job in jobs]

    def test_a_worker_without_a_trace_never_started_it(self, world: EngineOnFakeRunner) -> None:
        """The job is queued again at once."""
        job = self.left(world)
        world.runner.dead.add("old-1")
        assert world.site.is_gone(world.job(job))
        world.engine.adopt(world.job(job), adopted=False)
        assert world.engine.waiting == 1
        world.clock.pass_seconds(RETRY_INTERVAL)
        world.turn()
        assert world.kinds(job) == ["Assigned", "Returned", "Assigned"]

    def test_a_stop_is_sent_again(self, world: EngineOnFakeRunner) -> None:
        """The dead engine may have recorded it and not sent it."""
        job = self.left(world)
        world.engine.adopt(world.job(job), adopted=False)
        world.engine.cancel(job, None, "")
        world.turn()
        stopping = world.job(job)
        assert isinstance(stopping.state, Stopping)
        world.runner.calls.clear()
        other = EngineOnFakeRunner(world.directory)
        other.engine.adopt(stopping, adopted=False)
        assert [call[0] for call in other.runner.calls] == ["adopt", "stop", "account"]
        other.close()

    def test_devices_of_a_late_driver_are_recognised(self, tmp_path: Path) -> None:
        """Until then they are not known, and the engine does not know what the attempt shares."""
        devices = FakeDevices()
        world = EngineOnFakeRunner(tmp_path, devices)
        job = self.left(world)
        world.engine.adopt(world.job(job), adopted=False)
        world.turn()
        assert world.site.devices(["0"]) == ()
        gpus = simulated(24)
        devices.shown = Snapshot(0.0, gpus, {"0": Reading(used=0)})
        world.clock.pass_seconds(REFRESH_INTERVAL)
        world.turn()
        (allocation,) = world.parts.allocations
        assert allocation.devices == gpus
        world.close()


class TestSharedGpu:
    """Several jobs on one GPU."""

    def test_two_fit_and_a_third_waits(self, tmp_path: Path) -> None:
        """By the memory that is reserved."""
        devices = FakeDevices(*simulated(24))
        devices.shown = Snapshot(0.0, devices.shown.devices, {"0": Reading(used=0)})
        world = EngineOnFakeRunner(tmp_path, devices)
        ids = world.add(3, resources=Resources(memory=10 * GIB))
        world.turn()
        assert [isinstance(world.job(job).state, Active) for job in ids] == [True, True, False]
        assert all(allocation.shared for allocation in world.parts.allocations)
        world.close()

    def test_out_of_memory_beside_another_is_no_failure(self, tmp_path: Path) -> None:
        """The job is queued again with more memory, and no retry is spent."""
        devices = FakeDevices(*simulated(24))
        devices.shown = Snapshot(0.0, devices.shown.devices, {"0": Reading(used=0)})
        world = EngineOnFakeRunner(tmp_path, devices)
        first, _ = world.add(2, resources=Resources(memory=10 * GIB))
        key = world.run(first)
        (tmp_path / f"{first}.log").write_text(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of "
            "24.00 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has 12.00 GiB memory in "
            "use. Of the allocated memory 11.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but "
            "unallocated."
        )
        world.runner.exited(key, 1)
        world.turn()
        job = world.job(first)
        assert (type(job.state), job.failures, job.shared_failures) == (Waiting, 0, 1)
        assert job.floor >= 14 * GIB
        world.close()


class TestStatus:
    """What front ends see."""

    def test_devices_leases_and_waits(self, world: EngineOnFakeRunner) -> None:
        """As the last plan and the last observation have them."""
        held = world.ledger.claim((Claim("name:0"),), "other", world.clock())
        assert held is not None
        (job,) = world.add(resources=Resources(gpus=2))
        world.turn()
        status = world.site.status()
        assert [device.label for device in status.snapshot.devices] == ["0", "1"]
        assert len(status.leases) == 1
        assert isinstance(world.engine.reason(world.job(job)), Leased)
        assert [reason for _, reason in status.waits] == [world.engine.reason(world.job(job))]
        world.ledger.release(held)

    def test_a_forecast_has_the_ends_of_running_jobs(self, world: EngineOnFakeRunner) -> None:
        """And the starts of those that wait for them."""
        first, _, third = world.add(3, limit=100.0)
        world.run(first)
        expected = world.site.forecast()
        assert expected.ends[first] == pytest.approx(world.clock() + 100.0)
        assert expected.starts[third] == pytest.approx(world.clock() + 100.0)


class TestDue:
    """When the site needs a turn."""

    def test_never_while_idle(self, world: EngineOnFakeRunner) -> None:
        """An idle engine sleeps until it is woken."""
        world.turn()
        assert world.site.due_in(world.clock(), placing=True) is None

    def test_for_the_next_observation_while_jobs_run_or_wait(self, world: EngineOnFakeRunner) -> None:
        """Leases may change without a call."""
        (job,) = world.add()
        world.run(job)
        assert world.site.due_in(world.clock(), placing=True) == pytest.approx(REFRESH_INTERVAL)

    def test_for_a_worker_to_be_cleaned_up(self, world: EngineOnFakeRunner) -> None:
        """No event tells that its processes are gone."""
        world.turn()
        world.runner.next_cleanup = 0.3
        assert world.site.due_in(world.clock(), placing=True) == pytest.approx(0.3)

    def test_not_for_a_plan_that_is_not_wanted(self, world: EngineOnFakeRunner) -> None:
        """While the store cannot be written or the engine drains."""
        world.turn()
        world.add(3)
        world.turn()
        world.jobs.plan_due = True
        assert world.site.due_in(world.clock(), placing=True) <= 0  # type: ignore[operator]
        assert world.site.due_in(world.clock(), placing=False) > 0  # type: ignore[operator]

    def test_news_of_devices_expire_the_observation(self, tmp_path: Path) -> None:
        """A driver that appears is looked at in the same turn."""
        readable, writable = os.pipe()
        devices = FakeDevices()
        devices.fileno = lambda: readable  # type: ignore[method-assign]
        world = EngineOnFakeRunner(tmp_path, devices)
        world.turn()
        looks = len(devices.newer_than)
        world.turn()
        assert len(devices.newer_than) == looks
        os.write(writable, b"x")
        world.turn()
        assert len(devices.newer_than) == looks + 1
        world.close()
        os.close(readable)
        os.close(writable)


def test_closing_stops_idle_workers_and_forgets_them(world: EngineOnFakeRunner) -> None:
    """Busy ones go on, and their folders stay."""
    first, _ = world.add(2)
    key = world.run(first)
    world.runner.exited(key)
    world.turn()
    world.runner.calls.clear()
    world.close_engine()
    assert world.runner.calls == [("stop_worker", "w1"), ("forget", "w1"), ("close",)]
    assert len(world.ledger.live().leases) == 0, "the fake's descriptors are closed with it"
