"""How often to look at files that other machines write."""

from __future__ import annotations

from msgspec import Struct

SLOWER = 1.5
"""How much longer the interval becomes after each look without news."""


class PollPace(Struct):
    """Looks often while there are news, and more seldom the longer there are none."""

    fastest: float
    slowest: float
    """Seconds between two looks."""
    share: float
    """A look without news may take one part in so many of the time."""
    at: float = 0.0
    """When the next look is due."""
    _interval: float = 0.0

    def looked(self, now: float, seconds: float, *, news: bool) -> None:
        """A look ended now that took so many seconds."""
        self._interval = self.fastest if news else min(max(self._interval, self.fastest) * SLOWER, self.slowest)
        self.at = now + max(self._interval, 0.0 if news else self.share * seconds)
