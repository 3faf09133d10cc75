"""The tabs: tables of open and of ended jobs, each with a cursor and tags, and a chart of the GPUs over a period."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from stoker.app.jobs.local_time import clock_text, to_datetime
from stoker.app.views.columns import COLUMNS, STATE_LOOKS, TOP_HISTORY_TABLE, TOP_JOBS_TABLE
from stoker.app.views.history import History
from stoker.app.views.job import JobLine, PastLine
from stoker.app.views.model import Status
from stoker.app.views.timeline import Timeline
from stoker.cli.screens.job_table import job_columns, title_of
from stoker.cli.screens.status import results_text
from stoker.cli.screens.text import EMPTY, Column, Line, Span, fit_titles, table_lines
from stoker.cli.screens.timeline import LEGEND, chart_lines
from stoker.cli.top.source import QueueReader
from stoker.cli.top.widgets import TextLines, strip_of
from stoker.core.units import count_text, span_text

MIN_NAME_COLUMNS = 16
Order = Literal["start", "id", "name", "state", "memory", "time"]
ORDERS: tuple[Order, ...] = ("start", "id", "name", "state", "memory", "time")
SPANS = (600.0, 1800.0, 3600.0, 7200.0, 6 * 3600.0, 12 * 3600.0, 86400.0, 3 * 86400.0, 7 * 86400.0, 14 * 86400.0)
"""Lengths of the past that a timeline can show."""


class Table(NamedTuple):
    """A header and the rows below."""

    header: Line
    rows: list[Line]


def _table(columns: Sequence[Column], title: str, last: Sequence[Line], width: int) -> Table:
    """Each line of the last column begins with the name of a job."""
    fit = fit_titles([line[0].text for line in last])
    header, *lines = table_lines(columns, title, last, width - 1, MIN_NAME_COLUMNS, fit=fit)
    return Table(header, lines)


class Labelled(Protocol):
    """An item of a table."""

    @property
    def label(self) -> str:
        """Its key, which no other row has."""


Item = TypeVar("Item", bound=Labelled)


class TableWidget(Widget, Generic[Item], can_focus=True):
    """Items of which those that fit are drawn, with a cursor that stays on its item."""

    class Moved(Message):
        """The cursor is on another item."""

    class RowChosen(Message):
        """The item under the cursor was opened."""

    def __init__(self, draw: Callable[[Sequence[Item], int], Table], *, id: str) -> None:
        """`draw` makes a table of some items, so wide."""
        super().__init__(id=id)
        self._draw = draw
        self.items: list[Item] = []
        self.tagged: set[str] = set()
        self.note = ""
        """Shown below the last item, or in place of all."""
        self.hidden = 0
        """How many more there are, which are not listed."""
        self._cursor = 0
        self._top = 0
        self._drawn: list[Line] = []

    # -- what the application does ----------------------------------------------------------------

    def show(self, items: Sequence[Item], note: str = "") -> None:
        """Show other items; the cursor stays on the item with the same label."""
        label = self.current.label if self.current is not None else ""
        self.items, self.note = list(items), note
        places = {item.label: place for place, item in enumerate(self.items)}
        self._cursor = places.get(label, min(self._cursor, max(0, len(self.items) - 1)))
        self.tagged &= places.keys()
        self.redraw()
        if self.current is None or self.current.label != label:
            self.post_message(self.Moved())

    @property
    def current(self) -> Item | None:
        return self.items[self._cursor] if self._cursor < len(self.items) else None

    @property
    def chosen(self) -> Sequence[Item]:
        """The tagged items; if there are none, the one under the cursor."""
        tagged = [item for item in self.items if item.label in self.tagged]
        return tagged or ([] if self.current is None else [self.current])

    @property
    def place_text(self) -> str:
        """Where the cursor is, if the table is longer than the screen."""
        if not self.size.height or len(self.items) < self.size.height:
            return ""
        return f"{self._cursor + 1} of {len(self.items) + self.hidden}"

    @property
    def near_end(self) -> bool:
        """Whether the last item is on the screen or will be with the next page."""
        return self._top + 2 * self._rows >= len(self.items)

    def move_to(self, place: int) -> None:
        before = self._cursor
        self._cursor = max(0, min(place, len(self.items) - 1))
        self.redraw()
        if self._cursor != before:
            self.post_message(self.Moved())

    def toggle_tag(self) -> None:
        """Tag the item under the cursor, and go to the next."""
        if self.current is not None:
            self.tagged ^= {self.current.label}
            self.move_to(self._cursor + 1)
            self.redraw()

    def redraw(self) -> None:
        """Draw the visible items, if they look different."""
        rows = self._rows
        self._top = max(0, min(self._top, len(self.items) - rows))
        self._top = min(self._cursor, max(self._top, self._cursor - rows + 1))
        shown = self.items[self._top : self._top + rows]
        table = self._draw(shown, self.size.width)
        drawn = [(Span(" "), *table.header)] if shown else []
        for item, line in zip(shown, table.rows, strict=True):
            drawn.append((Span("●" if item.label in self.tagged else " ", "odd"), *line))
        drawn += [(Span(f"  {self.note}", "faint"),)] if self.note and len(drawn) < self.size.height else []
        if drawn != self._drawn or self._drawn_cursor != self._cursor - self._top:
            self._drawn, self._drawn_cursor = drawn, self._cursor - self._top
            self.refresh()

    _drawn_cursor = 0

    @property
    def _rows(self) -> int:
        return max(1, self.size.height - 1)

    # -- what Textual calls -----------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        line = self._drawn[y] if y < len(self._drawn) else EMPTY
        chosen = y > 0 and y - 1 == self._cursor - self._top and y - 1 < len(self.items) - self._top
        if chosen:
            line = (Span("▸" if not line[0].text.strip() else line[0].text), *line[1:])
        return strip_of(line, self.size.width, chosen=chosen)

    def on_resize(self) -> None:
        self.redraw()

    def on_key(self, event: events.Key) -> None:
        steps = {"up": -1, "down": 1, "k": -1, "j": 1, "pageup": -self._rows, "pagedown": self._rows}
        if event.key in steps:
            self.move_to(self._cursor + steps[event.key])
        elif event.key == "home":
            self.move_to(0)
        elif event.key == "end":
            self.move_to(len(self.items) - 1)
        elif event.key == "enter":
            self.post_message(self.RowChosen())
        else:
            return
        event.stop()

    def on_click(self, event: events.Click) -> None:
        self.focus()
        place = self._top + event.y - 1
        if event.y < 1 or place >= len(self.items):
            return
        self.move_to(place)
        if event.chain > 1:
            self.post_message(self.RowChosen())

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.move_to(self._cursor + 3)
        event.stop()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.move_to(self._cursor - 3)
        event.stop()


# -- open jobs -----------------------------------------------------------------------------------


class JobsTab(TableWidget[JobLine]):
    """Active and waiting jobs; of those that wait, the first."""

    def __init__(self, *, id: str) -> None:
        super().__init__(lambda jobs, width: jobs_table(jobs, time.time(), width), id=id)
        self.order: Order = "start"
        self._more_wait = False

    def show_status(self, status: Status, *, filtered: bool) -> None:
        """Show the jobs of a look at the queue."""
        self.hidden = status.hidden.waiting + status.hidden.held
        self._more_wait = bool(status.hidden.waiting)
        self.show(ordered(status.jobs, self.order), self._note(status, filtered=filtered))

    def _note(self, status: Status, *, filtered: bool) -> str:
        if self.hidden:
            return f"… {self.hidden} more waiting"
        if status.jobs:
            return ""
        if filtered:
            return "no job matches the filter (Esc removes it)"
        return "no jobs; add one: stoker submit -- python3 train.py"

    @property
    def wants_more(self) -> bool:
        """Whether the user will soon see the end of what is listed, and more jobs wait."""
        return self.near_end and self._more_wait

    def sort_by_next(self) -> None:
        """Choose another order for what is shown next."""
        self.order = ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)]

    def tick(self) -> None:
        """Draw the times of running jobs, which go on by themselves."""
        if any(job.started is not None for job in self.items):
            self.redraw()


def jobs_table(jobs: Sequence[JobLine], now: float, width: int) -> Table:
    """Some jobs; those that wait show when they start and why not yet."""
    current = [_at(job, now) for job in jobs]
    return _table(job_columns(TOP_JOBS_TABLE, current, now, width), "NAME", [_name(job) for job in jobs], width)


def _at(job: JobLine, now: float) -> JobLine:
    """The job now: its time goes on between two looks at the queue."""
    if job.started is None or job.last_seen is not None:
        return job
    return replace(job, seconds=now - job.started.timestamp())


def ordered(jobs: Sequence[JobLine], order: Order) -> list[JobLine]:
    """The jobs by start, which is the order of `status`, or by something else."""
    if order == "start":
        return list(jobs)
    key = COLUMNS[order].sort
    assert key is not None
    return sorted(jobs, key=lambda job: (key(job), job.id))


def _name(job: JobLine) -> Line:
    tasks = f"{count_text(job.tasks, 'task')}: " if job.tasks > 1 else ""
    why = f"  {tasks}{job.why}" if job.why or tasks else ""
    return Span(title_of(job)), *((Span(why, "faint"),) if why else ())


# -- ended jobs ----------------------------------------------------------------------------------


class HistoryTab(TableWidget[PastLine]):
    """Ended jobs, newest first."""

    def __init__(self, *, id: str) -> None:
        super().__init__(lambda jobs, width: history_table(jobs, time.time(), width), id=id)

    def show_history(self, history: History) -> None:
        jobs = sorted(history.jobs, key=lambda job: job.ended, reverse=True)
        older = f"… {history.hidden} older" if history.hidden else ""
        self.show(jobs, older or ("" if jobs else "no job has ended yet"))


def history_table(jobs: Sequence[PastLine], now: float, width: int) -> Table:
    """Some ended jobs."""
    columns = job_columns(TOP_HISTORY_TABLE, jobs, now, width)
    return _table(columns, "NAME / NOTE", [_past_name(job) for job in jobs], width)


def _past_name(job: PastLine) -> Line:
    counts = f"{results_text(job.counts)}: " if job.counts else ""
    note = f"  {job.note}" if job.note else ""
    name = Span(counts + title_of(job))
    return name, *((Span(note, STATE_LOOKS.get(job.state, "faint")),) if note else ())


# -- the timeline --------------------------------------------------------------------------------


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
