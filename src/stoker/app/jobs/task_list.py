"""Read CSV tables, with the columns of priority_scheduler."""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from stoker.app.jobs.option_values import LARGEST_NUMBER
from stoker.app.jobs.options import BY_NAME, NUL_BYTE, TABLES, JobOptions, invalid_text, read_table
from stoker.core.errors import UsageError

_SEPARATORS = {";": "semicolons", "\t": "tabs"}


class BadRow(Struct, frozen=True):
    """A record that cannot be used, and why."""

    line: int
    text: str
    sentence: str


class Record(Struct, frozen=True):
    """One record; a quoted field may span lines."""

    line: int
    """Its first line, from 1."""
    written: str
    """As in the file, with its line end."""
    fields: tuple[str, ...]

    @property
    def text(self) -> str:
        """Identifies the record, wherever in the file it is."""
        return self.written.rstrip("\r\n")


class Sheet(Struct, frozen=True):
    """The columns of a file, and the records below them."""

    columns: tuple[str, ...]
    """In lower case, with _ for blanks and dashes."""
    records: tuple[Record, ...]


def read_sheet(data: bytes, name: str, header: int | None = 0, columns: Sequence[str] = ()) -> Sheet:
    """The records below the header row; with `header` None the file has none, and `columns` are its columns."""
    filled = [record for record in split_records(text_of(data, name), name) if any(map(str.strip, record.fields))]
    if header is None:
        return Sheet(tuple(map(column_name, columns)), tuple(filled))
    if header >= len(filled):
        what = "is empty" if not filled else f"has no row {header}"
        raise UsageError(f"{name} {what}", f"name its columns in row {header}, counted from 0")
    names = tuple(map(column_name, filled[header].fields))
    for sign, word in _SEPARATORS.items():
        if len(names) == 1 and sign in names[0]:
            raise UsageError(f"the fields of {name} are separated by {word}", "separate them by commas")
    return Sheet(names, tuple(filled[header + 1 :]))


def text_of(data: bytes, name: str) -> str:
    """The text without a byte order mark; bytes that are not UTF-8 pass."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UsageError(f"{name} is UTF-16", "save it as UTF-8")
    return data.removeprefix(codecs.BOM_UTF8).decode(errors="surrogateescape")


def split_records(text: str, name: str) -> Iterator[Record]:
    """All records, also blank ones; joined they are the text."""
    lines = list(io.StringIO(text, newline=""))
    reader = csv.reader([*lines, ""], skipinitialspace=True)  # an open quote takes the line after the last one along
    begin = 0
    try:
        for fields in reader:
            if begin == len(lines):
                return
            if reader.line_num > len(lines):
                raise UsageError(f"{name} has an unclosed quote in line {begin + 1}", "close it")
            yield Record(begin + 1, "".join(lines[begin : reader.line_num]), tuple(fields))
            begin = reader.line_num
    except csv.Error as error:
        raise UsageError(f"{name} cannot be read from line {begin + 1} on: {error}", "check its quotes") from None


def column_name(text: str) -> str:
    """The name of a column in the form that is compared."""
    return text.strip().casefold().replace(" ", "_").replace("-", "_")


def cells_of(sheet: Sheet, record: Record) -> dict[str, str]:
    """The fields of a record by column, stripped."""
    fields = [field.strip() for field in record.fields]
    if any(fields[len(sheet.columns) :]):
        fault = f"it has {len(fields)} fields, but the header has {len(sheet.columns)} columns"
        raise UsageError(fault, "put values with commas in double quotes")
    missing = len(sheet.columns) - len(fields)
    return dict(zip(sheet.columns, fields + [""] * missing, strict=False))


def refuse_doubled(sheet: Sheet, names: Collection[str], name: str) -> None:
    """Refuse two columns of the same known name."""
    doubled = [column for column in names if sheet.columns.count(column_name(column)) > 1]
    if doubled:
        raise UsageError(f"{name} has the column {doubled[0]} twice", "name each column once")


COLUMNS = ("Directory", "Executable", "Filename", "Epochs", "Priority")
THIS_PYTHON = "-1"
_WHOLE = re.compile(r"([-+]?\d+)(?:\.0*)?", re.ASCII)
_OPTIONS = frozenset(BY_NAME) - {"priority", "chdir"}
"""Options that can be columns; priority and directory are columns of the tool itself."""


class Task(Struct, frozen=True):
    """One row: a script to run."""

    line: int
    text: str
    """The row as in the file, which identifies it."""
    directory: str
    executable: tuple[str, ...]
    filename: str
    epochs: int
    priority: int
    """Lower starts first."""
    script: tuple[str, ...]
    """The file name and its arguments."""
    options: JobOptions = JobOptions()
    """From further columns."""

    def words(self, epochs: int, number: int) -> tuple[str, ...]:
        """The command that trains it for so many epochs, with its number as id."""
        return (*self.executable, *self.script, f"--epochs={epochs}", f"--id={number}")


def read_tasks(data: bytes, name: str, header: int | None = 0) -> list[Task | BadRow]:
    """The tasks of a file in order; a bad row does not spoil the others."""
    return tasks_of(read_sheet(data, name, header, COLUMNS), name)


def tasks_of(sheet: Sheet, name: str) -> list[Task | BadRow]:
    absent = [column for column in COLUMNS if column_name(column) not in sheet.columns]
    if absent:
        what = "has no header" if len(absent) == len(COLUMNS) else f"has no column {absent[0]}"
        raise UsageError(f"{name} {what}", f"name the columns in its first row: {','.join(COLUMNS)}")
    refuse_doubled(sheet, [*COLUMNS, *_OPTIONS], name)
    tasks: list[Task | BadRow] = []
    for record in sheet.records:
        try:
            tasks.append(_task(record.line, record.text, cells_of(sheet, record)))
        except UsageError as error:
            tasks.append(BadRow(record.line, record.text, error.message))
    return tasks


def options_of(cells: Mapping[str, str]) -> JobOptions:
    """The job options of a row; an empty cell is not given."""
    given: dict[str, object] = {name: text for name, text in cells.items() if text}
    for name in TABLES:
        if text := cells.get(name):
            given[name] = read_table(name, split_words(text, f"its {name}"), name)
    try:
        return msgspec.convert(given, JobOptions, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(invalid_text(error), "see stoker run --help for the values of each option") from None
    except UnicodeEncodeError:
        raise UsageError("a number is not written in UTF-8", "save the file as UTF-8") from None


def split_words(text: str, what: str) -> list[str]:
    """The words of a text, split as a shell does."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{what} cannot be split into words: {str(error).lower()}", "check its quotes") from None


def _task(line: int, text: str, cells: Mapping[str, str]) -> Task:
    if "\0" in text:
        raise UsageError(NUL_BYTE)
    directory = os.path.expanduser(cells["directory"])
    filename, executable = _present(cells, "Filename"), _present(cells, "Executable")
    program = os.path.expanduser(executable)
    return Task(
        line=line,
        text=text,
        directory=directory,
        executable=(sys.executable,) if executable == THIS_PYTHON else _words(program, directory, "its executable"),
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


def _words(text: str, directory: str, what: str) -> tuple[str, ...]:
    """The words of a command line; an existing file with blanks in its name is one word."""
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
        raise UsageError(f"its {column} is {text!r}, not a whole number")
    if not least <= int(number[1][:20]) <= LARGEST_NUMBER:
        raise UsageError(f"its {column} {text} is out of range")
    return int(number[1])
