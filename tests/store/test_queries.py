"""What screens ask of the store: counts, the first that wait, the last that ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from stoker.core.job import Assigned, Cancelled, Event, Exited, Job, Paused, Resumed, Started, advance
from stoker.core.spec import Command, Dependency, JobSpec, NewJob
from stoker.store import queries
from stoker.store.queries import Load, Period
from stoker.store.schema import Change
from stoker.store.writer import Store

TRUE = NewJob(Command(("true",)), JobSpec())
HOOK = NewJob(Command(("notify",)), JobSpec(role="hook"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "queue.db")) as opened:
        yield opened


def add(store: Store, *jobs: NewJob, engine: str = "queue", array: bool = False) -> list[int]:
    return list(store.add_jobs(store.add_batch("test", 1.0), engine, jobs, 1.0, array=array))


def apply(store: Store, job_id: int, *events: Event) -> Job:
    """Let things happen to a job."""
    job = store.job(job_id)
    assert job is not None
    written: list[tuple[int, Event]] = []
    for event in events:
        job = advance(job, event)
        written.append((job.attempts, event))
    store.record([Change(job, written)])
    return job


def start(store: Store, job_id: int, devices: Sequence[str] = ("0",), at: float = 2.0) -> None:
    apply(store, job_id, Assigned("k1", tuple(devices), "/log", at), Started(1, at))


def end(store: Store, job_id: int, at: float, code: int = 0) -> None:
    apply(store, job_id, Exited(1, code, 0, at, peak_memory=7))


def tasks(*indices: int) -> list[NewJob]:
    return [NewJob(Command(("true",)), JobSpec(), "", index) for index in indices]


class TestQueue:
    """What is not over."""

    def test_counts(self, store: Store) -> None:
        """Every engine's jobs are counted by whether a worker has them and whether they are held back."""
        first, second, third, fourth = add(store, *[TRUE] * 4)
        add(store, TRUE, engine="run")
        start(store, first)
        apply(store, second, Paused(2.0, "held by you"))
        start(store, fourth)
        end(store, fourth, 3.0)
        assert queries.loads(store) == {"queue": Load(3, 1, 1), "run": Load(1, 0, 0)}
        assert queries.loads(store)["queue"].waiting == 1
        assert third

    def test_one_engine_alone(self, store: Store) -> None:
        """Where only one has jobs, they are counted without a look at whose they are, which takes half the time."""
        first, *_ = add(store, *[TRUE] * 3)
        start(store, first)
        asked: list[str] = []
        with store.writing() as connection:
            connection.set_trace_callback(asked.append)
        assert queries.loads(store) == {"queue": Load(3, 1, 0)}
        assert not [query for query in asked if "count(*)" in query and "engine =" in query]

    def test_an_empty_store_has_no_loads(self, store: Store) -> None:
        """Where no job is, no engine is named."""
        assert queries.loads(store) == {}
        assert queries.all_active(store) == []

    def test_active_jobs_of_all_engines(self, store: Store) -> None:
        """They come in the order of their ids, each with its engine."""
        ids = [*add(store, TRUE, engine="zoo"), *add(store, TRUE, engine="ant"), *add(store, TRUE)]
        for job_id in reversed(ids):
            start(store, job_id)
        assert [(one.job.id, one.engine) for one in queries.all_active(store)] == list(
            zip(ids, ["zoo", "ant", "queue"], strict=True)
        )

    def test_queued_jobs(self, store: Store) -> None:
        """What a worker has is left out, what is held is not."""
        first, second, third = add(store, *[TRUE] * 3)
        start(store, second)
        apply(store, third, Paused(2.0))
        assert [job.id for job in queries.queued_jobs(store, "queue", 0, 9)] == [first, third]
        assert [job.id for job in queries.queued_jobs(store, "queue", first, 9)] == [third]
        assert [job.id for job in queries.queued_jobs(store, "queue", 0, 1)] == [first]

    def test_tasks_that_wait_alike_are_told_together(self, store: Store) -> None:
        """Those that run, have ended or are held are not counted among those that wait."""
        before = add(store, TRUE)
        ids = add(store, *tasks(0, 4, 8, 12, 16, 20), array=True)
        add(store, TRUE)
        start(store, ids[0])
        start(store, ids[2])
        end(store, ids[2], 3.0)
        apply(store, ids[5], Paused(3.0))
        waiting, held = queries.queued_tasks(store, "queue", ids[0])
        assert (waiting.size, waiting.first.task, waiting.last.task) == (3, 4, 16)
        assert (held.size, held.first.task, held.last.task) == (1, 20, 20)
        assert queries.last_of_array(store, ids[0]) == ids[-1]
        assert before

    def test_one_glance_is_one_moment(self, store: Store, tmp_path: Path) -> None:
        """What somebody writes meanwhile is not seen."""
        add(store, TRUE)
        with store.reading():
            assert queries.loads(store)["queue"].open == 1
            with closing(Store(tmp_path / "queue.db")) as other:
                add(other, TRUE)
            assert queries.loads(store)["queue"].open == 1
        assert queries.loads(store)["queue"].open == 2


