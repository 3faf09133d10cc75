"""What a new pilot asks Slurm for."""

from __future__ import annotations

import pytest

from stoker.core.settings import ClusterSettings
from stoker.features.slurm.commands import NodeSize
from stoker.features.slurm.pilot.request import pilot_gpus, pilot_words

NODE = NodeSize(gpus=8, memory=80_000, cpus=64)


@pytest.mark.parametrize(
    ("need", "least", "most", "gpus"),
    [(3, 1, None, 3), (100, 1, None, 8), (100, 1, 4, 4), (100, 4, 2, 4), (1, 1, 4, 1)],
)
def test_gpus_of_a_pilot(need: int, least: int, most: int | None, gpus: int) -> None:
    """A whole node where there is work for it, fewer where these had to wait, and enough for the largest job."""
    assert pilot_gpus(NODE, need, least, most) == gpus


def test_a_part_of_a_node_has_its_share_of_memory_and_cores() -> None:
    """The rest is left for other jobs."""
    words = set(pilot_words(ClusterSettings(partition="gpu"), NODE, 2, 1))
    assert {"--partition=gpu", "--gres=gpu:2", "--mem=18000", "--cpus-per-task=16"} <= words


def test_a_private_cluster_gives_whole_nodes() -> None:
    """The ledger of the node shares its GPUs."""
    words = set(pilot_words(ClusterSettings(private=True), NODE, 8, 2))
    assert {"--exclusive", "--gres=gpu:2"} <= words
