"""Styled text, tables and memory bars for terminals."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, TextIO

from stoker.core.text import on_one_line, printable, without_common_leads

Look = Literal[
    "",
    "heading",
    "simulated",
    "good",
    "bad",
    "odd",
    "faint",
    "id",
    "light",
    "moderate",
    "heavy",
    "bar0",
    "bar1",
    "bar2",
    "bar3",
    "bar4",
    "on_bar0",
    "on_bar1",
    "on_bar2",
    "on_bar3",
    "on_bar4",
    "on_bad",
]
"""`bar` and a number are the colours of bars in charts, with `on_` those of text inside of them."""


class _Styled(NamedTuple):
    text: str
    look: Look


class Span(_Styled):
    """Text and its look; the look never carries information that the text lacks.

    Control characters are escaped here, before any width is measured, so that no screen can print them.
    """

    __slots__ = ()

    def __new__(cls, text: str, look: Look = "") -> Span:
        return tuple.__new__(cls, (text if text.isprintable() else printable(text), look))


Line = tuple[Span, ...]
EMPTY: Line = ()
LABEL_COLUMNS = 11
"""Of the labels before the facts of one job; a longer label would touch its value."""
LONGEST_TEXT = 2000


def cells(text: str) -> int:
    """Columns that the text takes on a terminal."""
    return len(text) if text.isascii() else sum(map(_cells_of, text))


@lru_cache(maxsize=4096)
def _cells_of(character: str) -> int:
    import unicodedata  # most texts are ASCII

    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def line_cells(line: Sequence[Span]) -> int:
    return sum(cells(span.text) for span in line)


def clip(text: str, width: int) -> str:
    """The text in at most so many columns, with `…` where it was cut."""
    if cells(text) <= width:
        return text
    kept, used = [], 1
    for character in text:
        used += _cells_of(character)
        if used > width:
            break
        kept.append(character)
    return "".join(kept) + "…" if width > 0 else ""


def clip_middle(text: str, width: int) -> str:
    """The text in at most so many columns, with `…` after its first third: commands differ at their end."""
    if cells(text) <= width:
        return text
    head = clip(text, max(1, width // 3)) if width > 0 else ""
    room = width - cells(head)
    tail = text[len(text) - max(0, room) :]
    while tail and cells(tail) > room:
        tail = tail[1:]
    return head + tail


def padded(text: str, width: int) -> str:
    return text + " " * (width - cells(text))


def clipped(line: Line, width: int) -> Line:
    """The line, cut to the width."""
    if line_cells(line) <= width:
        return line
    spans, room = [], width
    for span in line:
        spans.append(span._replace(text=clip(span.text, room)))
        room -= cells(span.text)
        if room <= 0:
            break
    return tuple(spans)


def fitting(parts: Iterable[str], width: int) -> str:
    """The parts with ` · ` between them; those that do not fit are left out, but never the first."""
    text = ""
    for part in map(printable, filter(None, parts)):
        if not text or cells(text) + cells(part) + 3 <= width:
            text = f"{text} · {part}" if text else part
    return text


def heading(parts: Iterable[str], width: int, *, simulated: bool) -> Line:
    """A heading line, with a badge if the GPUs are simulated."""
    badge = (Span(" SIM ", "simulated"), Span(" ")) if simulated else ()
    return *badge, Span(fitting(parts, width - line_cells(badge)), "heading")


def one_line(text: str) -> str:
    """A command or a name, escaped and on one line; no terminal shows more than 2000 characters of it."""
    return printable(on_one_line(text[:LONGEST_TEXT]))


def or_dash(value: object, form: str = "{}") -> str:
    return "-" if value is None else form.format(value)


GAP = "  "


class Column(NamedTuple):
    """A column other than the last: its title, its cells, and how much it matters."""

    title: str
    cells: Sequence[Span | Line]
    weight: int
    """The column with the least weight is dropped first on a narrow terminal."""
    most: int = 40
    least: int = 0
    right: bool = False
    always: bool = False
    """Whether it is never dropped."""
    gap: str = GAP
    """The text between this column and the next."""


def table_lines(
    columns: Sequence[Column],
    title: str | None,
    last: Sequence[Line],
    width: int,
    least: int,
    *,
    fit: Callable[[Line, int], Line] = lambda line, room: line,
) -> list[Line]:
    """A header, unless the last column's title is None, and a line for each row.

    Columns are dropped until at least `least` cells are left for the last one. `fit` shortens a cell of the last column
    to the room that it has; else the end of the line is cut.
    """
    kept = [(column, _width(column)) for column in columns]
    spare = sorted((pair for pair in kept[1:] if not pair[0].always), key=lambda pair: -pair[0].weight)
    while spare and 1 + sum(wide + len(column.gap) for column, wide in kept) + least > width:
        kept.remove(spare.pop())
    room = width - 1 - sum(wide + len(column.gap) for column, wide in kept)
    rows = [
        (*(span for column, wide in kept for span in _cell(column, column.cells[number], wide)), *fit(rest, room))
        for number, rest in enumerate(last)
    ]
    if title is not None:
        titles = [span for column, wide in kept for span in _cell(column, Span(column.title, "faint"), wide)]
        rows.insert(0, (*titles, Span(title, "faint")))
    return [(Span(" "), *row) for row in rows]


def table_width(columns: Sequence[Column]) -> int:
    """Cells of a table before its last column."""
    return 1 + sum(_width(column) + len(column.gap) for column in columns)


def _width(column: Column) -> int:
    return min(
        column.most, max([column.least, cells(column.title), *(line_cells(_line(cell)) for cell in column.cells)])
    )


def _line(cell: Span | Line) -> Line:
    return (cell,) if isinstance(cell, Span) else cell


def _cell(column: Column, cell: Span | Line, width: int) -> Line:
    spans = list(clipped(_line(cell), width))
    blank = " " * (width - line_cells(spans))
    before, after = (blank, "") if column.right else ("", blank)
    spans[0] = spans[0]._replace(text=before + spans[0].text)
    spans[-1] = spans[-1]._replace(text=spans[-1].text + after + column.gap)
    return tuple(spans)


def fit_titles(titles: Sequence[str]) -> Callable[[Line, int], Line]:
    """A `fit` for lines with a title and more behind it: a title that is too long loses what others begin with, too.

    The title keeps all the room that the rest leaves, and half of it at least.
    """
    short = without_common_leads(titles)

    def fit(line: Line, room: int) -> Line:
        place = next((place for place, span in enumerate(line) if span.text in short), None)
        if place is None or line_cells(line) <= room:
            return clipped(line, room)
        name, before = line[place], line_cells(line[:place])
        most = max(room - line_cells(line) + cells(name.text), (room - before) // 2)
        text = name.text if cells(name.text) <= most else clip_middle(short[name.text], most)
        return clipped((*line[:place], name._replace(text=text), *line[place + 1 :]), room)

    return fit


HEIGHTS = "▁▂▃▄▅▆▇█"


GPU_LOADS = (10, 75)
MEMORY_LOADS = (10, 80)
"""Percent from which on a load is moderate, and heavy; nvitop uses the same."""


def load_look(percent: float, loads: tuple[int, int]) -> Look:
    return "light" if percent < loads[0] else "moderate" if percent < loads[1] else "heavy"


def load_bar(columns: int, percent: int | None) -> Line:
    """How busy a GPU is; blank if unknown."""
    if percent is None:
        return (Span(" " * columns),)
    busy = min(columns, max(round(percent * columns / 100), int(percent > 0)))
    return Span("█" * busy, load_look(percent, GPU_LOADS)), Span("░" * (columns - busy), "faint")


def memory_bar(columns: int, total: int | None, ours: int = 0, reserved: int = 0, others: int = 0) -> Line:
    """Held by our jobs, reserved for them but not used yet, of others, and free; blank if the total is unknown."""
    if not total:
        return (Span(" " * columns),)
    # More than one percent gets at least one cell.
    held, foreign = (
        max(min(columns, round(amount * columns / total)), int(amount > total // 100)) for amount in (ours, others)
    )
    foreign = min(columns - held, foreign)
    unused = max(0, min(columns - foreign, round(reserved * columns / total)) - held)
    look = load_look(100 * (ours + others) / total, MEMORY_LOADS)
    return (
        Span("█" * held, look),
        Span("▒" * unused, look),
        Span("▓" * foreign, "odd"),
        Span("░" * (columns - held - unused - foreign), "faint"),
    )


def sparkline(curve: Sequence[tuple[float, int]], cells: int) -> str:
    """Memory over time in so many columns; the highest bar is the peak."""
    if len(curve) < 2 or not (most := max(size for _, size in curve)):
        return ""
    begin, length = curve[0][0], curve[-1][0] - curve[0][0]
    levels: list[int] = [-1] * cells
    for seconds, size in curve:
        cell = min(cells - 1, int((seconds - begin) * cells / length)) if length else 0
        levels[cell] = max(levels[cell], size)
    for cell in range(1, cells):  # no sample in between
        levels[cell] = levels[cell - 1] if levels[cell] < 0 else levels[cell]
    return "".join(HEIGHTS[size * (len(HEIGHTS) - 1) // most] for size in levels)


_CODES: dict[Look, str] = {
    "heading": "1",
    "simulated": "1;7",
    "good": "32",
    "bad": "1;31",
    "odd": "35",
    "faint": "2",
    "id": "1",
    "light": "32",
    "moderate": "33",
    "heavy": "31",
    "bar0": "32",
    "bar1": "34",
    "bar2": "36",
    "bar3": "35",
    "bar4": "33",
    "on_bar0": "7;32",
    "on_bar1": "7;34",
    "on_bar2": "7;36",
    "on_bar3": "7;35",
    "on_bar4": "7;33",
    "on_bad": "7;31",
}
"""Only the terminal's own colours, and none that is hard to read on a light or a dark background."""

