"""Dialogs of the live view: the keys, and a question before something that cannot be undone."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen

from stoker.cli.screens.text import Line, Span, cells, clip
from stoker.cli.top.widgets import TextLines

KEYS = (
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
ACTIONS = (
    ("c", "cancel, or stop if it runs (asks first)"),
    ("r", "retry an ended job (asks first)"),
    ("+ -", "raise or lower the priority"),
    ("p", "pause: hold a waiting job, or release it"),
)
BARS = "GPU memory: █ used ▒ reserved ▓ others ░ free"


class Help(ModalScreen[None]):
    """All keys; any key closes it."""

    CSS = """
    Help { align: center middle; background: transparent; }
    Help > #keys { width: 74; max-width: 100%; border: round ansi_bright_black; background: ansi_default; }
    """

    def __init__(self, *, readonly: bool) -> None:
        super().__init__()
        self._readonly = readonly

    def compose(self) -> ComposeResult:
        box = TextLines(id="keys")
        keys = KEYS if self._readonly else (*KEYS, *ACTIONS)
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

    CSS = """
    Question { align: left bottom; background: transparent; }
    Question > #question { height: 1; width: 100%; background: ansi_default; }
    """

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
