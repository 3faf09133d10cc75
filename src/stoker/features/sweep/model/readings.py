"""Read values of objectives from text that programs write: log lines, JSON lines, CSV, reports."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import msgspec

from stoker.core.logs.text import without_colours
from stoker.features.sweep.model.objective import Objective

LONGEST_LINE = 64 * 1024
"""Bytes of a line that are read; the rest of it is dropped."""
STEP_NAMES = ("step", "global_step", "epoch", "iteration", "iter", "_step")
"""Names of the step in a file, the first that is there counts."""
Reading = tuple[float, float | None]
"""A value and its step; None is the next step."""


class LineSplitter:
    """Cuts bytes into lines as they arrive. A carriage return ends a line, too: progress bars overwrite themselves."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that are complete now."""
        *whole, self._rest = re.split(rb"\r\n|\n|\r(?!\n|\Z)", self._rest + data)
        self._rest = self._rest[:LONGEST_LINE]
        return [_text(line) for line in whole]

    def finish(self) -> list[str]:
        """The line at the end of a file that has no newline."""
        rest, self._rest = self._rest, b""
        return [_text(rest)] if rest else []


def _text(line: bytes) -> str:
    return without_colours(line[:LONGEST_LINE].rstrip(b"\r").decode(errors="replace"))


class LineReader(Protocol):
    """Finds the value of an objective in lines."""

    notice: str
    """A note for the user about the text; empty if there is none."""

    def read(self, line: str) -> Reading | None:
        """The value in a line; None if it has none."""


def reader_for(objective: Objective) -> LineReader:
    """The reader of an objective whose source is text."""
    match objective.source:
        case "regex":
            return PatternReader(objective.where)
        case "csv":
            return CsvReader(objective.name)
        case _:
            return JsonReader(objective.name)


class PatternReader:
    """A regular expression: the group `value`, else the first but `step`, else the match; `step` is optional."""

    def __init__(self, pattern: str) -> None:
        self.notice = ""
        self._pattern = re.compile(pattern)
        names = self._pattern.groupindex
        others = [number for number in range(1, self._pattern.groups + 1) if number != names.get("step")]
        self._value: int | str = "value" if "value" in names else (others or [0])[0]
        self._has_step = "step" in names

    def read(self, line: str) -> Reading | None:
        matches = list(self._pattern.finditer(line))
        if not matches:
            return None
        if len(matches) > 1:
            self.notice = "the pattern matches several times on one line; the last match counts"
        last = matches[-1]
        value = number(last[self._value])
        if value is None:
            self.notice = f"the pattern found {str(last[self._value])[:40]!r}, which is not a number"
            return None
        return value, number(last["step"]) if self._has_step else None


class JsonReader:
    """One JSON object per line. `a.b` is the key `a.b`, or `b` inside `a`."""

    def __init__(self, name: str) -> None:
        self.notice = ""
        self._name = name

    def read(self, line: str) -> Reading | None:
        if not line.strip():
            return None
        try:
            row = msgspec.json.decode(_with_quoted_numbers(line))
        except (msgspec.DecodeError, RecursionError):
            self.notice = f"a line is not JSON: {line[:40]!r}"
            return None
        return reading_in(row, self._name) if isinstance(row, dict) else None


def _with_quoted_numbers(line: str) -> str:
    """Python's json writes NaN and Infinity, which are not JSON."""
    return re.sub(r'(?<=[:,\[\s])(-?Infinity|NaN)(?=\s*[,}\]])(?=(?:[^"]*"[^"]*")*[^"]*$)', r'"\1"', line)


class CsvReader:
    """Comma-separated values; the first line has the names of the columns, and such a line may come again."""

    def __init__(self, name: str) -> None:
        self.notice = ""
        self._name = name
        self._header: list[str] = []

    def read(self, line: str) -> Reading | None:
        cells = [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True), [])]
        if self._name in cells:
            self._header = cells
            return None
        if not self._header:
            self.notice = f"its first line has no column {self._name}: {line[:60]!r}" if cells else self.notice
            return None
        return reading_in(dict(zip(self._header, cells, strict=False)), self._name)


def reading_in(row: Mapping[str, Any], name: str) -> Reading | None:
    """The value of a name in a row, with the step if the row has one."""
    value = number(_found(row, name))
    step = next((row[word] for word in STEP_NAMES if word in row and word != name), None)
    return None if value is None else (value, number(step))


def readings_in_reports(rows: Iterable[Mapping[str, Any]], name: str) -> Iterator[Reading]:
    """The values that a job gave to `stoker.report()`."""
    for row in rows:
        if (reading := reading_in(row, name)) is not None:
            yield reading


def _found(row: Mapping[str, Any], name: str) -> Any:
    if name in row:
        return row[name]
    first, dot, rest = name.partition(".")
    inner = row.get(first) if dot else None
    return _found(inner, rest) if isinstance(inner, Mapping) else None


def number(value: Any) -> float | None:
    """A number, also nan and inf as words; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
