"""Slurm's commands for screens and checks, and the jobs on nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from features.slurm.fake_slurm import NODE
from features.slurm.worlds import DirectWorld
from stoker.core.settings import ClusterSettings
from stoker.features.slurm.status import ask, cluster_status, jobs_on_nodes, usable_nodes


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for programs that stand in for Slurm's."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DirectWorld]:
    world = DirectWorld(tmp_path)
    yield world
    world.close()


def write(directory: Path, name: str, script: str) -> None:
    (directory / name).write_text(f"#!/bin/sh\n{script}\n")
    (directory / name).chmod(0o700)


def test_a_program_that_is_missing(programs: Path) -> None:
    """The reply names it."""
    reply = ask(ClusterSettings(), "snothing")
    assert (reply.ok, reply.error) == (False, "snothing is not on the PATH of this machine")


def test_the_last_words_of_a_program(programs: Path) -> None:
    """Users see them."""
    write(programs, "sinfo", "echo first >&2; echo slurm_load_partitions: refused >&2; exit 1")
    reply = ask(ClusterSettings(), "sinfo")
    assert (reply.ok, reply.error) == (False, "slurm_load_partitions: refused")


def test_a_program_that_hangs(programs: Path) -> None:
    """It is given up."""
    write(programs, "sinfo", "exec sleep 100")
    assert ask(ClusterSettings(), "sinfo", seconds=0.1).error == "sinfo takes longer than 0.1 s"


def test_the_state_of_a_cluster(world: DirectWorld, programs: Path) -> None:
    """Nodes by their state, and the jobs of this queue."""
    write(programs, "sinfo", "echo 'gpu*|up|infinite|3|idle|gpu:4'")
    status = cluster_status("lab", world.settings, world.paths)
    [nodes] = status.nodes
    assert (status.answers, nodes.partition, nodes.nodes, nodes.gpus) == (True, "gpu", 3, 4)


def test_nodes_that_take_jobs(programs: Path) -> None:
    """Those that answer and are not drained."""
    write(programs, "sinfo", "printf 'n1 idle\\nn2 drain\\nn3 mix*\\nn4 alloc\\n'")
    assert usable_nodes(ClusterSettings()) == ["n1", "n4"]


def test_jobs_on_nodes(world: DirectWorld) -> None:
    """By node and GPU; what waits is on none."""
    job, _ = world.add(2)
    world.start(job)
    assert jobs_on_nodes(world.paths, "lab") == {NODE: [("0", str(job))]}
    assert jobs_on_nodes(world.paths, "other") == {}
