"""What has to be set aside for jobs that wait, by what they ask for and what was learnt of such work."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core.memory import Learnt, foreseen
from stoker.core.terms import Need
from stoker.core.waiting import Shape


def resolved(shape: Shape, learnt: Learnt, margin: int) -> Need:
    """What to set aside for jobs of a shape; all of a GPU where company has cost one of them too much."""
    if not shape.need.shares:
        return shape.need
    if shape.alone:
        return replace(shape.need, memory=None, auto=False)
    return foreseen(shape.need, learnt, margin, shape.floor)
