"""What stands around the tables: tabs above; keys, a message or the filter below; help and a question over them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Container
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input

from stoker.cli.screens.text import Line, Span, cells, clip, fitting
from stoker.cli.top.widgets import TextLines, right_aligned

Tab = Literal["jobs", "timeline", "history"]
TABS: tuple[Tab, ...] = ("jobs", "timeline", "history")
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
HELP = (
    ("1 2 3", "Jobs, Timeline, History"),
    ("↑ ↓ PgUp PgDn Home End", "move; the mouse works, too"),
    ("Enter", "details and log; Tab moves into the log"),
    ("/", "filter by name, command, group or id"),
    ("Esc", "remove the filter, close the log"),
    ("o", "sort by start, id, name, state, memory, time"),
    ("Space", "tag; actions apply to all tagged jobs"),
    ("timeline: + - ← → Home", "zoom; earlier, later, now"),
    ("q, Ctrl-C", "quit; jobs continue (Ctrl-Z suspends)"),
)
HELP_FOR_ACTIONS = (
    ("c", "cancel, or stop if it runs (asks first)"),
    ("r", "retry an ended job (asks first)"),
    ("+ -", "raise or lower the priority"),
    ("p", "pause: hold a waiting job, or release it"),
)
BARS = "GPU memory: █ used ▒ reserved ▓ others ░ free"


# -- above the tables ----------------------------------------------------------------------------


class TabBar(TextLines):
    """The tabs, which can be clicked, and words about what is shown."""

    class TabChosen(Message):
        """A tab was clicked."""

        def __init__(self, tab: Tab) -> None:
            super().__init__()
            self.tab = tab

    def show_tabs(self, chosen: Tab, words: Sequence[str], width: int) -> None:
        """Draw the tabs; of the words as many as fit, and none that is empty."""
        left: list[Span] = [Span("─", "faint")]
        for place, tab in enumerate(TABS):
            left += [Span(_tab_text(place), "heading" if tab == chosen else "faint"), Span("─", "faint")]
        room = width - sum(cells(span.text) for span in left) - 4
        text = fitting(words, room) if any(words) else ""
        right = (Span(f" {text} " if text else "", "odd"), Span("─", "faint"))
        self.show([right_aligned(tuple(left), right, width, "─")])

    def on_click(self, event: events.Click) -> None:
        start = 1
        for place, tab in enumerate(TABS):
            end = start + len(_tab_text(place))
            if start <= event.x < end:
                self.post_message(self.TabChosen(tab))
            start = end + 1


def _tab_text(place: int) -> str:
    return f"[{place + 1} {TABS[place].capitalize()}]"


# -- below the tables ----------------------------------------------------------------------------


class Footer(Container):
    """What the keys do; for some seconds what became of an action; and the filter while it is typed."""

    class Typed(Message):
        """The filter is another one."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Closed(Message):
        """The filter has been typed."""

    def __init__(self, *, readonly: bool, id: str) -> None:
        super().__init__(id=id)
        self._readonly = readonly
        self._tab: Tab = "jobs"
        self._message = ""
        self._message_until = 0.0
        self._line = TextLines(id="keys")
        hint = "part of a name, command, group, or an id"
        self._field = Input(id="filter", placeholder=hint, select_on_focus=False)
        self._field.display = False

    def compose(self) -> ComposeResult:
        yield self._line
        yield self._field

    # -- keys and messages ------------------------------------------------------------------------

    def show_keys(self, tab: Tab) -> None:
        """Draw the keys of a tab, if there is no message."""
        self._tab = tab
        width = self.app.size.width
        keys = TIMELINE_KEYS if tab == "timeline" else KEYS
        shown_keys = [(key, what) for key, what in keys if not (self._readonly and key in CHANGING)]
        message: Line = (Span(f" {clip(self._message, width - 2)}", "odd"),)
        self._line.show([message if self._message else keys_line(shown_keys, width)])

    def say(self, text: str) -> None:
        """Show a message for some seconds."""
        self._message, self._message_until = text, time.monotonic() + MESSAGE_SECONDS
        self.show_keys(self._tab)

    def remove_old_message(self) -> None:
        if self._message and time.monotonic() > self._message_until:
            self._message = ""
            self.show_keys(self._tab)

    # -- the filter -------------------------------------------------------------------------------

    def ask_for_filter(self, text: str) -> None:
        """Let the user change the filter: Enter keeps it, Esc removes it."""
        self._field.value, self._field.display = text, True
        self._line.display = False
        self._field.focus()

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        if event.input.display:
            self.post_message(self.Typed(event.value))

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._close()

    def on_key(self, event: events.Key) -> None:
        if event.key == "escape":  # it comes from the field, as nothing else here has the focus
            self.post_message(self.Typed(""))
            self._close()
            event.stop()
            event.prevent_default()

    def _close(self) -> None:
        self._field.display = False
        self._line.display = True
        self.post_message(self.Closed())


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


# -- over the tables -----------------------------------------------------------------------------


class Help(ModalScreen[None]):
    """All keys; any key closes it."""

    def __init__(self, *, readonly: bool) -> None:
        super().__init__()
        self._readonly = readonly

    def compose(self) -> ComposeResult:
        box = TextLines(id="keys")
        keys = HELP if self._readonly else (*HELP, *HELP_FOR_ACTIONS)
        lines: list[Line] = [(Span("Keys", "heading"), Span("   (any key closes this)", "faint"))]
        lines += [(Span(f" {key:24}", "id"), Span(what)) for key, what in keys]
        lines += [(), (Span(f" {BARS}", "faint"),)]
        box.show(lines)
        box.styles.height = len(lines) + 2
        yield box

    def on_key(self, event: events.Key) -> None:
        event.stop()
        self.dismiss()

    def on_click(self) -> None:
        self.dismiss()


class Question(ModalScreen[bool]):
    """Asks once, on the last line; only `y` means yes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        box = TextLines(id="question")
        keys = "  y yes  n no"
        room = self.app.size.width - cells(keys) - 2
        box.show([(Span(f" {clip(self._text, room)}", "bad"), Span(keys, "id"))])
        yield box

    def on_key(self, event: events.Key) -> None:
        event.stop()
        self.dismiss(event.key == "y")
