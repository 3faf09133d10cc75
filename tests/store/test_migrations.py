"""A queue that an older Stoker wrote goes on, with nothing lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stoker.core.job import Ended, Job, Running, Waiting
from stoker.core.spec import NewJob
from stoker.store.schema import VERSION
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
    """A job that must be there."""
    job = queue.job(number)
    assert job is not None
    return job


def test_every_older_version_is_tried() -> None:
    """For each version before this one there is a queue to open."""
    assert [path.stem for path in OLDER] == [f"queue-{number}" for number in range(1, VERSION)]


def test_jobs_are_as_they_were(queue: Store) -> None:
    """Commands, needs, names that are no UTF-8, states and counts come back."""
    done, waiting, running, odd, failed = (one(queue, number) for number in range(1, 6))
    assert (done.name, done.state, done.tries) == ("vit", Ended("done", 1100.0, 0), 1)
    assert (done.terms.need.memory, done.terms.limit, done.terms.retries) == (6 * 2**30, 3600.0, 1)
    assert (waiting.command.words, waiting.state) == (("python", "eval.py", "a b"), Waiting(1000.0))
    assert isinstance(running.state, Running)
    assert odd.command.text == "echo caf\udce9"
    assert (failed.state, failed.failures, failed.tries) == (Ended("failed", 1103.0, 1), 2, 2)


def test_the_story_of_a_job_can_still_be_told(queue: Store) -> None:
    """Attempts and events are there, and the environment it was submitted with."""
    assert [(row.number, row.code, row.log) for row in queue.attempts(5)] == [(1, 1, "/l/5.log"), (2, 1, "/l/5.log.1")]
    assert len(queue.events(5)) == 6
    assert queue.environment(one(queue, 1).terms.environment)["HOME"] == "/home/ada"


def test_what_was_open_is_open(queue: Store) -> None:
    """The indexes of this version find what an older one left."""
    assert [job.id for job in queue.open_jobs("4711-deadbeef", 0, 10)] == [2, 3, 4]
    assert [job.id for job in queue.active_jobs("4711-deadbeef")] == [3]


def test_ids_go_on(queue: Store) -> None:
    """No id is given twice, whichever version gave it."""
    job = one(queue, 2)
    assert queue.add_jobs(1, "queue", [NewJob(job.command, job.terms)], 2000.0) == range(6, 7)
