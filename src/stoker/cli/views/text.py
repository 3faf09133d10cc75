"""Styled text, tables and memory bars for terminals."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, TextIO

Look = Literal["", "heading", "simulated", "good", "bad", "odd", "faint", "id"]


class Span(NamedTuple):
    """Some text and how it may look; the look never says more than the text."""

    text: str
    look: Look = ""


Line = tuple[Span, ...]

EMPTY: Line = ()


def cells(text: str) -> int:
    """Columns that the text takes on a terminal."""
    return len(text) if text.isascii() else sum(map(_cells_of, text))


@lru_cache(maxsize=4096)
def _cells_of(character: str) -> int:
    import unicodedata  # most texts do without

    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def line_cells(line: Sequence[Span]) -> int:
    """Columns that the line takes."""
    return sum(cells(span.text) for span in line)


def clip(text: str, width: int) -> str:
    """The text in at most so many columns, with a sign where there was more."""
    if cells(text) <= width:
        return text
    kept, used = [], 1
    for character in text:
        used += _cells_of(character)
        if used > width:
            break
        kept.append(character)
    return "".join(kept) + "…" if width > 0 else ""


def padded(text: str, width: int) -> str:
    """The text followed by blanks up to the width."""
    return text + " " * (width - cells(text))


def clipped(line: Line, width: int) -> Line:
    """The line without what does not fit."""
    if line_cells(line) <= width:
        return line
    spans, room = [], width
    for span in line:
        spans.append(span._replace(text=clip(span.text, room)))
        room -= cells(span.text)
        if room <= 0:
            break
    return tuple(spans)


GAP = "  "


class Column(NamedTuple):
    """A column but for the last: its title, what stands in it, and how much it matters."""

    title: str
    texts: Sequence[Span]
    weight: int
    """The column with the least goes first where there is no room."""
    most: int = 40
    right: bool = False
    always: bool = False
    """Whether it stays however narrow the terminal."""


def table_lines(columns: Sequence[Column], title: str, last: Sequence[Line], width: int, least: int) -> list[Line]:
    """A header and a line for each row; the last column keeps at least some cells as long as others can go."""
    kept = list(columns)
    widths = {column.title: _width(column) for column in kept}
    spare = sorted((column for column in kept[1:] if not column.always), key=lambda column: -column.weight)
    while spare and sum(widths[column.title] + len(GAP) for column in kept) + 1 + least > width:
        kept.remove(spare.pop())
    header = (*(_cell(column, Span(column.title, "faint"), widths) for column in kept), Span(title, "faint"))
    rows = [
        (*(_cell(column, column.texts[number], widths) for column in kept), *rest) for number, rest in enumerate(last)
    ]
    return [(Span(" "), *line) for line in (header, *rows)]


def _width(column: Column) -> int:
    return min(column.most, max(cells(text) for text in (column.title, *(span.text for span in column.texts))))


def _cell(column: Column, span: Span, widths: dict[str, int]) -> Span:
    width = widths[column.title]
    text = clip(span.text, width)
    blank = " " * (width - cells(text))
    return span._replace(text=(blank + text if column.right else padded(text, width)) + GAP)


GIB = 2**30

HEIGHTS = "▁▂▃▄▅▆▇█"


class Amounts(NamedTuple):
    """Bytes of a device, by who has them."""

    total: int | None
    ours: int = 0
    """In use by our jobs."""
    reserved: int = 0
    """Set aside for our jobs, whether they use it or not."""
    others: int = 0
    """Used or claimed by anybody else."""


def memory_bar(amounts: Amounts, cells: int) -> Line:
    """Held by our jobs, reserved by them but not used yet, other people's, and free."""
    total = amounts.total
    if not total:
        return (Span(" " * cells),)
    ours = _share(amounts.ours, total, cells)
    others = min(cells - ours, _share(amounts.others, total, cells))
    reserved = max(0, min(cells - others, round(amounts.reserved * cells / total)) - ours)
    free = cells - ours - reserved - others
    return (
        Span("█" * ours, "good"),
        Span("▒" * reserved, "good"),
        Span("▓" * others, "odd"),
        Span("░" * free, "faint"),
    )


def amount_text(used: int | None, total: int) -> str:
    """`34.1/40G`."""
    return f"{'?' if used is None else f'{used / GIB:.1f}'}/{short_size(total)}"


def short_size(size: int) -> str:
    """`40G`, `6.9G`."""
    return f"{size / GIB:.1f}".removesuffix(".0") + "G"


def sparkline(curve: Sequence[tuple[float, int]], cells: int) -> str:
    """What was held from the beginning to the last look, in so many columns; the highest is the most that was held."""
    if len(curve) < 2 or not (most := max(size for _, size in curve)):
        return ""
    begin, length = curve[0][0], curve[-1][0] - curve[0][0]
    levels: list[int] = [-1] * cells
    for seconds, size in curve:
        cell = min(cells - 1, int((seconds - begin) * cells / length)) if length else 0
        levels[cell] = max(levels[cell], size)
    for cell in range(1, cells):  # nobody looked in between
        levels[cell] = levels[cell - 1] if levels[cell] < 0 else levels[cell]
    return "".join(HEIGHTS[size * (len(HEIGHTS) - 1) // most] for size in levels)


def _share(amount: int, total: int, cells: int) -> int:
    """Cells of an amount; a little of something is still seen."""
    full = min(cells, round(amount * cells / total))
    return max(1, full) if amount > total // 100 else full


_CODES: dict[Look, str] = {
    "heading": "1",
    "simulated": "1;7",
    "good": "32",
    "bad": "1;31",
    "odd": "35",
    "faint": "2",
    "id": "1",
}
"""Only the terminal's own colours, and none that is hard to see on a light or a dark one."""

_IN_ASCII = str.maketrans("█▒▓░·…×°≤▁▂▃▄▅▆▇→", "#=x.->x <__.-=+*>")

_USUAL_SIZE = (80, 24)


def wants_colour(choice: str, environment: Mapping[str, str], stream: TextIO) -> bool:
    """Whether to use colour, by the option and by what all programs heed."""
    if choice != "auto":
        return choice == "always"
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR", "0") != "0":
        return True
    return stream.isatty() and environment.get("TERM", "") not in ("", "dumb")


def terminal_size(environment: Mapping[str, str]) -> tuple[int, int]:
    """Columns and lines; a user who sets them has the last word."""
    try:
        columns, lines = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        columns, lines = _USUAL_SIZE
    given = [_number(environment.get(name, "")) for name in ("COLUMNS", "LINES")]
    return given[0] or columns or _USUAL_SIZE[0], given[1] or lines or _USUAL_SIZE[1]


def painted(lines: Iterable[Line], *, colour: bool, encoding: str) -> str:
    """All lines as they are written to a stream of some encoding."""
    text = "".join(_painted_line(line, colour=colour) + "\n" for line in lines)
    if encoding.lower().replace("-", "").startswith("utf8"):
        return text
    return text.translate(_IN_ASCII).encode(encoding, "replace").decode(encoding)


def write_lines(lines: Sequence[Line], choice: str) -> None:
    """Put the lines on standard output."""
    colour = wants_colour(choice, os.environ, sys.stdout)
    sys.stdout.write(painted(lines, colour=colour, encoding=sys.stdout.encoding or "ascii"))


def _painted_line(line: Line, *, colour: bool) -> str:
    return "".join(f"\x1b[{_CODES[look]}m{text}\x1b[0m" if colour and look and text else text for text, look in line)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 0
