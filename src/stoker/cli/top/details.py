"""The pane with the details of a job and the end of its log, which it follows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from textual import events, work
from textual.strip import Strip
from textual.widget import Widget

from stoker.app.views.columns import STATE_LOOKS, progress_text
from stoker.app.views.job_details import JobDetails
from stoker.cli.screens.job_table import bar_spans
from stoker.cli.screens.text import (
    EMPTY,
    Line,
    Look,
    Span,
    cells,
    clip,
    clip_middle,
    clipped,
    fitting,
    line_cells,
    one_line,
)
from stoker.cli.top.source import QueueReader
from stoker.cli.top.widgets import strip_of
from stoker.core.text import printable
from stoker.core.units import size_text, watch_text

LOOK_SECONDS = 1.0
"""Seconds between two looks at the log."""
DETAILS_SECONDS = 3.0
"""Least seconds between two reads of the job."""
ROOMY_LINES = 18
"""Lines of a pane from which on there is room for all facts of a job above its log."""


class DetailsPane(Widget, can_focus=True):
    """Facts of a job above, the end of its log below; it follows the log unless the user has scrolled up."""

    def __init__(self, source: QueueReader, *, id: str) -> None:
        super().__init__(id=id)
        self._source = source
        self._facts: list[Line] = []
        self._log: list[str] = []
        self._title = ""
        self._back = 0
        """Lines between the end of the log and the last one shown."""
        self.ruled = False
        """Whether a line separates it from what is above."""

    # -- reading ----------------------------------------------------------------------------------

    @work(group="follow", exclusive=True)
    async def follow(self, label: str | None) -> None:
        """Show a job and follow its log, until another job is shown or the pane is closed; None shows nothing."""
        if label is None:
            self.clear()
            return
        details, read_at, first = None, 0.0, True
        while self.display:
            if details is None or (details.ended is None and time.monotonic() > read_at + DETAILS_SECONDS):
                details, read_at = await self._source.call(self._source.details, label), time.monotonic()
            log = _log_of(details)
            lines = await self._source.call(self._source.log_lines, log, fresh=first)
            if details is not None:
                facts = detail_lines(details, max(10, self.size.width - 2), self.size.height)
                self._show(facts, lines, _log_title(details, log))
            first = False
            await asyncio.sleep(LOOK_SECONDS)

    @property
    def _following(self) -> bool:
        return self._back == 0

    def _show(self, facts: Sequence[Line], log: Sequence[str] | None, title: str) -> None:
        """Show other facts; `log` is None if it has not changed."""
        if list(facts) == self._facts and log is None and title == self._title:
            return
        self._facts, self._title = list(facts), title
        if log is not None and log != self._log:
            if not self._following:  # what the user reads stays where it is
                self._back += max(0, len(log) - len(self._log))
            self._log = list(log)
        self.refresh()

    def clear(self) -> None:
        self._facts, self._log, self._title, self._back = [], [], "", 0
        self.refresh()

    # -- drawing ----------------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        return max(1, self.size.height - len(self._facts) - 1 - self.ruled)

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        line: Line = EMPTY
        y -= self.ruled
        if y < 0:
            return strip_of((Span("─" * width, "faint"),), width)
        if y < len(self._facts):
            line = self._facts[y]
        elif y == len(self._facts) and self._title:
            state = self._title if self._following else "log (End follows it again)"
            line = (Span(f"── {state} ".ljust(width, "─"), "faint"),)
        elif y > len(self._facts):
            line = self._log_line(y - len(self._facts) - 1)
        return strip_of((Span(" "), *line), width)

    def _log_line(self, row: int) -> Line:
        end = len(self._log) - self._back
        place = max(0, end - self._room) + row
        return (Span(self._log[place]),) if 0 <= place < end else EMPTY

    def scroll(self, lines: int) -> None:
        """Show earlier lines (positive) or later ones."""
        room = self._room
        self._back = max(0, min(self._back + lines, len(self._log) - room))
        self.refresh()

    # -- what Textual calls -----------------------------------------------------------------------

    def on_key(self, event: events.Key) -> None:
        steps = {"up": 1, "down": -1, "pageup": self._room, "pagedown": -self._room}
        if event.key in steps:
            self.scroll(steps[event.key])
        elif event.key == "home":
            self.scroll(len(self._log))
        elif event.key == "end":
            self.scroll(-self._back)
        else:
            return
        event.stop()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.scroll(-3)
        event.stop()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.scroll(3)
        event.stop()


def _log_of(details: JobDetails | None) -> str:
    """The log of the last attempt that has one."""
    attempts = details.attempts if details else []
    return next(
        (attempt.errors or attempt.log or "" for attempt in reversed(attempts) if attempt.log or attempt.errors), ""
    )


def _log_title(details: JobDetails, log: str) -> str:
    if not log:
        return "no log" if details.ended is not None else "no log yet"
    return "log (following)" if details.ended is None else "log"


# -- facts ---------------------------------------------------------------------------------------


def detail_lines(details: JobDetails, width: int, height: int) -> list[Line]:
    """The most important facts of a job, shorter than `stoker status ID`; in a low pane only three lines of them."""
    lines = _few_facts(details, width) if height < ROOMY_LINES else _facts(details, width)
    return [clipped(line, width) for line in lines]


def _few_facts(details: JobDetails, width: int) -> list[Line]:
    first: Line = (Span(f"job {details.label} ", "id"), Span(details.state, STATE_LOOKS.get(details.state, "")))
    done = "" if details.progress is None else f"{details.progress:.0%} done"
    rest = fitting(["", _where(details), _memory(details), done], width - line_cells(first) - 3)
    lines: list[Line] = [(*first, Span(f" · {rest}" if rest else ""))]
    return [*lines, *_why(details, width, 1), (Span(clip_middle(one_line(details.command), width), "faint"),)]


def _facts(details: JobDetails, width: int) -> list[Line]:
    title, command = one_line(details.title or details.command), one_line(details.command)
    lines: list[Line] = [
        (Span(f"job {details.label} ", "id"), Span(details.state, STATE_LOOKS.get(details.state, ""))),
        *_wrapped(title, width, 2),
    ]
    lines += _wrapped(command, width, 3, "faint") if command != title else []
    lines += _why(details, width, 4)
    directory = f"cwd {details.directory}" if details.directory else ""
    commit = f"git {details.commit}" if details.commit else ""
    group = f"group {details.group}" if details.group else ""
    for text in (_where(details), _memory(details)):
        lines += _wrapped(text, width, 2)
    for text in (directory, commit, group):
        lines += _wrapped(text, width, 1, "faint")
    if details.progress is not None:
        lines.append(bar_spans(progress_text(details.progress, min(20, width - 6))))
    return lines


def _why(details: JobDetails, width: int, most: int) -> list[Line]:
    """Why it waits, or why it failed."""
    if details.ended is None:
        return _wrapped(details.why, width, most, "odd")
    return _wrapped(details.failure or details.note, width, most, STATE_LOOKS.get(details.state, ""))


def _where(details: JobDetails) -> str:
    devices = f"GPU {','.join(details.devices)}" if details.devices else ""
    attempt = f"attempt {len(details.attempts)}" if len(details.attempts) > 1 else ""
    limit = f"limit {watch_text(details.limit_seconds)}" if details.limit_seconds is not None else ""
    return " · ".join(filter(None, (devices, attempt, limit)))


def _memory(details: JobDetails) -> str:
    peak = f"peak {size_text(details.peak_vram_bytes)}" if details.peak_vram_bytes else ""
    reserved = f"of {size_text(details.reserved_bytes)}" if details.reserved_bytes and peak else ""
    busy = f"util {details.utilisation_percent}%" if details.utilisation_percent else ""
    return "  ".join(filter(None, (f"{peak} {reserved}".strip(), busy)))


def _wrapped(text: str, width: int, most: int, look: Look = "") -> list[Line]:
    return [(Span(part, look),) for part in _parts(printable(text), width, most)]


def _parts(text: str, width: int, most: int) -> list[str]:
    """The text in lines of the width, at most so many."""
    parts: list[str] = []
    rest = text
    while rest and len(parts) < most:
        part = rest if cells(rest) <= width else _front(rest, width)
        parts.append(part)
        rest = rest[len(part) :]
    if rest and parts:
        parts[-1] = clip(parts[-1] + "……", width)
    return parts


def _front(text: str, width: int) -> str:
    """As much of a text as fits, up to a blank if there is one."""
    used, end = 0, 0
    for end, character in enumerate(text):  # noqa: B007
        used += cells(character)
        if used > width:
            break
    blank = text.rfind(" ", 0, end)
    return text[: blank + 1] if blank > end // 2 else text[: max(1, end)]
