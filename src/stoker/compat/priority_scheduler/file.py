"""The CSV file of priority_scheduler: read again for each batch, and rid of each row that has succeeded."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable
from pathlib import Path

from stoker.compat.priority_scheduler.disk import contents, held, lock, replace, write_all
from stoker.core.errors import UsageError
from stoker.sheet import BadRow, split_records, text_of
from stoker.tasklist import COLUMNS, Task, read_tasks

Leaving = Callable[[int, bytes], None]
"""Takes the inode of a file and what it holds."""


class TaskFile:
    """The file as it is at each moment, whoever else appends to it."""

    def __init__(self, name: str, header: int | None) -> None:
        self.name = name
        self.path = Path(os.path.realpath(name))
        self._header = header
        self._replaced: int | None = None
        """The copy that we replaced last: somebody may have opened it before, and append to it after that."""
        self._known = 0
        """How much of it was in our hands."""

    def read(self) -> list[Task | BadRow]:
        """The rows that are there now."""
        self._salvage()
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise UsageError(f"cannot read {self.name}: {error.strerror}", "name a CSV file with --csv") from None
        try:
            return read_tasks(data, self.name, self._header)
        except UsageError as error:
            raise UsageError(error.message, self._hint(error)) from None

    def remove(self, text: str, leaving: Leaving = lambda *_: None) -> None:
        """Write the file anew without the first row that has this text; one that is gone is well, too.

        Before that `leaving` is told which file that is.
        """
        self._salvage()
        descriptor = lock(self.path)
        try:
            data = contents(descriptor)
            if (rest := _without(data, text, self.name)) is None:
                os.close(descriptor)
                return
            leaving(os.fstat(descriptor).st_ino, data)
            replace(self.path, rest, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._forget_copy()
        self._replaced, self._known = descriptor, len(data)
        self._salvage()

    def close(self) -> None:
        """Take in what was appended to the wrong copy in the last moment."""
        try:
            self._salvage()
        finally:
            self._forget_copy()

    def _salvage(self) -> None:
        """Bring rows over that somebody appended to the copy after we had read it."""
        if self._replaced is None or os.fstat(self._replaced).st_size <= self._known:
            return
        more = contents(self._replaced, self._known)
        with held(self.path):
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                write_all(descriptor, more)
            finally:
                os.close(descriptor)
        self._known += len(more)

    def _forget_copy(self) -> None:
        if self._replaced is not None:
            os.close(self._replaced)
            self._replaced = None

    def _hint(self, error: UsageError) -> str:
        if self._header is not None and ("no header" in error.message or "no row" in error.message):
            return f"name the columns {','.join(COLUMNS)}, and their row with --header N; write --header None for none"
        return error.hint


def _without(data: bytes, text: str, name: str) -> bytes | None:
    """The file without a row, all else to the byte; None where there is no such row."""
    records = list(split_records(text_of(data, name), name))
    for place, record in enumerate(records):
        if record.text == text and text:
            mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
            rest = "".join(each.written for each in records[:place] + records[place + 1 :])
            return mark + rest.encode(errors="surrogateescape")
    return None
