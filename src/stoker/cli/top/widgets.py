"""Widgets around the tables of the live view, their styles, and its keys."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.message import Message
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from stoker.cli.screens.text import EMPTY, Line, Look, Span, cells, clip, fitting, line_cells

STYLE_SHEET = """
Screen { layout: vertical; overflow: hidden; }
Summary { height: auto; }
Summary > * { height: auto; }
Summary > #header { height: 1; }
#tabs { height: 1; }
#body { height: 1fr; layout: vertical; }
#body.split { layout: horizontal; }
#main { width: 1fr; height: 1fr; }
#main > * { width: 1fr; height: 1fr; }
#pane { width: 1fr; height: 1fr; border-top: none; }
#body.split #pane { width: 40%; border-left: vkey ansi_bright_black; }
Footer { height: 1; }
Footer > * { height: 1; }
#filter { border: none; padding: 0; background: ansi_default; color: ansi_default; }
Help { align: center middle; background: transparent; }
Help > #keys { width: 74; max-width: 100%; border: round ansi_bright_black; background: ansi_default; }
Question { align: left bottom; background: transparent; }
Question > #question { height: 1; width: 100%; background: ansi_default; }
"""
STYLES: dict[Look, Style] = {
    "": Style(),
    "heading": Style(bold=True),
    "simulated": Style(bold=True, reverse=True),
    "good": Style(color="green"),
    "bad": Style(color="red", bold=True),
    "odd": Style(color="magenta"),
    "faint": Style(dim=True),
    "id": Style(bold=True),
    "light": Style(color="green"),
    "moderate": Style(color="yellow"),
    "heavy": Style(color="red"),
    "bar0": Style(color="green"),
    "bar1": Style(color="blue"),
    "bar2": Style(color="cyan"),
    "bar3": Style(color="magenta"),
    "bar4": Style(color="yellow"),
    "on_bar0": Style(color="green", reverse=True),
    "on_bar1": Style(color="blue", reverse=True),
    "on_bar2": Style(color="cyan", reverse=True),
    "on_bar3": Style(color="magenta", reverse=True),
    "on_bar4": Style(color="yellow", reverse=True),
    "on_bad": Style(color="red", reverse=True),
}
"""The terminal's own colours, so that the view fits light and dark backgrounds."""
_CHOSEN = Style(reverse=True)


def strip_of(line: Line, width: int, *, chosen: bool = False) -> Strip:
    """A line of the screen; a chosen one is reversed, and has one colour so that it can be read."""
    if chosen:
        text = "".join(span.text for span in line)
        return Strip([Segment(text, _CHOSEN)]).adjust_cell_length(width, _CHOSEN)
    segments = [Segment(span.text, STYLES[span.look]) for span in line]
    return Strip(segments).adjust_cell_length(width)


