"""The CSV file of priority_scheduler: rows taken in batches, numbered, and removed once they succeeded.

A crash at any moment loses no row and gives no number to two rows. It can make a row run twice only if it comes in the
instant between the two writes that end the row, in the journal of numbers and in the CSV.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import hashlib
import io
import os
import stat
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct

from stoker.app.jobs.task_list import COLUMNS, BadRow, Task, read_tasks, split_records, text_of
from stoker.core.errors import StokerError, UsageError
from stoker.features.compat.tool import lock_within, write_all

COUNTER = "counter.txt"

LOCK_PATIENCE_SECONDS = 5.0
"""Seconds to wait for the counter, and at the end for the CSV, while another program holds its lock."""

_MOST_DIGITS = 18


# -- files -----------------------------------------------------------------------------------------


def lock(path: Path, *, create: bool = False, patience: float = 0.0) -> io.FileIO:
    """The file that is at the path now, locked until it is closed; BlockingIOError if another program keeps it."""
    flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY | os.O_NONBLOCK
    while True:
        file = io.FileIO(os.open(path, flags | os.O_CLOEXEC, 0o666), "r+" if create else "r")
        try:
            lock_within(file.fileno(), fcntl.LOCK_EX, patience)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):  # not replaced before we had the lock
                    return file
        except BaseException:
            file.close()
            raise
        file.close()


def contents(file: io.FileIO, begin: int = 0) -> bytes:
    """The bytes of an open file from an offset on."""
    file.seek(begin)
    return file.readall()


def replace(path: Path, data: bytes, like: io.FileIO, prepared: Callable[[], None] = lambda: None) -> None:
    """Replace a file atomically, with the mode and, if possible, the owner of the file `like`.

    `prepared` is called right before the new file takes the place of the old one.
    """
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)  # left by a process that was killed
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            status = os.fstat(like.fileno())
            with contextlib.suppress(PermissionError):
                os.fchown(descriptor, status.st_uid, status.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        prepared()
        new.rename(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    with contextlib.suppress(OSError):  # some file systems cannot do it
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class TaskFile:
    """The CSV file, to which other programs may append at any time."""

    def __init__(self, name: str, header: int | None) -> None:
        self.name = name
        self.path = Path(os.path.realpath(name))
        self._header = header
        self._replaced: io.FileIO | None = None
        """The file that we replaced last. Another program may have opened it before, and append to it later."""
        self._copied = 0
        """How many bytes of it are in the new file."""

    def read(self) -> list[Task | BadRow]:
        """The rows that are there now."""
        self._copy_late_rows()
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise UsageError(f"cannot read {self.name}: {error.strerror}", "name a CSV file with --csv") from None
        try:
            return read_tasks(data, self.name, self._header)
        except UsageError as error:
            raise UsageError(error.message, self._hint(error)) from None

    def remove(self, text: str, prepared: Callable[[], None] = lambda: None, patience: float = 0.0) -> None:
        """Replace the file by one without the first row that has this text, if there is one.

        `prepared` is called right before the new file takes the place of the old one. Raises BlockingIOError if another
        program locks the file for longer than `patience` seconds.
        """
        self._copy_late_rows(patience)
        with contextlib.ExitStack() as closing:
            file = closing.enter_context(lock(self.path, patience=patience))
            data = contents(file)
            if (rest := _without(data, text, self.name)) is None:
                return
            replace(self.path, rest, file, prepared)
            self._forget_replaced()
            self._replaced, self._copied = file, len(data)
            closing.pop_all()
        with contextlib.suppress(OSError):  # the row is gone in any case; read() and close() try again
            self._copy_late_rows()

    def close(self) -> None:
        """Copy rows that were appended to the replaced file until now."""
        try:
            self._copy_late_rows()
        finally:
            self._forget_replaced()

    def _copy_late_rows(self, patience: float = 0.0) -> None:
        """Copy rows that another program appended to the replaced file after we had read it."""
        if self._replaced is not None and (more := contents(self._replaced, self._copied)):
            with lock(self.path, patience=patience), self.path.open("ab") as file:
                file.write(more)
            self._copied += len(more)

    def _forget_replaced(self) -> None:
        if self._replaced is not None:
            self._replaced.close()
            self._replaced = None

    def _hint(self, error: UsageError) -> str:
        if self._header is not None and ("no header" in error.message or "no row" in error.message):
            return f"name the columns {','.join(COLUMNS)}, and their row with --header N; write --header None for none"
        return error.hint


def _without(data: bytes, text: str, name: str) -> bytes | None:
    """The file without a row, all else to the byte; None if there is no such row."""
    records = list(split_records(text_of(data, name), name))
    for place, record in enumerate(records):
        if record.text == text and text:
            mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
            rest = "".join(record.written for record in records[:place] + records[place + 1 :])
            return mark + rest.encode(errors="surrogateescape")
    return None


# -- numbers ---------------------------------------------------------------------------------------


def find_counter(cwd: Path, csv: Path, spare: Path) -> Path:
    """The file of the next number: the documented one, else one beside the CSV, else the spare one."""
    documented, beside = cwd / "scheduler_files" / COUNTER, csv.parent / COUNTER
    if documented.exists():
        return documented.resolve()
    return beside.resolve() if os.access(csv.parent, os.W_OK | os.X_OK) else spare


def reserve(counter: Path, count: int) -> int:
    """The first of `count` numbers. The file is moved on before any of them is used."""
    try:
        with lock(counter, create=True, patience=LOCK_PATIENCE_SECONDS) as file:
            text = contents(file).strip()
            if not (text or b"0").isdigit() or len(text) > _MOST_DIGITS:
                raise UsageError(f"{counter} does not hold a number", "write the next id into it, or remove it")
            first = int(text or b"0")
            replace(counter, str(first + count).encode(), file)
            return first
    except OSError as error:
        hint = "check its permissions (ids must not be used twice)"
        raise StokerError(f"cannot write {counter}: {error.strerror}", hint) from None


class Ticket(Struct, frozen=True):
    """The number under which a row runs."""

    token: str
    """Tells this run of a row from every other one, whatever numbers those had."""
    row: str
    """Digest of the row's text."""
    number: int


