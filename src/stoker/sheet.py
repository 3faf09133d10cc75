"""A CSV file as it stands: its columns, and each record with the very text in which it is written."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct

from stoker.core.errors import UsageError

_SEPARATORS = {";": "semicolons", "\t": "tabs"}


class BadRow(Struct, frozen=True):
    """A record that says nothing usable, and why."""

    line: int
    text: str
    sentence: str


class Record(Struct, frozen=True):
    """One record, which may go over several lines where something in it is quoted."""

    line: int
    """Where it begins, counted from 1."""
    written: str
    """As it stands in the file, with its line end."""
    fields: tuple[str, ...]

    @property
    def text(self) -> str:
        """What tells it from other records, wherever in the file it stands."""
        return self.written.rstrip("\r\n")


class Sheet(Struct, frozen=True):
    """The columns of a file, and the records below them."""

    columns: tuple[str, ...]
    """Their names in small letters, with _ for blanks and dashes."""
    records: tuple[Record, ...]


def read_sheet(data: bytes, name: str, header: int | None = 0, columns: Sequence[str] = ()) -> Sheet:
    """The records below the row that names the columns; a file without such a row (None) has the columns given."""
    filled = [record for record in split_records(text_of(data, name), name) if any(map(str.strip, record.fields))]
    if header is None:
        return Sheet(tuple(map(column_name, columns)), tuple(filled))
    if header >= len(filled):
        what = "is empty" if not filled else f"has no row {header}"
        raise UsageError(f"{name} {what}", f"name its columns in row {header}, counted from 0")
    names = tuple(map(column_name, filled[header].fields))
    _refuse_other_separators(names, name)
    return Sheet(names, tuple(filled[header + 1 :]))


def text_of(data: bytes, name: str) -> str:
    """The text without the mark that some programs put before it; bytes that are not UTF-8 pass."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UsageError(f"{name} is written in UTF-16", "save it as UTF-8")
    return data.removeprefix(codecs.BOM_UTF8).decode(errors="surrogateescape")


def split_records(text: str, name: str) -> Iterator[Record]:
    """All records, blank ones too: together they are the text."""
    lines = list(io.StringIO(text, newline=""))
    reader = csv.reader(lines, skipinitialspace=True)
    begin = 0
    try:
        for fields in reader:
            record = Record(begin + 1, "".join(lines[begin : reader.line_num]), tuple(fields))
            if reader.line_num == len(lines) > begin + 1 and record.written.count('"') % 2:
                raise UsageError(f"{name} has a quote in line {begin + 1} that nothing closes", "close it there")
            yield record
            begin = reader.line_num
    except csv.Error as error:
        raise UsageError(f"{name} cannot be read from line {begin + 1} on: {error}", "see to its quotes") from None


def column_name(text: str) -> str:
    """The name of a column as it is compared with others."""
    return text.strip().casefold().replace(" ", "_").replace("-", "_")


def cells_of(sheet: Sheet, record: Record) -> dict[str, str]:
    """What a record has in each column, without the blanks around it."""
    fields = [field.strip() for field in record.fields]
    if any(fields[len(sheet.columns) :]):
        fault = f"it has {len(fields)} fields, and there are {len(sheet.columns)} columns"
        raise UsageError(fault, "put what contains commas into double quotes")
    missing = len(sheet.columns) - len(fields)
    return dict(zip(sheet.columns, fields + [""] * missing, strict=False))


def refuse_doubled(sheet: Sheet, known: Collection[str], name: str) -> None:
    """Refuse two columns of the same name, where that name counts."""
    doubled = [each for each in known if sheet.columns.count(column_name(each)) > 1]
    if doubled:
        raise UsageError(f"{name} has the column {doubled[0]} twice", "name each column once")


def _refuse_other_separators(names: Sequence[str], name: str) -> None:
    for sign, word in _SEPARATORS.items():
        if len(names) == 1 and sign in names[0]:
            raise UsageError(f"the fields of {name} are separated by {word}", "separate them by commas")
