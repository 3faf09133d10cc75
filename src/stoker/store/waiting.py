"""Wait for a condition, with pauses that grow while nothing happens."""

from __future__ import annotations

import time
from collections.abc import Callable


class Backoff:
    """Seconds to pause between two looks: few at first, more with each look that finds nothing new."""

    def __init__(self, shortest: float = 0.02, longest: float = 0.5, growth: float = 1.5) -> None:
        """The delay of what happens is about `growth` - 1 times the time since something happened."""
        self._shortest = shortest
        self._longest = longest
        self._growth = growth
        self._next = shortest

    def reset(self) -> None:
        """Begin with the shortest pause again: something has happened."""
        self._next = self._shortest

    def next(self) -> float:
        pause, self._next = self._next, min(self._growth * self._next, self._longest)
        return pause

    def wait(self, deadline: float | None = None) -> None:
        """Pause, but not beyond the deadline."""
        pause = self.next()
        time.sleep(pause if deadline is None else max(0.0, min(pause, deadline - time.monotonic())))


def wait_until(is_met: Callable[[], bool], seconds: float, pauses: Backoff | None = None) -> bool:
    """Wait until a condition holds; False if it does not within so many seconds."""
    deadline, pauses = time.monotonic() + seconds, pauses or Backoff(0.002, 0.02)
    while not is_met():
        if time.monotonic() >= deadline:
            return False
        pauses.wait(deadline)
    return True


class PollPace:
    """When to look again at files of other machines: often while there are news, and less and less often without."""

    def __init__(self, shortest: float, longest: float, share: float) -> None:
        """Looks without news take at most 1/`share` of the time."""
        self.at = 0.0
        """When the next look is due."""
        self._pauses = Backoff(shortest, longest)
        self._share = share

    def looked(self, now: float, seconds: float, *, news: bool) -> None:
        """Take note of a look that ended now and took `seconds`."""
        if news:
            self._pauses.reset()
        self.at = now + max(self._pauses.next(), 0.0 if news else self._share * seconds)