class TestOutcome:
    """What those that wait for others have to know."""

    def test_an_array_is_open_while_a_task_is(self, store: Store) -> None:
        """Also where the last one is held; then it is ok when all are done, and notok when one is not."""
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
        """The array did not succeed; a single task of it is another target."""
        ids = add(store, *tasks(0, 1), array=True)
        for code, job_id in enumerate(ids):
            start(store, job_id)
            end(store, job_id, 3.0, code)
        assert store.outcome(Dependency(ids[0], array=True)) == "notok"
        assert [store.outcome(Dependency(job_id)) for job_id in ids] == ["ok", "notok"]

    def test_queued_hooks(self, store: Store) -> None:
        """They are counted, so that a screen need not promise to show them."""
        add(store, TRUE)
        assert queries.queued_on_finish_jobs(store) == 0
        hook, _ = add(store, HOOK, HOOK)
        start(store, hook)
        assert queries.queued_on_finish_jobs(store) == 1


class TestPast:
    """What is over."""

    def test_the_last_come_first(self, store: Store) -> None:
        """By their ends, each with its last attempt and the GPU time of all."""
        first, second, waiting = add(store, *[TRUE] * 3)
        start(store, second, at=2.0)
        end(store, second, 3.0)
        start(store, first, ["0", "1"], at=2.0)
        end(store, first, 5.0, code=3)
        past = queries.past(store, Period(), 9)
        assert [one.job.id for one in past] == [first, second]
        assert [one.gpu_seconds for one in past] == [6.0, 1.0]
        assert past[0].last is not None
        assert (past[0].last.devices, past[0].last.code, past[0].last.peak_memory) == (("0", "1"), 3, 7)
        assert [one.job.id for one in queries.past(store, Period(), 1)] == [first]
        assert waiting

    def test_a_job_that_never_ran_has_no_attempt(self, store: Store) -> None:
        """It is over all the same."""
        (job_id,) = add(store, TRUE)
        apply(store, job_id, Cancelled(2.0, "not wanted"))
        (past,) = queries.past(store, Period(), 9)
        assert (past.job.id, past.last, past.gpu_seconds) == (job_id, None, 0.0)

    def test_by_time_and_end(self, store: Store) -> None:
        """Lists, counts and sums are about the same jobs."""
        good, bad, old = add(store, *[TRUE] * 3)
        for job_id, at, code in ((old, 3.0, 1), (good, 12.0, 0), (bad, 13.0, 1)):
            start(store, job_id)
            end(store, job_id, at, code)
        late = Period(10.0)
        assert queries.past_counts(store, late) == {"done": 1, "failed": 1}
        assert queries.past_gpu_seconds(store, late) == 21.0
        failed = Period(10.0, ("failed", "oom"))
        assert [one.job.id for one in queries.past(store, failed, 9)] == [bad]
        assert queries.past_counts(store, failed) == {"failed": 1}
        assert queries.past_gpu_seconds(store, failed) == 11.0

    def test_hooks_are_left_out(self, store: Store) -> None:
        """Unless they are asked for."""
        job_id, hook = add(store, TRUE, HOOK)
        for one in (job_id, hook):
            start(store, one)
            end(store, one, 3.0)
        assert [one.job.id for one in queries.past(store, Period(), 9)] == [job_id]
        assert queries.past_counts(store, Period()) == {"done": 1}
        assert queries.past_counts(store, Period(on_finish_jobs=True)) == {"done": 2}
