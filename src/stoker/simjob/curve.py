"""How much memory a job holds as its work goes on."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from stoker.core.errors import UsageError
from stoker.core.units import parse_size

SPIKE_SECONDS = 1.0


class Spike(NamedTuple):
    """For one second from this one on, the job holds so much."""

    size: int
    second: float


class Point(NamedTuple):
    """At this second the job holds so much; between two points the memory grows or falls evenly."""

    second: float
    size: int


class Memory(NamedTuple):
    """What was asked for: points, or a size that is reached over a time, and perhaps a spike."""

    size: int
    ramp: float = 0.0
    spike: Spike | None = None
    points: tuple[Point, ...] = ()

    @property
    def level(self) -> int:
        """What it holds in the long run, spikes apart."""
        return max((point.size for point in self.points), default=self.size)


def memory_at(memory: Memory, second: float) -> int:
    """Bytes that the job holds after so many seconds of work."""
    size = _along(memory.points, second) if memory.points else _grown(memory, second)
    spike = memory.spike
    if spike and spike.second <= second < spike.second + SPIKE_SECONDS:
        return max(size, spike.size)
    return size


def parse_curve(text: str) -> tuple[Point, ...]:
    """The points of `0:1G,5:4G,20:6G`."""
    try:
        points = tuple(_point(part) for part in text.split(","))
    except (ValueError, UsageError):
        points = ()
    if not points or any(not left.second < right.second for left, right in pairwise(points)):
        hint = "write SECOND:SIZE in the order of time, for example 0:1G,5:4G,20:6G"
        raise UsageError(f"{text!r} is not a curve", hint)
    return points


def parse_spike(text: str) -> Spike:
    """The spike of `20G@1.5`."""
    size, _, second = text.partition("@")
    try:
        return Spike(parse_size(size), float(second))
    except ValueError:
        raise UsageError(f"{text!r} is not a spike", "write SIZE@SECOND, for example 20G@1.5") from None


def _point(text: str) -> Point:
    second, _, size = text.partition(":")
    return Point(float(second), parse_size(size))


def _grown(memory: Memory, second: float) -> int:
    return int(memory.size * (min(1.0, second / memory.ramp) if memory.ramp > 0 else 1.0))


def _along(points: tuple[Point, ...], second: float) -> int:
    if second <= points[0].second:
        return points[0].size
    for left, right in pairwise(points):
        if second < right.second:
            return int(left.size + (right.size - left.size) * (second - left.second) / (right.second - left.second))
    return points[-1].size
