"""The restart record: how to start the background engine again after it was killed.

An engine writes it when it is ready and removes it before it exits, so a record without an engine means that the
engine was killed. A worker that loses its engine becomes the command in the record (`runner/forkserver.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from stoker.store.paths import UNREADABLE, Paths

TRIES = 3
TRIES_SECONDS = 60.0
"""After so many automatic restarts within so many seconds the engine stays dead."""


class Restart(Struct, frozen=True):
    """How an engine was started."""

    pid: int
    command: list[str]
    """Starts it again, unless another one runs."""
    arguments: list[str]
    """Arguments of the command for the engine."""
    environment: dict[str, str]
    tries: list[float] = []
    """When it was restarted automatically."""

    def recent(self, now: float) -> list[float]:
        return [at for at in self.tries if now - TRIES_SECONDS < at <= now]


def restart_record(arguments: Sequence[str], environment: Mapping[str, str]) -> Restart:
    """The record of this process."""
    command = [sys.executable, "-P", "-m", "stoker", "engine", "start", "--again", *arguments]
    return Restart(os.getpid(), command, list(arguments), dict(environment))


def read_restart(paths: Paths) -> Restart | None:
    """The record; None if there is none that can be read."""
    with contextlib.suppress(*UNREADABLE):
        return msgspec.convert(json.loads(paths.restart.read_bytes()), Restart)
    return None


def write_restart(paths: Paths, record: Restart) -> None:
    """Replace the record. A variable that is not UTF-8 needs escapes that only the standard library writes."""
    made = paths.restart.with_suffix(f".restart.{os.getpid()}")
    with contextlib.suppress(OSError):  # on a full disk the engine runs all the same
        with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            json.dump(msgspec.to_builtins(record), file)
        made.rename(paths.restart)


def remove_restart(paths: Paths, pid: int | None) -> None:
    """Remove the record of an engine that exits or is killed because a user wants that; None is of any engine."""
    record = read_restart(paths)
    if pid is None or (record is not None and record.pid == pid):  # the directory may be another engine's by now
        with contextlib.suppress(OSError):
            paths.restart.unlink()