class TextLines(Widget):
    """Some lines of text."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._lines: Sequence[Line] = []

    def show(self, lines: Sequence[Line]) -> None:
        """Draw other lines, if they differ from those that are shown."""
        if list(lines) != list(self._lines):
            self._lines = list(lines)
            self.refresh()

    @property
    def lines(self) -> Sequence[Line]:
        return self._lines

    def render_line(self, y: int) -> Strip:
        return strip_of(self._lines[y] if y < len(self._lines) else EMPTY, self.size.width)


def right_aligned(left: Line, right: Line, width: int, fill: str = " ") -> Line:
    """Both, with `fill` between them."""
    room = width - line_cells(left) - line_cells(right)
    return (*left, Span(fill * max(1, room), "faint"), *right)


# -- keys ------------------------------------------------------------------------------------------

Tab = Literal["jobs", "timeline", "history"]
TABS: tuple[Tab, ...] = ("jobs", "timeline", "history")
TIMELINE: tuple[Tab, ...] = ("timeline",)
MESSAGE_SECONDS = 8.0
BARS = "GPU memory: █ used ▒ reserved ▓ others ░ free"


class KeyHelp(NamedTuple):
    """A key, or some that belong together."""

    name: str
    """As screens name it."""
    word: str = ""
    """In the line below the tables; empty if it is not shown there."""
    sentence: str = ""
    """In the help."""
    actions: Mapping[str, str] = {}
    """Methods of the view by the names that Textual has for the keys."""
    tabs: Sequence[Tab] = ("jobs", "history")
    """Where the line below the tables shows it."""
    short: str = ""
    """Its name if there is little room."""
    changes: bool = False
    """Whether it does nothing with --readonly."""


KEYS = (
    KeyHelp(
        "1 2 3", "", "Jobs, Timeline, History", {"1": "tab('jobs')", "2": "tab('timeline')", "3": "tab('history')"}
    ),
    KeyHelp("↑ ↓ PgUp PgDn Home End", "", "move; the mouse works, too"),
    KeyHelp("?", "help", "", {"question_mark,h,f1": "help"}, TABS),
    KeyHelp("Enter", "log", "details and log; Tab moves into the log", {"tab": "focus_other"}, short="⏎"),
    KeyHelp("/", "filter", "filter by name, command, group or id", {"slash": "filter"}),
    KeyHelp("Esc", "", "remove the filter, close the log", {"escape": "close"}),
    KeyHelp("Space", "tag", "tag; actions apply to all tagged jobs", {"space": "tag"}, short="␣"),
    KeyHelp("o", "sort", "sort by start, id, name, state, memory, time", {"o": "order"}),
    KeyHelp("c", "cancel", "cancel, or stop if it runs (asks first)", {"c": "act('cancel')"}, changes=True),
    KeyHelp("r", "retry", "retry an ended job (asks first)", {"r": "act('retry')"}, changes=True),
    KeyHelp("g", "", "preempt: let a job give way (asks first)", {"g": "act('preempt')"}, changes=True),
    KeyHelp(
        "+ -",
        "priority",
        "raise or lower the priority",
        {"plus,equals_sign": "more(1)", "minus": "more(-1)"},
        short="+-",
        changes=True,
    ),
    KeyHelp("p", "pause", "pause: hold a waiting job, or release it", {"p": "act('pause')"}, changes=True),
    KeyHelp("+ -", "zoom", tabs=TIMELINE, short="+-"),
    KeyHelp("← →", "earlier, later", "", {"left": "shift(-1)", "right": "shift(1)"}, TIMELINE),
    KeyHelp("Home", "now", "", {"home": "shift(0)"}, TIMELINE),
    KeyHelp("1", "jobs", tabs=TIMELINE),
    KeyHelp("Ctrl-Z", "", "suspend", {"ctrl+z": "suspend_process"}),
    KeyHelp("q", "quit", "quit, as Ctrl-C does; jobs continue", {"q,ctrl+c,ctrl+q": "quit"}, TABS),
)
FIRST = ("tab", "ctrl+z")
"""Keys that the widget with the focus must not take."""


def keys_for(*, readonly: bool) -> list[KeyHelp]:
    return [key for key in KEYS if not (readonly and key.changes)]


def bindings() -> list[BindingType]:
    """The keys as Textual wants them."""
    return [
        Binding(names, action, show=False, priority=names in FIRST)
        for key in KEYS
        for names, action in key.actions.items()
    ]


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
    """The keys; for some seconds the result of an action; and the filter while the user types it."""

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
        keys = [key for key in keys_for(readonly=self._readonly) if key.word and tab in key.tabs]
        message: Line = (Span(f" {clip(self._message, width - 2)}", "odd"),)
        self._line.show([message if self._message else keys_line(keys, width)])

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


def keys_line(keys: Sequence[KeyHelp], width: int) -> Line:
    """Keys and what they do, closer together if there is little room; what does not fit is left out."""
    roomy = sum(len(key.name) + len(key.word) + 3 for key in keys) <= width
    spans: list[Span] = [Span(" ")]
    for key in keys:
        name = key.name if roomy else key.short or key.name
        if sum(cells(span.text) for span in spans) + len(name) + len(key.word) + 1 > width:
            break
        spans += [Span(name, "id"), Span(f" {key.word}{'  ' if roomy else ' '}", "faint")]
    return tuple(spans)


# -- over the tables -----------------------------------------------------------------------------


class Help(ModalScreen[None]):
    """All keys; any key closes it."""

    def __init__(self, *, readonly: bool) -> None:
        super().__init__()
        self._readonly = readonly

    def compose(self) -> ComposeResult:
        box = TextLines(id="keys")
        keys = [(key.name, key.sentence) for key in keys_for(readonly=self._readonly) if key.sentence]
        of_timeline = [key for key in KEYS if key.tabs == TIMELINE]
        names, words = (key.name for key in of_timeline), (key.word for key in of_timeline)
        keys.append((f"timeline: {' '.join(names)}", ", ".join(words)))
        lines: list[Line] = [(Span("Keys", "heading"), Span("   (any key closes this)", "faint"))]
        lines += [(Span(f" {name:24}", "id"), Span(sentence)) for name, sentence in keys]
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
