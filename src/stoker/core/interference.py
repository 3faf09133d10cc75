"""How much jobs that share a GPU slow each other down: a law through measured pairs."""

from __future__ import annotations

from itertools import pairwise

# The mean over 1,388 measured pairs (Lucid, ASPLOS 2023), by what the two load the GPU alone, in percent: packed, a
# pair does 2.00, 1.90, 1.69 and 1.43 times the work of one below 80, up to 120, 160 and 200; its slower member runs at
# 0.95, 0.91, 0.78 and 0.64 of its own speed. Each figure stands in the middle of its band.
_MEMBER_SPEED = ((0.0, 1.0), (40.0, 1.0), (100.0, 0.95), (140.0, 0.845), (180.0, 0.715))
_SLOWER_MEMBER = ((0.0, 1.0), (40.0, 0.95), (100.0, 0.91), (140.0, 0.78), (180.0, 0.64))
_FULL = 180.0
"""From here on the GPU gives no more in all, and its members share what there is."""


def slowdown(own_load: float, sum_of_loads: float, members: int) -> float:
    """The speed of a job beside others, as a part of its speed alone; loads are percent of the GPU when alone.

    The heavier a member, the more it loses: what all of them do together depends on the sum alone.
    """
    if members < 2 or sum_of_loads <= 0:
        return 1.0
    mean = _along(_MEMBER_SPEED, sum_of_loads)
    spread = mean - _along(_SLOWER_MEMBER, sum_of_loads)
    excess = own_load / sum_of_loads - 1 / members
    return min(1.0, max(0.0, mean - 2 * spread * excess))


def _along(points: tuple[tuple[float, float], ...], load: float) -> float:
    """The value at a load: straight from point to point, and shared evenly beyond the last."""
    for (left, low), (right, high) in pairwise(points):
        if load <= right:
            return low + (high - low) * (load - left) / (right - left)
    return points[-1][1] * _FULL / load
