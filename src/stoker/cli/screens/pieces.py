"""Text for a terminal in pieces, each with a look, and how many columns it takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

Look = Literal["", "heading", "simulated", "good", "bad", "odd", "faint", "id"]


class Piece(NamedTuple):
    """Some text and how it may look; the look never says more than the text."""

    text: str
    look: Look = ""


Line = tuple[Piece, ...]
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


def line_cells(line: Sequence[Piece]) -> int:
    """Columns that the line takes."""
    return sum(cells(piece.text) for piece in line)


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
    pieces, room = [], width
    for piece in line:
        pieces.append(piece._replace(text=clip(piece.text, room)))
        room -= cells(piece.text)
        if room <= 0:
            break
    return tuple(pieces)
