"""Direct mode: bundles on their way to Slurm and back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from features.slurm.worlds import DirectWorld
from stoker.core.job import OnHold, Queued, Waiting
from stoker.core.planner.reasons import InCluster, OutOfResources
from stoker.core.settings import ClusterSettings
from stoker.core.spec import Resources
from stoker.features.slurm.site import DISK_PAUSE


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DirectWorld]:
    world = DirectWorld(tmp_path)
    yield world
    world.close()


def test_jobs_that_are_alike_are_one_array(world: DirectWorld) -> None:
    """Others have a bundle of their own."""
    world.add(3)
    world.add(resources=Resources(gpus=2))
    world.until(lambda: world.handed_over == 4)
    first, second = world.slurm.options.values()
    assert {"--array=0-2", "--gres=gpu:1"} <= set(first)
    assert "--gres=gpu:2" in second


def test_a_bundle_is_no_larger_than_an_array_may_be(world: DirectWorld) -> None:
    """The rest follows in another one."""
    world.add(12)
    world.until(lambda: world.handed_over == 12)
    assert [word for words in world.slurm.options.values() for word in words if word.startswith("--array")] == [
        "--array=0-9",
        "--array=0-1",
    ]


def test_what_slurm_refuses_is_held(world: DirectWorld) -> None:
    """With Slurm's words."""
    world.slurm.error = "Invalid account"
    (job,) = world.add()
    world.until(lambda: world.word(job) == "held")
    state = world.job(job).state
    assert isinstance(state, OnHold)
    assert state.note.startswith("held: Slurm refused it: Invalid account; ")


def test_slurm_is_away(world: DirectWorld) -> None:
    """The user hears of it, and it goes on once Slurm is back."""
    (job,) = world.add()
    world.until(lambda: world.handed_over == 1)
    world.slurm.is_away = True
    world.until(lambda: bool(world.site.status().trouble))
    assert "Slurm does not answer: Unable to contact slurm controller" in world.site.status().trouble
    world.slurm.is_away = False
    world.until(lambda: not world.site.status().trouble)
    world.finish(job)


@pytest.mark.parametrize("arrived", [True, False])
def test_a_submit_that_may_have_arrived(world: DirectWorld, arrived: bool) -> None:
    """Slurm is asked for its tag before it is submitted again."""
    world.step(3)
    (job,) = world.add()
    world.slurm.loses_answers, world.slurm.loses_submits = True, not arrived
    world.until(lambda: world.slurm.submits == 1)
    world.slurm.loses_answers = world.slurm.loses_submits = False
    world.step(3)
    world.finish(job)
    assert world.slurm.submits == (1 if arrived else 2)


def test_draining_takes_back_what_has_not_begun(world: DirectWorld) -> None:
    """Its task leaves Slurm, and a node that comes late finds the claim taken."""
    (job,) = world.add()
    world.until(lambda: world.handed_over == 1)
    world.engine.drain()
    world.step(3)
    assert isinstance(world.job(job).state, Queued)
    assert world.slurm.cancelled == ["1"]


def test_an_engine_that_died_before_it_made_the_directory(world: DirectWorld) -> None:
    """The directory is made before anything is recorded, so the next engine knows that nothing was submitted."""
    world.step(3)
    (job,) = world.add()
    world.assign()
    assert (world.kinds(job), world.handed_over) == (["Assigned"], 0)
    world.restart()
    world.finish(job)
    assert world.kinds(job) == ["Assigned", "Returned", "Assigned", "Started", "Exited"]


def test_a_shared_directory_that_cannot_be_written(world: DirectWorld) -> None:
    """The job waits and says why, and goes on when that works."""
    shared = Path(world.settings.shared)
    shared.touch()
    (job,) = world.add()
    world.step(4)
    assert world.site.status().trouble == f"cannot write to the shared directory {world.files.state}: Not a directory"
    assert isinstance(world.site.reason(world.job(job)), OutOfResources)
    assert isinstance(world.job(job).state, Waiting)
    shared.unlink()
    world.clock.pass_seconds(DISK_PAUSE)
    world.finish(job)
    assert world.site.status().trouble == ""


def test_a_shared_directory_that_is_out_of_sight(world: DirectWorld) -> None:
    """Nothing that is missing from it is lost."""
    (job,) = world.add()
    world.start(job)
    away = world.files.state.rename(world.directory / "away")
    world.step(30)
    assert "cannot be reached; jobs on the cluster go on" in world.site.status().trouble
    assert world.word(job) == "running"
    shutil.move(away, world.files.state)
    world.end(job)
    world.until(lambda: world.word(job) == "done")


def test_why_a_job_has_not_started(world: DirectWorld) -> None:
    """In words for Slurm's reason, with the start that Slurm expects."""
    (job,) = world.add()
    world.until(lambda: world.handed_over == 1)
    [task] = world.slurm.tasks.values()
    task.start = "2000000"
    world.step(4)
    [situation] = world.site.status().handed_over.values()
    assert isinstance(situation, InCluster)
    assert (situation.words, situation.expected) == ("jobs with a higher priority in Slurm go first", 2000000.0)
    assert world.site.forecast().starts == {job: 2000000.0}


def test_so_many_jobs_wait_in_slurm(tmp_path: Path) -> None:
    """The others wait here."""
    world = DirectWorld(tmp_path, ClusterSettings(pilots="never", poll=1.0, queued_max=2))
    *_, last = world.add(3)
    world.step(5)
    assert world.handed_over == 2
    assert world.site.reason(world.job(last)) == InCluster(None, "2 jobs wait in Slurm already")
    world.close()
