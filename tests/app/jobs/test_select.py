"""Ids as people type them, found in a queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stoker.app.jobs.select import find, find_last
from stoker.core.errors import NoSuchJob, UsageError
from stoker.core.job import Cancelled, advance
from stoker.core.spec import Command, JobSpec, NewJob
from stoker.store.paths import Paths
from stoker.store.schema import Change
from stoker.store.writer import Store, open_store

TRUE = Command(("true",))


def job(name: str = "", task: int | None = None, **spec: object) -> NewJob:
    return NewJob(TRUE, JobSpec(**spec), name, task)  # type: ignore[arg-type]


def end(store: Store, *ids: int) -> None:
    """Let jobs be over."""
    for job_id in ids:
        before = store.job(job_id)
        assert before
        event = Cancelled(2.0)
        store.record([Change(advance(before, event), [(0, event)])])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Jobs 1 to 3, the array 4 with the tasks 0, 10, 20 as rows 4 to 6, and job 7."""
    with closing(open_store(Paths(tmp_path))) as opened:
        batch = opened.add_batch("test", 1.0)
        opened.add_jobs(batch, "queue", [job("vit-a"), job("vit-b"), job("vit-a")], 1.0)
        opened.add_jobs(batch, "queue", [job("sweep", task) for task in (0, 10, 20)], 1.0, array=True)
        opened.add_jobs(batch, "queue", [job("a[b]*")], 1.0)
        yield opened


@pytest.mark.parametrize(
    ("typed", "ids"),
    [
        ("2", [2]),
        ("3,1-2,1", [3, 1, 2]),
        ("4", [4, 5, 6]),
        ("5", [5]),
        ("3-4", [3, 4, 5, 6]),
        ("4.10", [5]),
        ("4.10-99", [5, 6]),
        ("4.*", [4, 5, 6]),
        ("4.[0,20]", [4, 6]),
        ("4.[0-20:20]", [4, 6]),
        ("sweep.10", [5]),
        ("sweep.[10-20]", [5, 6]),
        ("sweep.0-10", [4, 5]),
        ("sweep.*", [4, 5, 6]),
        ("last", [7]),
        ("all", [1, 2, 3, 4, 5, 6, 7]),
        ("vit-a", [1, 3]),
        ("vit-*", [1, 2, 3]),
        ("vit-[!a]", [2]),
        ("sweep", [4, 5, 6]),
        ("a[b]*", [7]),
        ("1000-2000,7-9", None),
    ],
)
def test_what_is_typed(store: Store, typed: str, ids: list[int] | None) -> None:
    """Numbers, ranges, arrays, tasks and names are found in the order in which they are typed, each once."""
    if ids is None:
        with pytest.raises(NoSuchJob, match="there is no job 1000-2000"):
            find(store, [typed])
    else:
        assert find(store, [typed]) == ids


@pytest.mark.parametrize(
    ("typed", "message", "hint"),
    [
        ("99", "there is no job 99", "the newest is 7"),
        ("4.5", "array 4 has no task 4.5", "its tasks are 0 to 20"),
        ("3.1", "job 3 is not an array", "write it as 3"),
        ("99.1", "there is no job 99", "the newest is 7"),
        ("vit-c", "no job is named 'vit-c'", "did you mean vit-"),
        ("sweep.5", "array 4 has no task 4.5", "its tasks are 0 to 20"),
        ("vit-a.0", "no job is named 'vit-a.0'", "did you mean vit-a"),
        ("zzz", "no job is named 'zzz'", "stoker status"),
        ("zzz*", "no job has a name like 'zzz*'", "stoker status"),
        ("z\x1b*", "no job has a name like 'z\\x1b*'", "stoker status"),
    ],
)
def test_what_is_not_there(store: Store, typed: str, message: str, hint: str) -> None:
    """What does not exist is said, with what there is instead."""
    with pytest.raises(NoSuchJob) as caught:
        find(store, [typed])
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_names_mean_what_is_not_over(store: Store) -> None:
    """A name stands for the open jobs of that name, and for the newest only when all of them are over."""
    end(store, 3)
    assert find(store, ["vit-a"]) == [1]
    assert find(store, ["all"]) == [1, 2, 4, 5, 6, 7]
    end(store, 1)
    assert find(store, ["vit-a"]) == [3]
    assert find(store, ["vit-*"]) == [2]


def test_jobs_that_are_over(store: Store) -> None:
    """For a verb about ended jobs a name is the newest of that name, a pattern and `all` what is over."""
    end(store, 1, 3, 5)
    assert find(store, ["vit-a"], "ended") == [3]
    assert find(store, ["vit-*"], "ended") == [1, 3]
    assert find(store, ["all"], "ended") == [1, 3, 5]
    assert find(store, ["sweep"], "ended") == [4, 5, 6]


def test_hooks_are_nobodys_last_job(store: Store) -> None:
    """A hook is found by its number only."""
    (hook,) = store.add_jobs(1, "queue", [job("vit-a", role="hook")], 1.0)
    assert find_last(store) == [7]
    assert hook not in find(store, ["all", "vit-a"])
    assert find(store, [str(hook)]) == [hook]


def test_the_last_array(store: Store) -> None:
    """Last is the whole array where it is one."""
    store.add_jobs(1, "queue", [job(task=0), job(task=1)], 1.0, array=True)
    assert find(store, ["last"]) == [8, 9]
    assert find(store, ["last.1"]) == [9]


def test_an_empty_queue(tmp_path: Path) -> None:
    """Where nothing is, everything says so; only `all` is nothing without a word."""
    with closing(open_store(Paths(tmp_path))) as empty:
        assert find(empty, ["all"]) == []
        for typed in ("last", "1"):
            with pytest.raises(NoSuchJob, match="the queue is empty"):
                find(empty, [typed])


def test_nonsense(store: Store) -> None:
    """What cannot be an id is refused before anything is looked for."""
    with pytest.raises(UsageError):
        find(store, ["3-"])
