"""Where the MPS daemon of one GPU lives: a directory of its user's with a path short enough for a socket.

Standard library only, and little of that: the programs that watch daemons and end clients consist of this package.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Mapping
from typing import NamedTuple

from stoker.core.errors import StokerError

VARIABLE = "STOKER_MPS_DIR"
SOCKET_LIMIT = 107
"""Bytes that the path of a socket may have."""
LOG_LIMIT = 1 << 20
"""Bytes after which a daemon that starts begins its log anew; every question asked of it takes five lines."""


class MpsTrouble(StokerError):
    """The MPS daemon of a GPU cannot be started, or does not answer."""


class Place(NamedTuple):
    """All paths of one daemon."""

    root: str

    @property
    def pipe(self) -> str:
        """Its sockets, by which clients find it."""
        return f"{self.root}/pipe"

    @property
    def log(self) -> str:
        """What it writes down."""
        return f"{self.root}/log"

    @property
    def clients(self) -> str:
        """The file on which whoever has a client of it holds a shared lock."""
        return f"{self.root}/clients"

    @property
    def warden(self) -> str:
        """The file that is locked by the one process that will stop it."""
        return f"{self.root}/warden"

    @property
    def exclusive(self) -> str:
        """The file that is there while the GPU's compute mode is changed for it."""
        return f"{self.root}/exclusive"

    @property
    def daemon_lock(self) -> str:
        """The file that the daemon itself locks for its whole life."""
        return f"{self.pipe}/control_lock"


def place_of(device: str, environment: Mapping[str, str]) -> Place:
    """The place for a device of this user's, which every process of his finds alike."""
    directory = environment.get(VARIABLE) or f"/tmp/stoker-mps-{os.geteuid()}"
    return Place(f"{directory}/{hashlib.sha256(device.encode()).hexdigest()[:8]}")


def prepare(place: Place) -> None:
    """Make the place where it is missing; refuse one that somebody else could have a hand in."""
    longest = f"{place.pipe}/control_privileged"
    if len(longest.encode()) > SOCKET_LIMIT:
        raise MpsTrouble(f"{longest} is too long for a socket", f"set {VARIABLE} to a directory with a shorter path")
    for directory in (os.path.dirname(place.root), place.root, place.pipe, place.log):
        _prepare_directory(directory)


def trim_log(place: Place) -> None:
    """Remove a log that has grown long; only while no daemon writes to it."""
    log = f"{place.log}/control.log"
    if os.path.exists(log) and os.path.getsize(log) > LOG_LIMIT:
        os.unlink(log)


def _prepare_directory(path: str) -> None:
    try:
        with contextlib.suppress(FileExistsError):  # a file or a broken link, which is refused below
            os.makedirs(path, 0o700, exist_ok=True)
        status = os.lstat(path)
    except OSError as error:
        raise MpsTrouble(f"cannot make {path}: {error.strerror}", _OTHER_PLACE) from error
    if problem := _problem(status):
        raise MpsTrouble(f"{path} {problem}", f"remove it, or {_OTHER_PLACE}")


def _problem(status: os.stat_result) -> str:
    """Why a directory is not to be trusted, ready to end a sentence; empty where it is."""
    if not stat.S_ISDIR(status.st_mode):
        return "is a file or a symbolic link, not a directory"
    if status.st_uid != os.geteuid():
        return "belongs to somebody else"
    if stat.S_IMODE(status.st_mode) & 0o022:
        return f"has mode {stat.S_IMODE(status.st_mode):o}: others could put a daemon of theirs into it"
    return ""


_OTHER_PLACE = f"set {VARIABLE} to a directory of your own with a short path"
