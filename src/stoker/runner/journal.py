"""A worker's journal: an append-only file of one line per event, preallocated so that a full disk loses none.

Standard library only: workers are forked from a process that must stay small.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Collection
from typing import NamedTuple

SIZE_BYTES = 1 << 20
"""Bytes reserved; room for several thousand attempts, after which a worker is replaced."""
NOTE_LIMIT = 600
REFUSED = 126
"""Exit code of a command that exists and cannot be started."""
_NO_NOTE = '""'
"""Written for nearly all attempts."""
_PIECE_BYTES = 1 << 16
"""Bytes read at once; several times the longest line."""
_NOTHING = bytes(_PIECE_BYTES)
_LONGEST = 16 * SIZE_BYTES
"""Bytes that are read at most of an unreadable journal."""
_KEY = re.compile(r"[0-9]{1,18}\.[0-9]{1,9}")
_LATEST = 2.0**33
"""Seconds since the epoch, in the year 2242."""
EXITED = "exited"
TIMED_OUT = "timeout"
HUNG = "hung"
STOPPED = "stopped"
NOT_STARTED = "refused"
PREEMPTED = "preempted"
WHYS = frozenset((EXITED, TIMED_OUT, HUNG, STOPPED, NOT_STARTED, PREEMPTED))
"""Why an attempt ended: the words of `Why` in core/job.py, which workers do not import."""


class AttemptStarted(NamedTuple):
    """Written before the command starts."""

    attempt: str
    at: float


class Born(NamedTuple):
    """Written once the command has a process; a crash right before leaves it out."""

    attempt: str
    pid: int
    worker: int
    """The worker's process: the ancestor of all processes of the attempt, orphans too."""
    ticks: int
    """Clock ticks since boot when it had started: one that starts later and has the same number is another."""
    boot: str
    """The kernel's id of this boot: after the next one the other numbers mean nothing."""


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
    """Written when an attempt is returned that has no process: it was recalled, or could not be started."""

    attempt: str
    at: float
    errno: int = 0
    """The error number of the failed start; 0 if the worker did not try."""
    note: str = ""


Fact = AttemptStarted | AttemptExited | AttemptReturned
"""The events of an attempt."""
Record = Fact | Born


class JournalUnreadable(ValueError):
    """A line that no worker wrote, or that contradicts the lines before it."""


def line_of(record: Record) -> bytes:
    """The record as one line."""
    match record:
        case AttemptStarted(attempt, at):
            return f"S {attempt} {at:.6f}\n".encode()
        case Born(attempt, pid, worker, ticks, boot):
            return f"P {attempt} {pid} {worker} {ticks} {boot}\n".encode()
        case AttemptReturned(attempt, at, 0):
            return f"R {attempt} {at:.6f}\n".encode()
        case AttemptReturned(attempt, at, errno, note):
            return f"N {attempt} {at:.6f} {errno} {_quoted(note)}\n".encode()
        case AttemptExited():
            head = f"E {record.attempt} {record.at:.6f} {record.code} {record.signal} {record.why} {record.peak}"
            return f"{head} {_quoted(record.note)}\n".encode()


def _quoted(note: str) -> str:
    return json.dumps(note[:NOTE_LIMIT]) if note else _NO_NOTE


def record_of(line: bytes) -> Record:
    """The record that a whole line holds; raises JournalUnreadable if it holds none."""
    try:
        kind, attempt, at, *rest = line.decode("ascii").split(" ", 7)
        if _KEY.fullmatch(attempt) is None:
            raise JournalUnreadable
        if kind == "S":
            return AttemptStarted(attempt, _moment(at))
        if kind == "P":
            return _born(attempt, at, *rest)
        if kind == "R":
            return AttemptReturned(attempt, _moment(at))
        if kind == "N":
            return _not_started(attempt, at, *rest)
        if kind == "E":
            return _ended(attempt, at, *rest)
        raise JournalUnreadable
    except (ValueError, TypeError, RecursionError):
        raise JournalUnreadable(f"{line[:60]!r} is not a journal line") from None


def _born(attempt: str, pid: str, worker: str, ticks: str, boot: str) -> Born:
    return Born(attempt, _number(pid, 2**31), _number(worker, 2**31), _number(ticks, 2**63), boot)


def _not_started(attempt: str, at: str, errno: str, *note: str) -> AttemptReturned:
    return AttemptReturned(attempt, _moment(at), _number(errno, 4096, least=1), _note(" ".join(note)))


