"""Files that jobs write to: their last lines, and what is added to them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import BinaryIO

_BLOCK = 65_536


class Tail:
    """A file that may not be there yet and may grow; gives each byte once."""

    def __init__(self, path: str, lines: int | None = None) -> None:
        """`lines` is how many of its last lines are wanted; None is all."""
        self.path = path
        self._lines = lines
        self._file: BinaryIO | None = None

    def read(self) -> Iterator[bytes]:
        """What has come since the last time, in blocks; nothing where there is no file yet."""
        if self._file is None:
            self._file = self._open()
        if self._file is None:
            return
        if os.fstat(self._file.fileno()).st_size < self._file.tell():  # somebody has emptied it
            self._file.seek(0)
        while block := self._file.read(_BLOCK):
            yield block

    def close(self) -> None:
        """No longer needed."""
        if self._file is not None:
            self._file.close()

    def _open(self) -> BinaryIO | None:
        try:
            file = open_log(self.path)
        except FileNotFoundError:
            return None
        if self._lines is not None:
            file.seek(start_of_last_lines(file, self._lines))
        return file


def open_log(path: str) -> BinaryIO:
    """A log to be read; what is no file, such as /dev/null or a pipe, would be read for ever or is nobody's to read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    return open(descriptor, "rb")


def start_of_last_lines(file: BinaryIO, count: int) -> int:
    """Where the last lines begin, found from the end so that a large file costs nothing."""
    position = end = file.seek(0, os.SEEK_END)
    if count == 0:
        return end
    while position > 0:
        size = min(_BLOCK, position)
        position -= size
        file.seek(position)
        block = file.read(size)
        place = len(block) - (position + size == end)  # the newline at the very end begins no line
        while (place := block.rfind(b"\n", 0, place)) >= 0:
            count -= 1
            if count == 0:
                return position + place + 1
    return 0
