"""Lines on a terminal: with colour or without, in the characters that it has."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

from stoker.cli.screens.pieces import Line, Look

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
