"""The log of the engine in the background, which is put aside when it has grown too long."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import IO

LIMIT = 10 * 2**20
"""Bytes at which a new log is begun; one old one is kept."""


def open_log(path: Path) -> IO[bytes]:
    """The log, to be added to; what has grown too long is put aside."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > LIMIT:
            _put_aside(path)
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab")


def log(path: Path, text: str) -> None:
    """A line in the log of the engine that this process is, wherever that goes: to the file, or to systemd."""
    with contextlib.suppress(OSError):  # a full disk must not keep jobs from running
        turn_over(path)
        print(time.strftime("%Y-%m-%d %H:%M:%S"), text, file=sys.stderr, flush=True)


def turn_over(path: Path, limit: int = LIMIT) -> None:
    """Begin a new log where this process writes to one that has grown too long."""
    written = os.fstat(sys.stderr.fileno())
    if written.st_size <= limit or not path.exists() or not os.path.samestat(written, path.stat()):
        return
    _put_aside(path)
    with open_log(path) as new:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(new.fileno(), stream.fileno())


def _put_aside(path: Path) -> None:
    path.replace(path.with_suffix(".log.1"))
