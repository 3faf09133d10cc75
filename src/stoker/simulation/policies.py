"""Policies and speeds for a replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from stoker.core.interference import slowdown
from stoker.core.planner.policy import Policy
from stoker.simulation.workload import Work

Pairs = Mapping[tuple[str, str], float]

Speeds = Callable[[Work, Sequence[Work]], float]
"""The speed of the first, as a share of its speed alone, on a GPU with all of these, itself among them."""


def by_pairs(pairs: Pairs) -> Speeds:
    """Speeds that know these pairs."""

    def speed(work: Work, members: Sequence[Work]) -> float:
        if len(members) == 2:
            other = members[0] if members[1] is work else members[1]
            measured = pairs.get((scaled_name(work.model, work.gpus), scaled_name(other.model, other.gpus)))
            if measured is not None:
                return measured
        return slowdown(work.load, sum(member.load for member in members), len(members))

    return speed


def scaled_name(model: str, gpus: int) -> str:
    """A model trained on so many GPUs, which is another thing to measure."""
    return f"{model} on {gpus}"


class Conduct(Struct, frozen=True):
    """One of them."""

    policy: Policy = Policy()
    packing: bool = True
    """Whether jobs come with `--vram auto`, or take whole cards."""
    exact: bool = False
    """Whether somebody tells beforehand how long each job takes, in place of experience."""


CONDUCTS: Mapping[str, Conduct] = {
    "stoker": Conduct(),
    "shortest": Conduct(Policy(order="shortest")),
    "packing": Conduct(Policy(passing="freely")),
    "first-fit": Conduct(Policy(passing="freely"), packing=False),
    "fifo": Conduct(Policy(passing="never"), packing=False),
}

BOUND = "bound"
"""Not a way to run a machine, but what no way could do better."""

SENTENCES: Mapping[str, str] = {
    "stoker": "what Stoker does unless it is told otherwise: by age, nobody is delayed for long, packed",
    "shortest": 'the same with order = "shortest"',
    "packing": "first-fit, and jobs share GPUs by what was learnt of them",
    "first-fit": "whole GPUs by age, and whoever finds room passes those that do not",
    "fifo": "whole GPUs by age, and nobody passes anybody",
    BOUND: "not reachable: all is known beforehand, stopping is free, and two jobs on a GPU run at full speed",
}
