"""A worker's journal: an append-only file of one line per event, preallocated so that a full disk loses none.

Standard library only: workers are forked from a process that must stay small.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

SIZE = 1 << 20
"""Bytes reserved; room for several thousand attempts, after which a worker is replaced."""
NOTE_LIMIT = 600
_NO_NOTE = '""'
"""Written for nearly all attempts."""
_PIECE = 1 << 16
"""Bytes read at once; several times the longest line."""


class AttemptStarted(NamedTuple):
    """Written before the command starts."""

    attempt: str
    at: float


class Born(NamedTuple):
    """Written once the command has a process; a crash right before leaves it out."""

    attempt: str
    pid: int
    worker: int = 0
    """The worker's process: the ancestor of all processes of the attempt, orphans too."""


class AttemptExited(NamedTuple):
    """Written when no process of the attempt is left."""

    attempt: str
    at: float
    code: int
    signal: int
    why: str
    peak: int
    note: str


class AttemptReturned(NamedTuple):
    """Written when an attempt is returned that was never started."""

    attempt: str
    at: float


Fact = AttemptStarted | AttemptExited | AttemptReturned
"""The events of an attempt."""
Record = Fact | Born


def line_of(record: Record) -> bytes:
    """The record as one line."""
    match record:
        case AttemptStarted(attempt, at):
            return f"S {attempt} {at:.6f}\n".encode()
        case Born(attempt, pid, worker):
            return f"P {attempt} {pid} {worker}\n".encode()
        case AttemptReturned(attempt, at):
            return f"R {attempt} {at:.6f}\n".encode()
        case AttemptExited():
            head = f"E {record.attempt} {record.at:.6f} {record.code} {record.signal} {record.why} {record.peak}"
            note = json.dumps(record.note[:NOTE_LIMIT]) if record.note else _NO_NOTE
            return f"{head} {note}\n".encode()


def record_of(line: bytes) -> Record:
    """The record that a whole line holds."""
    kind, attempt, at, *rest = line.decode().split(" ", 7)
    if kind == "S":
        return AttemptStarted(attempt, float(at))
    if kind == "P":
        return Born(attempt, int(at), int(rest[0]) if rest else 0)
    if kind == "R":
        return AttemptReturned(attempt, float(at))
    code, signal, why, peak, note = rest
    words = "" if note == _NO_NOTE else json.loads(note)
    return AttemptExited(attempt, float(at), int(code), int(signal), why, int(peak), words)


def create(path: str) -> int:
    """Make the journal and reserve its space; the descriptor is for the worker."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, SIZE)
    except OSError:
        os.close(descriptor)
        os.unlink(path)
        raise
    return descriptor


class Reader:
    """Reads a journal from where it stopped the last time."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.offset = 0

    def news(self) -> list[Record]:
        """The records written since the last call; an incomplete line waits for the next."""
        records: list[Record] = []
        while lines := self._whole_lines():
            records += map(record_of, lines)
        return records

    def _whole_lines(self) -> list[bytes]:
        span = os.pread(self._descriptor, _PIECE, self.offset)
        text, end, _ = span.partition(b"\0")[0].rpartition(b"\n")
        if not end:
            return []
        self.offset += len(text) + 1
        return text.split(b"\n")

    @property
    def nearly_full(self) -> bool:
        """Whether the worker should be replaced."""
        return self.offset > SIZE * 3 // 4

    def close(self) -> None:
        os.close(self._descriptor)
