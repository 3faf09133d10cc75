"""What is collected in a turn and written at its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.errors import StokerError
from stoker.core.job import Assigned, Ended, Exited, Job, Skipped, Started
from stoker.core.learning import Learnt, MeasuredUse
from stoker.core.requests import Cancel
from stoker.core.spec import Command, JobSpec, NewJob
from stoker.engine.recorder import FollowUp, Recorder
from stoker.store.samples import Sample, samples_between
from stoker.store.schema import Measured
from stoker.store.writer import Store

NOW = 1000.0
ASSIGNED = Assigned("w1 - 0", ("0",), "/log", NOW)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty queue."""
    made = Store(tmp_path / "queue.db")
    yield made
    made.close()


def a_stored_job(store: Store) -> Job:
    batch = store.add_batch("test", NOW)
    (job_id,) = store.add_jobs(batch, "me", [NewJob(Command(("true",)), JobSpec())], NOW)
    job = store.job(job_id)
    assert job is not None
    return job


def test_nothing_is_in_the_store_before_write(store: Store) -> None:
    """Events of a turn are written together, in order."""
    recorder, job = Recorder(store), a_stored_job(store)
    after = recorder.add(recorder.add(job, ASSIGNED, ()), Started(1, NOW), ())
    assert store.events(job.id) == []
    assert recorder
    events = recorder.write()
    assert not recorder
    assert store.job(job.id) == after
    assert [each.event for each in events] == store.events(job.id) == [ASSIGNED, Started(1, NOW)]


def test_a_job_can_be_asked_for_before_it_is_written(store: Store) -> None:
    """As it is after its newest event."""
    recorder, job = Recorder(store), a_stored_job(store)
    assert recorder.now(job) == [job]
    after = recorder.add(job, ASSIGNED, ())
    assert recorder.now(job) == [after]
    recorder.write()
    assert recorder.now(job) == [job]


def test_an_event_carries_what_was_true_before_it(store: Store) -> None:
    """The log and the start of the attempt that ended."""
    recorder, job = Recorder(store), a_stored_job(store)
    running = recorder.add(recorder.add(job, ASSIGNED, ()), Started(1, NOW), ())
    recorder.add(running, Exited(1, 0, 0, NOW + 5), ())
    *_, exited = recorder.write()
    assert (exited.log, exited.started) == ("/log", NOW)


def test_a_failed_write_keeps_everything(store: Store) -> None:
    """It is all written at the next try."""
    recorder, job = Recorder(store), a_stored_job(store)
    recorder.add(job, ASSIGNED, ())
    store._database._connection.execute("PRAGMA query_only = 1")
    with pytest.raises(StokerError):
        recorder.write()
    assert recorder
    store._database._connection.execute("PRAGMA query_only = 0")
    assert [each.event for each in recorder.write()] == [ASSIGNED]
    assert store.events(job.id) == [ASSIGNED]


def test_a_request_goes_with_the_events_it_caused(store: Store) -> None:
    """It stays in the store until they are written."""
    recorder = Recorder(store)
    store.ask([("me", Cancel(1))], NOW)
    ((number, _),) = store.requests("me")
    recorder.handled(number)
    assert len(store.requests("me")) == 1
    recorder.write()
    assert store.requests("me") == []


def test_what_was_learnt_goes_with_a_measurement(store: Store) -> None:
    """Alone it does not cause a write; no news changes nothing."""
    recorder, job = Recorder(store), a_stored_job(store)
    recorder.learn(None)
    recorder.learn(("kind", Learnt(seconds=(2.0,))))
    assert not recorder
    recorder.add(recorder.add(job, ASSIGNED, ()), Started(1, NOW), ())
    recorder.measure(Measured(job.id, 1, MeasuredUse(peak=7)))
    recorder.write()
    assert store.uses(job.id)[1].peak == 7
    assert store.has_learnt()


def test_a_job_that_ends_is_followed(store: Store) -> None:
    """The follow-up job is in the store together with the end, for the engine that was named."""
    job = a_stored_job(store)
    ended: list[tuple[int, str]] = []

    def make(job: Job, log: str) -> NewJob | None:
        ended.append((job.id, log))
        return NewJob(Command(("notify",)), JobSpec())

    recorder = Recorder(store, FollowUp("other", make))
    recorder.add(job, Skipped(NOW, "no"), ())
    recorder.write()
    assert recorder.follow_ups_written
    assert ended == [(job.id, "")]
    (follow_up,) = store.open_jobs("other", 0, 9)
    assert follow_up.command.words == ("notify",)
    found = store.job(job.id)
    assert found is not None
    assert isinstance(found.state, Ended)


def test_jobs_that_change_together_cost_as_much_as_one(store: Store) -> None:
    """Without a job that follows each end, none of them is looked at by itself."""
    new = NewJob(Command(("true",)), JobSpec(), task=0, count=10**12)
    store.add_jobs(store.add_batch("test", NOW), "me", [new], NOW, array=True)
    (tasks,) = store.open_jobs("me", 0, 9)
    recorder = Recorder(store, FollowUp("other", None))
    recorder.add(tasks, Skipped(NOW, "no"), ())
    recorder.write()
    assert store.rows("SELECT size, state FROM jobs") == [(10**12, "skipped")]
    assert not recorder.follow_ups_written


def test_samples_wait_for_a_transaction(store: Store) -> None:
    """They cause none, and are written with the next one."""
    recorder, job = Recorder(store), a_stored_job(store)
    sample = Sample(17, "GPU-0", 50, 1, 2, 60, 200.0)
    recorder.sample([sample])
    assert not recorder
    recorder.write()
    assert samples_between(store, 0, 9999) == []
    recorder.add(job, ASSIGNED, ())
    recorder.write()
    assert samples_between(store, 0, 9999) == [sample]
    recorder.add(store.job(job.id) or job, Started(1, NOW), ())
    recorder.write()
