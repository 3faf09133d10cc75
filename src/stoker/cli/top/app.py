"""The live view: a screen of GPUs and jobs that follows the queue, and keys that change jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import ClassVar, Literal

from msgspec.structs import replace
from textual import events, on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widgets import Input

from stoker.cli.top import actions
from stoker.cli.top.actions import Target, Verb
from stoker.cli.top.dialogs import Help, Question
from stoker.cli.top.panels import (
    ORDERS,
    Order,
    Table,
    detail_lines,
    gpu_lines,
    header_line,
    history_table,
    jobs_table,
    notices,
    ordered,
)
from stoker.cli.top.source import LINES, Source
from stoker.cli.top.widgets import JobTable, Lines, LogPane, right_aligned
from stoker.cli.views.text import Line, Span, cells, clip, clipped, fitting
from stoker.cli.views.timeline import LEGEND, chart_lines
from stoker.core.errors import StokerError
from stoker.core.text import printable
from stoker.core.units import count_text
from stoker.queue.changes import Changes
from stoker.queue.history_view import History, PastLine
from stoker.queue.job_view import JobDetails
from stoker.queue.samples import GpuSamples
from stoker.queue.timeline import Timeline
from stoker.queue.view_model import JobLine, Status, exactly
from stoker.queue.view_text import clock_text, span_text
from stoker.store.filters import NO_FILTER, Filter

Tab = Literal["jobs", "timeline", "history"]
TABS: tuple[Tab, ...] = ("jobs", "timeline", "history")
LOOK_SECONDS = 1.0
"""Seconds between two looks whether something changed."""
TIMELINE_SECONDS = 3.0
HISTORY_SECONDS = 2.0
SAMPLES_SECONDS = 30.0
DETAILS_SECONDS = 3.0
"""Least seconds between two reads of what is not in the feed."""
SPLIT = 110
"""Columns from which on the details stand beside the table."""
SPANS = (600.0, 1800.0, 3600.0, 7200.0, 6 * 3600.0, 12 * 3600.0, 86400.0, 3 * 86400.0, 7 * 86400.0, 14 * 86400.0)
"""Lengths of the past that a timeline can show."""
MESSAGE_SECONDS = 8.0
KEYS = (
    ("?", "help"),
    ("Enter", "log"),
    ("/", "filter"),
    ("Space", "tag"),
    ("o", "sort"),
    ("c", "cancel"),
    ("r", "retry"),
    ("+ -", "priority"),
    ("p", "pause"),
    ("q", "quit"),
)
TIMELINE_KEYS = (
    ("?", "help"),
    ("+ -", "zoom"),
    ("← →", "earlier, later"),
    ("Home", "now"),
    ("1", "jobs"),
    ("q", "quit"),
)
SHORT_KEYS = {"Enter": "⏎", "Space": "␣", "+ -": "+-"}
CHANGING = ("c", "r", "+ -", "p")
"""Keys that do nothing with --readonly."""


class Top(App[None]):
    """The live view of one queue."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; overflow: hidden; }
    #header, #tabs, #footer { height: 1; }
    #gpus { height: auto; }
    #notices { height: auto; }
    #body { height: 1fr; layout: vertical; }
    #body.split { layout: horizontal; }
    #main { width: 1fr; height: 1fr; }
    #main > * { width: 1fr; height: 1fr; }
    #pane { width: 1fr; height: 1fr; border-top: none; }
    #body.split #pane { width: 40%; border-left: vkey ansi_bright_black; }
    #filter { height: 1; border: none; padding: 0; background: ansi_default; color: ansi_default; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c,ctrl+q", "quit", show=False, priority=False),
        Binding("question_mark,h,f1", "help", show=False),
        Binding("slash", "filter", show=False),
        Binding("escape", "close", show=False),
        Binding("space", "tag", show=False),
        Binding("o", "order", show=False),
        Binding("c", "act('cancel')", show=False),
        Binding("r", "act('retry')", show=False),
        Binding("p", "act('pause')", show=False),
        Binding("plus,equals_sign", "more(1)", show=False),
        Binding("minus", "more(-1)", show=False),
        Binding("left", "shift(-1)", show=False),
        Binding("right", "shift(1)", show=False),
        Binding("home", "shift(0)", show=False),
        Binding("1", "tab('jobs')", show=False),
        Binding("2", "tab('timeline')", show=False),
        Binding("3", "tab('history')", show=False),
        Binding("tab", "focus_other", show=False, priority=True),
    ]

    def __init__(self, source: Source, *, readonly: bool, chosen: Filter = NO_FILTER) -> None:
        """`source` must have looked at the queue once."""
        super().__init__(ansi_color=True)
        self._source = source
        self._readonly = readonly
        self._chosen = chosen
        self._tab: Tab = "jobs"
        self._order: Order = "start"
        self._status: Status | None = source.feed.status
        self._samples: GpuSamples | None = None
        self._timeline: Timeline | None = None
        self._history: History | None = None
        self._details: JobDetails | None = None
        self._span = 3
        self._shift = 0.0
        self._pane_open = True
        self._error = ""
        self._message = ""
        self._message_until = 0.0
        self._read_at: dict[str, float] = {}
        self._stale = {"samples", "timeline", "history"}

    def compose(self) -> ComposeResult:
        yield Lines(id="header")
        yield Lines(id="gpus")
        yield Lines(id="notices")
        yield Lines(id="tabs")
        with Container(id="body"):
            with Container(id="main"):
                yield JobTable[JobLine](self._draw_jobs, id="jobs")
                yield Lines(id="timeline")
                yield JobTable[PastLine](self._draw_history, id="history")
            yield LogPane(id="pane")
        yield Input(id="filter", placeholder="part of a name, command, group, or an id", select_on_focus=False)
        yield Lines(id="footer")

    # -- parts of the screen ----------------------------------------------------------------------

    def _lines(self, name: str) -> Lines:
        return self.query_one(f"#{name}", Lines)

    @property
    def _jobs(self) -> JobTable[JobLine]:
        return self.query_one("#jobs", JobTable)

    @property
    def _past(self) -> JobTable[PastLine]:
        return self.query_one("#history", JobTable)

    @property
    def _pane(self) -> LogPane:
        return self.query_one(LogPane)

    @property
    def _now(self) -> float:
        return time.time()

    def _draw_jobs(self, jobs: Sequence[JobLine], width: int) -> Table:
        return jobs_table(jobs, self._now, width)

    def _draw_history(self, jobs: Sequence[PastLine], width: int) -> Table:
        return history_table(jobs, self._now, width)

    # -- life -------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        self.query_one("#filter", Input).display = False
        self._pane_open = self.size.width >= SPLIT
        self._show_tab()
        self._show_status()
        self._watch()
        self._follow()

    def on_resize(self, event: events.Resize) -> None:
        split = event.size.width >= SPLIT
        self.query_one("#body").set_class(split, "split")
        self._pane.ruled = not split
        self._show_all()

    @work(group="watch")
    async def _watch(self) -> None:
        """Look once a second; work only if something has changed."""
        while True:
            await self._look()
            self._tick()
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        try:
            changes = await self._source.call(self._source.look)
            self._error = ""
        except StokerError as error:
            self._fail(error)
            return
        if changes is not None:
            self._take(changes)
        await self._read_more()

    def _fail(self, error: StokerError) -> None:
        self._error = f"{error.message}; {error.hint}"
        self._show_notices()

    def _take(self, changes: Changes) -> None:
        self._status = self._source.feed.status
        self._stale |= {"samples", "timeline"}
        if changes.changed or changes.gone or changes.more:
            self._stale.add("history")
        self._show_status()

    async def _read_more(self) -> None:
        """What the feed does not bring, where it is shown and may have changed."""
        try:
            if self._is_due("samples", SAMPLES_SECONDS):
                self._samples = await self._source.call(self._source.samples)
                self._show_gpus()
            if self._tab == "timeline" and self._is_due("timeline", TIMELINE_SECONDS):
                await self._read_timeline()
            if self._tab == "history" and self._is_due("history", HISTORY_SECONDS):
                self._history = await self._source.call(self._source.history, self._chosen, LINES)
                self._show_history()
        except StokerError as error:
            self._fail(error)

    def _is_due(self, what: str, seconds: float) -> bool:
        now = time.monotonic()
        if what not in self._stale or now < self._read_at.get(what, 0.0) + seconds:
            return False
        self._stale.discard(what)
        self._read_at[what] = now
        return True

    def _expire(self, what: str) -> None:
        self._stale.add(what)
        self._read_at.pop(what, None)

    async def _read_timeline(self) -> None:
        now, span = self._now, SPANS[self._span]
        end = now + self._shift
        found = await self._source.call(self._source.timeline, end - span, None if not self._shift else end)
        if self._timeline is None:  # begin with a period that the jobs fill
            first = min((bar.start.timestamp() for lane in found.lanes for bar in lane.bars), default=now)
            self._span = next((place for place, one in enumerate(SPANS) if one >= now - first), self._span)
            span = SPANS[self._span]
            found = replace(found, since=exactly(end - span))
            self._show_tabs()
        until = min(found.until.timestamp(), now + span) if not self._shift else end
        self._timeline = replace(found, until=exactly(until))
        self._show_timeline()

    def _tick(self) -> None:
        """What changes with time alone."""
        self._show_header()
        if self._message and time.monotonic() > self._message_until:
            self._message = ""
            self._show_footer()
        if self._tab == "jobs" and any(job.started is not None for job in self._jobs.items):
            self._jobs.redraw()

    # -- drawing ----------------------------------------------------------------------------------

    def _show_all(self) -> None:
        self._show_status()
        self._show_tab()
        if self._tab == "timeline":
            self._show_timeline()

    def _show_status(self) -> None:
        self._show_header()
        self._show_gpus()
        self._show_notices()
        self._show_tabs()
        self._show_footer()
        if self._status is not None:
            hidden = self._status.hidden.waiting + self._status.hidden.held
            self._jobs.show(ordered(self._status.jobs, self._order), self._jobs_note(hidden))

    def _jobs_note(self, hidden: int) -> str:
        assert self._status is not None
        if hidden:
            return f"… {hidden} more waiting"
        if self._status.jobs:
            return ""
        if self._chosen != NO_FILTER:
            return "no job matches the filter (Esc removes it)"
        return "no jobs; add one: stoker submit -- python train.py"

    def _show_header(self) -> None:
        clock = time.strftime("%H:%M:%S", time.localtime(self._now))
        self._lines("header").show([header_line(self._status, clock, self.size.width, readonly=self._readonly)])

    def _show_gpus(self) -> None:
        if self._status is None:
            return
        most = max(2, self.size.height // 3)
        lines = gpu_lines(self._status, self._samples, self._now, self.size.width, most)
        self._fit("gpus", lines)

    def _show_notices(self) -> None:
        told = [] if self._status is None else notices(self._status, self._now)
        error: list[Line] = [(Span(printable(self._error), "bad"),)] if self._error else []
        self._fit("notices", [(Span(" "), *clipped(line, self.size.width - 2)) for line in (*error, *told)])

    def _fit(self, name: str, lines: Sequence[Line]) -> None:
        """Show lines in as much height as they need."""
        widget = self._lines(name)
        if widget.styles.height is None or widget.styles.height.value != len(lines):
            widget.styles.height = len(lines)
        widget.show(lines)

    def _show_tabs(self) -> None:
        self._lines("tabs").show([self._tabs_line()])

    def _tabs_line(self) -> Line:
        left: list[Span] = [Span("─", "faint")]
        for number, tab in enumerate(TABS, 1):
            text = f"[{number} {tab.capitalize()}]"
            left += [Span(text, "heading" if tab == self._tab else "faint"), Span("─", "faint")]
        words = [f"filter: {printable(self._chosen.text)}" if self._chosen.text else ""]
        words += [f"sort: {self._order}" if self._order != "start" and self._tab == "jobs" else ""]
        tagged = self._table.tagged if self._table else set()
        words += [f"{count_text(len(tagged), 'job')} tagged" if tagged else ""]
        words += [self._period_text() if self._tab == "timeline" else self._place_text()]
        empty = self._status.expected_empty if self._status else None
        words += ["" if empty is None else f"queue empty ~{clock_text(empty.timestamp(), self._now)}"]
        room = self.size.width - sum(cells(span.text) for span in left) - 4
        text = fitting(words, room) if any(words) else ""
        return right_aligned(
            tuple(left), (Span(f" {text} " if text else "", "odd"), Span("─", "faint")), self.size.width, "─"
        )

    def _place_text(self) -> str:
        """Where the cursor is in a table that is longer than the screen."""
        table = self._table
        hidden = self._status.hidden if self._status else None
        more = hidden.waiting + hidden.held if hidden and self._tab == "jobs" else 0
        if table is None or not table.size.height or len(table.items) < table.size.height:
            return ""
        return f"{table.place + 1} of {len(table.items) + more}"

    def _period_text(self) -> str:
        shift = f", until {clock_text(self._now + self._shift, self._now)}" if self._shift else ""
        return f"last {span_text(SPANS[self._span])}{shift}"

    def _show_footer(self) -> None:
        width = self.size.width
        if self._message:
            self._lines("footer").show([(Span(f" {clip(self._message, width - 2)}", "odd"),)])
            return
        keys = TIMELINE_KEYS if self._tab == "timeline" else KEYS
        known = [(key, what) for key, what in keys if not (self._readonly and key in CHANGING)]
        self._lines("footer").show([keys_line(known, width)])

    def _show_tab(self) -> None:
        for tab in TABS:
            self.query_one(f"#{tab}").display = tab == self._tab
        self._pane.display = self._pane_open and self._tab != "timeline"
        if self._tab != "timeline":
            self.query_one(f"#{self._tab}").focus()
        else:
            self.set_focus(None)
        self._show_tabs()
        self._show_footer()

    def _show_timeline(self) -> None:
        widget = self._lines("timeline")
        if self._timeline is None or not widget.size.width:
            return
        lines = chart_lines(self._timeline, widget.size.width - 1, widget.size.height - 1)
        widget.show([*((Span(" "), *line) for line in lines), (Span(f" {LEGEND}", "faint"),)])

    @on(Lines.Resized)
    def _resized(self, event: Lines.Resized) -> None:
        if event.sender.id == "timeline":
            self._show_timeline()

    def _show_history(self) -> None:
        if self._history is None:
            return
        jobs = sorted(self._history.jobs, key=lambda job: job.ended, reverse=True)
        hidden = f"… {self._history.hidden} older" if self._history.hidden else ""
        self._past.show(jobs, hidden or ("" if jobs else "no job has ended yet"))

    # -- details ----------------------------------------------------------------------------------

    @property
    def _table(self) -> JobTable[JobLine] | JobTable[PastLine] | None:
        return self._jobs if self._tab == "jobs" else self._past if self._tab == "history" else None

    @on(JobTable.Moved)
    def _moved(self) -> None:
        if self._tab == "jobs" and self._jobs.near_end and self._status and self._status.hidden.waiting:
            self._source.list_more()
        self._show_tabs()
        if self._pane_open:
            self._pane.clear()
            self._follow()

    @work(group="follow", exclusive=True)
    async def _follow(self) -> None:
        """Show the job under the cursor, and follow its log while it is there."""
        label, details, read_at = "", None, 0.0
        while self._pane.display:
            current = self._table.current if self._table else None
            if current is None:
                self._pane.clear()
                return
            first, label = current.label != label, current.label
            if first or details is None or (details.ended is None and time.monotonic() > read_at + DETAILS_SECONDS):
                details, read_at = await self._source.call(self._source.details, label), time.monotonic()
            log = self._log_of(details)
            lines = await self._source.call(self._source.log_lines, log, fresh=first)
            if details is not None:
                size = self._pane.size
                facts = detail_lines(details, self._now, max(10, size.width - 2), size.height)
                self._pane.show(facts, lines, _log_title(details, log))
            await asyncio.sleep(LOOK_SECONDS)

    @staticmethod
    def _log_of(details: JobDetails | None) -> str:
        attempts = details.attempts if details else []
        return next((one.errors or one.log or "" for one in reversed(attempts) if one.log or one.errors), "")

    # -- keys -------------------------------------------------------------------------------------

    @on(JobTable.Chosen)
    def _chosen_job(self) -> None:
        if self._pane_open and self.size.width >= SPLIT:
            self._pane.focus()
            return
        self._pane_open = not self._pane_open
        self._show_tab()
        self._follow()

    def action_help(self) -> None:
        self.push_screen(Help(readonly=self._readonly))

    def action_tab(self, tab: Tab) -> None:
        self._tab = tab
        self._expire(tab)
        self._show_tab()
        self.run_worker(self._look(), group="look")
        self._follow()

    def action_focus_other(self) -> None:
        if self._pane.display and self.focused is not self._pane:
            self._pane.focus()
        elif self._table is not None:
            self._table.focus()

    def action_close(self) -> None:
        """Close what was opened last: the filter, then the details, then the tags."""
        if self._chosen.text:
            self._filter("")
        elif self._pane_open and self.size.width < SPLIT:
            self._pane_open = False
            self._show_tab()
        else:
            self._jobs.tagged.clear()
            self._jobs.redraw()
            self._show_tabs()

    def action_tag(self) -> None:
        if self._table is not None:
            self._table.toggle_tag()
            self._show_tabs()

    def action_order(self) -> None:
        self._order = ORDERS[(ORDERS.index(self._order) + 1) % len(ORDERS)]
        self._show_status()

    def action_shift(self, step: int) -> None:
        if self._tab != "timeline":
            return
        self._shift = min(0.0, self._shift + step * SPANS[self._span] / 4) if step else 0.0
        self._timeline_changed()

    def action_more(self, step: int) -> None:
        """Zoom the timeline; in the table, change the priority."""
        if self._tab == "timeline":
            self._span = max(0, min(len(SPANS) - 1, self._span - step))
            self._timeline_changed()
        else:
            self.action_act("raise" if step > 0 else "lower")

    def _timeline_changed(self) -> None:
        self._expire("timeline")
        self._show_tabs()
        self.run_worker(self._look(), group="look", exclusive=True)

    # -- the filter -------------------------------------------------------------------------------

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.value, field.display = self._chosen.text, True
        self._lines("footer").display = False
        field.focus()

    @on(Input.Changed, "#filter")
    def _typed(self, event: Input.Changed) -> None:
        if event.input.display:
            self._filter(event.value)

    @on(Input.Submitted, "#filter")
    def _submitted(self) -> None:
        self._close_filter()

    def _close_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self._lines("footer").display = True
        self._show_tab()

    def on_key(self, event: events.Key) -> None:
        field = self.query_one("#filter", Input)
        if event.key == "escape" and field.display:
            self._filter("")
            self._close_filter()
            event.stop()
            event.prevent_default()

    def _filter(self, text: str) -> None:
        self._chosen = self._chosen._replace(text=text.strip())
        self._source.choose(self._chosen)
        self._expire("history")
        self._show_tabs()
        self.run_worker(self._look(), group="look", exclusive=True)

    # -- actions ----------------------------------------------------------------------------------

    def action_act(self, verb: Verb) -> None:
        """Do something to the tagged jobs, or to the one under the cursor."""
        table = self._table
        if table is None:
            return
        if self._readonly:
            self._say("this view is read-only: it was started with --readonly")
            return
        items: Sequence[JobLine | PastLine] = [one for one in table.items if one.label in table.tagged]
        items = items or ([table.current] if table.current else [])
        targets = [Target(one.label, one.title or one.command, one.state, one.tasks) for one in items]
        if not targets:
            return
        if refusal := actions.refusal(verb, targets):
            self._say(refusal)
            return
        if verb not in actions.ASKS:
            self._act(verb, targets)
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._act(verb, targets)

        self.push_screen(Question(actions.question(verb, targets)), answered)

    @work(group="act")
    async def _act(self, verb: Verb, targets: Sequence[Target]) -> None:
        try:
            said = await self._source.call(self._source.act, lambda control: actions.act(control, verb, targets))
        except StokerError as error:
            said = f"{error.message}; {error.hint}"
        self._jobs.tagged.clear()
        self._past.tagged.clear()
        self._say(said)
        self._expire("history")
        self._source.expire()
        await self._look()

    def _say(self, text: str) -> None:
        self._message, self._message_until = printable(text), time.monotonic() + MESSAGE_SECONDS
        self._show_footer()

    # -- the mouse --------------------------------------------------------------------------------

    @on(Lines.Clicked)
    def _clicked(self, event: Lines.Clicked) -> None:
        if event.sender.id == "tabs":
            at = 1
            for number, tab in enumerate(TABS, 1):
                wide = len(f"[{number} {tab}]")
                if at <= event.x < at + wide:
                    self.action_tab(tab)
                at += wide + 1


def _log_title(details: JobDetails, log: str) -> str:
    if not log:
        return "no log" if details.ended is not None else "no log yet"
    return "log (following)" if details.ended is None else "log"


def keys_line(keys: Sequence[tuple[str, str]], width: int) -> Line:
    """Keys and what they do, closer together if there is little room; what does not fit is left out."""
    roomy = sum(len(key) + len(what) + 3 for key, what in keys) <= width
    spans: list[Span] = [Span(" ")]
    for key, what in keys:
        short = key if roomy else SHORT_KEYS.get(key, key)
        if sum(cells(span.text) for span in spans) + len(short) + len(what) + 1 > width:
            break
        spans += [Span(short, "id"), Span(f" {what}{'  ' if roomy else ' '}", "faint")]
    return tuple(spans)
