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

from stoker.runner import journal

FIRST_PAUSE = 0.002
LONGEST_PAUSE = 2.0


class Link:
    """The engine's end of one worker."""

    def __init__(self, folder: Path, connection: socket.socket | None) -> None:
        self.folder = folder
        self.name = folder.name
        self.connection = connection
        self.reader = journal.Reader(str(folder / "journal"))
        self._environments: set[str] = set()
        self._outbox: deque[tuple[bytes, list[int]]] = deque()
        self._open: set[str] = set()
        self.born: journal.Born | None = None
        """The newest process in the journal."""
        self.check_at = 0.0
        """When to check again whether the worker, once its connection is closed, is dead (monotonic)."""
        self._pause = FIRST_PAUSE
        self.waits_to_write = False
        """Whether the engine waits for room in the socket."""

    def news(self) -> list[journal.Fact]:
        """Events in the journal since the last call; a process id is only kept in `born`."""
        events: list[journal.Fact] = []
        for record in self.reader.news():
            if isinstance(record, journal.Born):
                self.born = record
                continue
            if isinstance(record, journal.AttemptStarted):
                self._open.add(record.attempt)
            else:
                self._open.discard(record.attempt)
            events.append(record)
        return events

    @property
    def has_open_attempts(self) -> bool:
        """Whether an attempt has started and not ended, so that a process of it may live."""
        return bool(self._open)

    def check_later(self) -> None:
        """Check again after a pause that grows: what cannot be killed may stay for long."""
        self.check_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

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
        try:
            return locked(self.folder)
        except FileNotFoundError:
            return False

    def hang_up(self) -> None:
        """Close the connection; the worker goes on."""
        self._drop_outbox()
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def close(self) -> None:
        """Close connection and journal."""
        self.hang_up()
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


def locked(folder: Path) -> bool:
    """Whether a process holds the lock of a worker's folder."""
    with open(folder / "lock", "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
