"""Read log files of attempts: the last line, the tail, a file that grows, lines with a text."""

from __future__ import annotations

import codecs
import os
import re
import stat
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from stoker.core.logs.text import without_colours
from stoker.core.text import ESCAPE_SEQUENCE, printable

_LAST_LINE_BYTES = 16_384
_TAIL_BYTES = 128 * 1024
_BLOCK = 65_536
_CONTINUATION = bytes(range(0x80, 0xC0))
"""Continuation bytes of UTF-8."""
_LAST_LINES = 40
# Compiled on first use: most screens read no log.
_BAR = rb"\d{1,3}%\|"
"""A progress bar of tqdm, which is drawn once more when its loop fails."""
_NOTHING_SAID = rb"[\W_]+|(?:rerun the rest|logs|charts): .*"
"""A rule, or what a run inside the job prints below the failures of its summary."""
_EXCEPTION = rb"(?:\[?(?:rank)?\d{1,5}\]?: ?)?(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)(?::|$)"
_LAUNCHER = b"CalledProcessError"
"""Raised by accelerate and by scripts, after the error of the program that they started."""


LONGEST_SAID = 200
"""Characters of a telling line that are stored and shown."""


def last_line(path: str) -> str:
    """The line at the end of a log that tells most about a failure; empty if there is none or it cannot be read.

    That is the last Python exception, else the last line with text that is no progress bar.
    """
    try:
        with open_log(path) as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - _LAST_LINE_BYTES))
            tail = re.sub(ESCAPE_SEQUENCE.encode(), b"", log.read())
    except (OSError, ValueError):  # a path with a null byte is the latter
        return ""
    lines = [part.strip() for line in _before_epilogue(tail).splitlines() for part in line.split(b"\r")]
    written = [line for line in lines if line][-_LAST_LINES:]
    said = [line for line in written if not re.search(_BAR, line) and not re.fullmatch(_NOTHING_SAID, line)] or written
    raised = [line for line in said if re.match(_EXCEPTION, line)]
    chosen = ([line for line in raised if _LAUNCHER not in line] or raised or said)[-1:]
    return printable(chosen[0].decode(errors="backslashreplace")) if chosen else ""


def _before_epilogue(log: bytes) -> bytes:
    """Cut off what torchrun writes when a rank failed: its own traceback, and a summary without the error."""
    summary = log.rfind(b"ChildFailedError")
    if summary < 0:
        return log
    start = log.rfind(b"Traceback (most recent call last)", 0, summary)
    kept = log[: start if start >= 0 else log.rfind(b"\n", 0, summary) + 1]
    return kept if kept.strip() else log


def size_of(path: str) -> int:
    """The size of a log; 0 if it is not a regular file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return 0
    return status.st_size if path != "-" and stat.S_ISREG(status.st_mode) else 0


def read_tail(path: str, limit: int = _TAIL_BYTES, since: int = 0) -> str:
    """The last bytes of a regular file as text; empty for any other path.

    Bytes before `since` are skipped, unless the file is shorter than that: then it was rewritten.
    """
    try:
        return _text(*_last_bytes(path, limit, since))
    except (OSError, ValueError):  # a path with a null byte is the latter
        return ""


def _last_bytes(path: str, limit: int, since: int) -> tuple[bytes, bool]:
    """The bytes, and whether the file has others before them."""
    # Opening a pipe would unblock its writer. Checked again below, since the path may have been replaced.
    if path == "-" or not stat.S_ISREG(os.stat(path).st_mode):
        return b"", False
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        start = max(0, status.st_size - limit, since if since <= status.st_size else 0)
        return (_read(descriptor, start, limit), start > 0) if stat.S_ISREG(status.st_mode) else (b"", False)
    finally:
        os.close(descriptor)


def _read(descriptor: int, start: int, limit: int) -> bytes:
    """Up to `limit` bytes from `start`; fewer if the file has shrunk."""
    blocks = []
    while limit > 0 and (block := os.pread(descriptor, limit, start)):
        blocks.append(block)
        start += len(block)
        limit -= len(block)
    return b"".join(blocks)


def _text(data: bytes, cut: bool) -> str:
    """Decode whole characters only: the first may be cut off, the last may still be written."""
    if cut:
        data = data[:3].lstrip(_CONTINUATION) + data[3:]
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)


class LogPart(NamedTuple):
    """A part of a log as text, and where it is in the file."""

    text: str
    offset: int
    """Of its first byte."""
    next: int
    """Of the byte after it."""
    size: int
    """Of the file."""


def read_part(path: str, offset: int, limit: int) -> LogPart:
    """Whole characters from an offset on, which counts from the end if it is negative; empty if the file is missing.

    An offset behind the end is that of a file that was rewritten, which is read from its start.
    """
    size = size_of(path)
    start = max(0, size + offset) if offset < 0 else offset if offset <= size else 0
    data = _part(path, start, limit) if size else b""
    cut = len(data) - len(data[:3].lstrip(_CONTINUATION) + data[3:]) if start else 0
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data[cut:])
    unfinished, _ = decoder.getstate()
    return LogPart(text, start + cut, start + len(data) - len(unfinished), size)


def _part(path: str, start: int, limit: int) -> bytes:
    try:
        with open_log(path) as log:
            return _read(log.fileno(), start, limit)
    except OSError:
        return b""


class Tail:
    """Follows a file that may not exist yet and may grow; yields each byte once."""

    def __init__(self, path: str, lines: int | None = None) -> None:
        """Start with the last `lines` lines; None is the whole file."""
        self.path = path
        self._lines = lines
        self._file: BinaryIO | None = None

    def read(self) -> Iterator[bytes]:
        """New blocks since the last call; none while the file does not exist."""
        if self._file is None:
            self._file = self._open()
        if self._file is None:
            return
        if os.fstat(self._file.fileno()).st_size < self._file.tell():  # truncated
            self._file.seek(0)
        while block := self._file.read(_BLOCK):
            yield block

    def close(self) -> None:
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


def blocks_of(path: str) -> Iterator[bytes]:
    """The bytes of a file that it has now, in blocks; none if it cannot be read."""
    try:
        with open_log(path) as log:
            left = os.fstat(log.fileno()).st_size
            while left > 0 and (block := log.read(min(_BLOCK, left))):
                left -= len(block)
                yield block
    except OSError:
        return


def open_log(path: str) -> BinaryIO:
    """Open a log; anything but a regular file, such as a pipe or a device, reads as empty."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    return open(descriptor, "rb")