class _Record(Struct, frozen=True, omit_defaults=True):
    """A line of the ticket journal."""

    issued: Ticket | None = None
    dropped: str = ""
    """The token of a run that is over."""


class Tickets:
    """A journal of the rows that have a number, locked against a second scheduler for the same CSV."""

    def __init__(self, path: Path, csv: Path) -> None:
        self._path = path
        path.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            self._file = lock(path, create=True)
        except BlockingIOError:
            raise UsageError(f"another priority_scheduler uses {csv.name}", "let it finish, or stop it") from None
        self._open = _open_tickets(contents(self._file))
        self._unclaimed: dict[str, list[Ticket]] = defaultdict(list)
        for ticket in self._open.values():
            self._unclaimed[ticket.row].append(ticket)
        self._write([_Record()])  # ends a line that a crash cut off

    def __bool__(self) -> bool:
        return bool(self._open)

    def claim(self, text: str) -> Ticket | None:
        """A ticket that an unfinished run left for such a row; each is given once."""
        left = self._unclaimed.get(_digest(text))
        return left.pop(0) if left else None

    def issue(self, texts: Sequence[str], first: int) -> list[Ticket]:
        """Tickets for rows, numbered from the first on."""
        tickets = [Ticket(os.urandom(8).hex(), _digest(text), number) for number, text in enumerate(texts, first)]
        self.keep(tickets)
        return tickets

    def keep(self, tickets: Sequence[Ticket]) -> None:
        """These runs are not over."""
        self._write([_Record(issued=ticket) for ticket in tickets if ticket.token not in self._open])
        self._open |= {ticket.token: ticket for ticket in tickets}

    def drop(self, tickets: Iterable[Ticket]) -> None:
        """These runs are over."""
        gone = [ticket for ticket in tickets if self._open.pop(ticket.token, None)]
        self._write([_Record(dropped=ticket.token) for ticket in gone])

    def drop_all_but(self, kept: Iterable[Ticket]) -> None:
        """All runs are over except these."""
        tokens = {ticket.token for ticket in kept}
        self.drop([ticket for ticket in self._open.values() if ticket.token not in tokens])

    def close(self) -> None:
        """Remove the journal if no ticket is open."""
        if not self._open:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        fcntl.flock(self._file, fcntl.LOCK_UN)  # a process that is being started may still have a copy
        self._file.close()

    def _write(self, records: Sequence[_Record]) -> None:
        if records:
            write_all(self._file.fileno(), b"".join(b"\n" + msgspec.json.encode(record) for record in records))
            os.fdatasync(self._file.fileno())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


def _open_tickets(journal: bytes) -> dict[str, Ticket]:
    """The tickets that were issued and not dropped, by token; a line that a crash cut off counts for nothing."""
    tickets: dict[str, Ticket] = {}
    for line in journal.split(b"\n"):
        with contextlib.suppress(msgspec.DecodeError):
            record = msgspec.json.decode(line, type=_Record)
            if record.issued is not None:
                tickets[record.issued.token] = record.issued
            tickets.pop(record.dropped, None)
    return tickets


# -- rows ------------------------------------------------------------------------------------------


class TaskRow(Struct, frozen=True):
    """A task with the number that it is trained under."""

    task: Task
    ticket: Ticket
    new: bool
    """Whether no earlier scheduler has begun with it."""

    @property
    def title(self) -> str:
        """The task as the lines of the older tool name it."""
        return f"{self.task.filename} (priority {self.task.priority}) {self.ticket.number}"


