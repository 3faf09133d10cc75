"""The line of `stoker run` and `stoker wait` that counts jobs, with a progress bar and the time left."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator

from stoker.app.views.model import RunCounts
from stoker.cli.console import to_stderr
from stoker.cli.screens.text import Line, Span, line_cells, painted, wants_colour
from stoker.core.units import duration_text

SPARE_COLUMNS = 4
"""Columns of the line that stay free, for the ^C that a terminal echoes there."""
LONGEST_BAR = 40
SHORTEST_BAR = 8


def counts_line(counts: RunCounts, elapsed: float, left: float | None, width: int) -> Line:
    """`━━━━━━───  6/24  5 ok 1 failed 6 running 12 waiting  [01:24<03:40]`."""
    room = width - SPARE_COLUMNS
    clock = f"[{duration_text(elapsed)}<{rough_text(left)}]"
    line = next((line for line in _counts(counts, clock) if line_cells(line) <= room), None)
    if line is None:
        return (Span(f" {counts.ended}/{counts.total}"),)
    space = min(LONGEST_BAR, room - line_cells(line) - 1)
    space = space if space >= SHORTEST_BAR else 0
    parts = (counts.ok, counts.ok + counts.failed, counts.ended)
    good, bad, over = (count * space // max(1, counts.total) for count in parts)
    ended = Span("━" * good, "good"), Span("━" * (bad - good), "bad"), Span("━" * (over - bad), "odd")
    return (Span(" "), *ended, Span("─" * (space - over), "faint"), *line)


def _counts(counts: RunCounts, clock: str) -> Iterator[Line]:
    """The counts in words, then ever shorter."""
    share = f" {counts.ended}/{counts.total}{'+' if counts.open_ended else ''}  "
    failed = [Span(f"{counts.failed} failed ", "bad")] if counts.failed else []
    failed += [Span(f"{counts.cancelled} cancelled ", "odd")] if counts.cancelled else []
    rest = f"{counts.running} running {counts.waiting} waiting  "
    yield Span(share), Span(f"{counts.ok} ok ", "good"), *failed, Span(rest), Span(clock, "faint")
    yield Span(share), Span(f"{counts.ok} ok ", "good"), *failed, Span(f" {clock}", "faint")
    yield Span(share), *failed


def rough_text(seconds: float | None) -> str:
    """An estimate, rounded up to no more digits than it deserves; `?` if unknown."""
    if seconds is None:
        return "?"
    step = 5 if seconds < 120 else 30 if seconds < 1200 else 300
    return duration_text(-(-seconds // step) * step)


class ProgressLine:
    """Shows the counts on the last line of the terminal, on standard error, until it is cleared."""

    INTERVAL = 0.5
    """Seconds between two looks at the jobs."""

    def __init__(self, look: Callable[[], tuple[RunCounts, float | None]]) -> None:
        """`look` gives the counts, and the seconds until all jobs are over if that can be estimated."""
        self._look = look
        self._began = time.monotonic()
        self._due = 0.0
        self._drawn = False

    def show(self) -> None:
        """Draw the line again, if it is time."""
        now = time.monotonic()
        if now < self._due:
            return
        counts, left = self._look()
        self._due = now + max(self.INTERVAL, 20 * (time.monotonic() - now))  # counting 100,000 jobs takes a while
        line = counts_line(counts, now - self._began, left, terminal_width())
        colour = wants_colour("auto", os.environ, sys.stderr)
        text = painted([line], colour=colour, encoding=sys.stderr.encoding or "ascii").rstrip("\n")
        to_stderr(f"\r{text}\x1b[K")
        self._drawn = True

    def clear(self) -> None:
        """Make room for other output."""
        if self._drawn:
            to_stderr("\r\x1b[K")
            self._drawn, self._due = False, 0.0


def terminal_width() -> int:
    """Columns of the terminal of standard error."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
