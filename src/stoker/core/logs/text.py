"""Log text without colours, rank prefixes and quoted source, and searches that ignore line breaks."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct

from stoker.core.text import ESCAPE_SEQUENCE

_LONGEST = 200
"""Most characters of a message that is shown."""
_NEAR = 60
"""Most characters before a message that are shown with it, such as the name of an exception."""
_FAR = 500
"""Most characters from the beginning of a match to its mark."""
_RANK = (
    r"(?m)^(?:\[(?:rank|default|local_rank)? ?\d{1,5}\]:?"  # torchrun, deepspeed
    r"|\[\d{1,5},\d{1,5}\]<std(?:err|out)>:?"  # mpirun --tag-output
    r"|\([\w.:/-]{1,80} pid=\d{1,10}[^)\n]{0,80}\)"  # ray
    r"|\d{1,5}:) ?"  # srun --label
)
_QUOTED = (
    r'(?m)^[ >]{0,8}File "[^"\n]{1,1000}", line \d{1,9}[^\n]*(?:\n {4}[^\n]*)*'  # a frame and its source line
    r"|^[ \t]{0,16}[│┃╭╰❱][^\n]*"  # the same in a frame of rich
    r"|^-{2,}>[^\n]*"  # the same in a notebook
    # Info lines of TensorFlow and XLA, which report failed attempts that do no harm.
    r"|^(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{1,9}: )?I (?:tensorflow|external|xla)/[^\n]*"
    r"|^I\d{4} \d\d:[^\n]*"
)


class SearchText(Struct, frozen=True):
    """A text to search for messages."""

    lines: str
    """The lines of the program, without colours, prefixes and quoted source."""
    packed: str
    """The same without white space, so that a wrapped message matches, too."""


def read_log_text(text: str) -> SearchText:
    """Clean the text of a log. Colours and prefixes go first, since they may occur inside a wrapped message."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    plain = pattern(_RANK).sub("", without_colours(text))
    lines = pattern(_QUOTED).sub("", plain)
    return SearchText(lines, pattern(r"\s+").sub("", lines))


def without_colours(text: str) -> str:
    return pattern(ESCAPE_SEQUENCE).sub("", text) if "\x1b" in text else text


@lru_cache(maxsize=128)
def pattern(expression: str) -> re.Pattern[str]:
    """Compile on first use: most commands need no pattern."""
    return re.compile(expression, re.ASCII)


def last_match(expression: str, text: str, marks: Iterable[str] = ()) -> re.Match[str] | None:
    """The last match of an expression. `marks` are words of which each match has one; they are quick to find."""
    positions = [position for mark in marks if (position := text.find(mark)) >= 0]
    if marks and not positions:
        return None
    start = max(0, min(positions, default=0) - _FAR)
    last = deque(pattern(expression).finditer(text, start), maxlen=1)
    return last[0] if last else None


def sentence(log: SearchText, start: int, end: int) -> str:
    """The line, or the wrapped lines, around a range of the packed text, shortened for a screen."""
    first = position(log.lines, start)
    last = position(log.lines, end - 1 - start, first)
    begin = log.lines.rfind("\n", 0, first) + 1
    stop = log.lines.find("\n", last)
    begin = begin if first - begin <= _NEAR else first
    return _shortened(log.lines[begin : stop if stop >= 0 else None])


def position(text: str, count: int, begin: int = 0) -> int:
    """The position after `begin` of the character that has `count` non-blank characters before it."""
    for word in pattern(r"\S+").finditer(text, begin):
        if count < len(word[0]):
            return word.start() + count
        count -= len(word[0])
    return len(text)


def _shortened(text: str) -> str:
    whole = " ".join("".join(filter(str.isprintable, word)) for word in text[: 8 * _LONGEST].split())
    return whole if len(whole) <= _LONGEST else whole[: _LONGEST - 1].rstrip() + "…"
