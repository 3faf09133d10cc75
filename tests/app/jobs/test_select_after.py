"""What stands behind --after, found in a queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stoker.app.jobs.select import MOST, resolve_after
from stoker.core.errors import NoSuchJob, UsageError
from stoker.core.spec import Command, Dependency, JobSpec, NewJob
from stoker.store.paths import Paths
from stoker.store.writer import Store, open_store


def job(name: str = "", task: int | None = None) -> NewJob:
    return NewJob(Command(("true",)), JobSpec(), name, task)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Jobs 1 and 2, the array 3 with the tasks 0 to 2 as rows 3 to 5, and job 6."""
    with closing(open_store(Paths(tmp_path))) as opened:
        opened.add_jobs(1, "queue", [job("a"), job("b")], 1.0)
        opened.add_jobs(1, "queue", [job("sweep", task) for task in range(3)], 1.0, array=True)
        opened.add_jobs(1, "queue", [job("c")], 1.0)
        yield opened


ARRAY = Dependency(3, array=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", (Dependency(1),)),
        ("any:1,notok:2", (Dependency(1, "any"), Dependency(2, "notok"))),
        ("afterok:1:2", (Dependency(1), Dependency(2))),
        ("1-2", (Dependency(1), Dependency(2))),
        ("3", (ARRAY,)),
        ("sweep", (ARRAY,)),
        ("3.*", (ARRAY,)),
        ("3.1", (Dependency(4),)),
        ("4", (Dependency(4),)),
        ("2-6", (ARRAY, Dependency(2), Dependency(6))),
        ("last,c,6", (Dependency(6),)),
        ("any:3", (Dependency(3, "any", array=True),)),
    ],
)
def test_what_is_meant(store: Store, text: str, expected: tuple[Dependency, ...]) -> None:
    """An array is one target where all its tasks are meant; what is named twice counts once."""
    assert resolve_after(store, text) == expected


@pytest.mark.parametrize("text", ["7", "1-9", "3.7", "6.1", "d", "d*"])
def test_what_is_not_there(store: Store, text: str) -> None:
    """No job can wait for what does not exist, not even for a part of it."""
    with pytest.raises(NoSuchJob):
        resolve_after(store, text)


@pytest.mark.parametrize(("own", "text"), [(2, "2"), (2, "6"), (2, "3"), (4, "3"), (3, "3"), (1, "last")])
def test_a_job_waits_only_for_older_ones(store: Store, own: int, text: str) -> None:
    """So no circle can come about, whatever is edited; a task does not wait for its own array either."""
    with pytest.raises(UsageError):
        resolve_after(store, text, store.job(own))


def test_older_ones_are_fine(store: Store) -> None:
    """Also an array, and an older task of one's own."""
    assert resolve_after(store, "1,3", store.job(6)) == (Dependency(1), ARRAY)
    assert resolve_after(store, "3.0", store.job(5)) == (Dependency(3),)


def test_there_is_a_limit(store: Store) -> None:
    """Many thousand single targets are better an array."""
    store.add_jobs(1, "queue", [job()] * (MOST + 1), 1.0)
    with pytest.raises(UsageError):
        resolve_after(store, f"7-{MOST + 7}")
