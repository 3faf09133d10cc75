"""Requests of front ends: read once, handled where the job is still in a state for it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stoker.core.job import Active, OnHold, Running, Waiting
from stoker.core.requests import Again, Cancel, Edit, Hold, Release, Request
from stoker.core.settings import Policy
from stoker.core.spec import Command, JobSpec, NewJob, tasks_of
from stoker.engine.loop import REQUEST_LIMIT
from stoker.engine.requests import INTERVAL, RequestReader
from stoker.store import queries
from stoker.store.queries import DRAINED, paused_key
from stoker.store.writer import Store
from support.fakes import START, EngineAtFakeSite


def ask(world: EngineAtFakeSite, *requests: Request) -> None:
    """Put requests into the store and let the engine handle them in one turn."""
    world.store.ask([(world.name, request) for request in requests], world.clock())
    world.engine.wake()
    world.turn()


def read(reader: RequestReader) -> list[Request]:
    reader.read()
    return [request for _, request, _ in reader.take(100)]


class TestReader:
    """Which requests are new."""

    def test_each_is_read_once(self, world: EngineAtFakeSite) -> None:
        """It stays in the store until its result is recorded, and is not read again meanwhile."""
        reader = RequestReader(world.store, "me")
        world.store.ask([("me", Cancel(1)), ("other", Cancel(2))], START)
        assert read(reader) == [Cancel(1)]
        assert read(reader) == []
        world.store.ask([("me", Hold(1))], START)
        assert read(reader) == [Hold(1)]

    def test_one_for_many_jobs_is_taken_in_parts(self, world: EngineAtFakeSite) -> None:
        """So that a turn stays short; requests behind it wait until all of it is handled."""
        reader, new = RequestReader(world.store, "me"), NewJob(Command(("true",)), JobSpec())
        world.store.add_jobs(1, "me", [new] * 9, START)
        world.store.ask([("me", Cancel(1, count=5)), ("me", Hold(9))], START)
        reader.read()
        assert list(reader.take(3)) == [(1, Cancel(1, count=3), Cancel(4, count=2))]
        assert list(reader.take(3)) == [(1, Cancel(4, count=2), None), (2, Hold(9), None)]
        assert not reader.pending

    def test_many_tasks_in_one_row_are_taken_at_once(self, world: EngineAtFakeSite) -> None:
        """The work is that of a row."""
        reader, new = RequestReader(world.store, "me"), NewJob(Command(("true",)), JobSpec())
        ids = world.store.add_jobs(1, "me", tasks_of(new, range(1000)), START, array=True)
        world.store.ask([("me", Cancel(ids[0], count=1000))], START)
        reader.read()
        assert list(reader.take(3)) == [(1, Cancel(ids[0], count=1000), None)]

    def test_a_write_of_another_process_is_noticed(self, world: EngineAtFakeSite, tmp_path: Path) -> None:
        """Once per interval."""
        reader = RequestReader(world.store, "me")
        assert reader.has_come(START)
        reader.read()
        assert not reader.has_come(START + INTERVAL)
        other = Store(world.paths.database)
        other.ask([("me", Cancel(1))], START)
        other.close()
        assert not reader.has_come(START + INTERVAL)
        assert reader.has_come(START + 2 * INTERVAL)
        assert reader.due

    def test_the_policy_has_what_users_set(self, world: EngineAtFakeSite) -> None:
        """The pause of this queue, and drained devices."""
        world.store.put_setting(paused_key("me"), {"note": "lunch"})
        world.store.put_setting(paused_key("other"), {"note": "no"})
        world.store.put_setting(f"{DRAINED}GPU-1", {})
        policy = RequestReader(world.store, "me").overlaid(Policy(max_running=3))
        assert (policy.max_running, policy.paused, policy.closed) == (3, "lunch", {"GPU-1": "drained"})


class TestManyJobs:
    """One request for many jobs."""

    def test_it_takes_several_turns(self, world: EngineAtFakeSite) -> None:
        """Nothing starts in between, which the rest might cancel; what is left of the request is in the store."""
        jobs = world.add(2 * REQUEST_LIMIT + 1)
        world.turn()
        world.turn()
        world.turn()
        world.store.ask([(world.name, Cancel(jobs[0], count=len(jobs) - 1))], world.clock())
        world.engine.wake()
        world.site.room = 1
        world.turn()
        assert world.store.requests(world.name) == [(1, Cancel(jobs[REQUEST_LIMIT], count=REQUEST_LIMIT))]
        assert queries.counts_among(world.store, jobs) == {"cancelled": REQUEST_LIMIT, "waiting": REQUEST_LIMIT + 1}
        world.turn()
        assert world.store.requests(world.name) == []
        assert [job.id for job in world.engine.active_jobs] in ([], [jobs[-1]])
        assert queries.counts_among(world.store, jobs[:-1]) == {"cancelled": 2 * REQUEST_LIMIT}

    def test_it_goes_on_after_a_crash(self, world: EngineAtFakeSite) -> None:
        """The next engine handles what the first did not record."""
        jobs = world.add(REQUEST_LIMIT + 5)
        world.turn()
        world.turn()
        ask(world, Hold(jobs[0], "by you", count=len(jobs)))
        assert [request.count for _, request in world.store.requests(world.name)] == [5]
        reader = RequestReader(world.store, world.name)
        assert read(reader) == [Hold(jobs[REQUEST_LIMIT], "by you", count=5)]


class TestHandling:
    """What comes of each request."""

    def test_hold_and_release(self, world: EngineAtFakeSite) -> None:
        """A held job is blocked until it is released."""
        (job,) = world.add()
        ask(world, Hold(job, note="by you"))
        assert isinstance(world.job(job).state, OnHold)
        assert world.engine.blocked == 1
        ask(world, Release(job))
        assert isinstance(world.job(job).state, Waiting)
        assert (world.engine.waiting, world.engine.blocked) == (1, 0)

    def test_edit(self, world: EngineAtFakeSite) -> None:
        """A queued job gets another spec and name."""
        (job,) = world.add()
        world.turn()
        spec = msgspec.structs.replace(world.job(job).spec, priority=7)
        ask(world, Edit(job, spec, "renamed"))
        assert (world.job(job).spec.priority, world.job(job).name) == (7, "renamed")

    @pytest.mark.parametrize("can", [True, False])
    def test_edit_of_a_running_job(self, world: EngineAtFakeSite, can: bool) -> None:
        """A running job gets name, retries and limit; a limit that its worker cannot change stays."""
        world.site.room, world.site.can_set_limit = 1, can
        (job,) = world.add()
        world.turn()
        world.site.start(job)
        world.turn()
        spec = msgspec.structs.replace(world.job(job).spec, retries=2, limit=60.0)
        ask(world, Edit(job, spec, "renamed"))
        after = world.job(job)
        assert (after.name, after.spec.retries, after.spec.limit) == ("renamed", 2, 60.0 if can else None)
        assert isinstance(after.state, Running)
        assert world.site.called("set_limit") == [[job, 60.0]]

    def test_again_runs_only_what_is_over(self, world: EngineAtFakeSite) -> None:
        """With another spec, if one was given."""
        (job,) = world.add()
        world.turn()
        ask(world, Again(job))
        assert world.kinds(job) == []
        spec = msgspec.structs.replace(world.job(job).spec, priority=7)
        ask(world, Cancel(job), Again(job, spec))
        assert world.kinds(job) == ["Cancelled", "Retried", "Edited"]
        assert isinstance(world.job(job).state, Waiting)
        assert world.job(job).spec.priority == 7

    def test_too_late(self, world: EngineAtFakeSite) -> None:
        """What is asked of a job that runs, or is over, changes nothing but that the request is gone."""
        world.site.room = 1
        (job,) = world.add()
        world.turn()
        other = msgspec.structs.replace(world.job(job).spec, cwd="/elsewhere")
        ask(world, Hold(job), Release(job), Edit(job, other, "x"))
        assert world.kinds(job) == ["Assigned"]
        world.site.start(job)
        world.site.exit(job)
        world.turn()
        ask(world, Cancel(job), Hold(job))
        assert world.kinds(job) == ["Assigned", "Started", "Exited"]
        assert world.store.requests(world.name) == []

    def test_a_cancelled_job_stays_so(self, world: EngineAtFakeSite) -> None:
        """Later requests of the same turn do not bring it back."""
        (job,) = world.add()
        world.turn()
        ask(world, Cancel(job), Edit(job, world.job(job).spec, "other"), Hold(job), Release(job))
        assert world.kinds(job) == ["Cancelled"]

    @pytest.mark.parametrize("active", [False, True])
    def test_a_job_of_a_dead_engine_is_taken_over(self, world: EngineAtFakeSite, active: bool) -> None:
        """A front end gives this engine the job and asks for it to be cancelled."""
        world.site.room = 1
        (job,) = world.add()
        world.turn()
        if not active:
            world.site.give_back(job)
            world.site.room = 0
            world.turn()
        world.jobs.table.withdraw(job)
        world.jobs.table._active.pop(job, None)  # as after a restart
        ask(world, Cancel(job, grace=2.0))
        assert world.site.called("adopt") == ([[job]] if active else [])
        assert world.site.called("stop") == ([[job, 2.0, 0]] if active else [])
        assert isinstance(world.job(job).state, Active) == active


def test_an_unknown_job_is_no_error(world: EngineAtFakeSite) -> None:
    """The job may have left the history; the request is gone."""
    ask(world, Cancel(99), Hold(99), Again(99))
    assert world.store.requests(world.name) == []
