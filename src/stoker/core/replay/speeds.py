"""How fast jobs run beside each other: as pairs of their models were measured, else by the law of interference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stoker.core.interference import slowdown
from stoker.core.replay.work import Work

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
