"""The file gpu_scheduler_info of the older tool `schedule`: its layout, and how several users update it safely."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from stoker.core.errors import StokerError

PLACE = Path("/tmp/gpu_scheduler_info")
MOST_GPUS = 1024
SIZE_LIMIT = 1 << 20
LOCK_PATIENCE = 2.0
"""Seconds to wait for somebody else who holds the file."""

# Never O_CREAT on a file that may be another's: fs.protected_regular forbids it. O_NONBLOCK is for a FIFO.
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_MOST_PROCESSES = 1 << 22


class InfoUnusable(StokerError):
    """The file cannot be read or written; GPUs are shared through the ledger all the same."""


class Entry(Struct, frozen=True):
    """What the file says of one GPU."""

    avail: bool = True
    gpu_name: str | None = None
    task: tuple[str, ...] | None = None
    task_pid: int | None = None
    task_start: str | None = None
    user: str | None = None

    @property
    def marked(self) -> bool:
        """Whether somebody only wants the GPU left alone: no task is named that could end."""
        return not self.avail and self.user is None and self.task_pid is None


FREE = Entry()
MARKED = Entry(avail=False)
Entries = tuple[Entry, ...]


def place_of_info(environment: Mapping[str, str]) -> Path:
    """Where the file is: in its documented place, or where somebody wants it for a trial."""
    return Path(environment.get("STOKER_SCHEDULE_INFO") or PLACE).absolute()


def text_of(entries: Sequence[Entry]) -> str:
    """The file's contents, in the layout that other scripts know."""
    table = {name: [getattr(entry, name) for entry in entries] for name in Entry.__struct_fields__}
    return json.dumps(table, indent=4, sort_keys=True)


def entries_of(text: bytes) -> Entries:
    """What a file of anybody's says; ValueError where it cannot be understood."""
    try:
        table = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(table, dict) or not isinstance(table.get("avail"), list):
        raise ValueError("there is no list of what is available")
    count = len(table["avail"])
    if not 1 <= count <= MOST_GPUS:
        raise ValueError(f"it is about {count} GPUs")
    return tuple([_entry(table, index) for index in range(count)])


def _entry(table: Mapping[str, Any], index: int) -> Entry:
    """One GPU of a table that any script may have written: what makes no sense counts as not said."""

    def said(name: str) -> Any:
        column = table.get(name)
        return column[index] if isinstance(column, list) and index < len(column) else None

    pid = said("task_pid")
    return Entry(
        avail=bool(said("avail")),
        gpu_name=_text(said("gpu_name")),
        task=_words(said("task")),
        task_pid=pid if type(pid) is int and 0 < pid <= _MOST_PROCESSES else None,
        task_start=_text(said("task_start")),
        user=_text(said("user")),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _words(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return (value,)
    return tuple(map(str, value)) if isinstance(value, list) else None


class InfoFile:
    """The file, read and rewritten in place under its own lock, as the older tool does it.

    In a sticky directory nobody can replace the file of another user, so it is never renamed over.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Entries | None:
        """What it says; None where it is not there, or says nothing yet."""
        try:
            with self._opened(os.O_RDONLY) as descriptor:
                with contextlib.suppress(BlockingIOError):  # who holds it for long cannot keep anybody from reading
                    _lock(descriptor, fcntl.LOCK_SH, LOCK_PATIENCE / 10)
                return self._entries(descriptor)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable("read", error) from error

    def update(self, change: Callable[[Entries | None], Entries]) -> Entries:
        """Change what it says, and make it where it is not there; None stands for what cannot be understood."""
        try:
            with self._opened(os.O_RDWR, create=True) as descriptor:
                _lock(descriptor, fcntl.LOCK_EX, LOCK_PATIENCE)
                before = self._understood(descriptor)
                after = change(before)
                if after != before:
                    _rewrite(descriptor, text_of(after).encode())
                return after
        except OSError as error:
            raise self._unusable("updated", error) from error

    def stamp(self) -> tuple[int, ...]:
        """Something that changes whenever the file does."""
        try:
            status = os.lstat(self.path)
        except OSError:
            return ()
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _understood(self, descriptor: int) -> Entries | None:
        try:
            return self._entries(descriptor)
        except InfoUnusable:
            return None

    def _entries(self, descriptor: int) -> Entries | None:
        text = os.pread(descriptor, SIZE_LIMIT + 1, 0)
        if not text:  # its maker is about to fill it
            return None
        try:
            if len(text) > SIZE_LIMIT:
                raise ValueError(f"larger than {SIZE_LIMIT} bytes")
            return entries_of(text)
        except ValueError as error:
            reason = str(error) or "not JSON"
            raise InfoUnusable(f"{self.path} cannot be understood ({reason})", "schedule -i N makes it anew") from error

    @contextlib.contextmanager
    def _opened(self, mode: int, *, create: bool = False) -> Iterator[int]:
        descriptor = self._open(mode, create=create)
        try:
            status = os.fstat(descriptor)
            # A second name would let somebody have us write into another file of ours.
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                raise OSError(errno.EINVAL, "it is no plain file")
            yield descriptor
        finally:
            os.close(descriptor)

    def _open(self, mode: int, *, create: bool) -> int:
        try:
            return os.open(self.path, mode | _OPEN)
        except FileNotFoundError:
            if not create:
                raise
        mask = os.umask(0)  # everybody has to update it from its first moment on, even if we are killed right here
        try:
            return os.open(self.path, mode | _OPEN | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return os.open(self.path, mode | _OPEN)
        finally:
            os.umask(mask)

    def _unusable(self, verb: str, error: OSError) -> InfoUnusable:
        reasons = {errno.ELOOP: "it is a symbolic link", errno.EAGAIN: "somebody keeps it locked"}
        reason = reasons.get(error.errno or 0, error.strerror)
        return InfoUnusable(f"{self.path} cannot be {verb}: {reason}", "the GPUs are shared all the same")


def _lock(descriptor: int, kind: int, patience: float) -> None:
    """Take the lock; BlockingIOError where somebody keeps it for longer than that."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.01)


def _rewrite(descriptor: int, text: bytes) -> None:
    """Put the text in place so that a reader without the lock finds JSON, and after a full disk the old one."""
    if os.fstat(descriptor).st_size > SIZE_LIMIT:
        os.ftruncate(descriptor, 0)
    before = os.pread(descriptor, SIZE_LIMIT, 0)
    if os.pwrite(descriptor, text.ljust(len(before)), 0) < len(text):
        os.pwrite(descriptor, before, 0)
        os.ftruncate(descriptor, len(before))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(descriptor, len(text))
