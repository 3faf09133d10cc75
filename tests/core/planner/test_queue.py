"""Waiting jobs keep their order and their cost through all additions and removals."""

from __future__ import annotations

import tracemalloc

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.job import Job
from stoker.core.planner.queue import SLACK, Cap, WaitingJobs, caps_of, job_kind_of
from stoker.core.spec import JobSpec
from support.build import a_job, a_need, a_queue

WIDE = a_need(4)


def ids_by_job_kind(waiting: WaitingJobs) -> dict[tuple[int, int], list[int]]:
    """(GPUs, priority) -> ids in the order of the plan."""
    return {
        (group.job_kind.resources.gpus, group.job_kind.priority): [job.id for job in group]
        for group in waiting.groups()
    }


def test_resources_and_priority_make_a_group() -> None:
    """Resources and priority make a group."""
    waiting = a_queue(a_job(1), a_job(2, WIDE), a_job(3), a_job(4, priority=5))
    assert ids_by_job_kind(waiting) == {(1, 0): [1, 3], (4, 0): [2], (1, 5): [4]}


def test_jobs_of_an_executor_share_a_limit() -> None:
    """Single jobs and tasks of its arrays count together; another array has its own limit."""
    pooled = JobSpec(a_need(1), at_once=2, pool="7-ab")
    single, task = a_job(1, spec=pooled), msgspec.structs.replace(a_job(2, spec=pooled), array=2, task=0)
    assert caps_of(single) == caps_of(task) == (Cap("executor 7-ab", 2),)
    alone = msgspec.structs.replace(task, spec=JobSpec(a_need(1), at_once=2))
    assert caps_of(alone) == (Cap("array 2", 2),)


def test_a_job_that_comes_back_takes_its_old_place() -> None:
    """Age is the id, so a retried job comes before those submitted after it."""
    waiting = a_queue(*(a_job(number) for number in range(1, 6)))
    for number in (1, 2, 3):
        waiting.remove(number)
    waiting.add(a_job(2))
    waiting.add(a_job(1))
    waiting.add(a_job(3))
    assert ids_by_job_kind(waiting) == {(1, 0): [1, 2, 3, 4, 5]}


def test_a_removed_job_is_given_back() -> None:
    """remove() returns the job, or None when it is not here."""
    waiting = a_queue(a_job(1))
    assert waiting.remove(1) == a_job(1)
    assert waiting.remove(1) is None
    assert 1 not in waiting


def test_an_empty_group_is_gone() -> None:
    """A group without jobs is removed."""
    waiting = a_queue(a_job(1), a_job(2, WIDE))
    waiting.remove(2)
    assert len(waiting) == 1
    assert ids_by_job_kind(waiting) == {(1, 0): [1]}


def test_an_edited_job_changes_its_group() -> None:
    """Adding a job again with other resources moves it to another group, also back."""
    waiting = a_queue(a_job(1), a_job(2), a_job(3))
    waiting.add(a_job(2, priority=1))
    assert ids_by_job_kind(waiting) == {(1, 0): [1, 3], (1, 1): [2]}
    waiting.add(a_job(2))
    assert ids_by_job_kind(waiting) == {(1, 0): [1, 2, 3]}


def test_the_place_of_a_job_is_how_many_come_before_it() -> None:
    """Removed jobs do not count."""
    jobs = [a_job(number) for number in range(1, 7)]
    waiting = a_queue(*jobs)
    assert waiting.place(jobs[4]) == 4
    waiting.remove(1)
    waiting.remove(3)
    assert waiting.place(jobs[4]) == 2


def test_many_removals_are_compacted() -> None:
    """A group is compacted after many removals."""
    count = 50 * SLACK
    waiting = a_queue(*(a_job(number) for number in range(count)))
    for number in range(1, count - 1):
        waiting.remove(number)
    (group,) = waiting.groups()
    assert len(group._ids) <= 4 + SLACK
    assert [job.id for job in group] == [0, count - 1]


def test_a_hundred_thousand_jobs_cost_less_than_200_bytes_each() -> None:
    """The queue needs little memory besides the jobs."""
    spec = JobSpec()
    jobs = [a_job(number, spec=spec) for number in range(20_000)]
    tracemalloc.start()
    try:
        waiting = a_queue(*jobs)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used / len(waiting) < 200


Steps = list[tuple[bool, int, int]]


@settings(max_examples=80, derandomize=True)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.integers(0, 1)), max_size=60))
def test_any_coming_and_going_equals_a_sorted_table(steps: Steps) -> None:
    """After any additions, removals and moves the groups equal a sorted table."""
    waiting = WaitingJobs()
    table: dict[int, Job] = {}
    for comes, job_id, priority in steps:
        if comes:
            table[job_id] = a_job(job_id, priority=priority)
            waiting.add(table[job_id])
        else:
            assert waiting.remove(job_id) == table.pop(job_id, None)
        expected = {
            job_kind: sorted(job.id for job in table.values() if job_kind_of(job) == job_kind)
            for job_kind in {job_kind_of(job) for job in table.values()}
        }
        assert {group.job_kind: [job.id for job in group] for group in waiting.groups()} == expected
        assert {group.job_kind: len(group) for group in waiting.groups()} == {
            job_kind: len(ids) for job_kind, ids in expected.items()
        }
