"""How often to look at files that other machines write."""

from __future__ import annotations

from msgspec import Struct

SLOWER = 1.5
"""Factor of the interval after each look without news."""


class PollPace(Struct):
    """Schedules looks: often while there are news, less often the longer there are none."""

    fastest: float
    slowest: float
    """Seconds between two looks."""
    share: float
    """Looks without news take at most 1/share of the time."""
    at: float = 0.0
    """When the next look is due."""
    _interval: float = 0.0

    def looked(self, now: float, seconds: float, *, news: bool) -> None:
        """Take note of a look that ended now and took `seconds`."""
        self._interval = self.fastest if news else min(max(self._interval, self.fastest) * SLOWER, self.slowest)
        self.at = now + max(self._interval, 0.0 if news else self.share * seconds)
