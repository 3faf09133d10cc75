"""A queue that an earlier version stored is migrated without loss."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stoker.core.errors import StokerError
from stoker.core.job import Assigned, Edited, Ended, Exited, Job, Running, Waiting
from stoker.core.requests import Edit
from stoker.core.spec import NewJob, Resources
from stoker.sites.machine.ref import WorkerRef, read_ref
from stoker.store.samples import Sample, samples_between
from stoker.store.schema import MIGRATIONS, VERSION, SubmitKey
from stoker.store.writer import Store

DATA = Path(__file__).parents[1] / "data"
STORED = sorted(DATA.glob("queue-*.sql"))
NEXT = """
ALTER TABLE jobs ADD COLUMN made_up INTEGER NOT NULL DEFAULT 7;
CREATE TABLE notes (job INTEGER PRIMARY KEY, note TEXT NOT NULL) STRICT;
INSERT INTO notes SELECT id, name FROM jobs;
"""
"""A made-up next version."""


@pytest.fixture(params=STORED, ids=lambda path: path.stem)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A queue as a version left it."""
    path = tmp_path / "queue.db"
    with closing(sqlite3.connect(path)) as database:
        database.executescript(request.param.read_text())
    return path


@pytest.fixture(params=[MIGRATIONS, (*MIGRATIONS, NEXT)], ids=["this", "next"])
def queue(request: pytest.FixtureRequest, stored: Path) -> Iterator[Store]:
    """The stored queue, opened by this version and by a made-up next one."""
    with closing(Store(stored, migrations=request.param)) as store:
        yield store


def one(queue: Store, number: int) -> Job:
    """A job that must exist."""
    job = queue.job(number)
    assert job is not None
    return job


def test_every_version_is_tried() -> None:
    """There is a stored queue of each schema version."""
    assert [path.stem for path in STORED] == [f"queue-{number}" for number in range(1, VERSION + 1)]


def test_a_new_queue_has_the_tables_of_a_stored_one(tmp_path: Path, stored: Path) -> None:
    """So a version's statements do not change once a queue of it is stored."""
    Store(tmp_path / "new.db").close()
    Store(stored).close()
    made, found = (_tables(path) for path in (tmp_path / "new.db", stored))
    assert made == found


def _tables(path: Path) -> set[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as database:
        return set(database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))


def test_the_next_version_migrates_once(stored: Path) -> None:
    """A second open changes nothing, and this version refuses the queue from then on."""
    for _ in range(2):
        with closing(Store(stored, migrations=(*MIGRATIONS, NEXT))) as store:
            assert store.rows("SELECT DISTINCT made_up FROM jobs") == [(7,)]
            assert store.rows("SELECT job FROM notes WHERE note = 'vit'") == [(1,)]
    with pytest.raises(StokerError, match="newer Stoker"):
        Store(stored)


def test_a_migration_that_fails_changes_nothing(stored: Path) -> None:
    """All statements are one transaction, so that this version can open the queue again."""
    with pytest.raises(StokerError):
        Store(stored, migrations=(*MIGRATIONS, f"{NEXT}INSERT INTO missing VALUES (1);\n"))
    with closing(Store(stored)) as store:
        assert store.rows("SELECT count(*) FROM sqlite_master WHERE name = 'notes'") == [(0,)]
        assert one(store, 1).name == "vit"


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
    """The indexes find the open jobs."""
    assert [job.id for job in queue.open_jobs("4711-deadbeef", 0, 10)] == [2, 3, 4]
    assert [job.id for job in queue.active_jobs("4711-deadbeef")] == [3]


def test_ids_continue(queue: Store) -> None:
    """No id is used twice."""
    job = one(queue, 2)
    assert queue.add_jobs(1, "queue", [NewJob(job.command, job.spec)], 2000.0) == range(6, 7)


def test_a_running_job_keeps_its_worker_and_its_lease(queue: Store) -> None:
    """An engine of the next version can adopt what this one started."""
    job = one(queue, 3)
    assert isinstance(job.state, Running)
    assert read_ref(job.state.ref) == WorkerRef("4711-deadbeef-2", "4711-0af3", 12)
    assert job.state.resources == Resources(memory=6 << 30)
    assert (job.shared_failures, job.floor) == (1, 7 << 30)
    assert queue.slots() == {"4711-deadbeef-2"}


def test_events_and_requests_are_read(queue: Store) -> None:
    """Assignments, an edit, an end on a shared GPU, and a request that no engine has handled yet."""
    events = queue.events(3)
    assert [event.shared for event in events if isinstance(event, Exited)] == [True]
    assert [event.ref for event in events if isinstance(event, Assigned)] == [
        "4711-deadbeef-2 - 0",
        "4711-deadbeef-2 4711-0af3 12",
    ]
    (edited,) = queue.events(4)
    assert isinstance(edited, Edited)
    assert edited.spec.resources == Resources(gpus=2)
    ((_, request),) = queue.requests("4711-deadbeef")
    assert isinstance(request, Edit)
    assert request.spec.resources == Resources(gpus=0)


def test_keys_and_samples_are_there(queue: Store) -> None:
    """A key of the user's, and the use of a device, to which an engine can add."""
    sample = Sample(30_000_000, "GPU-aa", 97, 5, 6, 71, 250.0)
    assert queue.submit_key("nightly") == SubmitKey("c0ffee", [(2, 1, "")])
    assert samples_between(queue, 0, 60 * 30_000_001) == [sample]
