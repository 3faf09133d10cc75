"""What a program said in its log, without colours, ranks' prefixes and quoted source, however its lines were broken."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct

_LONGEST = 200
"""Characters of a message that a person is shown."""
_NEAR = 60
"""Characters before a message that are shown with it: the name of an exception rather than a page of text."""
_FAR = 500
"""Characters from the beginning of a match to its mark, at the most."""

_COLOUR = r"\x1b(?:\[[0-?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b\n]{0,256}(?:\x07|\x1b\\)?|[@-Z\\-_])"
_RANK = (
    r"(?m)^(?:\[(?:rank|default|local_rank)? ?\d{1,5}\]:?"  # torchrun, deepspeed
    r"|\[\d{1,5},\d{1,5}\]<std(?:err|out)>:?"  # mpirun --tag-output
    r"|\([\w.:/-]{1,80} pid=\d{1,10}[^)\n]{0,80}\)"  # ray
    r"|\d{1,5}:) ?"  # srun --label
)
_QUOTED = (
    r'(?m)^[ >]{0,8}File "[^"\n]{1,1000}", line \d{1,9}[^\n]*(?:\n {4}[^\n]*)*'  # a frame, and the source below it
    r"|^[ \t]{0,16}[│┃╭╰❱][^\n]*"  # the same in a frame of rich
    r"|^-{2,}>[^\n]*"  # the same in a notebook
    # Notes of TensorFlow and XLA, which tell of attempts that they can do without.
    r"|^(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{1,9}: )?I (?:tensorflow|external|xla)/[^\n]*"
    r"|^I\d{4} \d\d:[^\n]*"
)


class LogText(Struct, frozen=True):
    """A text to look for messages in."""

    lines: str
    """As it was written, but for what is not the program's own words."""
    packed: str
    """The same without any blank or line break, so that a message reads the same however a terminal broke it."""


def read_log_text(text: str) -> LogText:
    """The words of a log; colours and prefixes go first because they can stand inside of a wrapped message."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    plain = pattern(_RANK).sub("", without_colours(text))
    said = pattern(_QUOTED).sub("", plain)
    return LogText(said, pattern(r"\s+").sub("", said))


def without_colours(text: str) -> str:
    """A text without what only a terminal understands."""
    return pattern(_COLOUR).sub("", text) if "\x1b" in text else text


@lru_cache(maxsize=128)
def pattern(expression: str) -> re.Pattern[str]:
    """Compiled when it is first needed, which in most commands is never."""
    return re.compile(expression, re.ASCII)


def last_match(expression: str, text: str, marks: Iterable[str] = ()) -> re.Match[str] | None:
    """Where an expression matches for the last time; of the marks, words that are quick to find, each has one."""
    paths = [place for mark in marks if (place := text.find(mark)) >= 0]
    if marks and not paths:
        return None
    start = max(0, min(paths, default=0) - _FAR)
    last = deque(pattern(expression).finditer(text, start), maxlen=1)
    return last[0] if last else None


def sentence(log: LogText, start: int, end: int) -> str:
    """The line, or the wrapped lines, around a place in the packed text, as a person should read it."""
    first = _place(log.lines, start)
    last = _place(log.lines, end - 1 - start, first)
    begin = log.lines.rfind("\n", 0, first) + 1
    stop = log.lines.find("\n", last)
    begin = begin if first - begin <= _NEAR else first
    return _shortened(log.lines[begin : stop if stop >= 0 else None])


def _place(text: str, count: int, begin: int = 0) -> int:
    """Where the character is that has so many characters other than blanks before it, from there on."""
    for word in pattern(r"\S+").finditer(text, begin):
        if count < len(word[0]):
            return word.start() + count
        count -= len(word[0])
    return len(text)


def _shortened(text: str) -> str:
    whole = " ".join("".join(filter(str.isprintable, word)) for word in text[: 8 * _LONGEST].split())
    return whole if len(whole) <= _LONGEST else whole[: _LONGEST - 1].rstrip() + "…"
