"""The state of clusters, the jobs on their nodes, and both in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from features.slurm.fake_slurm import NODE, write_program
from features.slurm.worlds import DirectWorld
from stoker.cli.options import Screen
from stoker.core.settings import ClusterSettings
from stoker.features.slurm.commands import Nodes
from stoker.features.slurm.status import (
    SCHEMA,
    ClusterStatus,
    cluster_lines,
    cluster_status,
    jobs_on_nodes,
    show_nodes,
    usable_nodes,
)


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


def test_the_state_of_a_cluster(world: DirectWorld, programs: Path) -> None:
    """Nodes by their state, and the jobs of this queue."""
    write_program(programs, "sinfo", "echo 'gpu*|up|infinite|3|idle|gpu:4'")
    status = cluster_status("lab", world.settings, world.paths)
    [nodes] = status.nodes
    assert (status.answers, nodes.partition, nodes.nodes, nodes.gpus) == (True, "gpu", 3, 4)


def test_nodes_that_take_jobs(programs: Path) -> None:
    """Those that answer and are not drained."""
    write_program(programs, "sinfo", "printf 'n1 idle\\nn2 drain\\nn3 mix*\\nn4 alloc\\n'")
    assert usable_nodes(ClusterSettings()) == ["n1", "n4"]


def test_jobs_on_nodes(world: DirectWorld) -> None:
    """By node and GPU; what waits is on none."""
    job, _ = world.add(2)
    world.start(job)
    assert jobs_on_nodes(world.paths, "lab") == {NODE: [("0", str(job))]}
    assert jobs_on_nodes(world.paths, "other") == {}


def a_cluster(**fields: object) -> ClusterStatus:
    known = {"name": "lab", "kind": "slurm", "private": False, "shared": "/shared", "answers": True, "trouble": ""}
    return ClusterStatus(**{**known, "nodes": [], "jobs": 5, "active": 3, **fields})  # type: ignore[arg-type]


def test_the_first_line_has_the_jobs() -> None:
    """Those in Slurm, and those that wait here."""
    first, *_ = cluster_lines(a_cluster())
    assert first == "lab: Slurm, answers; 3 of your jobs in Slurm, 2 waiting here"


@pytest.mark.parametrize(("private", "command"), [(True, "stoker cluster up lab"), (False, "stoker cluster check lab")])
def test_a_controller_that_does_not_answer(private: bool, command: str) -> None:
    """The text says why, and what to type."""
    lines = list(cluster_lines(a_cluster(private=private, answers=False, trouble="connection refused")))
    assert lines[1:3] == ["  connection refused", f"  see {command}; running jobs continue"]


def test_nodes_in_words() -> None:
    """Only what is unusual is said."""
    usual = Nodes("gpu", True, True, "infinite", 3, "idle", True, 4)
    odd = Nodes("old", False, False, "1:00", 1, "down", False, 0)
    *_, first, second = cluster_lines(a_cluster(nodes=[usual, odd]))
    assert first == "  gpu*         3 nodes   idle, 4 GPUs each, limit infinite"
    assert second == "  old          1 node    down, not answering, limit 1:00, partition down"


def test_nodes_with_the_jobs_on_their_gpus(
    world: DirectWorld, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`stoker gpus -M lab` shows them below the nodes; JSON has the nodes."""
    write_program(programs, "sinfo", "echo 'gpu*|up|infinite|3|idle|gpu:4'")
    job, _ = world.add(2)
    world.start(job)
    show_nodes("lab", world.settings, Screen("screen", "never", world.paths))
    assert capsys.readouterr().out.splitlines()[-1] == f"  {NODE}: GPU 0: job {job}"
    show_nodes("lab", world.settings, Screen("json", "never", world.paths))
    assert json.loads(capsys.readouterr().out)["schema"] == SCHEMA
