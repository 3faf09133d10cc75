"""Where an engine keeps its jobs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from stoker.core.job import Assigned, Ended, Exited, Job, Running, Started, Waiting
from stoker.core.requests import Again
from stoker.core.spec import Command, JobSpec, Member, NewJob
from stoker.engine.job_table import Jobs, JobTable
from stoker.store.queries import jobs_of
from stoker.store.schema import BatchRecord
from stoker.store.writer import Store
from support.build import a_job

RUNNING = Running(1, "k1", ("0",), 2.0)


def test_a_job_is_where_its_state_says() -> None:
    """What waits is among the waiting, what runs is held, and what is over is forgotten."""
    table = JobTable()
    table.place(a_job(1))
    assert (len(table.waiting), table.any_of_ours) == (1, False)
    table.place(a_job(1, state=RUNNING))
    assert [job.id for job in table.ours] == [1]
    table.place(a_job(1, state=Ended("done", 3.0)))
    assert table.active(1) is None


def test_a_guest_is_not_ours() -> None:
    """A guest is held but not ours, and where it would wait it is forgotten: its owner's heir may take it up."""
    table = JobTable()
    table.place(a_job(1, state=RUNNING))
    table.adopt(a_job(1, state=RUNNING))
    assert (table.ours, table.any_of_ours) == ([], False)
    table.place(a_job(1, state=Waiting(3.0)))
    assert (len(table.waiting), table.active(1)) == (0, None)


def test_a_guest_can_become_ours() -> None:
    """A run that resumes makes guests its own, unless they are over."""
    table = JobTable()
    table.place(a_job(1, state=RUNNING))
    table.adopt(a_job(1, state=RUNNING))
    assert table.own(1, batch=7)
    assert [(job.id, job.batch) for job in table.ours] == [(1, 7)]
    assert not table.own(2, batch=7)


def test_the_next_is_the_most_important_and_then_the_oldest() -> None:
    """Priority goes before age."""
    table = JobTable()
    for job in (a_job(1), a_job(3, priority=5), a_job(2, priority=5)):
        table.place(job)
    assert table.next_waiting is not None
    assert table.next_waiting.id == 2


def test_an_attempt_that_is_over_is_not_found() -> None:
    """A journal may be read twice; what it says of an older attempt finds no job."""
    table = JobTable()
    table.place(a_job(1, state=RUNNING))
    assert table.attempt("1.1") is None


@pytest.mark.parametrize(("is_open", "result"), [(True, Waiting), (False, Ended)])
def test_a_coordinator_that_just_ends_runs_again_for_a_retried_member(
    tmp_path: Path, is_open: bool, result: type[object]
) -> None:
    """It may have decided to end right before the retry; also a retry that no engine has handled counts."""
    with closing(Store(tmp_path / "queue.db")) as store:
        batch, command = store.add_batch("test", 1.0), Command(("train",))
        new = [
            NewJob(command, JobSpec(cwd="/", always_requeue=True)),
            NewJob(command, JobSpec(cwd="/"), member=Member(0, "{}")),
        ]
        ids = store.add_jobs(batch, "queue", new, 1.0)
        store.set_batch_record(batch, BatchRecord("test", ids[0], "", ids[0], JobSpec(cwd="/"), b""))
        jobs = Jobs(store, lambda: 5.0)
        coordinator, member = jobs_of(store, ids)
        _run_to_end(jobs, member)
        if is_open:
            store.ask([("queue", Again(member.id))], 4.0)
        _run_to_end(jobs, coordinator)
        jobs.record()
        after = store.job(coordinator.id)
        assert after is not None
        assert isinstance(after.state, result)


def _run_to_end(jobs: Jobs, job: Job) -> None:
    for event in (Assigned("k1", (), "", 2.0), Started(1, 2.0), Exited(1, 0, 0, 3.0)):
        job = jobs.apply(job, event)
    jobs.record()
