"""Queries of screens: counts, queued jobs, ended jobs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from stoker.core.job import Assigned, Cancelled, Event, Exited, Job, Paused, Resumed, Started
from stoker.core.requests import Again
from stoker.core.spec import Command, Dependency, JobSpec, Member, NewJob
from stoker.store import past_jobs, queries
from stoker.store.filters import Filter
from stoker.store.past_jobs import Period
from stoker.store.queries import Load
from stoker.store.schema import BatchRecord
from stoker.store.writer import Store
from support.store import TRUE, after, wanted

ON_FINISH = NewJob(Command(("notify",)), JobSpec(role="hook"))


def add(store: Store, *jobs: NewJob, engine: str = "queue", array: bool = False) -> list[int]:
    return list(store.add_jobs(store.add_batch("test", 1.0), engine, jobs, 1.0, array=array))


def apply(store: Store, job_id: int, *events: Event) -> Job:
    """Record events of a job."""
    change = after(wanted(store, job_id), list(events))
    store.record([change])
    return change.job


def start(store: Store, job_id: int, devices: Sequence[str] = ("0",), at: float = 2.0) -> None:
    apply(store, job_id, Assigned("k1", tuple(devices), "/log", at), Started(1, at))


def end(store: Store, job_id: int, at: float, code: int = 0) -> None:
    apply(store, job_id, Exited(1, code, 0, at, peak_memory=7))


def tasks(*indices: int) -> list[NewJob]:
    return [NewJob(Command(("true",)), JobSpec(), "", index) for index in indices]


class TestQueue:
    """Open jobs."""

    def test_counts(self, store: Store) -> None:
        """Jobs are counted per engine as open, active and held."""
        first, second, third, fourth = add(store, *[TRUE] * 4)
        add(store, TRUE, engine="run")
        start(store, first)
        apply(store, second, Paused(2.0, "held by you"))
        start(store, fourth)
        end(store, fourth, 3.0)
        assert queries.loads(store) == {"queue": Load(3, 1, 1), "run": Load(1, 0, 0)}
        assert queries.loads(store)["queue"].waiting == 1
        assert third

    def test_a_single_engine(self, store: Store) -> None:
        """The jobs of a single engine are counted without comparing names, in half the time."""
        first, *_ = add(store, *[TRUE] * 3)
        start(store, first)
        asked: list[str] = []
        with store.writing() as connection:
            connection.set_trace_callback(asked.append)
        assert queries.loads(store) == {"queue": Load(3, 1, 0)}
        assert not [query for query in asked if "count(*)" in query and "engine =" in query]

    def test_an_empty_store_has_no_loads(self, store: Store) -> None:
        """Without jobs there are no loads."""
        assert queries.loads(store) == {}
        assert queries.all_active(store) == []

    def test_active_jobs_of_all_engines(self, store: Store) -> None:
        """Active jobs come by id, each with its engine."""
        ids = [*add(store, TRUE, engine="zoo"), *add(store, TRUE, engine="ant"), *add(store, TRUE)]
        for job_id in reversed(ids):
            start(store, job_id)
        assert [(one.job.id, one.engine) for one in queries.all_active(store)] == list(
            zip(ids, ["zoo", "ant", "queue"], strict=True)
        )

    def test_queued_jobs(self, store: Store) -> None:
        """Active jobs are left out, held jobs are not."""
        first, second, third = add(store, *[TRUE] * 3)
        start(store, second)
        apply(store, third, Paused(2.0))
        assert [job.id for job in queries.queued_jobs(store, "queue", 0, 9)] == [first, third]
        assert [job.id for job in queries.queued_jobs(store, "queue", first, 9)] == [third]
        assert [job.id for job in queries.queued_jobs(store, "queue", 0, 1)] == [first]

    def test_queued_tasks(self, store: Store) -> None:
        """Running, ended and held tasks are not counted as waiting."""
        before = add(store, TRUE)
        ids = add(store, *tasks(0, 4, 8, 12, 16, 20), array=True)
        add(store, TRUE)
        start(store, ids[0])
        start(store, ids[2])
        end(store, ids[2], 3.0)
        apply(store, ids[5], Paused(3.0))
        waiting, held = queries.queued_tasks(store, "queue", ids[0])
        assert (waiting.first.task, list(waiting.indices)) == (4, [4, 12, 16])
        assert (held.first.task, list(held.indices)) == (20, [20])
        assert queries.last_of_array(store, ids[0]) == ids[-1]
        assert before

    def test_reading_sees_one_state(self, store: Store, tmp_path: Path) -> None:
        """Changes by other connections are not seen meanwhile."""
        add(store, TRUE)
        with store.reading():
            assert queries.loads(store)["queue"].open == 1
            with closing(Store(tmp_path / "queue.db")) as other:
                add(other, TRUE)
            assert queries.loads(store)["queue"].open == 1
        assert queries.loads(store)["queue"].open == 2


class TestOutcome:
    """Outcomes of dependencies."""

    def test_an_array_is_open_while_a_task_is(self, store: Store) -> None:
        """An array is open while a task is open or held; then ok if all are done, else notok."""
        add(store, TRUE)
        ids = add(store, *tasks(0, 1, 2), array=True)
        add(store, TRUE)
        whole = Dependency(ids[0], array=True)
        for job_id in ids[:2]:
            start(store, job_id)
            end(store, job_id, 3.0)
        apply(store, ids[2], Paused(3.0))
        assert store.outcome(whole) == "open"
        apply(store, ids[2], Resumed(4.0))
        start(store, ids[2])
        assert store.outcome(whole) == "open"
        end(store, ids[2], 5.0)
        assert store.outcome(whole) == "ok"

    def test_one_task_that_failed(self, store: Store) -> None:
        """The array is notok; each task has its own outcome."""
        ids = add(store, *tasks(0, 1), array=True)
        for code, job_id in enumerate(ids):
            start(store, job_id)
            end(store, job_id, 3.0, code)
        assert store.outcome(Dependency(ids[0], array=True)) == "notok"
        assert [store.outcome(Dependency(job_id)) for job_id in ids] == ["ok", "notok"]

    def test_queued_on_finish_jobs(self, store: Store) -> None:
        """On-finish jobs are counted."""
        add(store, TRUE)
        assert queries.queued_on_finish_jobs(store) == 0
        hook, _ = add(store, ON_FINISH, ON_FINISH)
        start(store, hook)
        assert queries.queued_on_finish_jobs(store) == 1


class TestPast:
    """Ended jobs."""

    def test_the_last_come_first(self, store: Store) -> None:
        """Ended jobs come newest first, with the last attempt and the GPU-seconds of all."""
        first, second, waiting = add(store, *[TRUE] * 3)
        start(store, second, at=2.0)
        end(store, second, 3.0)
        start(store, first, ["0", "1"], at=2.0)
        end(store, first, 5.0, code=3)
        past = past_jobs.past(store, Period(), 9)
        assert [one.job.id for one in past] == [first, second]
        assert [one.gpu_seconds for one in past] == [6.0, 1.0]
        assert past[0].last is not None
        assert (past[0].last.devices, past[0].last.code, past[0].last.peak_memory) == (("0", "1"), 3, 7)
        assert [one.job.id for one in past_jobs.past(store, Period(), 1)] == [first]
        assert waiting

    def test_a_job_that_never_ran_has_no_attempt(self, store: Store) -> None:
        """It is listed without an attempt."""
        (job_id,) = add(store, TRUE)
        apply(store, job_id, Cancelled(2.0, "not wanted"))
        (past,) = past_jobs.past(store, Period(), 9)
        assert (past.job.id, past.last, past.gpu_seconds) == (job_id, None, 0.0)

    def test_by_time_and_end(self, store: Store) -> None:
        """Lists, counts and sums are about the same jobs."""
        good, bad, old = add(store, *[TRUE] * 3)
        for job_id, at, code in ((old, 3.0, 1), (good, 12.0, 0), (bad, 13.0, 1)):
            start(store, job_id)
            end(store, job_id, at, code)
        late = Period(10.0)
        assert past_jobs.past_counts(store, late) == {"done": 1, "failed": 1}
        assert past_jobs.past_gpu_seconds(store, late) == 21.0
        failed = Period(10.0, Filter(states=("failed", "oom")))
        assert [one.job.id for one in past_jobs.past(store, failed, 9)] == [bad]
        assert past_jobs.past_counts(store, failed) == {"failed": 1}
        assert past_jobs.past_gpu_seconds(store, failed) == 11.0

    def test_the_tasks_of_an_array_are_one(self, store: Store) -> None:
        """With their results, the time of all, and the last failure; an array of one ended task is that task."""
        (alone,) = add(store, TRUE)
        new = [replace(TRUE, task=task) for task in range(4)]
        with store.writing():
            tasks = store.add_jobs(store.add_batch("b", 1.0), "queue", new, 1.0, array=True)
        for place, job_id in enumerate((*tasks[:3], alone)):
            start(store, job_id, at=2.0 + place)
            end(store, job_id, 10.0 + place, code=int(place == 1))
        newest, array = past_jobs.past_by_array(store, Period(), 9)
        assert isinstance(newest, past_jobs.Past)
        assert newest.job.id == alone
        assert isinstance(array, past_jobs.PastTasks)
        assert (array.counts, list(array.indices)) == ({"done": 2, "failed": 1}, [0, 1, 2])
        assert (array.telling.job.id, array.started, array.ended, array.gpu_seconds) == (tasks[1], 2.0, 12.0, 24.0)
        (only,) = past_jobs.past_by_array(store, Period(chosen=Filter(states=("failed",))), 9)
        assert isinstance(only, past_jobs.Past)
        assert only.job.id == tasks[1]
        assert past_jobs.past_by_array(store, Period(), 1) == [newest]

    def test_on_finish_jobs_are_left_out(self, store: Store) -> None:
        """On-finish jobs are left out unless asked for."""
        job_id, hook = add(store, TRUE, ON_FINISH)
        for one in (job_id, hook):
            start(store, one)
            end(store, one, 3.0)
        assert [one.job.id for one in past_jobs.past(store, Period(), 9)] == [job_id]
        assert past_jobs.past_counts(store, Period()) == {"done": 1}
        assert past_jobs.past_counts(store, Period(on_finish_jobs=True)) == {"done": 2}


def add_coordinated(store: Store, name: str, at: float) -> tuple[int, list[int]]:
    """A batch of a coordinator and two members: its number, and their ids."""
    batch = store.add_batch("test", at)
    members = [NewJob(Command(("true",)), JobSpec(), member=Member(number, "{}")) for number in (0, 1)]
    ids = list(store.add_jobs(batch, "queue", [TRUE, *members], at))
    store.set_batch_record(batch, BatchRecord("test", ids[0], name, ids[0], JobSpec(), b""))
    return batch, ids


class TestBatches:
    """Batches that features have made."""

    def test_names(self, store: Store) -> None:
        """A batch is found by its first job, and the newest by its name; a job of no such batch finds none."""
        (alone,) = add(store, TRUE)
        older, newer = (add_coordinated(store, "vit", at) for at in (1.0, 2.0))
        assert [queries.batch_by_id(store, ids[0]) for _, ids in (older, newer)] == [older[0], newer[0]]
        assert [queries.batch_by_id(store, job_id) for job_id in (alone, newer[1][1])] == [None, None]
        assert (queries.batch_named(store, "vit"), queries.batch_named(store, "test")) == (newer[0], None)

    def test_jobs(self, store: Store) -> None:
        """A batch has its coordinator and its members; it is open while a member is, or a request for one waits."""
        batch, ids = add_coordinated(store, "", 1.0)
        assert queries.ids_of_batch(store, batch) == ids
        assert (queries.coordinator_of(store, batch), queries.is_coordinator(store, ids[0])) == (ids[0], True)
        assert not queries.is_coordinator(store, ids[1])
        apply(store, ids[1], Cancelled(2.0))
        assert queries.has_open_members(store, batch)
        apply(store, ids[2], Cancelled(2.0))
        assert not queries.has_open_members(store, batch)
        store.ask([("queue", Again(ids[0]))], 3.0)
        assert not queries.has_open_members(store, batch)
        store.ask([("queue", Again(ids[1]))], 3.0)
        assert queries.has_open_members(store, batch)


class TestJobsByState:
    """Jobs for commands that look only at their states."""

    def test_one_stands_for_those_that_differ_in_their_commands(self, store: Store) -> None:
        """Consecutive jobs of a batch are one, up to a job in another state, of another spec or of another batch."""
        lines = [NewJob(Command((f"echo {number}",), "/bin/sh"), JobSpec()) for number in range(6)]
        ids = add(store, *lines, NewJob(Command(("true",)), JobSpec(priority=1)))
        add(store, *lines)
        apply(store, ids[2], Paused(2.0, "held by you"))
        start(store, ids[4])
        jobs = list(queries.jobs_by_state(store, range(1, 14)))
        assert [(job.id, job.count) for job in jobs] == [(1, 2), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (8, 6)]
        assert jobs[0].command == lines[0].command

    def test_order_of_the_ids(self, store: Store) -> None:
        """Jobs come in the order of the ids that were asked for; ids without a job are left out."""
        add(store, *[TRUE] * 5)
        jobs = queries.jobs_by_state(store, [4, 5, 9, 1, 2])
        assert [(job.id, job.count) for job in jobs] == [(4, 2), (1, 2)]

    def test_tasks_of_arrays(self, store: Store) -> None:
        """Tasks that have rows of their own are not joined: their indices may have gaps."""
        add(store, *tasks(0, 5, 7), array=True)
        assert [job.task for job in queries.jobs_by_state(store, [1, 2, 3])] == [0, 5, 7]

    def test_more_than_a_page(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """Pages do not show: jobs on two of them are joined, too."""
        monkeypatch.setattr(queries, "_PAGE", 3)
        ids = add(store, *[TRUE] * 10)
        assert [(job.id, job.count) for job in queries.jobs_by_state(store, ids)] == [(1, 10)]
        assert [job.id for job in queries.jobs_of(store, [*ids[2:], *ids[:2]])] == [*ids[2:], *ids[:2]]
