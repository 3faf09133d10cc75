"""How a job tells of its progress: a line for each step, or a bar that is drawn over itself."""

from __future__ import annotations

import math
import sys

_BAR_WIDTH = 10
_EIGHTHS = " ▏▎▍▌▋▊▉"
_SMOOTHING = 0.3


class Steps:
    """A line for each step, with a loss that falls as losses do."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._printed = 0

    def show(self, done: float, elapsed: float) -> None:
        """Print the steps that fell due; `done` is the part of all work."""
        due = int(self._count * done)
        for step in range(self._printed + 1, due + 1):
            print(f"step {step}/{self._count} loss {loss(step / self._count):.4f}", flush=True)
        self._printed = due


class Bar:
    """One line on standard error that each step writes anew, as tqdm does."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._drawn = -1
        self._at = 0.0
        self._rate = 0.0

    def show(self, done: float, elapsed: float) -> None:
        """Draw the bar after so many seconds, if a step was done since."""
        due = int(self._count * done)
        if due == self._drawn:
            return
        self._measure(due - max(0, self._drawn), elapsed - self._at)
        self._drawn, self._at = due, elapsed
        sys.stderr.write("\r" + bar_text(due, self._count, elapsed, self._rate) + ("\n" if done >= 1 else ""))
        sys.stderr.flush()

    def _measure(self, steps: int, seconds: float) -> None:
        if steps > 0 and seconds > 0:
            new = steps / seconds
            self._rate = new if not self._rate else _SMOOTHING * new + (1 - _SMOOTHING) * self._rate


def bar_text(step: int, count: int, elapsed: float, rate: float) -> str:
    """The bar at a step: ` 45%|████▌     | 45/100 [00:10<00:12, 4.50it/s]`."""
    part = step / count if count else 1.0
    whole, eighths = divmod(int(part * _BAR_WIDTH * 8), 8)
    bar = ("█" * whole + (_EIGHTHS[eighths] if whole < _BAR_WIDTH else "")).ljust(_BAR_WIDTH)
    remaining = _clock((count - step) / rate) if rate else "?"
    return f"{part:4.0%}|{bar}| {step}/{count} [{_clock(elapsed)}<{remaining}, {_rate_text(rate)}]"


def loss(done: float) -> float:
    """A loss that falls as losses do, by the part of the training that is done."""
    return 0.1 + 2.2 * math.exp(-3 * done)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def _rate_text(rate: float) -> str:
    if not rate:
        return "?it/s"
    return f"{rate:5.2f}it/s" if rate >= 1 else f"{1 / rate:5.2f}s/it"
