"""Search a log from its end, with bounds for the bytes read and the lines found."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from stoker.core.logs.text import without_colours
from stoker.store.logs import open_log

MOST_BYTES = 64 * 2**20
"""Bytes that one search reads at most."""
MOST_LINES = 1000
"""Lines that one search finds at most; the caller searches on where it ended."""
_BLOCK = 2**20


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
                if end - start >= MOST_BYTES or len(offsets) >= MOST_LINES:
                    break
            return FoundLines(offsets, start, size)
    except OSError:
        return FoundLines([], 0, 0)


def _blocks(descriptor: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Blocks of whole lines with their offsets, from the end on; a line longer than a block is cut."""
    while end > 0:
        start = max(0, end - _BLOCK)
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
