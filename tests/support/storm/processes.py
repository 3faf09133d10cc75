"""Processes as /proc shows them, and how they are killed: only those that a storm itself has caused."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

from support.wait import PATIENCE_SECONDS


def processes() -> list[int]:
    """Everybody."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def children(pid: int) -> list[int]:
    """The children of a process."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def is_forked(pid: int) -> bool:
    """Whether it is a forkserver, a template or a worker, of anybody."""
    return b"stoker.runner.forkserver" in _content(pid, "cmdline") or is_template(pid)


def is_template(pid: int) -> bool:
    """Whether it is a template, or a worker that one forked."""
    return b"stoker.runner.template" in _content(pid, "cmdline")


def command_of(pid: int) -> str:
    """Its command line."""
    return _content(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")


def variables_of(pid: int) -> dict[str, str]:
    """Its environment, as it was started with it."""
    pairs = [word.decode(errors="replace").partition("=") for word in _content(pid, "environ").split(b"\0")]
    return {name: value for name, _, value in pairs}


def marked(word: str) -> list[int]:
    """The living processes with this very word in their environment."""
    sought = word.encode()
    return [pid for pid in processes() if sought in _content(pid, "environ").split(b"\0")]


def open_files(pid: int) -> Iterator[Path]:
    """The files that a process has open."""
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield Path(os.readlink(f"/proc/{pid}/fd/{name}").removesuffix(" (deleted)"))


def kill_and_wait(pid: int) -> None:
    """Kill a process, whosever child it is, and come back when it is dead."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            assert select.select([descriptor], [], [], PATIENCE_SECONDS)[0], f"process {pid} does not die"
        finally:
            os.close(descriptor)


def is_free(lock: int) -> bool:
    """Whether nobody holds the lock of an open file."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def locked_files(*directories: Path) -> list[Path]:
    """Files below the directories that somebody has locked, as the kernel tells."""
    locked = {line.split()[5] for line in Path("/proc/locks").read_text().splitlines()}
    files = [path for directory in directories for path in directory.rglob("*")]
    return [path for path in files if _name_in_locks(path) in locked]


def _name_in_locks(path: Path) -> str:
    """Device and inode: small file systems have the same few inode numbers."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return ""
    return f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"


def _content(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