_IN_ASCII = str.maketrans("█▒▓░·…×°≤▁▂▃▄▅▆▇→▐✗│─▸●▘▝▀▖▌▞▛▗▚▜▙▟└", "#=x.->x <__.-=+*>[x|->*''\".|/#.\\###+")
_USUAL_SIZE = (80, 24)


def wants_colour(choice: str, environment: Mapping[str, str], stream: TextIO) -> bool:
    """Whether to use colour, by the option, NO_COLOR, FORCE_COLOR and the terminal."""
    if choice != "auto":
        return choice == "always"
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR", "0") != "0":
        return True
    return stream.isatty() and environment.get("TERM", "") not in ("", "dumb")


def terminal_size(environment: Mapping[str, str]) -> tuple[int, int]:
    """Columns and lines; COLUMNS and LINES override the terminal."""
    try:
        columns, lines = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        columns, lines = _USUAL_SIZE
    texts = [environment.get(name, "") for name in ("COLUMNS", "LINES")]
    given = [int(text) if text.isascii() and text.isdecimal() else 0 for text in texts]
    return given[0] or columns or _USUAL_SIZE[0], given[1] or lines or _USUAL_SIZE[1]


def painted(lines: Iterable[Line], *, colour: bool, encoding: str) -> str:
    """The lines as text in an encoding."""
    text = "".join("".join(_painted(span, colour=colour) for span in line) + "\n" for line in lines)
    if encoding.lower().replace("-", "").startswith("utf8"):
        return text
    return text.translate(_IN_ASCII).encode(encoding, "replace").decode(encoding)


def _painted(span: Span, *, colour: bool) -> str:
    return f"\x1b[{_CODES[span.look]}m{span.text}\x1b[0m" if colour and span.look and span.text else span.text


def write_lines(lines: Sequence[Line], choice: str) -> None:
    colour = wants_colour(choice, os.environ, sys.stdout)
    sys.stdout.write(painted(lines, colour=colour, encoding=sys.stdout.encoding or "ascii"))
