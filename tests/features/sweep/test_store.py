"""Sweeps in the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from stoker.app.jobs.select import find, resolve_after
from stoker.core.errors import StokerError
from stoker.core.job import Ended, Exited
from stoker.core.spec import Command, Dependency, JobSpec, Member, NewJob, work_of
from stoker.features.sweep.model.grammar import parse_space
from stoker.features.sweep.model.record import SweepSpec, trial_jobs
from stoker.features.sweep.store import (
    StoredSweep,
    add_sweep,
    add_trial,
    all_sweeps,
    all_trials,
    change_sweep,
    find_sweep,
    jobs_of_sweep,
    set_trial_result,
    stop_sweep,
    sweep_of_content,
    trial_results,
)
from stoker.store.prune import UNUSED, prune_member_records, prune_unused
from stoker.store.schema import Change
from stoker.store.writer import Store

SPEC = JobSpec(cwd="/work")
GRID = SweepSpec(space=parse_space(["lr=0.1,0.2", "opt='a b',c"]), command=Command(("train", "{lr}", "caf\udce9")))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "queue.db")) as opened:
        yield opened


def add_grid(store: Store) -> StoredSweep:
    """The trials of a grid as an array, with their record."""
    with store.writing():
        batch = store.add_batch("sweep", 1.0)
        ids = store.add_jobs(batch, "queue", list(trial_jobs(GRID, SPEC)), 1.0, array=True)
        stored = StoredSweep(ids[0], batch, 1.0, None, SPEC, GRID)
        add_sweep(store, stored)
    return stored


def add_adaptive(store: Store) -> StoredSweep:
    """A sweep whose tuner adds the trials."""
    with store.writing():
        batch = store.add_batch("sweep", 2.0)
        (tuner,) = store.add_jobs(batch, "queue", [NewJob(Command(("tune",)), SPEC)], 2.0)
        stored = StoredSweep(tuner, batch, 2.0, tuner, SPEC, GRID)
        add_sweep(store, stored)
    return stored


def test_a_record_is_as_it_was(store: Store) -> None:
    """Also where the command is not UTF-8."""
    grid, adaptive = add_grid(store), add_adaptive(store)
    assert find_sweep(store, grid.id) == grid
    assert all_sweeps(store) == [adaptive, grid]
    assert find_sweep(store, 99) is None


def test_trials_carry_their_parameters(store: Store) -> None:
    """With their types, and the sweep that their array is."""
    grid = add_grid(store)
    rows = all_trials(store, grid.batch)
    assert [(row.number, row.job, row.state) for row in rows] == [(n, 1 + n, "waiting") for n in range(4)]
    assert rows[2].params == {"lr": 0.2, "opt": "a b"}
    job = store.job(3)
    assert job is not None
    assert (job.task, job.array, job.member) == (2, 1, Member(2, '{"lr":0.2,"opt":"a b"}', 1, "sweep"))


def test_a_trial_is_added_once(store: Store) -> None:
    """However often it is asked for: the pair of sweep and number is unique."""
    stored = add_adaptive(store)
    first = add_trial(store, stored, 0, {"lr": 0.1, "opt": "c"}, 3.0)
    assert add_trial(store, stored, 0, {"lr": 0.1, "opt": "c"}, 4.0) == first
    second = add_trial(store, stored, 1, {"lr": 0.2, "opt": "c"}, 4.0)
    assert [row.job for row in all_trials(store, stored.batch)] == [first, second]
    with pytest.raises(StokerError, match="UNIQUE"), store.writing() as connection:
        connection.execute("UPDATE jobs SET member = 0 WHERE id = ?", (second,))


def test_an_id_of_a_sweep_means_all_its_jobs(store: Store) -> None:
    """Trials and tuner, for `cancel`, `wait` and the like."""
    grid, adaptive = add_grid(store), add_adaptive(store)
    trial = add_trial(store, adaptive, 0, {"lr": 0.1, "opt": "c"}, 3.0)
    assert find(store, [str(grid.id)]) == [1, 2, 3, 4]
    assert find(store, [str(adaptive.id)]) == [adaptive.id, trial] == jobs_of_sweep(store, adaptive.id)
    assert find(store, ["1.2"]) == [3]
    assert resolve_after(store, f"{grid.id},{adaptive.id}") == (
        Dependency(grid.id, array=True),
        Dependency(adaptive.id),  # it ends after its trials, and a failed trial is no failure of the sweep
    )


def test_changes_and_results(store: Store) -> None:
    """A sweep can be extended and stopped; results are replaced."""
    grid = add_grid(store)
    larger = SweepSpec(space=GRID.space, command=GRID.command, count=2)
    change_sweep(store, grid.batch, larger)
    stop_sweep(store, grid.batch, 9.0)
    found = find_sweep(store, grid.id)
    assert found is not None
    assert (found.sweep, found.stopped) == (larger, 9.0)
    set_trial_result(store, grid.batch, 1, {"loss": 2.0})
    set_trial_result(store, grid.batch, 1, {"loss": 1.0})
    assert trial_results(store, grid.batch) == {1: {"loss": 1.0}}


def test_work_that_was_done_is_found(store: Store) -> None:
    """By its content, while it waits and after it succeeded; not after it failed."""
    grid = add_grid(store)
    jobs = list(trial_jobs(GRID, SPEC))
    contents = [work_of(job).content for job in jobs]
    assert [sweep_of_content(store, each) for each in contents] == [grid.id] * 4
    job = store.job(1)
    assert job is not None
    failed = Change(replace(job, state=Ended("failed", 5.0, 1)), [(1, Exited(1, 1, 0, 5.0))])
    store.record([failed])
    assert sweep_of_content(store, contents[0]) is None


def remove_unused(store: Store) -> None:
    """Remove what no job refers to, as the end of a round of pruning does."""
    for table in UNUSED:
        prune_unused(store, table, 0, 100, before=100.0, allowed=lambda: True)
    prune_member_records(store, 0, 100)


def test_sweeps_live_as_long_as_their_jobs(store: Store) -> None:
    """Then their records, results and specs are pruned; the spec of trials to come is kept."""
    stored = add_adaptive(store)
    set_trial_result(store, stored.batch, 0, {})
    with store.writing() as connection:
        connection.execute("UPDATE jobs SET spec = (SELECT max(id) FROM specs) + 1")  # of another job
    remove_unused(store)
    assert store.rows("SELECT count(*) FROM specs") == [(1,)]
    assert find_sweep(store, stored.id) is not None
    with store.writing() as connection:
        connection.execute("DELETE FROM jobs")
    remove_unused(store)
    assert [store.rows(f"SELECT count(*) FROM {table}") for table in ("batches", "member_records", "specs")] == [
        [(0,)]
    ] * 3
