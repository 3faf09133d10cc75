"""A queue of an older version is migrated without loss."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stoker.core.job import Assigned, Edited, Ended, Exited, Job, Running, Waiting
from stoker.core.requests import Edit
from stoker.core.spec import NewJob, Resources
from stoker.sites.machine.ref import WorkerRef, read_ref
from stoker.store.samples import Sample, samples_between
from stoker.store.schema import VERSION, SubmitKey
from stoker.store.writer import Store

DATA = Path(__file__).parents[1] / "data"
OLDER = sorted(DATA.glob("queue-*.sql"))


@pytest.fixture(params=OLDER, ids=lambda path: path.stem)
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A queue as a released version left it, opened by this one."""
    path = tmp_path / "queue.db"
    with closing(sqlite3.connect(path)) as database:
        database.executescript(request.param.read_text())
    with closing(Store(path)) as store:
        yield store


def one(queue: Store, number: int) -> Job:
    """A job that must exist."""
    job = queue.job(number)
    assert job is not None
    return job


def test_every_older_version_is_tried() -> None:
    """There is a queue file of each older schema version."""
    assert [path.stem for path in OLDER] == [f"queue-{number}" for number in range(1, VERSION)]


def test_jobs_are_as_they_were(queue: Store) -> None:
    """Commands, resources, names that are not UTF-8, states and counts are the same."""
    done, waiting, running, odd, failed = (one(queue, number) for number in range(1, 6))
    assert (done.name, done.state, done.tries) == ("vit", Ended("done", 1100.0, 0), 1)
    assert (done.spec.resources.memory, done.spec.limit, done.spec.retries) == (6 * 2**30, 3600.0, 1)
    assert (waiting.command.words, waiting.state) == (("python", "eval.py", "a b"), Waiting(1000.0))
    assert isinstance(running.state, Running)
    assert odd.command.text == "echo caf\udce9"
    assert (failed.state, failed.failures, failed.tries) == (Ended("failed", 1103.0, 1), 2, 2)


def test_attempts_events_and_environment_are_there(queue: Store) -> None:
    """Attempts, events and the environment are there."""
    assert [(row.number, row.code, row.log) for row in queue.attempts(5)] == [(1, 1, "/l/5.log"), (2, 1, "/l/5.log.1")]
    assert len(queue.events(5)) == 6
    assert queue.environment(one(queue, 1).spec.environment)["HOME"] == "/home/ada"


def test_open_jobs_are_open(queue: Store) -> None:
    """The indexes of this version find the open jobs of an older one."""
    assert [job.id for job in queue.open_jobs("4711-deadbeef", 0, 10)] == [2, 3, 4]
    assert [job.id for job in queue.active_jobs("4711-deadbeef")] == [3]


def test_ids_continue(queue: Store) -> None:
    """No id is used twice."""
    job = one(queue, 2)
    assert queue.add_jobs(1, "queue", [NewJob(job.command, job.spec)], 2000.0) == range(6, 7)


@pytest.fixture
def third(tmp_path: Path) -> Iterator[Store]:
    """A queue of schema 3, whose columns and keys had other names."""
    path = tmp_path / "queue.db"
    with closing(sqlite3.connect(path)) as database:
        database.executescript((DATA / "queue-3.sql").read_text())
    with closing(Store(path)) as store:
        yield store


def test_a_running_job_keeps_its_worker_and_its_lease(third: Store) -> None:
    """An engine of this version can adopt what an engine of schema 3 started."""
    job = one(third, 3)
    assert isinstance(job.state, Running)
    assert read_ref(job.state.ref) == WorkerRef("4711-deadbeef-2", "4711-0af3", 12)
    assert job.state.resources == Resources(memory=6 << 30)
    assert (job.shared_failures, job.floor) == (1, 7 << 30)
    assert third.slots() == {"4711-deadbeef-2"}


def test_renamed_keys_of_events_and_requests_are_found(third: Store) -> None:
    """Assignments, an edit, an end on a shared GPU, and a request that no engine has handled yet."""
    events = third.events(3)
    assert [event.shared for event in events if isinstance(event, Exited)] == [True]
    assert [event.ref for event in events if isinstance(event, Assigned)] == [
        "4711-deadbeef-2 - 0",
        "4711-deadbeef-2 4711-0af3 12",
    ]
    (edited,) = third.events(4)
    assert isinstance(edited, Edited)
    assert edited.spec.resources == Resources(gpus=2)
    ((_, request),) = third.requests("4711-deadbeef")
    assert isinstance(request, Edit)
    assert request.spec.resources == Resources(gpus=0)


def test_a_queue_without_samples_gets_them(tmp_path: Path) -> None:
    """What a queue of schema 5 knows stays, and an engine of this version can add samples."""
    path = tmp_path / "queue.db"
    with closing(sqlite3.connect(path)) as database:
        database.executescript((DATA / "queue-5.sql").read_text())
    sample = Sample(30_000_000, "GPU-aa", 97, 5, 6, 71, 250.0)
    with closing(Store(path)) as store:
        assert store.submit_key("nightly") == SubmitKey("c0ffee", [(2, 1, "")])
        store.record([], samples=[sample])
        assert samples_between(store, 0, 60 * 30_000_001) == [sample]
