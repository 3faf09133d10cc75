"""Bundling jobs for sbatch, within limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.core.job import Job, Waiting
from stoker.core.planner.queue import WaitingJobs
from stoker.core.planner.reasons import AtLimit, CapFull
from stoker.core.settings import ClusterSettings
from stoker.core.spec import Command, JobSpec, Resources
from stoker.features.slurm.bundles import (
    Caps,
    SlurmRoom,
    SubmitLimit,
    bundles,
    cap_names,
    importance,
    minutes_of,
    offer_in_order,
    sbatch_shape,
    sbatch_words,
)


def job(number: int, array: int = 0, **spec: object) -> Job:
    return Job(number, 1, Command(("true",)), JobSpec(**spec), Waiting(0.0), 0.0, array=array)  # type: ignore[arg-type]


def ids(found: object) -> list[list[int]]:
    return [[each.id for each in bundle.jobs] for bundle in found]  # type: ignore[attr-defined]


def handed_over(waiting: Sequence[Job], room: SlurmRoom, most: int) -> list[list[int]]:
    """Ids of the jobs that are handed over while there is room, by bundle."""
    taken: list[Job] = []

    def offer(one: Job) -> bool:
        taken.extend([one] if (took := room.take(one)) else [])
        return took

    groups = WaitingJobs()
    for one in waiting:
        groups.add(one)
    offer_in_order(groups.groups(), offer)
    return ids(bundles(taken, most))


def test_jobs_alike_make_one_bundle_and_no_bundle_is_too_large() -> None:
    """An array above MaxArraySize becomes several."""
    assert ids(bundles([job(number) for number in range(7)], 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert ids(bundles([job(1), job(2, resources=Resources(gpus=2)), job(3)], 10)) == [[1, 3], [2]]


def test_the_more_important_jobs_go_first_while_there_is_room() -> None:
    """Only so many wait in Slurm that priorities and edits still mean something."""
    waiting = [job(1), job(2), job(3, priority=5)]
    assert handed_over(waiting, SlurmRoom(2, 10, lambda _: 0), 10) == [[3, 1]]
    assert handed_over(waiting, SlurmRoom(0, 10, lambda _: 0), 10) == []


def test_a_limited_array_has_one_bundle_at_a_time() -> None:
    """Slurm keeps the limit within a bundle; beside one that is active only so many follow as may run."""
    tasks = [job(number, 1, at_once=3) for number in range(1, 9)]
    assert handed_over(tasks, SlurmRoom(100, 5, lambda _: 0), 5) == [[1, 2, 3, 4, 5]]
    assert "--array=0-4%3" in sbatch_words(sbatch_shape(tasks[0]), 5, ClusterSettings())
    assert handed_over(tasks[5:], SlurmRoom(100, 5, lambda _: 5), 5) == []
    assert handed_over(tasks[5:], SlurmRoom(100, 5, lambda _: 2), 5) == [[6]]
    others = [job(20), job(21)]
    assert handed_over([*tasks, *others], SlurmRoom(2, 5, lambda _: 5), 5) == [[20, 21]]  # they take no room


def test_limits_count_what_is_active_and_what_is_handed_over() -> None:
    """-j and groups in both modes; that of an array only where Slurm does not keep it."""
    active = [job(1, group="a"), job(2, 2, at_once=3)]
    caps = Caps({"group a": 2, "CPU jobs": 0}, 5, lambda: Counter(name for job in active for name in cap_names(job)))
    limited = job(4, 2, at_once=3)
    assert (caps.left(job(3)), caps.left(job(3, group="a")), caps.left(limited)) == (3, 1, 2)
    for _ in range(2):
        assert caps.full(limited) is None
        caps.take(limited)
    assert caps.full(limited) == CapFull("array 2", 3)
    assert caps.full(limited, arrays=False) is None
    caps.take(job(3, group="a"))
    assert (caps.full(job(5, group="a")), caps.full(job(5))) == (AtLimit(5), AtLimit(5))


def test_without_limits_the_active_jobs_are_not_counted() -> None:
    """There may be ten thousand of them."""
    caps = Caps({}, None, lambda: pytest.fail("counted"))
    caps.take(job(1))
    assert caps.left(job(2)) is None


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=30), st.sets(st.integers(0, 3)))
def test_jobs_are_offered_by_importance_and_none_after_a_refusal(
    specs: list[tuple[int, int]], refused: set[int]
) -> None:
    """The same as sorting all of them, and leaving out what is like a refused one."""
    waiting = [
        job(number, priority=priority, resources=Resources(gpus=gpus))
        for number, (priority, gpus) in enumerate(specs, 1)
    ]
    groups, offered = WaitingJobs(), list[Job]()
    for one in waiting:
        groups.add(one)

    def offer(one: Job) -> bool:
        offered.append(one)
        return one.spec.resources.gpus not in refused

    offer_in_order(groups.groups(), offer)
    expected, closed = [], set()
    for one in sorted(waiting, key=importance):
        kind = one.spec.priority, one.spec.resources.gpus
        if kind not in closed:
            expected.append(one)
        if one.spec.resources.gpus in refused:
            closed.add(kind)
    assert offered == expected


def test_the_words_for_sbatch() -> None:
    """GPUs are given per node; the limit of the job ends it before Slurm's."""
    spec = JobSpec(resources=Resources(gpus=4, model="a100"), nodes=2, limit=90.0, grace=30.0)
    made = sbatch_words(
        sbatch_shape(replace(job(1), spec=spec)),
        1,
        ClusterSettings(partition="gpu", account="ml", options=("--constraint=big",)),
    )
    assert made == [
        *("--partition=gpu", "--account=ml", "--gres=gpu:a100:2"),
        *("--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--time=3", "--constraint=big"),
    ]
    assert minutes_of(JobSpec()) is None


@pytest.mark.parametrize("limit", [1, 2, 7, 20, 29])
def test_a_submit_limit_is_found_and_used(limit: int) -> None:
    """Bundles are halved until one is taken; then all that Slurm takes is used, with a refusal now and then."""
    found, in_slurm, refusals = SubmitLimit(), 0, 0
    for second in range(600):
        most = found.most(float(second))
        tasks = (30 if most is None else min(most, 30)) - in_slurm
        if tasks <= 0:
            continue
        if in_slurm + tasks > limit:
            found.refused(tasks, in_slurm, "", float(second))
            refusals += 1
        else:
            in_slurm += tasks
            found.accepted(in_slurm, float(second))
    assert in_slurm == limit
    assert refusals < 25, "about one a minute, after the first few"


def test_a_submit_limit_that_was_raised() -> None:
    """After the pause the next trial finds it; its name is in the words."""
    found = SubmitLimit()
    found.refused(1, 4, "AssocMaxSubmitJobLimit", 100.0)
    assert "(AssocMaxSubmitJobLimit)" in found.words
    assert [found.most(100.0), found.most(104.0), found.most(105.0)] == [4, 4, 5]
    found.accepted(5, 105.0)
    found.accepted(7, 105.0)
    assert found.most(105.0) == 11
