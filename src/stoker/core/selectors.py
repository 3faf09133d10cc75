"""Parse ids as users type them: numbers, ranges, tasks of arrays, `last`, `all`, names and globs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice

from msgspec import Struct

from stoker.core.errors import NoSuchJob, UsageError
from stoker.core.ranges import Ranges, joined, ranges_of, run_text, runs

LARGEST = 2**63 - 1
"""The largest id that a queue can hold."""
_MOST_DIGITS = 4000
"""Python reads no longer numbers."""
_HINT = "write it as 3, 1,4-9, 12.3, 12.[3-7,9], last, all or a name"
_ID_CHARACTERS = r"(?a)[0-9.+-]*[0-9][0-9.+-]*(?:\.\*)?|[.+-]+|[0-9]+\.\[[0-9,:… -]*\]?"
_NUMBERS = r"(?a)(\d+)(?:-(\d+))?"
_TASKS = r"(?a)(.+)\.(?:(\*)|(\d+(?:-\d+)?)|\[([0-9,:… -]+)\])"
_INDICES = r"(?a)(\d+)(?:-(\d+)(?::(\d+))?)?"
_MOST_RANGES = 20
"""Ranges in the id of several tasks."""
MORE = "…"
"""Stands in an id for further ranges."""


class Numbers(Struct, frozen=True):
    """Jobs from one id to another, both included."""

    first: int
    last: int


class TaskRange(Struct, frozen=True):
    """Tasks of an array from one index to another, both included; with a step, every so many indices."""

    array: int
    first: int
    last: int
    step: int = 1


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


Pick = Numbers | TaskRange | Last | All | Named


def parse_selection(words: Sequence[str]) -> tuple[Pick, ...]:
    return tuple(pick for word in words for pick in _parse_word(word.strip()))


def pick_text(pick: Pick) -> str:
    """A pick as it can be typed."""
    match pick:
        case Numbers(first, last):
            return str(first) if first == last else f"{first}-{last}"
        case TaskRange(array, 0, last) if last == LARGEST:
            return f"{array}.*"
        case TaskRange(array, first, last, step):
            return f"{array}.{pick_text(Numbers(first, last))}" if step == 1 else f"{array}.[{first}-{last}:{step}]"
        case Named(pattern):
            return pattern
        case _:
            return "last" if isinstance(pick, Last) else "all"


def _parse_word(word: str) -> list[Pick]:
    """A word is a list of ids if it begins like one; a name may contain commas and digits.

    So `lr=1,2` never selects job 2, which `cancel` might end.
    """
    parts = [part.strip() for part in split_outside(word, ",")]
    if not word:
        raise UsageError("an id must not be empty", _HINT)
    if not any(parts) or _is_id(parts[0]) or (not parts[0] and _is_id(parts[1])):
        return [pick for part in parts for pick in _parse_part(part, word)]
    return [Named(word)]


def split_outside(text: str, sign: str) -> list[str]:
    """Split at a sign, but not within brackets: `12.[3,5],9` has one comma that counts."""
    return re.split(rf"{sign}(?![^\[\]]*\])", text)


def _is_id(part: str) -> bool:
    return part in ("last", "all") or re.fullmatch(_ID_CHARACTERS, part) is not None


def _parse_part(part: str, word: str) -> list[Pick]:
    if part in ("last", "all"):
        return [Last() if part == "last" else All()]
    if match := re.fullmatch(_NUMBERS, part):
        return [Numbers(*_range(match[1], match[2], word))]
    if (parsed := parse_tasks(part)) and re.fullmatch(r"(?a)\d+", parsed[0]):
        return [TaskRange(_number(parsed[0], word), *indices) for indices in parsed[1]]
    raise _malformed(part, word)


Indices = tuple[int, int, int]
"""The first and the last index, and the step between them."""


def parse_tasks(word: str) -> tuple[str, list[Indices]] | None:
    """The array, by id or name, and the indices of `12.3`, `12.3-7`, `arr.[3-7,9]`, `12.*`; None for other words."""
    match = re.fullmatch(_TASKS, word)
    if match is None:
        return None
    array, whole, plain, listed = match.groups()
    if whole:
        return array, [(0, LARGEST, 1)]
    if listed and MORE in listed:
        hint = f"choose the tasks by state, such as: {array} --state queued"
        raise UsageError(f"{quoted(word)} is shortened and does not name all tasks", hint)
    return array, [_parse_indices(part.strip(), word) for part in (plain or listed).split(",")]


def _parse_indices(part: str, word: str) -> Indices:
    match = re.fullmatch(_INDICES, part)
    if match is None:
        raise _malformed(part, word) if not part else UsageError(f"{quoted(word)} is not an id", _HINT)
    step = _number(match[3] or "1", word)
    if not step:
        raise UsageError(f"{part} has a step of 0", f"write it as {match[1]}-{match[2]}")
    return *_range(match[1], match[2], word), step


# -- ids as screens print them ---------------------------------------------------------------------


def tasks_text(array: int, indices: Sequence[int]) -> str:
    """The id of tasks of an array as users type it: `12.3`, `12.[3-59,100-199]`; of many ranges the first, and `…`."""
    if len(indices) == 1:
        return f"{array}.{indices[0]}"
    parts = indices.parts if isinstance(indices, Ranges) else _parts(indices)
    words = [run_text(run) for run in islice(runs(sorted(parts, key=lambda part: part[0])), _MOST_RANGES + 1)]
    more = [MORE] if len(words) > _MOST_RANGES else []
    return f"{array}.[{','.join([*words[:_MOST_RANGES], *more])}]"


def _parts(indices: Sequence[int]) -> Sequence[range]:
    return [indices] if isinstance(indices, range) else ranges_of(sorted(indices)).parts


def line_word(label: str) -> str:
    """The word that finds the tasks of a line; those of a shortened id are among all tasks of the array."""
    return f"{label.partition('.')[0]}.*" if MORE in label else label


def number_ranges(numbers: Iterable[int]) -> list[str]:
    """Ids of jobs in few words: `3-9`, `12`."""
    return [run_text(part) for part in joined(ranges_of(numbers).parts).parts]


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