def _ended(attempt: str, at: str, *fields: str) -> AttemptExited:
    code, signal, why, peak, note = fields
    if why not in WHYS:
        raise JournalUnreadable
    ended = _number(code, 256), _number(signal, 256), why, _number(peak, 2**63)
    return AttemptExited(attempt, _moment(at), *ended, _note(note))


def _note(text: str) -> str:
    note = "" if text == _NO_NOTE else json.loads(text)
    if not isinstance(note, str):
        raise JournalUnreadable
    return note


def _moment(text: str) -> float:
    at = float(text)
    if not 0 <= at < _LATEST:
        raise JournalUnreadable
    return at


def _number(text: str, bound: int, least: int = 0) -> int:
    number = int(text) if len(text) < 20 else bound
    if not least <= number < bound:
        raise JournalUnreadable
    return number


def create(path: str) -> int:
    """Make the journal and reserve its space; the descriptor is for the worker."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, SIZE_BYTES)
    except OSError:
        os.close(descriptor)
        os.unlink(path)
        raise
    return descriptor


class JournalReader:
    """Reads a journal from where it stopped the last time, up to the first line that cannot be right."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # it may be a FIFO
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            os.close(self._descriptor)
            raise OSError("it is not a file")
        self.offset = 0
        self.damage = ""
        """Why no more is read; empty while all lines are good."""
        self._running = ""
        """The attempt that has started and not ended: a worker runs one at a time."""

    def news(self) -> list[Record]:
        """The records written since the last call; an incomplete line waits for the next."""
        records: list[Record] = []
        while not self.damage and (lines := self._whole_lines()):
            for line in lines:
                try:
                    record = record_of(line)
                    self._check(record)
                except JournalUnreadable as error:
                    self.damage = str(error)
                    break
                records.append(record)
                self.offset += len(line) + 1
        if self.damage:  # an R before it may have been an S, whose process runs
            records = [record for record in records if not isinstance(record, AttemptReturned) or record.errno]
        return records

    def ends(self, attempts: Collection[str]) -> list[AttemptExited | AttemptReturned]:
        """Read the ends of attempts from the unreadable rest. Only of use once the worker is dead."""
        ends: dict[str, AttemptExited | AttemptReturned] = {}
        for line in re.split(rb"[\0\n]+", self._rest()):
            if line.startswith((b"E ", b"N ")):
                try:
                    record = record_of(line)
                except JournalUnreadable:
                    continue
                if record.attempt in attempts and isinstance(record, AttemptExited | AttemptReturned):
                    ends.setdefault(record.attempt, record)
        return list(ends.values())

    def contents(self) -> bytes:
        """All that was written, for inspection."""
        return os.pread(self._descriptor, _LONGEST, 0).rstrip(b"\0")

    def _check(self, record: Record) -> None:
        """Raise JournalUnreadable if a worker cannot have written this after the lines before it."""
        match record:
            case AttemptStarted() if not self._running:
                self._running = record.attempt
            case Born() if self._running == record.attempt:
                pass
            case AttemptReturned(errno=0) if self._running != record.attempt:
                pass
            case AttemptExited() | AttemptReturned() if self._running == record.attempt:
                self._running = ""
            case _:
                raise JournalUnreadable(f"{line_of(record)[:60]!r} contradicts the line before it")

    def _whole_lines(self) -> list[bytes]:
        try:
            span = os.pread(self._descriptor, _PIECE_BYTES, self.offset)
            written, _, beyond = span.partition(b"\0")
            text, end, _ = written.rpartition(b"\n")
            if end:
                return text.split(b"\n")
            if len(written) == _PIECE_BYTES or beyond != _NOTHING[: len(beyond)]:
                self._suspect(len(written))
        except OSError as error:
            self.damage = str(error.strerror)
        return []

    def _suspect(self, length: int) -> None:
        """A line is too long, or begins behind a NUL byte. The worker may have written between two pages read."""
        again = os.pread(self._descriptor, _PIECE_BYTES, self.offset).partition(b"\0")
        if len(again[0]) == length and b"\n" not in again[0] and again[2].strip(b"\0"):
            self.damage = f"a NUL byte in the line at byte {self.offset}"
        elif len(again[0]) == _PIECE_BYTES and b"\n" not in again[0]:
            self.damage = f"no end of the line at byte {self.offset}"

    def _rest(self) -> bytes:
        try:
            return os.pread(self._descriptor, _LONGEST, self.offset)
        except OSError:
            return b""

    @property
    def nearly_full(self) -> bool:
        """Whether the worker should be replaced."""
        return self.offset > SIZE_BYTES * 3 // 4

    def close(self) -> None:
        os.close(self._descriptor)
