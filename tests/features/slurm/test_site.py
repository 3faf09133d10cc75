"""The Slurm site as a whole: what it shows, and what it does with what Slurm has left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from features.slurm.fake_slurm import Task
from features.slurm.worlds import DirectWorld
from stoker.core.planner.reasons import InCluster
from stoker.core.settings import ClusterSettings, Policy
from stoker.features.slurm.site import SUSPENDED, slurm_config


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DirectWorld]:
    world = DirectWorld(tmp_path)
    yield world
    world.close()


def test_what_is_where(world: DirectWorld) -> None:
    """In one line, with the time of Slurm's last answer."""
    assert world.site.status().summary == ""
    runs, _ = world.add(2)
    world.start(runs)
    world.step(4)
    assert world.site.status().summary.startswith("lab: 1 running, 1 waiting in Slurm, which answered ")


def test_a_job_that_slurm_suspended(world: DirectWorld) -> None:
    """It does not go on, and says so."""
    (job,) = world.add()
    world.start(job)
    [task] = world.slurm.tasks.values()
    task.state = "SUSPENDED"
    world.step(4)
    assert world.site.status().survivors == {job: SUSPENDED}


def test_tasks_whose_attempts_are_over_are_cancelled(world: DirectWorld) -> None:
    """Those of a dead engine of this queue, too, but not those of other queues."""
    (job,) = world.add()
    world.start(job)
    [tag] = {tag for tag, _ in world.slurm.tasks}
    queue = tag.rpartition("/")[0]
    world.slurm.tasks[f"{queue}/engine0-1", 0] = Task("77", "RUNNING")
    world.slurm.tasks["stoker:other/engine0-1", 0] = Task("88", "RUNNING")
    world.until(lambda: "77" in world.slurm.cancelled)
    assert set(world.slurm.cancelled) == {"77"}


def test_a_submit_limit(world: DirectWorld) -> None:
    """What fits is handed over, and the rest says why it waits."""
    world.slurm.most = 2
    *_, last = world.add(5)
    world.step(30)
    assert world.handed_over == 2
    reason = world.site.reason(world.job(last))
    assert isinstance(reason, InCluster)
    assert reason.words.startswith("your submit limit in Slurm is reached (QOSMaxSubmitJobPerUserLimit)")


def test_a_limit_of_a_group(world: DirectWorld) -> None:
    """It counts what was handed over."""
    world.engine.policy = Policy(limits={"group a": 1})
    world.add(3, group="a")
    world.step(5)
    assert world.handed_over == 1


def test_variables_of_an_allocation_are_not_for_sbatch() -> None:
    """The engine may run inside of one; slurm.conf is of use."""
    environment = {"SLURM_CONF": "/c", "SLURM_JOB_ID": "1", "SBATCH_QOS": "x", "HOME": "/h", "STOKER_STATE": "/s"}
    config = slurm_config("lab", ClusterSettings(), "tester", environment)
    assert config.environment.keys() == {"SLURM_CONF", "HOME", "PATH"}
