"""Arrays: which indices the tasks of one submission have, and how many of them may run at once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct

from stoker.core.errors import UsageError

MOST_TASKS = 1_000_000

_HINT = "write it as 0-9, 0-15:4, 1,3,7-9 or 0-99%8"
_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)
_LIMIT = re.compile(r"\d{1,9}", re.ASCII)


class ArraySpec(Struct, frozen=True):
    """The tasks of an array, in the order they were asked for."""

    indices: tuple[int, ...]
    at_once: int | None = None
    """How many of them may run at the same time; None is as many as find a place."""


def parse_array(text: str) -> ArraySpec:
    """The tasks of `0-9`, `0-15:4`, `1,3,7-9`, and of `0-99%8`, of which eight may run at once."""
    listed, percent, limit = text.strip().partition("%")
    ranges = [_parse_part(part.strip(), text) for part in listed.split(",")]
    count = sum(map(len, ranges))
    if count > MOST_TASKS:
        raise UsageError(f"an array of {count} tasks is too large", f"{MOST_TASKS} are the most; submit several")
    indices = tuple(index for each in ranges for index in each)
    _refuse_duplicates(indices, text)
    return ArraySpec(indices, _parse_limit(limit, text) if percent else None)


def array_text(spec: ArraySpec) -> str:
    """The array as it can be typed, as short as its steps allow."""
    limit = "" if spec.at_once is None else f"%{spec.at_once}"
    return ",".join(_range_text(run) for run in _runs(spec.indices)) + limit


def _parse_part(part: str, text: str) -> range:
    match = _PART.fullmatch(part)
    if not match:
        raise UsageError(f"{_shown(text)} is not an array", _HINT)
    first, last, step = match.groups()
    if last and int(last) < int(first):
        raise UsageError(f"{part} ends before it begins", f"write it as {last}-{first}")
    if step and int(step) == 0:
        raise UsageError(f"{part} never gets on", f"write the step as {first}-{last}:1 or more")
    return range(int(first), int(last or first) + 1, int(step or 1))


def _parse_limit(limit: str, text: str) -> int:
    if not _LIMIT.fullmatch(limit.strip()):
        raise UsageError(f"{_shown(text)} has no number behind the %", _HINT)
    if int(limit) == 0:
        raise UsageError("%0 would let no task run", "leave it out to let as many run as find a place")
    return int(limit)


def _refuse_duplicates(indices: Sequence[int], text: str) -> None:
    if len(set(indices)) == len(indices):
        return
    [(twice, _)] = Counter(indices).most_common(1)
    raise UsageError(f"{_shown(text)} has task {twice} twice", "name each index once")


def _runs(indices: Sequence[int]) -> Iterator[range]:
    """The indices cut into pieces with equal steps."""
    start = 0
    while start < len(indices):
        end = _end_of_run(indices, start)
        step = indices[start + 1] - indices[start] if end > start + 1 else 1
        yield range(indices[start], indices[end - 1] + 1, step)
        start = end


def _end_of_run(indices: Sequence[int], start: int) -> int:
    """Where the equal steps that begin at the start end; two tasks make a run only when they are neighbours."""
    end = start + 1
    if end == len(indices):
        return end
    step = indices[end] - indices[start]
    while step > 0 and end < len(indices) and indices[end] - indices[end - 1] == step:
        end += 1
    return end if end - start > 2 or step == 1 else start + 1


def _range_text(run: range) -> str:
    if len(run) == 1:
        return str(run[0])
    return f"{run[0]}-{run[-1]}" + (f":{run.step}" if run.step > 1 else "")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:39]}…")
