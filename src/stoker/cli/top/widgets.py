"""Styles of the live view, lines of spans on the screen, and the widget that draws them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from stoker.cli.screens.text import EMPTY, Line, Look, Span, line_cells

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
