"""Widgets that draw lines of spans: text, and a table with a cursor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from stoker.cli.top.panels import Table
from stoker.cli.views.text import EMPTY, Line, Look, Span, line_cells

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


class Lines(Widget):
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


class Labelled(Protocol):
    """An item of a table."""

    @property
    def label(self) -> str:
        """What tells it from others."""


Item = TypeVar("Item", bound=Labelled)


class JobTable(Widget, Generic[Item], can_focus=True):
    """Items of which those that fit are drawn, with a cursor that stays on its item."""

    class Moved(Message):
        """The cursor is on another item."""

    class Chosen(Message):
        """The item under the cursor was opened."""

    def __init__(self, draw: Callable[[Sequence[Item], int], Table], *, id: str) -> None:
        """`draw` makes a table of some items, so wide."""
        super().__init__(id=id)
        self._draw = draw
        self.items: list[Item] = []
        self.tagged: set[str] = set()
        self.note = ""
        """Shown below the last item, or in place of all."""
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
    def place(self) -> int:
        """Which of the items the cursor is on, from 0."""
        return self._cursor

    @property
    def near_end(self) -> bool:
        """Whether the last item is on the screen or will be with the next page."""
        return self._top + 2 * self._rows >= len(self.items)

    def choose(self, label: str) -> None:
        """Put the cursor on an item."""
        place = next((place for place, item in enumerate(self.items) if item.label == label), None)
        if place is not None:
            self.move_to(place)

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
            self.post_message(self.Chosen())
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
            self.post_message(self.Chosen())

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.move_to(self._cursor + 3)
        event.stop()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.move_to(self._cursor - 3)
        event.stop()


def right_aligned(left: Line, right: Line, width: int, fill: str = " ") -> Line:
    """Both, with `fill` between them."""
    room = width - line_cells(left) - line_cells(right)
    return (*left, Span(fill * max(1, room), "faint"), *right)
