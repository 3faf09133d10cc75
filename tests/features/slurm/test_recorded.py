"""Answers of three releases of Slurm are read alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.features.slurm.commands import Done, NodeSize, read_facts, read_nodes

DATA = Path(__file__).parents[2] / "data"
RELEASES = ("20.11.4", "24.11.5", "26.05.5")
"""Debian 11, 13 and unstable; 22.05.8 of Debian 12 is the one that the other tests run."""
LIMIT = ("PENDING", "JobArrayTaskLimit")


def recorded(release: str, name: str) -> str:
    return (DATA / f"slurm-{release}" / name).read_text()


@pytest.mark.parametrize("release", RELEASES)
def test_states_of_tasks(release: str) -> None:
    """Tasks that run, that wait in one line, that failed, and their reasons."""
    facts = read_facts(recorded(release, "squeue.txt"))
    cancelled = facts.pop(("stoker:x/4", 0), None)
    assert {key: (fact.state, fact.reason) for key, fact in facts.items()} == {
        ("stoker:x/1", 0): ("RUNNING", "None"),
        ("stoker:x/1", 1): ("RUNNING", "None"),
        ("stoker:x/1", 2): LIMIT,
        ("stoker:x/1", 3): LIMIT,
        ("stoker:x/2", 0): ("FAILED", "NonZeroExitCode"),
        ("stoker:x/3", 0): ("PENDING", "Resources"),
    }
    if release != "24.11.5":  # recorded without nodes
        assert [facts["stoker:x/1", index].node for index in range(4)] == ["n1", "n2", "", ""]
        assert cancelled is not None
        assert (cancelled.state, cancelled.node) == ("CANCELLED", "n1")


@pytest.mark.parametrize("release", ["20.11.4", "26.05.5"])
def test_nodes_and_refusals(release: str) -> None:
    """What a node has; a refused partition, too many GPUs and a long array are not tried again."""
    assert read_nodes(recorded(release, "nodes.txt")) == NodeSize(4, 8000, 16)
    for line in recorded(release, "refusals.txt").splitlines():
        assert Done("submit", "", False, "", line, 0.0, 0.0).answer == "refused"
