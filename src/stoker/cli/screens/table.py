"""A table for a terminal: columns as wide as they need, the least important left out where there is no room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stoker.cli.screens.pieces import Line, Piece, cells, clip, padded

GAP = "  "


class Column(NamedTuple):
    """A column but for the last: its title, what stands in it, and how much it matters."""

    title: str
    texts: Sequence[Piece]
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
    header = (*(_cell(column, Piece(column.title, "faint"), widths) for column in kept), Piece(title, "faint"))
    rows = [
        (*(_cell(column, column.texts[number], widths) for column in kept), *rest) for number, rest in enumerate(last)
    ]
    return [(Piece(" "), *line) for line in (header, *rows)]


def _width(column: Column) -> int:
    return min(column.most, max(cells(text) for text in (column.title, *(piece.text for piece in column.texts))))


def _cell(column: Column, piece: Piece, widths: dict[str, int]) -> Piece:
    width = widths[column.title]
    text = clip(piece.text, width)
    blank = " " * (width - cells(text))
    return piece._replace(text=(blank + text if column.right else padded(text, width)) + GAP)
