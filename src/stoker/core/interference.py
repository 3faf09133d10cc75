"""How much jobs that share a GPU slow each other down, interpolated from measured pairs."""

from __future__ import annotations

from itertools import pairwise

# The mean over 1,388 measured pairs (Lucid, ASPLOS 2023), by the sum of their exclusive loads in percent: together a
# pair does 2.00, 1.90, 1.69 and 1.43 times the work of one job below 80, up to 120, 160 and 200; its slower member runs
# at 0.95, 0.91, 0.78 and 0.64 of its exclusive speed. Each figure is placed in the middle of its band.
_MEMBER_SPEED = ((0.0, 1.0), (40.0, 1.0), (100.0, 0.95), (140.0, 0.845), (180.0, 0.715))
_SLOWER_MEMBER = ((0.0, 1.0), (40.0, 0.95), (100.0, 0.91), (140.0, 0.78), (180.0, 0.64))
_FULL = 180.0
"""From this load on the GPU does no more work in total; its jobs divide it."""


def slowdown(own_load: float, sum_of_loads: float, members: int) -> float:
    """The speed of a job with co-tenants as a fraction of its exclusive speed; loads are percent when exclusive.

    A heavier job loses more. The total depends only on the sum of the loads.
    """
    if members < 2 or sum_of_loads <= 0:
        return 1.0
    mean = _along(_MEMBER_SPEED, sum_of_loads)
    spread = mean - _along(_SLOWER_MEMBER, sum_of_loads)
    excess = own_load / sum_of_loads - 1 / members
    return min(1.0, max(0.0, mean - 2 * spread * excess))


def _along(points: tuple[tuple[float, float], ...], load: float) -> float:
    """Linear between the points; beyond the last one, inversely proportional to the load."""
    for (left, low), (right, high) in pairwise(points):
        if load <= right:
            return low + (high - low) * (load - left) / (right - left)
    return points[-1][1] * _FULL / load
