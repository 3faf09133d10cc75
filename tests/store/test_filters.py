"""Jobs by name, tag, group and state, from a real store."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stoker.core.spec import Command, JobSpec, NewJob
from stoker.store.filters import NO_FILTER, Filter, counts_by_group, counts_of_open, ids_matching, queued_groups
from stoker.store.writer import Store


def a_new(name: str = "", group: str = "", **tags: str) -> NewJob:
    return NewJob(Command(("true",)), JobSpec(cwd="/", environment="", group=group, tags=tuple(tags.items())), name)


def add(store: Store, *jobs: NewJob, array: bool = False, held: str = "") -> list[int]:
    with store.writing():
        batch = store.add_batch("test", 1.0)
        return list(store.add_jobs(batch, "queue", jobs, 1.0, array=array, held=held))


@pytest.fixture
def jobs(store: Store) -> list[int]:
    """Three jobs that wait, and one that is held."""
    names = (a_new("vit-a", lr="1"), a_new("vit-b", "big", lr="10", note="a b"), a_new("bert[1]", "small"))
    return [*add(store, *names), *add(store, a_new("held", "big", lr="1"), held="held by you")]


@pytest.mark.parametrize(
    ("chosen", "places"),
    [
        (Filter(names=("vit-*",)), [0, 1]),
        (Filter(names=("vit-[!a]", "held")), [1, 3]),
        (Filter(names=("bert[[]1]",)), [2]),
        (Filter(tags=(("lr", "1"),)), [0, 3]),
        (Filter(tags=(("lr", "1*"),)), [0, 1, 3]),
        (Filter(tags=(("lr", "*"), ("note", "a b"))), [1]),
        (Filter(tags=(("lr", "'; DROP TABLE jobs; --"),)), []),
        (Filter(groups=("big",)), [1, 3]),
        (Filter(groups=("",)), [0]),
        (Filter(states=("queued",)), [0, 1, 2]),
        (Filter(states=("held", "running")), [3]),
        (Filter(names=("vit-*",), groups=("big",), tags=(("lr", "10"),)), [1]),
        (NO_FILTER, [0, 1, 2, 3]),
    ],
)
def test_every_part_of_a_filter_must_match(store: Store, jobs: list[int], chosen: Filter, places: list[int]) -> None:
    """Patterns are those of the shell; of several names, groups or states one must match, of several tags all."""
    assert ids_matching(store, chosen, "open") == [jobs[place] for place in places]
    assert ids_matching(store, chosen, "ended") == []


def test_a_filter_keeps_the_order_of_the_jobs_that_are_given(store: Store, jobs: list[int]) -> None:
    """And leaves out all others."""
    assert ids_matching(store, Filter(groups=("big",)), "any", [jobs[3], jobs[0], jobs[1]]) == [jobs[3], jobs[1]]


def test_tasks_of_an_array_that_wait_are_one_group(store: Store, jobs: list[int]) -> None:
    """Unless each is wanted; the limit counts groups."""
    new = [replace(a_new("sweep", lr="1"), task=task) for task in (0, 1, 2, 5, 9)]
    tasks = add(store, *new, array=True)
    chosen = Filter(tags=(("lr", "1"),))
    groups = queued_groups(store, chosen, None, each_task=False)
    assert [(one.size, one.first) for one in groups] == [(1, jobs[0]), (1, jobs[3]), (5, tasks[0])]
    assert groups[-1].indices == [0, 1, 2, 5, 9]
    assert len(queued_groups(store, chosen, 2, each_task=False)) == 2
    assert len(queued_groups(store, chosen, None, each_task=True)) == 7
    assert counts_of_open(store, chosen) == {"waiting": 6, "held": 1}


def test_groups_are_counted(store: Store, jobs: list[int]) -> None:
    """Jobs without a group have a line, too; a filter restricts the counts."""
    del jobs
    assert [tuple(one) for one in counts_by_group(store)] == [("", 0, 1, 0), ("big", 0, 1, 1), ("small", 0, 1, 0)]
    assert [tuple(one) for one in counts_by_group(store, Filter(names=("held",)))] == [("big", 0, 0, 1)]
