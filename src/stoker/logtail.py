"""The end of a log, read without ever waiting for whoever writes it."""

from __future__ import annotations

import codecs
import os
import stat

_LIMIT = 128 * 1024
_CONTINUATION = bytes(range(0x80, 0xC0))
"""Bytes that cannot begin a character in UTF-8."""


def size_of(path: str) -> int:
    """How many bytes a log has; none where it is no file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return 0
    return status.st_size if path != "-" and stat.S_ISREG(status.st_mode) else 0


def read_tail(path: str, limit: int = _LIMIT, since: int = 0) -> str:
    """The last bytes of a file as text; nothing where there is none, or where it is a pipe, a device or a directory.

    What it had before `since` counts only if it has been written anew, and so has become shorter than that.
    """
    try:
        return _text(*_last_bytes(path, limit, since))
    except (OSError, ValueError):  # a path with a null byte is the latter
        return ""


def _last_bytes(path: str, limit: int, since: int) -> tuple[bytes, bool]:
    """The bytes, and whether there are others before them."""
    # Even to open a pipe would let its writer go on, to nobody; and what it was a moment ago it may be no longer.
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
    """Up to so many bytes from there on; fewer where the file has shrunk since."""
    blocks = []
    while limit > 0 and (block := os.pread(descriptor, limit, start)):
        blocks.append(block)
        start += len(block)
        limit -= len(block)
    return b"".join(blocks)


def _text(data: bytes, cut: bool) -> str:
    """The characters that are there as a whole: the first may have been cut off, and the last may still be written."""
    if cut:
        data = data[:3].lstrip(_CONTINUATION) + data[3:]
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)
