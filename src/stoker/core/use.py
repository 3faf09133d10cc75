"""What an attempt uses of its GPUs: the most memory so far, how busy it keeps them, and a small curve of both."""

from __future__ import annotations

from itertools import zip_longest
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

CURVE = 64
"""Points that a curve has at most; then every second one goes, and the next ones are half as many."""
MIB = 2**20


class Use(Struct, frozen=True):
    """What was seen of one attempt; memory is that of the GPU on which it held most."""

    peak: int = 0
    looks: int = 0
    busy: int = 0
    """Looks at which nobody else was on its GPUs..."""
    load: int = 0
    """... and the sum of how busy these were at them, in percent."""
    curve: tuple[tuple[float, int], ...] = ()
    """Seconds since the start, and MiB."""
    spacing: float = 0.0
    """Seconds between two points."""

    @property
    def utilisation(self) -> int | None:
        """How busy it kept its GPUs on average, in percent, while nobody else was there; None where nobody knows."""
        return round(self.load / self.busy) if self.busy else None


class Live(NamedTuple):
    """What a running attempt holds now and held at most, as screens show it."""

    memory: int
    peak: int
    utilisation: int | None = None


def seen(use: Use, seconds: float, memory: int, utilisation: int | None) -> Use:
    """The use after one more look; the utilisation is that of its GPUs where it had them to itself."""
    told = utilisation is not None
    return replace(
        use,
        peak=max(use.peak, memory),
        looks=use.looks + 1,
        busy=use.busy + told,
        load=use.load + (utilisation or 0),
        **_drawn(use, seconds, memory // MIB),
    )


def reached(use: Use, peak: int) -> Use:
    """The use, where the driver tells a peak that no look has met."""
    return replace(use, peak=max(use.peak, peak))


def _drawn(use: Use, seconds: float, memory: int) -> dict[str, tuple[tuple[float, int], ...] | float]:
    """The curve with one more point, where that is far enough from the last; spikes in between raise the last."""
    if use.curve and seconds - use.curve[-1][0] < use.spacing:
        before, last = use.curve[:-1], use.curve[-1]
        return {"curve": (*before, (last[0], max(last[1], memory)))}
    curve = (*use.curve, (round(seconds, 1), memory))
    if len(curve) <= CURVE:
        return {"curve": curve}
    pairs = zip_longest(curve[::2], curve[1::2], fillvalue=(0.0, 0))
    thinned = tuple((one[0], max(one[1], other[1])) for one, other in pairs)
    return {"curve": thinned, "spacing": max(2 * use.spacing, 2 * seconds / CURVE)}