class TaskRows:
    """Takes rows from the file in batches, and removes each that succeeded."""

    def __init__(self, file: TaskFile, tickets: Tickets, counter: Path, *, size: int, keep: bool) -> None:
        """`size` is the number of rows in a batch; with `keep` no row is removed."""
        self._file = file
        self._tickets = tickets
        self._counter = counter
        self._size = size
        self._keep = keep
        self._handled: Counter[str] = Counter()
        """Texts of rows that stay in the file and are not taken again."""
        self._elsewhere: list[Ticket] = []
        """Tickets of rows that another engine runs."""
        self.unremoved: list[TaskRow] = []
        """Rows that succeeded and could not be removed yet."""
        self.done = 0
        self.failures: list[str] = []
        self.troubles: list[str] = []

    def next_batch(self, fault: Callable[[Task], str], say: Callable[[str], None]) -> list[TaskRow]:
        """The next rows of the file, the most urgent first; none at the end of the file or after an error."""
        self._remove_succeeded()
        try:
            tasks = self._next_tasks(fault, say)
            return self._numbered(sorted(tasks, key=lambda task: task.priority))
        except (StokerError, OSError) as error:
            self.troubles.append(f"no more tasks are read from {self._file.name}: {_reason(error)}")
            return []

    def succeeded(self, row: TaskRow) -> None:
        """Remove the row."""
        self.done += 1
        if self._keep:
            self._handled[row.task.text] += 1  # its ticket stays, so that it is not run again after a crash
        else:
            self.unremoved.append(row)
            self._remove_succeeded()

    def failed(self, row: TaskRow, why: str) -> None:
        """The row stays in the file, and the next run begins it anew."""
        self._handled[row.task.text] += 1
        self.failures.append(f"{row.title}: {why}")
        self._try(lambda: self._tickets.drop([row.ticket]))

    def leave_running(self, row: TaskRow) -> None:
        """Another engine runs it; the next run will see how it ended."""
        self._handled[row.task.text] += 1
        self._elsewhere.append(row.ticket)

    def close(self, *, interrupted: bool) -> None:
        """Interrupted rows keep their tickets, and go on under their numbers the next time."""
        self._remove_succeeded(LOCK_PATIENCE_SECONDS)
        if not interrupted:
            kept = [*self._elsewhere, *(row.ticket for row in self.unremoved)]
            self._try(lambda: self._tickets.drop_all_but(kept))
        self._try(self._file.close)

    @property
    def all_well(self) -> bool:
        """Whether all rows succeeded, and the file says so."""
        return not (self.failures or self.troubles or self.unremoved or self._elsewhere)

    def _next_tasks(self, fault: Callable[[Task], str], say: Callable[[str], None]) -> list[Task]:
        tasks: list[Task] = []
        skipped = self._handled + Counter(row.task.text for row in self.unremoved)
        for row in self._file.read():
            if skipped[row.text]:
                skipped[row.text] -= 1
            elif len(tasks) == self._size:
                break
            elif sentence := row.sentence if isinstance(row, BadRow) else fault(row):
                self._handled[row.text] += 1
                where = f"{self._file.name} line {row.line}"
                self.failures.append(f"{where}: {sentence}")
                say(f"{where} is left out: {sentence}")
            elif isinstance(row, Task):
                tasks.append(row)
        return tasks

    def _numbered(self, tasks: Sequence[Task]) -> list[TaskRow]:
        """Each with the ticket that an interrupted run left for it, else with a new one."""
        left = [self._tickets.claim(task.text) for task in tasks]
        texts = [task.text for task, ticket in zip(tasks, left, strict=True) if ticket is None]
        issued = iter(self._tickets.issue(texts, reserve(self._counter, len(texts))) if texts else ())
        return [TaskRow(task, old or next(issued), old is None) for task, old in zip(tasks, left, strict=True)]

    def _remove_succeeded(self, patience: float = 0.0) -> None:
        """A ticket is dropped right before its row goes: after a crash, no other row with the same text gets it."""
        deadline = time.monotonic() + patience
        while self.unremoved:
            ticket, text = self.unremoved[0].ticket, self.unremoved[0].task.text
            drop = partial(self._tickets.drop, [ticket])
            try:
                self._file.remove(text, drop, max(0.0, deadline - time.monotonic()))
            except BlockingIOError:  # tried again with the next row, and at the end
                return
            except (StokerError, OSError) as error:
                self._complain(error)
                self._try(partial(self._tickets.keep, [ticket]))
                return
            else:
                self.unremoved.pop(0)
                self._try(drop)  # if the user had removed the row

    def _try(self, action: Callable[[], None]) -> None:
        """The run goes on if bookkeeping fails."""
        try:
            action()
        except (StokerError, OSError) as error:
            self._complain(error)

    def _complain(self, error: StokerError | OSError) -> None:
        sentence = f"{self._file.name} cannot be updated: {_reason(error)}"
        if sentence not in self.troubles:
            self.troubles.append(sentence)


def _reason(error: StokerError | OSError) -> str:
    return error.message if isinstance(error, StokerError) else error.strerror or str(error)