def start_of_last_lines(file: BinaryIO, count: int) -> int:
    """The offset of the last lines, searched from the end of the file."""
    position = end = file.seek(0, os.SEEK_END)
    if count == 0:
        return end
    while position > 0:
        size = min(_BLOCK, position)
        position -= size
        file.seek(position)
        block = file.read(size)
        place = len(block) - (position + size == end)  # the newline at the end of the file begins no line
        while (place := block.rfind(b"\n", 0, place)) >= 0:
            count -= 1
            if count == 0:
                return position + place + 1
    return 0


# -- search ------------------------------------------------------------------------------------

MOST_SEARCHED_BYTES = 64 * 2**20
"""Bytes that one search reads at most."""
MOST_FOUND_LINES = 1000
"""Lines that one search finds at most; the caller searches on where it ended."""
_SEARCH_BLOCK = 2**20


class FoundLines(NamedTuple):
    """The lines of a part of a file that contain a text."""

    offsets: list[int]
    """Of their first bytes, the last line first."""
    start: int
    """Where the part begins; 0 if nothing is left to search."""
    size: int
    """Of the file."""


def search_log(path: str, text: str, before: int | None = None) -> FoundLines:
    """Find lines as a terminal shows them, in upper or lower case; `before` is the end of the part."""
    wanted = text.lower()
    try:
        with open_log(path) as log:
            size = os.fstat(log.fileno()).st_size
            end = size if before is None else min(before, size)
            offsets, start = [], end
            for start, block in _blocks(log.fileno(), end):
                offsets += [start + offset for offset in reversed(_lines_with(block, wanted))]
                if end - start >= MOST_SEARCHED_BYTES or len(offsets) >= MOST_FOUND_LINES:
                    break
            return FoundLines(offsets, start, size)
    except OSError:
        return FoundLines([], 0, 0)


def _blocks(descriptor: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Blocks of whole lines with their offsets, from the end on; a line longer than a block is cut."""
    while end > 0:
        start = max(0, end - _SEARCH_BLOCK)
        block = os.pread(descriptor, end - start, start)
        cut = block.find(b"\n") + 1 if start else 0
        cut = 0 if cut == len(block) else cut
        end = start + cut
        yield end, block[cut:]


def _lines_with(block: bytes, wanted: str) -> list[int]:
    """The offsets of lines that show the text."""
    if wanted.isascii() and b"\x1b" not in block and wanted.encode() not in block.lower():
        return []  # most blocks; reading line by line is ten times slower
    offsets, offset = [], 0
    for line in block.split(b"\n"):
        if wanted in _shown(line):
            offsets.append(offset)
        offset += len(line) + 1
    return offsets


def _shown(line: bytes) -> str:
    """A line without colours and without what was overwritten."""
    written = line.rstrip(b"\r").rpartition(b"\r")[2]
    return without_colours(written.decode(errors="replace")).lower()
