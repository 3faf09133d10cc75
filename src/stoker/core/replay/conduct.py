"""The ways to run a machine that a replay compares."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from stoker.core.policy import Policy


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
