"""The numbers that tasks of priority_scheduler are trained under: never given out twice, and kept through a crash."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from stoker.compat.priority_scheduler.disk import contents, held, lock, replace, write_all
from stoker.core.errors import StokerError, UsageError

COUNTER = "counter.txt"
_PATIENCE = 5.0
"""Seconds for which a counter that somebody else holds is waited for."""
_MOST_DIGITS = 18


class Ticket(Struct, frozen=True):
    """A number that a row got."""

    token: str
    """What tells this from every other time when a row was run, whatever numbers were used then."""
    row: str
    """Digest of the row's text."""
    number: int


class _Line(Struct, frozen=True, omit_defaults=True):
    issued: Ticket | None = None
    dropped: str = ""
    """A token."""
    leaving: str = ""
    """The token of a row that is about to be removed..."""
    inode: int = 0
    """... from a file, which another one will then replace..."""
    size: int = 0
    """... and which has so many bytes..."""
    digest: str = ""
    """... of this digest."""


def find_counter(cwd: Path, csv: Path, spare: Path) -> Path:
    """The file that holds the next number: where the tool always had it, else beside the CSV, else a spare one."""
    documented, beside = cwd / "scheduler_files" / COUNTER, csv.parent / COUNTER
    if documented.exists():
        return documented.resolve()
    return beside.resolve() if os.access(csv.parent, os.W_OK | os.X_OK) else spare


def reserve(counter: Path, count: int) -> int:
    """The first of so many numbers; the file tells the one after them before any of them is used."""
    try:
        with _held_soon(counter) as descriptor:
            text = contents(descriptor).strip()
            if not (text or b"0").isdigit() or len(text) > _MOST_DIGITS:
                raise UsageError(f"{counter} does not hold a number", "write the next id into it, or remove it")
            first = int(text or b"0")
            replace(counter, str(first + count).encode(), descriptor)
            return first
    except OSError as error:
        hint = "ids must not be used twice; see whether it is yours to write"
        raise StokerError(f"cannot write {counter}: {error.strerror}", hint) from None


@contextlib.contextmanager
def _held_soon(counter: Path) -> Iterator[int]:
    deadline = time.monotonic() + _PATIENCE
    with contextlib.ExitStack() as closing:
        while True:
            try:
                descriptor = closing.enter_context(held(counter, make=True))
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.01)
        yield descriptor


class Tickets:
    """Which row has which number, written down before it is used; locked against a second scheduler of the file."""

    def __init__(self, path: Path, csv: Path) -> None:
        """The CSV tells whether a row that was about to leave it has left."""
        self._path = path
        path.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            self._file = lock(path, make=True)
        except BlockingIOError:
            raise UsageError(f"another priority_scheduler works on {csv.name}", "let it finish, or stop it") from None
        self._open = {ticket.token: ticket for ticket in _left(contents(self._file), csv)}
        self._unclaimed: dict[str, list[Ticket]] = defaultdict(list)
        for ticket in self._open.values():
            self._unclaimed[ticket.row].append(ticket)
        os.lseek(self._file, 0, os.SEEK_END)
        self._write([_Line()])  # ends a line that a crash cut off

    def __bool__(self) -> bool:
        return bool(self._open)

    def claim(self, text: str) -> Ticket | None:
        """The ticket of an earlier run that was not finished, for such a row; each is given once."""
        left = self._unclaimed.get(digest(text))
        return left.pop(0) if left else None

    def issue(self, texts: Sequence[str], first: int) -> list[Ticket]:
        """Tickets for rows, numbered from the first on."""
        tickets = [Ticket(os.urandom(8).hex(), digest(text), number) for number, text in enumerate(texts, first)]
        self._write([_Line(issued=ticket) for ticket in tickets])
        self._open |= {ticket.token: ticket for ticket in tickets}
        return tickets

    def restore(self, ticket: Ticket) -> None:
        """This one is not over, after all."""
        self._write([_Line(issued=ticket)])
        self._open[ticket.token] = ticket

    def leave(self, ticket: Ticket, inode: int, data: bytes) -> None:
        """The row is about to be removed from this file; if we die now, the file tells what became of it."""
        self._write([_Line(leaving=ticket.token, inode=inode, size=len(data), digest=_digest(data))])

    def drop(self, tickets: Iterable[Ticket]) -> None:
        """These runs are over."""
        gone = [ticket for ticket in tickets if self._open.pop(ticket.token, None)]
        self._write([_Line(dropped=ticket.token) for ticket in gone])

    def drop_all_but(self, kept: Iterable[Ticket]) -> None:
        """All runs are over, but for these."""
        tokens = {ticket.token for ticket in kept}
        self.drop([ticket for ticket in self._open.values() if ticket.token not in tokens])

    def close(self) -> None:
        """Leave nothing behind where nothing is open."""
        if not self._open:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        fcntl.flock(self._file, fcntl.LOCK_UN)
        os.close(self._file)

    def _write(self, lines: Sequence[_Line]) -> None:
        if lines:
            write_all(self._file, b"".join(b"\n" + msgspec.json.encode(line) for line in lines))
            os.fdatasync(self._file)


def digest(text: str) -> str:
    """The name of a row's text."""
    return _digest(text.encode(errors="surrogateescape"))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _left(journal: bytes, csv: Path) -> Iterable[Ticket]:
    """The tickets that were issued and not dropped; a line that a crash cut off says nothing."""
    found: dict[str, Ticket] = {}
    leaving: dict[str, _Line] = {}
    for text in journal.split(b"\n"):
        with contextlib.suppress(msgspec.DecodeError):
            line = msgspec.json.decode(text, type=_Line)
            if line.issued is not None:
                found[line.issued.token] = line.issued
                leaving.pop(line.issued.token, None)
            if line.leaving:
                leaving[line.leaving] = line
            found.pop(line.dropped, None)
    return [ticket for token, ticket in found.items() if token not in leaving or _is_unchanged(csv, leaving[token])]


def _is_unchanged(csv: Path, line: _Line) -> bool:
    """Whether the file is the one that a row was to be removed from, but for what was appended since."""
    return csv.stat().st_ino == line.inode and _digest(csv.read_bytes()[: line.size]) == line.digest
