"""Pilots beside other jobs: they use what is idle, and keep nothing that others need."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from features.slurm.cluster import RAN, ClusterQueue
from support.cli import until
from support.slurm import Slurm
from support.wait import wait_until

NODES_GPUS = 12
"""GPUs of the cluster of the tests."""


@pytest.fixture
def auto(tmp_path: Path, slurm: Slurm) -> Iterator[ClusterQueue]:
    """A queue with the usual settings, but pilots that are idle do not leave by themselves."""
    queue = ClusterQueue(tmp_path, slurm, sim="4x24G", pilots="auto", pilot_idle="10m")
    with contextlib.closing(queue):
        yield queue


def names(lab: ClusterQueue, *states: str) -> list[str]:
    """Names of jobs of the queue in Slurm."""
    words = ["-t", ",".join(states)] if states else []
    return lab.slurm.run("squeue", "-h", *words, "-o", "%j").split()


def test_the_last_short_jobs_of_an_array_run_in_its_pilots(auto: ClusterQueue) -> None:
    """None of them waits in Slurm for the GPUs of idle pilots."""
    job = auto.submit("-t", "1", f"{RAN} sleep 1", count=f"0-{NODES_GPUS + 7}")
    seen: set[str] = set()

    def have_run() -> bool:
        seen.update(names(auto))
        return len(auto.lines("ran")) == NODES_GPUS + 8

    wait_until(have_run)
    assert auto.wait(job).code == 0
    assert seen == {"stoker-pilot"}
    alone = auto.submit("-t", "1", RAN)
    assert auto.wait(alone).code == 0
    assert set(names(auto)) == {"stoker-pilot"}


def test_idle_pilots_leave_for_a_job_that_needs_their_gpus(auto: ClusterQueue) -> None:
    """It is handed to Slurm directly, and starts though no pilot would leave by itself."""
    job = auto.submit("-t", "1", "true", count=f"0-{NODES_GPUS + 7}")
    assert auto.wait(job).code == 0
    assert "stoker-pilot" in names(auto, "R")
    direct = auto.submit("-G", str(NODES_GPUS), "--nodes", "3", RAN)
    assert auto.wait(direct).code == 0
    assert auto.ran() == [direct]


def test_pilots_use_single_gpus_beside_other_jobs(auto: ClusterQueue) -> None:
    """Nodes are partly taken; a pilot for a whole node would wait, which the job tells, until smaller ones start."""
    others = [
        auto.slurm.run("sbatch", "--parsable", "-w", node, "--gres=gpu:3", "-o", "/dev/null", "--wrap", "sleep 600")
        for node in auto.slurm.nodes
    ]
    try:
        job = auto.submit("--vram", "20G", f"{RAN} {until('gate')}", count="0-7")
        wait_until(lambda: "waits for a pilot, and that in Slurm: " in auto("status", str(job + 7)).out)
        auto.wait_lines("ran", 3)
        (auto.cwd / "gate").touch()
        assert auto.wait(job).code == 0
        assert auto.ran() == list(range(job, job + 8))
    finally:
        auto.slurm.run("scancel", *others)


def node_of(lab: ClusterQueue, job: int) -> str:
    """Where a job runs, once it does."""
    lab.wait_word("running", job)
    [device] = getattr(lab.job(job).state, "devices")  # noqa: B009
    return str(device).partition(":")[2].split()[0]


def test_a_drained_node_gets_no_more_jobs(auto: ClusterQueue) -> None:
    """What runs there comes to its end; as soon as the engine knows of it, the others run elsewhere."""
    words = ("--vram", "5G", f"{RAN} {until('gate')}")
    first = auto.submit(*words)
    node = node_of(auto, first)
    auto.slurm.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    try:
        wait_until(lambda: node_of(auto, auto.submit(*words)) != node)
        job = auto.submit(*words, count="0-7")
        assert node not in {node_of(auto, job + index) for index in range(8)}
        (auto.cwd / "gate").touch()
        assert auto.wait(job).code == 0
        assert auto.wait(first).code == 0
        assert auto.ran() == list(range(first, job + 8))
    finally:
        auto.slurm.run("scontrol", "update", f"nodename={node}", "state=resume")
