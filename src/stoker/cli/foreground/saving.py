"""What packing has saved a run against one job for each GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from stoker.busytime import Companion
from stoker.core.memory import Learnt, usual_pace
from stoker.core.progress import read_pace
from stoker.core.units import duration_text
from stoker.logtail import read_tail
from stoker.tally import Tally

LEAST_SECONDS = 1.0
"""What is less than this is not worth telling."""


class Saving(NamedTuple):
    """GPU time that jobs would have needed on GPUs of their own, less what they had."""

    seconds: float
    exact: bool
    """Whether it is known of every job in company how much slower that made it; else it is the most."""


def saving_of(tally: Tally, learnt: Callable[[str], Learnt]) -> Saving:
    """Time that jobs had a GPU together counts once; what they only took because of each other is no saving."""
    busy = tally.busy
    together = tally.gpu_seconds - busy.seconds
    if together < LEAST_SECONDS:
        return Saving(0.0, exact=True)
    speeds = [_speed(one, learnt) for one in busy.companions]
    slower = sum(
        one.seconds * (1 - speed) for one, speed in zip(busy.companions, speeds, strict=True) if speed is not None
    )
    saved = together - slower
    return Saving(saved if saved >= LEAST_SECONDS else 0.0, exact=None not in speeds and not busy.forgotten)


def saving_text(saving: Saving) -> str:
    """`packing saved 01:12:03 of GPU time`; empty where it saved nothing."""
    most = "" if saving.exact else "up to "
    return f"packing saved {most}{duration_text(saving.seconds)} of GPU time" if saving.seconds else ""


def _speed(companion: Companion, learnt: Callable[[str], Learnt]) -> float | None:
    """How fast an attempt was, in parts of its speed alone; None where nobody can tell."""
    if not companion.kind or len(companion.models) != 1:
        return None
    alone = usual_pace(learnt(companion.kind), *companion.models)
    pace = read_pace(read_tail(companion.log)) if alone else None
    return min(1.0, pace.per_second / alone) if alone and pace and pace.per_second is not None else None
