"""The files of one bundle on the shared directory.

Each file has one writer, is only appended to in whole lines, and is synced. Readers open it anew for each look: on NFS
only an open asks the server. The head makes the journals beforehand, since a client may remember for a minute that a
name is missing. A claim is a directory, because mkdir is atomic on every file system.

Every task on a node imports this, perhaps from a network file system: standard library only, and no pathlib, typing or
shutil, which take as long to import as all the rest.
"""

from __future__ import annotations

import contextlib
import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

JOURNALS = "journals"
CLAIMS = "claims"
MESSAGES = "messages"
ERRORS = "errors"
ORDERS = "orders"
SUBMITTED = "submitted"
MARKER = "stoker-queue"
"""File by which the shared directory is recognised: what is missing from another one has not vanished."""
ALIVE = "A"
"""Begins the line of a journal by which a node answers that it still works on the attempt."""
GONE = "G"
"""Begins the line by which it tells, or another process there, that no process of the attempt is left."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class BundleFolder:
    """The folder of a bundle; attempts are known by their index in it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    def at(self, *names: object) -> str:
        """The path of something in it."""
        return "/".join((self.path, *map(str, names)))

    # -- the head writes -------------------------------------------------------------------------

    def make(self, orders: Sequence[Mapping[str, Any]], environments: Mapping[str, Mapping[str, str]]) -> None:
        """Make all files; the orders get their name last, so that one look tells whether all is there."""
        for name in (JOURNALS, CLAIMS, ERRORS):
            os.makedirs(self.at(name), mode=0o700, exist_ok=True)
        os.close(os.open(self.at(MESSAGES), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        for index in range(len(orders)):
            os.close(os.open(self.at(JOURNALS, index), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        lines = [json.dumps(environments), *map(json.dumps, orders)]
        made = self.at(f"{ORDERS}.new")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(made)
        _write(made, "".join(f"{line}\n" for line in lines).encode(), _NEW)
        os.rename(made, self.at(ORDERS))
        sync(self.path)

    @property
    def is_complete(self) -> bool:
        return os.path.exists(self.at(ORDERS))

    def note_submitted(self, slurm_id: str) -> None:
        _write(self.at(SUBMITTED), f"{slurm_id}\n".encode(), _APPEND)

    def stop(self, index: int, grace: float, signal_number: int) -> None:
        """Order the node to stop an attempt; a signal tells it to look."""
        self._tell(index, {"grace": grace, "signal": signal_number})

    def ping(self, index: int) -> None:
        """Ask the node whether it still works on an attempt; it answers in the journal."""
        self._tell(index, {"ping": True})

    def _tell(self, index: int, message: Mapping[str, Any]) -> None:
        append(self.at(MESSAGES), f"{json.dumps({'index': index, **message})}\n".encode())

    def removal(self) -> Iterator[None]:
        """Remove all, one name at each step. A task of Slurm's that comes late finds no orders, and does nothing."""
        with contextlib.suppress(OSError):
            os.unlink(self.at(ORDERS))
        yield
        yield from _removal(self.path)

    # -- both sides ------------------------------------------------------------------------------

    def claim(self, name: int | str) -> bool:
        """Claim an attempt, or a pilot itself: True for the one process that may decide what becomes of it."""
        try:
            os.mkdir(self.at(CLAIMS, name), mode=0o700)
        except FileExistsError:
            return False
        sync(self.at(CLAIMS))
        return True

    # -- the head reads --------------------------------------------------------------------------

    @property
    def claims_changed(self) -> int:
        """When a claim was made last, in nanoseconds."""
        return os.stat(self.at(CLAIMS)).st_mtime_ns

    def claims(self) -> list[int]:
        """The attempts that have been claimed."""
        return [int(name) for name in os.listdir(self.at(CLAIMS)) if name.isdecimal()]

    def journal(self, index: int, offset: int) -> bytes:
        """The whole lines of a journal from an offset on."""
        descriptor = os.open(self.at(JOURNALS, index), os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(descriptor, 1 << 16, offset)
        finally:
            os.close(descriptor)
        return data[: data.rfind(b"\n") + 1]

    @property
    def was_submitted(self) -> bool:
        return os.path.exists(self.at(SUBMITTED))

    @property
    def errors(self) -> str:
        return self.at(ERRORS)

    def error(self, index: int) -> str:
        """Why the node's program could not run; empty if it left no words."""
        with contextlib.suppress(OSError), open(self.at(ERRORS, index), errors="replace") as file:
            lines = file.read().strip().splitlines()
            return lines[-1] if lines else ""
        return ""

    @property
    def is_removed(self) -> bool:
        """Whether the head has removed it; a shared directory that is out of sight says nothing."""
        marker = os.path.join(os.path.dirname(self.path), MARKER)
        return not os.path.exists(self.at(ORDERS)) and os.path.exists(marker)

    # -- nodes read and write --------------------------------------------------------------------

    def order(self, index: int) -> tuple[dict[str, Any], dict[str, str]]:
        """The order of an attempt, and the environment that it was submitted with."""
        with open(self.at(ORDERS), "rb") as file:
            lines = file.read().split(b"\n")
        order = json.loads(lines[index + 1])
        return order, json.loads(lines[0])[order["environment"]]

    def fail(self, index: int, words: str) -> None:
        _write(self.at(ERRORS, index), f"{words}\n".encode(errors="backslashreplace"), _APPEND)

    def open_journal(self, index: int) -> int:
        return os.open(self.at(JOURNALS, index), os.O_WRONLY | os.O_CLOEXEC)

    def messages(self, index: int) -> list[dict[str, Any]]:
        """All that the head told the node about an attempt, oldest first."""
        with open(self.at(MESSAGES), "rb") as file:
            data = file.read()
        messages = [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
        return [message for message in messages if message["index"] == index]


def _removal(folder: str) -> Iterator[None]:
    """Remove a directory, one name at each step."""
    with contextlib.suppress(OSError):
        os.rmdir(folder)  # works for a claim, which most of them are
        yield
        return
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                yield from _removal(entry.path)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
                yield
        os.rmdir(folder)
    yield


def sync(folder: str) -> None:
    """Write the names in a directory to the disk; a file system that cannot do that has done it already."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append(path: str, data: bytes) -> None:
    _write(path, data, _APPEND)


def _write(path: str, data: bytes, flags: int) -> None:
    """Write all or nothing: a full disk may take the first half of a line."""
    descriptor = os.open(path, flags, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        try:
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)
