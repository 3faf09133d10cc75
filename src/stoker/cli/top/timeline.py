"""The timeline tab: a chart of the GPUs over a period that the user can lengthen, shorten and move."""

from __future__ import annotations

import time

from msgspec.structs import replace

from stoker.app.jobs.local_time import clock_text, to_datetime
from stoker.app.views.timeline import Timeline
from stoker.cli.screens.text import Span
from stoker.cli.screens.timeline import LEGEND, chart_lines
from stoker.cli.top.source import QueueReader
from stoker.cli.top.widgets import TextLines
from stoker.core.units import span_text

SPANS = (600.0, 1800.0, 3600.0, 7200.0, 6 * 3600.0, 12 * 3600.0, 86400.0, 3 * 86400.0, 7 * 86400.0, 14 * 86400.0)
"""Lengths of the past that a timeline can show."""


class TimelineChart(TextLines):
    """The chart; it begins with a period that the jobs fill."""

    def __init__(self, source: QueueReader, *, id: str) -> None:
        super().__init__(id=id)
        self._source = source
        self._timeline: Timeline | None = None
        self._place = 3
        """Which of the lengths is shown."""
        self._shift = 0.0
        """Seconds between now and the end of the period, at most 0."""

    @property
    def _span(self) -> float:
        return SPANS[self._place]

    def period_text(self) -> str:
        """`last 10m`, or with the end of the period if that is not now."""
        now = time.time()
        shift = f", until {clock_text(now + self._shift, now)}" if self._shift else ""
        return f"last {span_text(self._span)}{shift}"

    # -- what the application does; it reads afterwards -------------------------------------------

    def zoom(self, step: int) -> None:
        """Show a shorter period (positive) or a longer one."""
        self._place = max(0, min(len(SPANS) - 1, self._place - step))

    def move(self, step: int) -> None:
        """Go forward by quarters of the period, back if negative; 0 goes to now."""
        self._shift = min(0.0, self._shift + step * self._span / 4) if step else 0.0

    async def read(self) -> None:
        """Read the period and draw it."""
        now, span = time.time(), self._span
        end = now + self._shift
        timeline = await self._source.call(self._source.timeline, end - span, None if not self._shift else end)
        if self._timeline is None:
            self._fit_period(timeline, now)
            span = self._span
            timeline = replace(timeline, since=to_datetime(end - span))
        until = min(timeline.until.timestamp(), now + span) if not self._shift else end
        self._timeline = replace(timeline, until=to_datetime(until))
        self.draw()

    def _fit_period(self, found: Timeline, now: float) -> None:
        """Choose the shortest period that contains all that was found."""
        first = min((bar.start.timestamp() for lane in found.lanes for bar in lane.bars), default=now)
        self._place = next((place for place, span in enumerate(SPANS) if span >= now - first), self._place)

    def draw(self) -> None:
        """Draw what was read last, as large as there is room."""
        if self._timeline is None or not self.size.width:
            return
        lines = chart_lines(self._timeline, self.size.width - 1, self.size.height - 1)
        self.show([*((Span(" "), *line) for line in lines), (Span(f" {LEGEND}", "faint"),)])

    def on_resize(self) -> None:
        self.draw()
