"""Choose the resources that a new pilot asks Slurm for, and write its plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from pathlib import Path

from stoker.core.settings import ClusterSettings
from stoker.features.slurm.commands import NodeSize
from stoker.features.slurm.pilot.files import PilotPlan


def pilot_plan(cluster: str, settings: ClusterSettings, reports: Path, own: Mapping[str, str], gpus: int) -> PilotPlan:
    """The plan of a pilot; simulated GPUs and a ledger of one's own come from the head's environment."""
    return PilotPlan(
        cluster,
        str(reports),
        settings.pilot_idle,
        own.get("STOKER_SIM", ""),
        own.get("STOKER_LEDGER", ""),
        whole_node=settings.private,
        gpus=gpus,
    )


def pilot_gpus(nodes: NodeSize, need: int, least: int, most: int | None) -> int:
    """GPUs for one pilot: those of a node, but no more than all waiting jobs need, nor than `most`.

    `least` are the GPUs of the largest job, which it must have in any case.
    """
    wanted = min(nodes.gpus or 1, max(1, need))
    return wanted if most is None else max(least, min(wanted, most))


def pilot_words(settings: ClusterSettings, nodes: NodeSize, gpus: int, least: int) -> Iterator[str]:
    """Options for sbatch: GPUs of one node, with their share of its memory and cores, for the time of a pilot."""
    for name, value in (("partition", settings.partition), ("account", settings.account), ("qos", settings.qos)):
        if value:
            yield f"--{name}={value}"
    yield "--nodes=1"
    if settings.private:  # the ledger of the node shares its GPUs with other users
        yield "--exclusive"
        yield f"--gres=gpu:{least}"
    else:
        yield f"--gres=gpu:{gpus}"
        yield f"--mem={nodes.memory * gpus // max(1, nodes.gpus) * 9 // 10}"
        yield f"--cpus-per-task={max(1, nodes.cpus * gpus // max(1, nodes.gpus))}"
    yield f"--time={ceil(settings.pilot_time / 60)}"
    yield "--signal=B:USR1@60"
    yield from settings.options
