"""Tasks in a CSV file of the older tool priority_scheduler: Directory, Executable, Filename, Epochs, Priority."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from stoker.core.errors import UsageError
from stoker.options import LARGEST_NUMBER, JobOptions, parse_assignment
from stoker.sheet import BadRow, Sheet, cells_of, column_name, read_sheet, refuse_doubled

COLUMNS = ("Directory", "Executable", "Filename", "Epochs", "Priority")
THIS_PYTHON = "-1"
_WHOLE = re.compile(r"([-+]?\d+)(?:\.0*)?", re.ASCII)
_TABLES = ("env", "tag")
_OPTIONS = frozenset(JobOptions.__struct_fields__) - {"priority", "chdir"}
"""Further columns that count; of the rest the tool has columns of its own."""


class Task(Struct, frozen=True):
    """One row: a script to be trained."""

    line: int
    text: str
    """The row as it is written, which tells it from others."""
    directory: str
    executable: tuple[str, ...]
    filename: str
    epochs: int
    priority: int
    """Lower goes first."""
    script: tuple[str, ...]
    """The words of the file name, and whatever arguments it has."""
    options: JobOptions = JobOptions()
    """What else was asked for in columns of ours."""

    def words(self, epochs: int, number: int) -> tuple[str, ...]:
        """The command that trains it for so many epochs under a number of its own."""
        return (*self.executable, *self.script, f"--epochs={epochs}", f"--id={number}")


def read_tasks(data: bytes, name: str, header: int | None = 0) -> list[Task | BadRow]:
    """The tasks of a file in its order; a row that cannot be one is told, and the others count."""
    return tasks_of(read_sheet(data, name, header, COLUMNS), name)


def tasks_of(sheet: Sheet, name: str) -> list[Task | BadRow]:
    """The tasks of a file that was read."""
    absent = [column for column in COLUMNS if column_name(column) not in sheet.columns]
    if absent:
        what = "has no header" if len(absent) == len(COLUMNS) else f"has no column {absent[0]}"
        raise UsageError(f"{name} {what}", f"name the columns in its first row: {','.join(COLUMNS)}")
    refuse_doubled(sheet, [*COLUMNS, *_OPTIONS], name)
    return list(_tasks(sheet))


def options_of(cells: Mapping[str, str]) -> JobOptions:
    """The job options among the cells of a row; an empty cell says nothing."""
    given: dict[str, object] = {name: text for name, text in cells.items() if text}
    for name in _TABLES:
        if text := cells.get(name):
            given[name] = dict(parse_assignment(word, name) for word in split_words(text, f"its {name}"))
    try:
        return msgspec.convert(given, JobOptions, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(str(error), "see stoker run --help for what each option takes") from None


def split_words(text: str, what: str) -> list[str]:
    """The words of a text as a shell would see them."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{what} cannot be taken apart: {str(error).lower()}", "see to its quotes") from None


def _tasks(sheet: Sheet) -> Iterator[Task | BadRow]:
    for record in sheet.records:
        try:
            yield _task(record.line, record.text, cells_of(sheet, record))
        except UsageError as error:
            yield BadRow(record.line, record.text, error.message)


def _task(line: int, text: str, cells: Mapping[str, str]) -> Task:
    if "\0" in text:
        raise UsageError("it contains a NUL byte, which no program can be given")
    directory = os.path.expanduser(cells["directory"])
    filename = _present(cells, "Filename")
    return Task(
        line=line,
        text=text,
        directory=directory,
        executable=_executable(_present(cells, "Executable"), directory),
        filename=filename,
        epochs=_whole(cells, "Epochs", 0),
        priority=_whole(cells, "Priority", -LARGEST_NUMBER),
        script=_words(filename, directory, "its file name"),
        options=options_of({name: cell for name, cell in cells.items() if name in _OPTIONS}),
    )


def _present(cells: Mapping[str, str], column: str) -> str:
    text = cells[column_name(column)]
    if not text:
        hint = f" ({THIS_PYTHON} is the Python of the scheduler)" if column == "Executable" else ""
        raise UsageError(f"it has no {column}{hint}")
    return text


def _executable(text: str, directory: str) -> tuple[str, ...]:
    if text == THIS_PYTHON:
        return (sys.executable,)
    return tuple(_words(os.path.expanduser(text), directory, "its executable"))


def _words(text: str, directory: str, what: str) -> tuple[str, ...]:
    """The words of a command line, unless it is the name of a file that has blanks in it."""
    if os.path.isfile(os.path.join(directory, text)):
        return (text,)
    words: Sequence[str] = split_words(text, what)
    if not words or not words[0]:
        raise UsageError(f"{what} is empty")
    return tuple(words)


def _whole(cells: Mapping[str, str], column: str, least: int) -> int:
    text = _present(cells, column)
    number = _WHOLE.fullmatch(text)
    if number is None:
        raise UsageError(f"its {column} is {text!r}, which is no whole number")
    if not least <= int(number[1][:20]) <= LARGEST_NUMBER:
        raise UsageError(f"its {column} {text} is out of all proportion")
    return int(number[1])
