"""The CSV task file of priority_scheduler, kept consistent through crashes."""

from __future__ import annotations

import codecs
import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct

from stoker.core.errors import StokerError, UsageError
from stoker.queue.task_list import COLUMNS, BadRow, Task, read_tasks, split_records, text_of

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK

_MAKE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_TRIES = 10


@contextlib.contextmanager
def held(path: Path, *, make: bool = False) -> Iterator[int]:
    """A descriptor of the file that is at the path now, locked; who replaces it meanwhile does so after us.

    BlockingIOError where somebody else holds it.
    """
    descriptor = lock(path, make=make)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def lock(path: Path, *, make: bool = False) -> int:
    """The same for as long as the descriptor is open."""
    for _ in range(_TRIES):
        descriptor = os.open(path, _MAKE if make else _READ, 0o666)
        try:
            _refuse_odd(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise BlockingIOError(errno.EAGAIN, "it is replaced again and again")


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one that the path names."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


def contents(descriptor: int, begin: int = 0) -> bytes:
    """All of an open file from a place on."""
    parts = []
    while part := os.pread(descriptor, 2**20, begin):
        parts.append(part)
        begin += len(part)
    return b"".join(parts)


def replace(path: Path, data: bytes, like: int) -> None:
    """Put other contents in place of a file; mode and owner stay those of the descriptor, as far as we may."""
    new = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):  # one that was left by somebody who was killed
        os.unlink(new)
    descriptor = os.open(new, _NEW, 0o600)
    try:
        try:
            _dress(descriptor, os.fstat(like))
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        new.rename(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        raise
    _sync_directory(path.parent)


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything."""
    while data:
        data = data[os.write(descriptor, data) :]


def _dress(descriptor: int, like: os.stat_result) -> None:
    with contextlib.suppress(PermissionError):
        os.fchown(descriptor, like.st_uid, like.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(like.st_mode))


def _refuse_odd(descriptor: int) -> None:
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, os.strerror(number) if number == errno.EISDIR else "it is no plain file")


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


CLOSING_PATIENCE = 5.0
"""Seconds for which a file that somebody holds is waited for at the end."""


class Row(Struct, frozen=True):
    """A task with the number that it is trained under."""

    task: Task
    ticket: Ticket
    new: bool
    """Whether no earlier scheduler has begun with it."""

    @property
    def title(self) -> str:
        """The task as the lines of the older tool name it."""
        return f"{self.task.filename} (priority {self.task.priority}) {self.ticket.number}"


class Failure(Struct, frozen=True):
    """A row that did not succeed."""

    what: str
    why: str


class Rows:
    """Takes rows out of the file in batches, and removes each that succeeds; no crash loses one."""

    def __init__(self, file: TaskFile, tickets: Tickets, counter: Path, *, size: int, keep: bool) -> None:
        """`size` is how many make a batch; with `keep` the file stays as it is."""
        self._file = file
        self._tickets = tickets
        self._counter = counter
        self._size = size
        self._keep = keep
        self._handled: Counter[str] = Counter()
        """Those that stay in the file and are not taken again."""
        self._stuck: list[Row] = []
        """Those that succeeded but could not be removed yet."""
        self._elsewhere: list[Ticket] = []
        """Tickets of rows that another engine has in hand."""
        self.done = 0
        self.failures: list[Failure] = []
        self.troubles: list[str] = []

    def next_batch(self, fault: Callable[[Task], str], say: Callable[[str], None]) -> list[Row]:
        """The next rows of the file, the most urgent first; none where there are no more, or trouble."""
        self._remove_stuck()
        try:
            tasks = self._next_tasks(fault, say)
            return self._ticketed(sorted(tasks, key=lambda task: task.priority))
        except (StokerError, OSError) as error:
            self.troubles.append(f"nothing more is taken from {self._file.name}: {_reason(error)}")
            return []

    def succeeded(self, row: Row) -> None:
        """Remove a row."""
        self.done += 1
        if self._keep:
            self._handled[row.task.text] += 1  # its ticket stays, lest it be run again after a crash
        else:
            self._stuck.append(row)
            self._remove_stuck()

    def failed(self, row: Row, why: str) -> None:
        """A row stays in the file, and the next run begins with it anew."""
        self._handled[row.task.text] += 1
        self.failures.append(Failure(row.title, why))
        self._try(lambda: self._tickets.drop([row.ticket]))

    def left_to_others(self, row: Row) -> None:
        """Another engine has it; the next run will see what became of it."""
        self._handled[row.task.text] += 1
        self._elsewhere.append(row.ticket)

    def close(self, *, interrupted: bool) -> None:
        """Leave file and tickets in order: what was interrupted goes on under its number the next time."""
        self._remove_stuck(CLOSING_PATIENCE)
        if not interrupted:
            stay = [*self._elsewhere, *(row.ticket for row in self._stuck)]
            self._try(lambda: self._tickets.drop_all_but(stay))
        self._try(self._file.close)

    @property
    def all_well(self) -> bool:
        """Whether all that was taken has succeeded, and the file tells so."""
        return not (self.failures or self.troubles or self._stuck or self._elsewhere)

    @property
    def unremoved(self) -> Sequence[Row]:
        """Rows that succeeded and are still in the file."""
        return self._stuck

    # -- taking ----------------------------------------------------------------------------------

    def _next_tasks(self, fault: Callable[[Task], str], say: Callable[[str], None]) -> list[Task]:
        found: list[Task] = []
        skipped = self._handled + Counter(row.task.text for row in self._stuck)
        for each in self._file.read():
            if skipped[each.text]:
                skipped[each.text] -= 1
            elif len(found) == self._size:
                break
            elif sentence := each.sentence if isinstance(each, BadRow) else fault(each):
                self._refuse(each, sentence, say)
            elif isinstance(each, Task):
                found.append(each)
        return found

    def _refuse(self, row: Task | BadRow, sentence: str, say: Callable[[str], None]) -> None:
        self._handled[row.text] += 1
        where = f"{self._file.name} line {row.line}"
        self.failures.append(Failure(where, sentence))
        say(f"{where} is left out: {sentence}")

    def _ticketed(self, tasks: Sequence[Task]) -> list[Row]:
        """Each with the ticket that an interrupted run left for it, else with a new one."""
        left = [self._tickets.claim(task.text) for task in tasks]
        texts = [task.text for task, ticket in zip(tasks, left, strict=True) if ticket is None]
        issued = iter(self._tickets.issue(texts, reserve(self._counter, len(texts))) if texts else ())
        return [Row(task, old or next(issued), old is None) for task, old in zip(tasks, left, strict=True)]

    # -- removing --------------------------------------------------------------------------------

    def _remove_stuck(self, patience: float = 0.0) -> None:
        deadline = time.monotonic() + patience
        while self._stuck:
            try:
                self._remove(self._stuck[0])
                self._stuck.pop(0)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return
                time.sleep(0.05)
            except (StokerError, OSError) as error:
                self._complain(_reason(error))
                return

    def _remove(self, row: Row) -> None:
        """Whenever we die, the next run can tell whether the row was removed, even if others have the same text."""
        try:
            self._file.remove(row.task.text, partial(self._tickets.leave, row.ticket))
        except (StokerError, OSError):
            self._try(lambda: self._tickets.restore(row.ticket))
            raise
        self._tickets.drop([row.ticket])

    def _try(self, deed: Callable[[], None]) -> None:
        """The run goes on though something of lesser weight fails."""
        try:
            deed()
        except (StokerError, OSError) as error:
            self._complain(_reason(error))

    def _complain(self, reason: str) -> None:
        sentence = f"{self._file.name} cannot be kept up to date: {reason}"
        if sentence not in self.troubles:
            self.troubles.append(sentence)


def _reason(error: StokerError | OSError) -> str:
    return error.message if isinstance(error, StokerError) else error.strerror or str(error)
