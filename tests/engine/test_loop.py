"""The engine's loop at a fake site."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.job import Assigned, Exited, JobEvent, Running, Starting, Waiting
from stoker.core.planner.queue import ReasonKey
from stoker.core.planner.reasons import Crowded, NotBefore
from stoker.core.requests import Cancel
from stoker.core.settings import Policy
from stoker.core.spec import Dependency
from stoker.engine.loop import OTHERS_INTERVAL
from stoker.sites.interface import RETRY_INTERVAL, SiteStatus
from stoker.store.queries import paused_key
from support.fakes import START, EngineAtFakeSite


@pytest.fixture
def world(tmp_path: Path) -> Iterator[EngineAtFakeSite]:
    """An engine whose site has room for one job."""
    made = EngineAtFakeSite(tmp_path)
    yield made
    made.close()


def running(world: EngineAtFakeSite) -> int:
    """A job that runs."""
    (job,) = world.add()
    world.turn()
    world.site.start(job)
    world.turn()
    assert isinstance(world.job(job).state, Running)
    return job


def stopped_with_one_behind(world: EngineAtFakeSite) -> tuple[int, int]:
    """A job that ran and one behind it in its slot when all was stopped."""
    first = running(world)
    (behind,) = world.add()
    world.turn()
    job = world.jobs.table.waiting.get(behind)
    assert job is not None
    world.jobs.apply(job, Assigned(f"slot{first} y", ("0",), "/log", world.clock()))
    world.engine.stop(1.0, "enough")
    return first, behind


class TestTurn:
    """From the store to the site and back."""

    def test_a_job_is_placed_recorded_and_sent_in_one_turn(self, world: EngineAtFakeSite) -> None:
        """One turn takes a job from the store to its site."""
        (job,) = world.add()
        world.turn()
        assert world.site.sent == [job]
        assert isinstance(world.job(job).state, Starting)

    def test_an_end_is_recorded_and_notified(self, world: EngineAtFakeSite) -> None:
        """Events are in the store in order before the front end gets them."""
        job = running(world)
        world.site.exit(job, 3)
        world.turn()
        assert (world.ended(job).result, world.ended(job).code) == ("failed", 3)
        assert world.kinds(job) == ["Assigned", "Started", "Exited"]
        assert [type(each.event).__name__ for each in world.events] == world.kinds(job)

    def test_events_of_many_jobs_are_one_transaction(self, world: EngineAtFakeSite) -> None:
        """A turn commits once, however many jobs it concerns."""
        world.site.room = 20
        ids = world.add(20)
        before = world.store._database._connection.total_changes
        commits = 0

        def count(statement: str) -> None:
            nonlocal commits
            commits += statement == "COMMIT"

        world.store._database._connection.set_trace_callback(count)
        world.turn()
        world.store._database._connection.set_trace_callback(None)
        assert world.site.sent == ids
        assert world.store._database._connection.total_changes > before
        assert commits == 1

    def test_the_devices_of_an_event_are_those_of_the_site(self, world: EngineAtFakeSite) -> None:
        """The front end gets devices, not ids."""
        running(world)
        assert [[device.label for device in each.devices] for each in world.events] == [["0"], ["0"]]

    def test_idle_only_when_all_is_recorded(self, world: EngineAtFakeSite) -> None:
        """An end counts when it is in the store."""
        job = running(world)
        assert not world.engine.idle
        world.site.exit(job)
        world.site.poll()
        assert not world.engine.at_rest
        world.turn()
        assert world.engine.idle

    def test_requests_are_read_before_the_first_plan(self, world: EngineAtFakeSite) -> None:
        """A pause that an earlier engine did not live to see holds from the first turn."""
        world.store.put_setting(paused_key(world.name), {"note": "paused by you"})
        world.add()
        world.turn(2)
        assert {policy.paused for policy in world.site.policies} == {"paused by you"}
        assert world.site.sent == []

    def test_a_new_policy_reaches_the_site(self, world: EngineAtFakeSite) -> None:
        """From the next turn on, with what users have paused."""
        world.store.put_setting(paused_key(world.name), {"note": "paused"})
        world.turn()
        world.engine.set_policy(Policy(max_running=7), None)
        world.turn()
        assert (world.site.policies[-1].max_running, world.site.policies[-1].paused) == (7, "paused")

    def test_reasons_come_from_the_table_or_the_site(self, world: EngineAtFakeSite) -> None:
        """A blocked job has its hindrance, another what the site says."""
        world.site.room = 0
        (later,) = world.add(begin=START + 100)
        (job,) = world.add()
        world.turn()
        crowded = Crowded(1, 0)
        world.site.shown = SiteStatus(
            world.site.shown.snapshot, waits=[(ReasonKey(world.job(job).spec.resources, 0), crowded)]
        )
        assert world.engine.reason(world.job(later)) == NotBefore(START + 100)
        assert world.engine.reason(world.job(job)) == crowded


class TestStopping:
    """Cancel, drain, stop."""

    def test_a_waiting_job_is_cancelled_without_the_site(self, world: EngineAtFakeSite) -> None:
        """It ends at once."""
        world.site.room = 0
        (job,) = world.add()
        world.turn()
        world.engine.cancel(job, None, "not wanted")
        world.turn()
        assert (world.ended(job).result, world.ended(job).note) == ("cancelled", "not wanted")
        assert not world.site.called("stop")

    def test_an_active_job_is_stopped_by_the_site(self, world: EngineAtFakeSite) -> None:
        """With the grace and the signal that were asked for; it ends when the site says so."""
        job = running(world)
        world.engine.cancel(job, 5.0, "not wanted", 2)
        world.turn()
        assert world.site.called("stop") == [[job, 5.0, 2]]
        world.site.exit(job, 1)
        world.turn()
        assert world.ended(job).result == "cancelled"

    def test_a_second_cancel_is_no_second_event(self, world: EngineAtFakeSite) -> None:
        """The site hears of both: the second may have a shorter grace."""
        job = running(world)
        for grace in (60.0, 0.0):
            world.engine.cancel(job, grace, "not wanted")
        world.turn()
        assert world.kinds(job).count("Cancelled") == 1
        assert [grace for _, grace, _ in world.site.called("stop")] == [60.0, 0.0]

    def test_draining_places_nothing(self, world: EngineAtFakeSite) -> None:
        """The site is told once, and not asked to place any more."""
        job = running(world)
        world.engine.drain()
        (other,) = world.add()
        world.site.room = 1
        placed = len(world.site.policies)
        world.site.exit(job)
        world.turn(2)
        assert world.engine.at_rest
        assert isinstance(world.job(other).state, Waiting)
        assert (len(world.site.policies), len(world.site.called("drain"))) == (placed, 1)

    @pytest.mark.parametrize("shortage", ["", "no memory"])
    def test_a_job_that_runs_once_is_not_placed_again(self, world: EngineAtFakeSite, shortage: str) -> None:
        """Its attempt is recorded, and then it is no job of this engine any more: it may come back at any moment."""
        world.engine.run_once()
        (job,) = world.add()
        world.turn()
        world.site.give_back(job, shortage)
        world.site.room = 1
        world.turn(2)
        assert isinstance(world.job(job).state, Waiting)
        assert world.kinds(job) == ["Assigned", "Returned"]
        assert world.site.sent == [job]
        assert world.engine.idle

    def test_draining_from_a_notification_comes_before_dispatch(self, world: EngineAtFakeSite) -> None:
        """The site can return what the same turn assigned."""
        world.site.room = 0
        (job,) = world.add()
        world.turn()
        world.site.room = 1
        world.engine._notify = lambda _: world.engine.drain()
        world.site.calls.clear()
        world.jobs.plan_due = True
        world.turn()
        assert isinstance(world.job(job).state, Starting)
        assert [call[0] for call in world.site.calls if call[0] != "due_in"] == ["drain", "dispatch"]

    def test_stop_cancels_the_first_of_each_slot(self, world: EngineAtFakeSite) -> None:
        """What waits behind a running job in its slot goes back to the queue."""
        first, _ = stopped_with_one_behind(world)
        assert world.site.called("stop") == [[first, 1.0, 0]]

    def test_a_job_that_starts_while_all_stops_is_stopped(self, world: EngineAtFakeSite) -> None:
        """It may have started before it could be called back."""
        first, behind = stopped_with_one_behind(world)
        world.site.exit(first)
        world.site.start(behind)
        world.turn()
        assert world.site.called("stop") == [[first, 1.0, 0], [behind, 1.0, 0]]

    def test_an_adopted_job_is_not_stopped(self, world: EngineAtFakeSite) -> None:
        """It belongs to a run that may be resumed."""
        job = running(world)
        world.jobs.table.adopt(world.job(job))
        world.engine.stop(1.0, "enough")
        world.turn()
        assert not world.site.called("stop")


class TestFullDisk:
    """The store cannot be written."""

    def test_nothing_is_sent_and_nothing_is_lost(self, world: EngineAtFakeSite) -> None:
        """What happened is recorded later; until then nothing is placed or sent."""
        (job,) = world.add()
        with world.full_disk():
            world.turn()
            assert "cannot write" in world.engine.trouble
            placed = len(world.site.policies)
            world.turn()
            assert (world.site.sent, len(world.site.policies)) == ([], placed)
            assert world.site.called("dispatch")[-1] == [False]
            assert world.events == []
        world.clock.pass_seconds(RETRY_INTERVAL)
        world.turn()
        assert (world.site.sent, world.engine.trouble) == ([job], "")
        assert world.kinds(job) == ["Assigned"]

    def test_it_is_tried_once_per_interval(self, world: EngineAtFakeSite) -> None:
        """The loop waits for the next try, and not for a plan."""
        world.add()
        with world.full_disk():
            world.turn()
            assert world.engine._due_in() == pytest.approx(RETRY_INTERVAL)
            assert world.site.called("due_in")[-1] == [False]

    def test_closing_tells_the_site_that_not_all_is_recorded(self, world: EngineAtFakeSite) -> None:
        """Then journals are all there is of an end."""
        job = running(world)
        world.site.exit(job)
        with world.full_disk():
            world.turn()
            world.close_engine()
        assert world.site.calls[-2:] == [("finish",), ("close", False)]


def test_closing_records_the_last_measurements(world: EngineAtFakeSite) -> None:
    """The site hands them in, then they are recorded, then it closes."""
    running(world)
    world.close_engine()
    assert world.site.calls[-2:] == [("finish",), ("close", True)]


class TestDue:
    """How long the loop sleeps."""

    def test_new_jobs_are_due_at_once(self, world: EngineAtFakeSite) -> None:
        """A call of `wake` makes the next turn immediate."""
        world.turn()
        assert world.engine._due_in() is None
        world.engine.wake()
        assert world.engine._due_in() == 0.0

    def test_what_is_not_recorded_is_due_at_once(self, world: EngineAtFakeSite) -> None:
        """An event after the record of a turn does not wait."""
        world.site.room = 0
        (job,) = world.add()
        world.turn()
        world.engine.cancel(job, None, "")
        assert world.engine._due_in() == 0.0

    def test_the_site_and_the_next_beginning_count(self, world: EngineAtFakeSite) -> None:
        """The earlier of the two."""
        world.add(begin=START + 30)
        world.turn()
        assert world.engine._due_in() == pytest.approx(30.0)
        world.site.due = 4.0
        assert world.engine._due_in() == 4.0

    def test_an_idle_engine_wakes_at_its_heartbeat(self, world: EngineAtFakeSite) -> None:
        """Only where the site needs no turn."""
        world.turn()
        world.engine._heartbeat = 10.0
        assert world.engine._due_in() == 10.0
        world.site.due = 60.0
        assert world.engine._due_in() == 60.0


class TestBlocked:
    """Jobs that wait for something other than a device."""

    def test_a_job_begins_when_its_time_comes(self, world: EngineAtFakeSite) -> None:
        """Not before."""
        (job,) = world.add(begin=START + 30)
        world.turn()
        assert (world.engine.blocked, world.site.sent) == (1, [])
        world.clock.pass_seconds(30)
        world.turn()
        assert (world.engine.blocked, world.site.sent) == (0, [job])

    def test_a_job_follows_one_whose_end_is_recorded(self, world: EngineAtFakeSite) -> None:
        """It is placed in the turn after the record."""
        first = running(world)
        (second,) = world.add(after=(Dependency(first),))
        world.site.room = 1
        world.site.exit(first)
        world.turn()
        assert world.site.sent == [first]
        world.turn()
        assert world.site.sent == [first, second]

    def test_a_job_is_skipped_when_its_dependency_fails(self, world: EngineAtFakeSite) -> None:
        """With a note that says why."""
        first = running(world)
        (second,) = world.add(after=(Dependency(first),))
        world.site.exit(first, 1)
        world.turn(2)
        assert (world.ended(second).result, f"job {first}" in world.ended(second).note) == ("skipped", True)

    def test_a_job_follows_one_of_another_engine(self, world: EngineAtFakeSite) -> None:
        """Its end is noticed within a second."""
        (other,) = world.add(engine="another")
        (job,) = world.add(after=(Dependency(other),))
        world.turn()
        assert world.engine.blocked == 1
        end_elsewhere(world, other)
        world.turn()
        assert world.engine.blocked == 1, "it is looked at once per interval"
        world.clock.pass_seconds(OTHERS_INTERVAL)
        world.turn()
        assert world.site.sent == [job]


def end_elsewhere(world: EngineAtFakeSite, job_id: int) -> None:
    """Another engine records that a job is done."""
    from stoker.core.job import Event, Started, advance
    from stoker.store.schema import Change

    events: list[Event] = [Assigned("k", ("1",), "/log", START), Started(1, START), Exited(1, 0, 0, START)]
    job = world.job(job_id)
    for event in events:
        job = advance(job, event)
    world.store.record([Change(job, [(1, event) for event in events])])


class TestAdopting:
    """Jobs of dead engines."""

    def test_an_active_job_goes_to_the_site(self, world: EngineAtFakeSite) -> None:
        """And is ours, so that it can be cancelled and queued again."""
        job = running(world)
        world.engine.adopt(world.job(job), adopted=False)
        assert world.site.called("adopt") == [[job]]
        assert [each.id for each in world.engine.active_jobs] == [job]

    def test_a_waiting_job_is_queued(self, world: EngineAtFakeSite) -> None:
        """The site places it like any other."""
        (job,) = world.add(engine="dead")
        world.engine.adopt(world.job(job), adopted=False)
        world.turn()
        assert world.site.sent == [job]
        assert not world.site.called("adopt")

    def test_an_adopted_job_that_comes_back_is_not_started(self, world: EngineAtFakeSite) -> None:
        """Only its end was to be recorded; a run that resumes may take it up."""
        job = running(world)
        world.engine.adopt(world.job(job), adopted=True)
        assert (world.engine.active_jobs, world.engine.at_rest) == ([], True)
        world.site.room = 1
        world.jobs.apply(world.job(job), Exited(1, 1, 0, world.clock()))
        world.turn(2)
        assert world.site.sent == [job]

    def test_an_adopted_job_can_become_ours(self, world: EngineAtFakeSite) -> None:
        """Unless it is over."""
        job = running(world)
        world.engine.adopt(world.job(job), adopted=True)
        assert world.engine.own(job, 7)
        assert not world.engine.own(job + 1, 7)
        assert [each.batch for each in world.engine.active_jobs] == [7]


def test_a_request_for_a_new_job_finds_it(world: EngineAtFakeSite) -> None:
    """Jobs are accepted before requests are handled."""
    (job,) = world.add()
    world.store.ask([(world.name, Cancel(job, note="not wanted"))], world.clock())
    world.turn()
    assert (world.ended(job).result, world.site.sent) == ("cancelled", [])
    assert world.store.requests(world.name) == []


def test_a_notification_may_stop_the_engine(world: EngineAtFakeSite) -> None:
    """Events that it causes are recorded in the next turn."""
    job = running(world)
    (other,) = world.add()
    world.turn()

    def stop(job_event: JobEvent) -> None:
        if isinstance(job_event.event, Exited):
            world.engine.cancel(other, None, "by the front end")

    world.engine._notify = stop
    world.site.exit(job)
    world.turn(2)
    assert world.ended(other).note == "by the front end"
