"""The engine's end of one worker: orders go out, and the journal tells what happened."""

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
    """The engine's end of one worker: a socket for orders, and the journal that holds the truth."""

    def __init__(self, folder: Path, connection: socket.socket | None) -> None:
        self.folder = folder
        self.name = folder.name
        self.connection = connection
        self.reader = journal.Reader(str(folder / "journal"))
        self._environments: set[str] = set()
        self._outbox: deque[tuple[bytes, list[int]]] = deque()
        self._open: set[str] = set()
        self.born: journal.Born | None = None
        """The newest process, as far as the worker told."""
        self.look_at = 0.0
        """When to look again whether the worker, once it hung up, is dead (monotonic)."""
        self._pause = FIRST_PAUSE
        self.pressed = False
        """Whether somebody waits for the worker to take more."""

    def news(self) -> list[journal.Fact]:
        """What happened by the worker's word since the last call; the number of a process is only kept in mind."""
        told = []
        for record in self.reader.news():
            if isinstance(record, journal.Born):
                self.born = record
                continue
            if isinstance(record, journal.AttemptStarted):
                self._open.add(record.attempt)
            else:
                self._open.discard(record.attempt)
            told.append(record)
        return told

    @property
    def left_something(self) -> bool:
        """Whether an attempt began that is not known to be over, so that something of it may live."""
        return bool(self._open)

    def look_later(self) -> None:
        """Look again after a pause that grows: what cannot be killed may stay for long."""
        self.look_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def put(self, order: Mapping[str, Any], descriptor: int | None = None) -> None:
        """Queue an order, and with it a descriptor that is closed here once it is on its way."""
        self._outbox.append((_line_of(order), [] if descriptor is None else [descriptor]))

    def flush(self) -> None:
        """Send as much as the worker takes; a dead one takes nothing and is noticed by its journal and lock."""
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
        """The first order and, in one piece with it, all that follow without a descriptor of their own."""
        data, descriptors = self._outbox.popleft()
        parts = [data]
        while self._outbox and not self._outbox[0][1]:
            parts.append(self._outbox.popleft()[0])
        self._outbox.appendleft((b"".join(parts), descriptors))
        return self._outbox[0]

    @property
    def congested(self) -> bool:
        """Whether orders wait for the worker to read."""
        return bool(self._outbox)

    def teach(self, digest: str, variables: Mapping[str, str]) -> None:
        """Give the worker an environment once; later orders only name it."""
        if digest not in self._environments:
            self._environments.add(digest)
            self.put({"do": "environment", "digest": digest, "variables": dict(variables)})

    def alive(self) -> bool:
        """Whether the worker lives: decided by its lock alone."""
        try:
            return locked(self.folder)
        except FileNotFoundError:
            return False

    def hang_up(self) -> None:
        """Close our end; the worker itself is not disturbed."""
        self._drop_outbox()
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def close(self) -> None:
        """Give everything back."""
        self.hang_up()
        self.reader.close()

    def _drop_outbox(self) -> None:
        for _, descriptors in self._outbox:
            for descriptor in descriptors:
                os.close(descriptor)
        self._outbox.clear()


def _line_of(order: Mapping[str, Any]) -> bytes:
    """The order as JSON; words that are no UTF-8 need escapes that only the standard library writes."""
    try:
        return msgspec.json.encode(order) + b"\n"
    except UnicodeEncodeError:
        return json.dumps(order).encode() + b"\n"


def locked(folder: Path) -> bool:
    """Whether somebody holds the lock of a worker's folder."""
    with open(folder / "lock", "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
