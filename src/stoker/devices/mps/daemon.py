"""The MPS daemon of one GPU and user: its files, and the locks of its clients.

Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
from collections.abc import Mapping
from typing import NamedTuple

from stoker.core.errors import StokerError

PROGRAM = "nvidia-cuda-mps-control"
VARIABLE = "STOKER_MPS_DIR"
LOG_BYTES = 1 << 20
"""Bytes after which a daemon that starts begins its log anew; every question asked of it takes five lines."""
_SOCKET_PATH_BYTES = 107
"""Bytes that the path of a socket may have."""
_ANOTHER_DIRECTORY = f"set {VARIABLE} to your own directory with a short path"
_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class MpsTrouble(StokerError):
    """The MPS daemon of a GPU cannot be started, or does not answer."""


class DaemonPaths(NamedTuple):
    root: str

    @property
    def pipe(self) -> str:
        """The directory of its sockets, by which clients find it."""
        return f"{self.root}/pipe"

    @property
    def log(self) -> str:
        return f"{self.root}/log"

    @property
    def clients(self) -> str:
        """The file on which every process that has a client holds a shared lock."""
        return f"{self.root}/clients"

    @property
    def supervisor(self) -> str:
        """The file that the one process locks which will stop the daemon."""
        return f"{self.root}/supervisor"

    @property
    def exclusive(self) -> str:
        """The file that exists while Stoker has changed the GPU's compute mode."""
        return f"{self.root}/exclusive"

    @property
    def daemon_lock(self) -> str:
        """The file that the daemon itself locks for its whole life."""
        return f"{self.pipe}/control_lock"


def daemon_paths(device: str, environment: Mapping[str, str]) -> DaemonPaths:
    """The paths for a device, the same in every process of this user."""
    directory = environment.get(VARIABLE) or f"/tmp/stoker-mps-{os.geteuid()}"
    return DaemonPaths(f"{directory}/{hashlib.sha256(device.encode()).hexdigest()[:8]}")


def prepare(paths: DaemonPaths) -> None:
    """Make the missing directories; refuse any that another user could write to."""
    longest = f"{paths.pipe}/control_privileged"
    if len(longest.encode()) > _SOCKET_PATH_BYTES:
        raise MpsTrouble(f"{longest} is too long for a socket", f"set {VARIABLE} to a directory with a shorter path")
    for directory in (os.path.dirname(paths.root), paths.root, paths.pipe, paths.log):
        _prepare_directory(directory)


def trim_log(paths: DaemonPaths) -> None:
    """Remove a log that has grown long; only while no daemon writes to it."""
    log = f"{paths.log}/control.log"
    if os.path.exists(log) and os.path.getsize(log) > LOG_BYTES:
        os.unlink(log)


def _prepare_directory(path: str) -> None:
    try:
        with contextlib.suppress(FileExistsError):  # a file or a broken link, which is refused below
            os.makedirs(path, 0o700, exist_ok=True)
        status = os.lstat(path)
    except OSError as error:
        raise MpsTrouble(f"cannot create {path}: {error.strerror}", _ANOTHER_DIRECTORY) from error
    if problem := _problem(status):
        raise MpsTrouble(f"{path} {problem}", f"remove it, or {_ANOTHER_DIRECTORY}")


def _problem(status: os.stat_result) -> str:
    """Why a directory is not safe, ready to end a sentence; empty if it is."""
    if not stat.S_ISDIR(status.st_mode):
        return "is a file or a symbolic link, not a directory"
    if status.st_uid != os.geteuid():
        return "belongs to another user"
    if stat.S_IMODE(status.st_mode) & 0o022:
        return f"has mode {stat.S_IMODE(status.st_mode):o}: other users could place their daemon in it"
    return ""


# -- locks


def lock_client(paths: DaemonPaths) -> int | None:
    """A descriptor that keeps the daemon from being stopped for as long as any process has it open.

    None while a daemon is just being stopped: it has to be gone before the next one starts.
    """
    while True:
        descriptor = _lock(paths.clients, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if descriptor is None or _is_in_place(descriptor, paths.clients):
            return descriptor
        os.close(descriptor)


def wait_last_client(paths: DaemonPaths) -> int:
    """Wait until there is no client any more; until the descriptor is closed, none can be added."""
    while True:
        descriptor = os.open(paths.clients, _OPEN, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _is_in_place(descriptor, paths.clients):
            return descriptor
        os.close(descriptor)  # a cleaner of temporary files removed it, and clients locked a new one


def lock_supervisor(paths: DaemonPaths) -> int | None:
    """A descriptor for the one process that will stop the daemon; None if there is such a process already."""
    return _lock(paths.supervisor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_in_place(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _lock(path: str, kind: int) -> int | None:
    descriptor = os.open(path, _OPEN, 0o600)
    try:
        fcntl.flock(descriptor, kind)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
