"""Where an engine keeps its jobs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from stoker.core.job import Assigned, Ended, Exited, Job, Running, Started, Waiting
from stoker.core.requests import Again
from stoker.core.spec import Command, JobSpec, NewJob
from stoker.engine.job_table import Jobs, JobTable
from stoker.features.sweep.model.grammar import parse_space
from stoker.features.sweep.model.record import SweepSpec
from stoker.features.sweep.store import StoredSweep, add_sweep, add_trial
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
def test_a_tuner_that_just_ends_runs_again_for_a_retried_trial(
    tmp_path: Path, is_open: bool, result: type[object]
) -> None:
    """It may have decided to end right before the retry; also a retry that no engine has handled counts."""
    sweep = SweepSpec(space=parse_space(["x=1,2"]), command=Command(("train",)))
    with closing(Store(tmp_path / "queue.db")) as store:
        spec = JobSpec(cwd="/", always_requeue=True)
        (tuner,) = store.add_jobs(store.add_batch("sweep", 1.0), "queue", [NewJob(Command(("a",)), spec)], 1.0)
        stored = StoredSweep(tuner, 1, 1.0, tuner, None, JobSpec(cwd="/"), sweep)
        add_sweep(store, stored)
        jobs = Jobs(store, lambda: 5.0)
        trial = store.job(add_trial(store, stored, 0, {"x": 1}, 1.0))
        job = store.job(tuner)
        assert trial is not None
        assert job is not None
        _run_to_end(jobs, trial)
        if is_open:
            store.ask([("queue", Again(trial.id))], 4.0)
        _run_to_end(jobs, job)
        jobs.record()
        after = store.job(tuner)
        assert after is not None
        assert isinstance(after.state, result)


def _run_to_end(jobs: Jobs, job: Job) -> None:
    for event in (Assigned("k1", (), "", 2.0), Started(1, 2.0), Exited(1, 0, 0, 3.0)):
        job = jobs.apply(job, event)
    jobs.record()
