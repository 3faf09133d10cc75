"""The engine's end of one worker: a socket for orders, and the journal with the events."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from stoker.core.launch import parse_key
from stoker.runner import journal, processes
from stoker.runner.inherited import INHERITED, MARKER

LOCK = "lock"
"""File that the worker alone keeps locked, which proves that it lives."""
FIRST_PAUSE_SECONDS = 0.002
LONGEST_PAUSE_SECONDS = 2.0
PATIENCE_SECONDS = 1.0
"""Seconds after which processes that were sent SIGKILL are worth a word."""


class WorkerLink:
    """The engine's end of one worker."""

    def __init__(self, folder: Path, reader: journal.JournalReader | None, damage: str = "") -> None:
        """`damage` is why there is no reader."""
        self.folder = folder
        self.name = folder.name
        self.connection: socket.socket | None = None
        self.reader = reader
        self.template = ""
        """The key of the template that forks it, if one does."""
        self.outdated = False
        """Whether its template has ended, or a module of it has changed."""
        self._damage = damage
        self._environments: set[str] = set()
        self._outbox: deque[tuple[bytes, list[int]]] = deque()
        self._open: dict[str, None] = {}
        """Attempts that were sent or have started, and have not ended."""
        self.retired = False
        """Whether it was told to leave, because its journal is damaged."""
        self.left: tuple[int, ...] = ()
        """Processes of its attempts that live on after it."""
        self._left_since: float | None = None
        self.born: journal.Born | None = None
        """The newest process in the journal."""
        self._process = 0
        """The worker's own process, once it is known."""
        self.check_at = 0.0
        """When to check again whether the worker, once its connection is closed, is dead (monotonic)."""
        self._pause = FIRST_PAUSE_SECONDS
        self.waits_to_write = False
        """Whether the engine waits for room in the socket."""

    def news(self) -> list[journal.Fact]:
        """Events in the journal since the last call; a process id is only kept in `born`."""
        events: list[journal.Fact] = []
        for record in self.reader.news() if self.reader is not None else ():
            if isinstance(record, journal.Born):
                self.born, self._process = record, record.worker
                continue
            if isinstance(record, journal.AttemptStarted):
                self._open[record.attempt] = None
            else:
                self._open.pop(record.attempt, None)
            events.append(record)
        return events

    def last_news(self) -> list[journal.Fact]:
        """Read the ends of attempts from a damaged journal, once the worker is dead."""
        if not self.damage or self.reader is None:
            return []
        ends = self.reader.ends(self._open)
        return [event for end in ends for event in (journal.AttemptStarted(end.attempt, end.at), end)]

    def expect(self, attempt: str) -> None:
        """Note an attempt that the worker was given: a process of it may live, whatever the journal says."""
        self._open[attempt] = None

    @property
    def damage(self) -> str:
        """Why the journal cannot be read any further; empty if it can."""
        return self.reader.damage if self.reader is not None else self._damage

    @property
    def worn_out(self) -> bool:
        """Whether the worker should get no more attempts."""
        return self.outdated or self.reader is None or bool(self.reader.damage) or self.reader.nearly_full

    @property
    def is_idle(self) -> bool:
        """Whether all attempts that it was given are over."""
        return not self._open

    def leftovers(self) -> list[processes.SeenProcess] | None:
        """The processes that a dead worker's attempts left; None if there are none.

        They are found by the lock that they inherit, by the session of the command, and by their environment; each of
        these can be lost by a program. The list is empty if only the lock shows that there is one.
        """
        try:
            held = self._holds_inherited()
            left_processes = self._search() if held or self._open or self.damage else []
        except OSError:  # no descriptor is left to look with
            held, left_processes = True, []
        if not held and not left_processes:
            self.left, self._left_since = (), None
            return None
        self.left = tuple(sorted(process.pid for process in left_processes))
        self._left_since = self._left_since or time.monotonic()
        return left_processes

    def _holds_inherited(self) -> bool:
        try:
            return is_locked(self.folder / INHERITED)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):  # its folder is damaged
            return False

    def _search(self) -> list[processes.SeenProcess]:
        left_processes = processes.marked(f"{MARKER}={self.name}".encode())
        left_processes += processes.holding(os.path.realpath(self.folder / INHERITED))
        born = self.born
        if born is not None and born.attempt in self._open and born.boot and born.boot == processes.boot_id():
            left_processes += processes.of_session(born.pid, born.ticks)
        return [process for process in dict.fromkeys(left_processes) if process.pid != os.getpid()]

    @property
    def survivors(self) -> dict[int, str]:
        """Jobs that cannot be started again yet, each with the reason."""
        if self._left_since is None or time.monotonic() - self._left_since < PATIENCE_SECONDS:
            return {}
        running = self.born.attempt if self.born is not None and self.born.attempt in self._open else None
        return {parse_key(attempt)[0]: self._survival() for attempt in ([running] if running else self._open)}

    def _survival(self) -> str:
        if not self.left:
            return "its worker died; processes of its last attempt are still running and cannot be inspected"
        named, run = ("process", "runs") if len(self.left) == 1 else ("processes", "run")
        pids = ", ".join(map(str, self.left))
        return f"its worker died; {named} {pids} of its last attempt still {run} and cannot be killed"

    def stopped(self, *, search: bool) -> processes.SeenProcess | None:
        """The worker itself, if it has work but a signal or a debugger has stopped it.

        A worker whose journal does not name it yet is only found by a `search` of all processes.
        """
        if self.is_nameless and search:
            holders = processes.having_open([os.path.realpath(self.folder / LOCK)])
            self._process = holders[0].pid if len(holders) == 1 else 0  # else the forkserver has it for a moment more
        return processes.stopped(self._process) if self._open and self._process else None

    @property
    def is_nameless(self) -> bool:
        """Whether it has work, but its process is not known."""
        return bool(self._open) and not self._process

    def check_later(self) -> None:
        """Check again after a pause that grows: what cannot be killed may stay for long."""
        self.check_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    def put(self, order: Mapping[str, Any], descriptor: int | None = None) -> None:
        """Queue an order, with a descriptor that is closed here once it is sent."""
        self._outbox.append((_line_of(order), [] if descriptor is None else [descriptor]))

    def flush(self) -> None:
        """Send as much as fits into the socket; a dead worker is noticed by its journal and lock."""
        while self._outbox and self.connection is not None:
            data, descriptors = self._outbox[0] = self._next_parcel()
            try:
                sent = socket.send_fds(self.connection, [data], descriptors)
            except BlockingIOError:
                return
            except OSError:
                self._drop_outbox()
                return
            for descriptor in descriptors:
                os.close(descriptor)
            if sent == len(data):
                self._outbox.popleft()
            else:
                self._outbox[0] = (data[sent:], [])

    def _next_parcel(self) -> tuple[bytes, list[int]]:
        """The first order, joined with all that follow without a descriptor of their own."""
        data, descriptors = self._outbox.popleft()
        parts = [data]
        while self._outbox and not self._outbox[0][1]:
            parts.append(self._outbox.popleft()[0])
        self._outbox.appendleft((b"".join(parts), descriptors))
        return self._outbox[0]

    @property
    def congested(self) -> bool:
        """Whether orders wait for room in the socket."""
        return bool(self._outbox)

    def put_environment(self, digest: str, variables: Mapping[str, str]) -> None:
        """Send an environment once; later orders only name it."""
        if digest not in self._environments:
            self._environments.add(digest)
            self.put({"do": "environment", "digest": digest, "variables": dict(variables)})

    def alive(self) -> bool:
        """Whether the worker lives: only its lock decides."""
        return lives(self.folder)

    def hang_up(self) -> None:
        """Close the connection; the worker goes on."""
        self._drop_outbox()
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def close(self) -> None:
        """Close connection and journal."""
        self.hang_up()
        if self.reader is not None:
            self.reader.close()

    def _drop_outbox(self) -> None:
        for _, descriptors in self._outbox:
            for descriptor in descriptors:
                os.close(descriptor)
        self._outbox.clear()


def _line_of(order: Mapping[str, Any]) -> bytes:
    """The order as JSON; words that are not UTF-8 need escapes that only the standard library writes."""
    try:
        return msgspec.json.encode(order) + b"\n"
    except UnicodeEncodeError:
        return json.dumps(order).encode() + b"\n"


def lives(folder: Path) -> bool:
    """Whether the worker of a folder lives. Where its lock cannot be read, whether a process has that or its journal.

    Unknown counts as alive: nothing may run twice.
    """
    try:
        return is_locked(folder / LOCK)
    except OSError:
        try:
            return bool(processes.having_open(f"{os.path.realpath(folder)}/{name}" for name in (LOCK, "journal")))
        except OSError:
            return True


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file."""
    with open(path, "rb", opener=_without_waiting) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _without_waiting(path: str, flags: int) -> int:
    """Open what may be a FIFO."""
    return os.open(path, flags | os.O_NONBLOCK)
