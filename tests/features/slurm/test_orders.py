"""Orders for nodes, and the scripts that Slurm starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from features.slurm.worlds import DirectWorld
from stoker.core.settings import ClusterSettings
from stoker.features.slurm.node import GPUS
from stoker.features.slurm.orders import Orders, QueueDirectory, check_script, node_script, pilot_script
from stoker.features.slurm.shared import BundleFolder
from stoker.store.paths import Paths
from support.wait import PATIENCE_SECONDS


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DirectWorld]:
    world = DirectWorld(tmp_path)
    yield world
    world.close()


def order_of(world: DirectWorld, gpus: int) -> dict[str, object]:
    job = world.job(*world.add())
    resources = replace(job.spec.resources, gpus=gpus)
    orders = Orders(world.store, world.files, "tester")
    return orders.order(replace(job, spec=replace(job.spec, resources=resources)))


@pytest.mark.parametrize("gpus", [0, 1])
def test_the_node_fills_in_the_gpus(world: DirectWorld, gpus: int) -> None:
    """A job without GPUs must not see any."""
    order = order_of(world, gpus)
    extra = order["extra"]
    assert isinstance(extra, dict)
    assert (order["gpus"], extra["STOKER_GPU_IDS"]) == (gpus, GPUS)
    assert ("CUDA_VISIBLE_DEVICES" in extra) == (not gpus)
    assert extra["STOKER_REPORT"].startswith(str(world.files.state))


def test_variables_of_slurm_stay_slurms(world: DirectWorld) -> None:
    """srun needs them inside of the job."""
    extra = order_of(world, 1)["extra"]
    assert isinstance(extra, dict)
    assert not [name for name in extra if name.startswith("SLURM_")]


FOLDER = BundleFolder("/shared/a'; echo foo/b-1")


@pytest.mark.parametrize(
    "script",
    [
        node_script(ClusterSettings(), FOLDER),
        node_script(ClusterSettings(python="/opt/py thon"), FOLDER),
        pilot_script(ClusterSettings(), FOLDER),
        check_script(ClusterSettings(), ["/shared/a'; echo foo", "/b", "G 1.1"]),
    ],
)
def test_scripts_are_shell(script: str) -> None:
    """Also with names that a shell would read as words of its own."""
    subprocess.run(["sh", "-n"], input=script, text=True, check=True, timeout=PATIENCE_SECONDS)
    assert script.startswith("#!/bin/sh\n")


def test_a_python_that_a_node_lacks(tmp_path: Path) -> None:
    """The script says so in the folder, where the head finds it."""
    folder = BundleFolder(tmp_path / "bundle")
    folder.make([{"attempt": "1.1"}], {})
    script = node_script(ClusterSettings(python=f"{tmp_path}/none"), folder)
    assert subprocess.run(["sh"], input=script, text=True, check=False, timeout=PATIENCE_SECONDS).returncode == 1
    assert folder.error(0).endswith(f": no {tmp_path}/none")


def test_the_interpreter_of_the_settings() -> None:
    """Else the one of this process, with the files of this installation."""
    assert "/opt/python -P -m stoker.features.slurm.node" in node_script(ClusterSettings(python="/opt/python"), FOLDER)
    assert sys.executable in node_script(ClusterSettings(), FOLDER)


# -- the directory of the queue -----------------------------------------------------------------------


def test_it_is_made_once(tmp_path: Path) -> None:
    """With a marker by which it is recognised."""
    directory = QueueDirectory(Paths(tmp_path / "queue"))
    before = directory.is_there
    directory.make()
    assert (before, directory.is_there) == (False, True)
    assert {path.name for path in directory.files.state.iterdir()} >= {"logs", "reports"}


def test_it_is_out_of_sight(tmp_path: Path) -> None:
    """The user hears of it until it is back."""
    directory = QueueDirectory(Paths(tmp_path / "queue"))
    assert not directory.is_reachable()
    assert directory.away == f"the shared directory {tmp_path / 'queue'} cannot be reached; jobs on the cluster go on"
    directory.make()
    assert directory.is_reachable()
    assert directory.away == ""


def test_why_it_cannot_be_written(tmp_path: Path) -> None:
    """The words of the system follow."""
    directory = QueueDirectory(Paths(tmp_path / "queue"))
    directory.failed(OSError(28, "No space left on device"))
    assert directory.trouble == f"cannot write to the shared directory {tmp_path / 'queue'}: No space left on device"
