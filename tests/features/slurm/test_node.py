"""The program that runs on a node for one task, here without Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from stoker.core.launch import LaunchOrder
from stoker.features.slurm.node import GPUS, gpus_of, node_name, task_environment, with_gpus
from stoker.features.slurm.shared import BundleFolder
from stoker.runner import journal
from support.wait import PATIENCE_SECONDS, wait_until


def a_bundle(tmp_path: Path, line: str) -> BundleFolder:
    """A bundle of one attempt, which runs a line of shell."""
    out = str(tmp_path / "out")
    order = LaunchOrder(
        "7.1", (line,), "/bin/sh", str(tmp_path), 0o22, "ab", {"STOKER_GPU_IDS": GPUS}, out, out, None, 5.0
    )
    folder = BundleFolder(tmp_path / "bundle")
    folder.make([{**msgspec.to_builtins(order), "gpus": 1}], {"ab": {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "1"}})
    return folder


def start(folder: BundleFolder) -> subprocess.Popen[bytes]:
    own = {"SLURMD_NODENAME": "n7", "CUDA_VISIBLE_DEVICES": "2,3", "SLURM_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "0"}
    words = [sys.executable, "-P", "-m", "stoker.features.slurm.node", folder.path]
    return subprocess.Popen(words, env={**os.environ, **own})


def records(folder: BundleFolder) -> list[journal.Record]:
    return [journal.record_of(line) for line in folder.journal(0, 0).splitlines()]


def test_an_attempt_runs_once(tmp_path: Path) -> None:
    """With the GPUs and variables of its task; a second task with the same attempt does nothing."""
    folder = a_bundle(tmp_path, "echo $STOKER_GPU_IDS $SLURM_JOB_ID >> ran; exit 3")
    assert [start(folder).wait(PATIENCE_SECONDS), start(folder).wait(PATIENCE_SECONDS)] == [0, 0]
    assert (tmp_path / "ran").read_text() == "2,3 12\n"
    started, _, exited = records(folder)
    assert (started.attempt, exited.attempt) == ("7.1", "7.1")
    assert isinstance(exited, journal.AttemptExited)
    assert exited.code == 3
    assert folder.journal(0, 0).splitlines()[0].endswith(b" n7 2,3")


def test_the_head_stops_an_attempt(tmp_path: Path) -> None:
    """By a message in the folder; a signal tells the node to look."""
    folder = a_bundle(tmp_path, "trap 'exit 9' USR1; touch began; while true; do sleep 0.05; done")
    task = start(folder)
    wait_until((tmp_path / "began").exists)
    folder.stop(0, 5.0, signal.SIGUSR1)
    task.send_signal(signal.SIGUSR2)
    assert task.wait(PATIENCE_SECONDS) == 0
    exited = records(folder)[-1]
    assert isinstance(exited, journal.AttemptExited)
    assert (exited.code, exited.why) == (9, "stopped")


def test_slurm_ends_an_attempt(tmp_path: Path) -> None:
    """The journal says only that nothing is left: Slurm knows why."""
    folder = a_bundle(tmp_path, "touch began; while true; do sleep 0.05; done")
    task = start(folder)
    wait_until((tmp_path / "began").exists)
    task.terminate()
    assert task.wait(PATIENCE_SECONDS) == 0
    assert folder.journal(0, 0).splitlines()[-1] == b"G 7.1"


def test_a_bundle_without_orders(tmp_path: Path) -> None:
    """The head has removed them; the program leaves its words."""
    folder = a_bundle(tmp_path, "true")
    os.unlink(folder.at("orders"))
    assert start(folder).wait(PATIENCE_SECONDS) == 1
    assert folder.error(0).startswith("n7: FileNotFoundError")


@pytest.mark.parametrize(
    ("environment", "gpus"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,3"}, ["0", "3"]),
        ({"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "1"}, ["1"]),
        ({}, []),
    ],
)
def test_the_gpus_that_slurm_gave(environment: dict[str, str], gpus: list[str]) -> None:
    """In the variable of any vendor."""
    assert gpus_of(environment) == gpus


def test_the_environment_of_a_task() -> None:
    """The submitted one, with what Slurm gave to this task; another array and allocation mean nothing."""
    submitted = {"HOME": "/h", "SLURM_JOB_ID": "1", "SBATCH_QOS": "x", "CUDA_VISIBLE_DEVICES": "9"}
    own = {"SLURM_JOB_ID": "2", "SLURM_ARRAY_TASK_ID": "5", "CUDA_VISIBLE_DEVICES": "0", "HOME": "/other"}
    assert task_environment(submitted, own) == {"HOME": "/h", "SLURM_JOB_ID": "2", "CUDA_VISIBLE_DEVICES": "0"}


def test_gpus_are_filled_in() -> None:
    """Into words and variables."""
    order = {"words": ["--gpus", GPUS], "extra": {"STOKER_GPU_IDS": GPUS}, "gpus": 2}
    assert with_gpus(order, ["0", "1"]) == {"words": ["--gpus", "0,1"], "extra": {"STOKER_GPU_IDS": "0,1"}, "gpus": 2}


def test_the_name_of_a_node() -> None:
    """Slurm's name for it, which need not be that of the host."""
    assert node_name({"SLURMD_NODENAME": "n7"}) == "n7"
    assert node_name({}) == os.uname().nodename.partition(".")[0]
