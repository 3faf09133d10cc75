"""The live view: a screen of GPUs and jobs that follows the queue, and keys that change jobs."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Sequence
from typing import ClassVar

from textual import events, on, work
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.widget import Widget

from stoker.app.jobs.local_time import clock_text
from stoker.app.views.feed import Changes
from stoker.app.views.model import Status
from stoker.cli.top.details import DetailsPane
from stoker.cli.top.source import ASKS, LINES, Freshness, QueueReader, Target, Verb, question, refusal
from stoker.cli.top.summary import Summary, filter_text
from stoker.cli.top.tabs import HistoryTab, JobsTab, TableWidget, TimelineChart
from stoker.cli.top.widgets import STYLE_SHEET, Footer, Help, Question, Tab, TabBar, bindings
from stoker.core.errors import StokerError
from stoker.core.units import count_text
from stoker.store.filters import NO_FILTER, Filter

LEAVE_SECONDS = 5.0
"""How long the terminal may take to be restored after a signal."""
LOOK_SECONDS = 1.0
"""Seconds between two looks whether something changed."""
READ_SECONDS = {"samples": 30.0, "timeline": 3.0, "history": 2.0}
"""Least seconds between two reads of what is not in the feed."""
SPLIT_COLUMNS = 110
"""Columns from which on the details stand beside the table."""


class Top(App[None]):
    """The live view of one queue."""

    ENABLE_COMMAND_PALETTE = False
    CSS = STYLE_SHEET
    BINDINGS: ClassVar[list[BindingType]] = bindings()

    def __init__(self, source: QueueReader, *, readonly: bool, chosen: Filter = NO_FILTER) -> None:
        """`source` must have looked at the queue once."""
        super().__init__(ansi_color=True)
        self._source = source
        self._readonly = readonly
        self._chosen = chosen
        self._listed = chosen
        """The filter of the jobs that the tables show; they follow a new one at the next look."""
        self._tab: Tab = "jobs"
        self._status: Status | None = source.feed.status
        self._pane_open = True
        self._freshness = Freshness(READ_SECONDS)
        self._summary = Summary(readonly=readonly, id="summary")
        self._tabs = TabBar(id="tabs")
        self._jobs = JobsTab(id="jobs")
        self._timeline = TimelineChart(source, id="timeline")
        self._past = HistoryTab(id="history")
        self._pane = DetailsPane(source, id="pane")
        self._views: dict[Tab, Widget] = {"jobs": self._jobs, "timeline": self._timeline, "history": self._past}
        self._body = Container(id="body")
        self._footer = Footer(readonly=readonly, id="footer")

    def compose(self) -> ComposeResult:
        yield self._summary
        yield self._tabs
        with self._body:
            with Container(id="main"):
                yield from self._views.values()
            yield self._pane
        yield self._footer

    @property
    def _table(self) -> JobsTab | HistoryTab | None:
        return self._jobs if self._tab == "jobs" else self._past if self._tab == "history" else None

    # -- life -------------------------------------------------------------------------------------

    def on_load(self) -> None:
        """Leave as after `q` when a signal ends the program, so that the terminal is restored."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: self._leave(loop, 128 + number))

    def _leave(self, loop: asyncio.AbstractEventLoop, code: int) -> None:
        """Restore the terminal and exit, or exit only.

        If the terminal is gone, Textual waits for ever until it takes the last text. So this is an ordinary handler,
        which Python runs also while the loop waits there.
        """
        end = threading.Timer(LEAVE_SECONDS, os._exit, [code])
        end.daemon = True
        end.start()
        loop.call_soon_threadsafe(self.exit, None, code)

    def on_mount(self) -> None:
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))  # after Ctrl-Z it is empty
        self._pane_open = self.size.width >= SPLIT_COLUMNS
        self._show_tab()
        self._show_status()
        self._watch()
        self._follow()

    def on_resize(self, event: events.Resize) -> None:
        split = event.size.width >= SPLIT_COLUMNS
        self._body.set_class(split, "split")
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
        chosen = self._chosen
        try:
            changes = await self._source.call(self._source.look)
            self._summary.error = ""
        except StokerError as error:
            self._fail(error)
            return
        if changes is not None:
            self._take(changes)
        await self._read_more()
        self._listed = chosen

    @work(group="look", exclusive=True)
    async def _look_at_once(self) -> None:
        await self._look()

    def _fail(self, error: StokerError) -> None:
        self._summary.error = str(error)
        self._summary.draw_notices()

    def _take(self, changes: Changes) -> None:
        self._status = self._source.feed.status
        self._freshness.may_have_changed("samples", "timeline")
        if changes.changed or changes.gone or changes.more:
            self._freshness.may_have_changed("history")
        self._show_status()

    async def _read_more(self) -> None:
        """Read data that the feed does not bring, if it is shown and may have changed."""
        try:
            if self._freshness.is_due("samples"):
                self._summary.show_samples(await self._source.call(self._source.samples))
            if self._tab == "timeline" and self._freshness.is_due("timeline"):
                await self._timeline.read()
                self._show_tabs()
            if self._tab == "history" and self._freshness.is_due("history"):
                self._past.show_history(await self._source.call(self._source.history, self._chosen, LINES))
        except StokerError as error:
            self._fail(error)

    def _tick(self) -> None:
        """Redraw the parts that change with time alone."""
        self._summary.draw_header()
        self._footer.remove_old_message()
        if self._tab == "jobs":
            self._jobs.tick()

    # -- drawing ----------------------------------------------------------------------------------

    def _show_all(self) -> None:
        self._show_status()
        self._show_tab()
        if self._tab == "timeline":
            self._timeline.draw()

    def _show_status(self) -> None:
        self._summary.show_status(self._status)
        if self._status is not None:
            self._jobs.show_status(self._status, filtered=self._chosen != NO_FILTER)
        self._show_tabs()  # which count the jobs of the table
        self._footer.show_keys(self._tab)

    def _show_tabs(self) -> None:
        self._tabs.show_tabs(self._tab, self._tab_words(), self.size.width)

    def _tab_words(self) -> list[str]:
        """Words about the table that is shown, the most important first; empty if there is nothing to say."""
        table = self._table
        place = self._timeline.period_text() if table is None else table.place_text
        order = self._jobs.order
        empty = self._status.expected_empty if self._status else None
        return [
            filter_text(self._chosen.text, self._status) if self._chosen.text else "",
            f"sort: {order}" if order != "start" and self._tab == "jobs" else "",
            f"{count_text(len(table.tagged), 'job')} tagged" if table and table.tagged else "",
            place,
            "" if empty is None else f"queue empty ~{clock_text(empty.timestamp(), time.time())}",
        ]

    def _show_tab(self) -> None:
        for tab, view in self._views.items():
            view.display = tab == self._tab
        self._pane.display = self._pane_open and self._tab != "timeline"
        if self._tab != "timeline":
            self._views[self._tab].focus()
        else:
            self.set_focus(None)
        self._show_tabs()
        self._footer.show_keys(self._tab)

    # -- details ----------------------------------------------------------------------------------

    @on(TableWidget.Moved)
    def _moved(self) -> None:
        if self._tab == "jobs" and self._jobs.wants_more:
            self._source.list_more()
        self._show_tabs()
        if self._pane_open:
            self._pane.clear()
            self._follow()

    def _follow(self) -> None:
        """Show the job under the cursor."""
        current = self._table.current if self._table else None
        self._pane.follow(current.label if current else None)

    # -- keys -------------------------------------------------------------------------------------

    @on(TableWidget.RowChosen)
    def _chosen_job(self) -> None:
        if self._pane_open and self.size.width >= SPLIT_COLUMNS:
            self._pane.focus()
            return
        self._pane_open = not self._pane_open
        self._show_tab()
        self._follow()

    def action_help(self) -> None:
        self.push_screen(Help(readonly=self._readonly))

    @on(TabBar.TabChosen)
    def _tab_clicked(self, event: TabBar.TabChosen) -> None:
        self.action_tab(event.tab)

    def action_tab(self, tab: Tab) -> None:
        self._tab = tab
        self._freshness.expire(tab)
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
        elif self._pane_open and self.size.width < SPLIT_COLUMNS:
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
        self._jobs.sort_by_next()
        self._show_status()

    def action_shift(self, step: int) -> None:
        if self._tab != "timeline":
            return
        self._timeline.move(step)
        self._timeline_changed()

    def action_more(self, step: int) -> None:
        """Zoom the timeline; in the table, change the priority."""
        if self._tab == "timeline":
            self._timeline.zoom(step)
            self._timeline_changed()
        else:
            self.action_act("raise" if step > 0 else "lower")

    def _timeline_changed(self) -> None:
        self._freshness.expire("timeline")
        self._show_tabs()
        self._look_at_once()

    # -- the filter -------------------------------------------------------------------------------

    def action_filter(self) -> None:
        self._footer.ask_for_filter(self._chosen.text)

    @on(Footer.Typed)
    def _typed(self, event: Footer.Typed) -> None:
        self._filter(event.text)

    @on(Footer.Closed)
    def _filter_closed(self) -> None:
        self._show_tab()

    def _filter(self, text: str) -> None:
        self._chosen = self._chosen._replace(text=text.strip())
        self._source.choose(self._chosen)
        self._freshness.expire("history")
        self._show_tabs()
        self.run_worker(self._look(), group="look", exclusive=True)

    # -- actions ----------------------------------------------------------------------------------

    def action_act(self, verb: Verb) -> None:
        """Do something to the tagged jobs, or to the one under the cursor."""
        table = self._table
        if table is None:
            return
        if self._readonly:
            self._footer.say("this view is read-only: it was started with --readonly")
            return
        if self._listed != self._chosen:
            self._footer.say("the list does not show the filter yet; press the key again")
            return
        targets = [Target(line.label, line.title or line.command, line.state, line.tasks) for line in table.chosen]
        if not targets:
            return
        if reason := refusal(verb, targets):
            self._footer.say(reason)
            return
        if verb not in ASKS:
            self._act(verb, targets)
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._act(verb, targets)

        self.push_screen(Question(question(verb, targets)), answered)

    @work(group="act")
    async def _act(self, verb: Verb, targets: Sequence[Target]) -> None:
        try:
            said = await self._source.call(self._source.act, verb, targets)
        except StokerError as error:
            said = str(error)
        self._jobs.tagged.clear()
        self._past.tagged.clear()
        self._footer.say(said)
        self._freshness.expire("history")
        self._source.expire()
        await self._look()
