"""Parse ids as users type them: numbers, ranges, tasks of arrays, `last`, `all`, names and globs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from stoker.core.errors import NoSuchJob, UsageError

LARGEST = 2**63 - 1
"""The largest id that a queue can hold."""
_MOST_DIGITS = 4000
"""Python reads no longer numbers."""
_HINT = "write it as 3, 1,4-9, 12.3, 12.3-7, last, all or a name"
_ID_CHARACTERS = r"(?a)[0-9.+-]*[0-9][0-9.+-]*(?:\.\*)?|[.+-]+"
_NUMBERS = r"(?a)(\d+)(?:-(\d+))?"
_TASK = r"(?a)(\d+)\.(?:\*|(\d+)(?:-(\d+))?)"


class Numbers(Struct, frozen=True):
    """Jobs from one id to another, both included."""

    first: int
    last: int


class Task(Struct, frozen=True):
    """Tasks of an array from one index to another, both included."""

    array: int
    first: int
    last: int


class Last(Struct, frozen=True):
    """The job submitted last."""


class All(Struct, frozen=True):
    """Every job that the command applies to."""


class Named(Struct, frozen=True):
    """Jobs by their name, or by a pattern with `*`, `?` and `[...]`."""

    pattern: str

    @property
    def is_glob(self) -> bool:
        """Whether it can match other names than itself."""
        return any(sign in self.pattern for sign in "*?[")


Pick = Numbers | Task | Last | All | Named


def parse_selection(words: Sequence[str]) -> tuple[Pick, ...]:
    return tuple(pick for word in words for pick in _parse_word(word.strip()))


def pick_text(pick: Pick) -> str:
    """A pick as it can be typed."""
    match pick:
        case Numbers(first, last):
            return str(first) if first == last else f"{first}-{last}"
        case Task(array, 0, last) if last == LARGEST:
            return f"{array}.*"
        case Task(array, first, last):
            return f"{array}.{pick_text(Numbers(first, last))}"
        case Named(pattern):
            return pattern
        case _:
            return "last" if isinstance(pick, Last) else "all"


def _parse_word(word: str) -> list[Pick]:
    """A word is a list of ids if it begins like one; a name may contain commas and digits.

    So `lr=1,2` never selects job 2, which `cancel` might end.
    """
    parts = [part.strip() for part in word.split(",")]
    if not word:
        raise UsageError("an id must not be empty", _HINT)
    if not any(parts) or _is_id(parts[0]) or (not parts[0] and _is_id(parts[1])):
        return [_parse_part(part, word) for part in parts]
    return [Named(word)]


def _is_id(part: str) -> bool:
    return part in ("last", "all") or re.fullmatch(_ID_CHARACTERS, part) is not None


def _parse_part(part: str, word: str) -> Pick:
    if part == "last":
        return Last()
    if part == "all":
        return All()
    if match := re.fullmatch(_NUMBERS, part):
        return Numbers(*_range(match[1], match[2], word))
    if match := re.fullmatch(_TASK, part):
        first, last = (match[2], match[3]) if match[2] else ("0", str(LARGEST))
        return Task(_number(match[1], word), *_range(first, last, word))
    raise _malformed(part, word)


def _range(first: str, last: str | None, word: str) -> tuple[int, int]:
    start = _number(first, word)
    end = start if last is None else _number(last, word)
    if end < start:
        raise UsageError(f"{first}-{last} is a reversed range", f"write it as {last}-{first}")
    return start, end


def _number(digits: str, word: str) -> int:
    if len(digits) > _MOST_DIGITS or int(digits) > LARGEST:
        raise NoSuchJob(f"{quoted(word)} is larger than any id", "list jobs with: stoker status")
    return int(digits)


def _malformed(part: str, word: str) -> UsageError:
    if not part:
        return UsageError(f"{quoted(word)} contains an empty item", _HINT)
    if not _is_id(part):
        return UsageError(f"{quoted(word)} mixes ids and names", "separate ids and names with spaces")
    within = "" if part == word else f" in {quoted(word)}"
    return UsageError(f"{quoted(part)}{within} is not an id", _HINT)


def quoted(text: str) -> str:
    """The beginning of a text that a user typed, for an error message."""
    return repr(text if len(text) <= 40 else f"{text[:39]}…")
