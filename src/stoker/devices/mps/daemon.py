"""Directories, environment, clients and compute mode of the MPS daemon of a GPU."""

from __future__ import annotations

import contextlib
import fcntl
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

_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def join(place: Place) -> int | None:
    """A descriptor that keeps the daemon from being stopped for as long as anybody has it open.

    None while a daemon is just being stopped: it has to be gone before the next one starts.
    """
    while True:
        descriptor = _take(place.clients, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if descriptor is None or is_in_place(descriptor, place.clients):
            return descriptor
        os.close(descriptor)


def wait_last(place: Place) -> int:
    """Wait until nobody has a client any more; until the descriptor is closed, nobody can join."""
    while True:
        descriptor = os.open(place.clients, _OPEN, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if is_in_place(descriptor, place.clients):
            return descriptor
        os.close(descriptor)  # a cleaner of temporary files removed it, and clients have joined at another one


def take_office(place: Place) -> int | None:
    """A descriptor for the one process that will stop the daemon; None where there is such a process already."""
    return _take(place.warden, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_in_place(descriptor: int, path: str) -> bool:
    """Whether others will find this very file under its name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _take(path: str, kind: int) -> int | None:
    descriptor = os.open(path, _OPEN, 0o600)
    try:
        fcntl.flock(descriptor, kind)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


MIB = 2**20

GIVEN = "STOKER_MPS_GIVEN"
"""The names of the variables that are ours, so that a job which submits others does not pass them on."""


def client_variables(place: Place, percentage: int, amount: int | None, own: Mapping[str, str]) -> dict[str, str]:
    """How it finds its daemon, and what it may have of the GPU; the user's own word goes before all but the first.

    The amount is in bytes, None where nothing is set aside: it holds for each process, which can get no more.
    """
    given = {"CUDA_MPS_LOG_DIRECTORY": place.log}
    if percentage < 100:
        given["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(percentage)
    if amount is not None:  # a client sees one GPU, which is its first
        given["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={-(-amount // MIB)}M"
    unless = {name: value for name, value in given.items() if name not in own}
    variables = {"CUDA_MPS_PIPE_DIRECTORY": place.pipe, **unless}
    return {**variables, GIVEN: ",".join(variables)}


def without_given(environment: Mapping[str, str]) -> Mapping[str, str]:
    """The environment without what makes the job that we are in a client, which says nothing of other jobs."""
    if GIVEN not in environment:
        return environment
    ours = {GIVEN, *environment[GIVEN].split(",")}
    return {name: value for name, value in environment.items() if name not in ours}


PROGRAM = "nvidia-smi"

PATIENCE = 10.0


def make_exclusive(visible: str, place: Place) -> str:
    """Let nobody but the daemon use the GPU; why that was not possible, or nothing.

    A mode that an administrator chose is left alone, now and afterwards.
    """
    if os.path.exists(place.exclusive):
        return ""
    said, well = _ask(visible, "--query-gpu=compute_mode", "--format=csv,noheader")
    if well and said != "Default":
        return ""
    with open(place.exclusive, "w"):  # first: who finds the mode changed must know by whom
        pass
    said, well = _ask(visible, "-c", "EXCLUSIVE_PROCESS")
    if well:
        return ""
    _forget(place)
    return f"the compute mode of {visible} stays as it is: {said}"


def give_back(visible: str, place: Place) -> None:
    """Let everybody use the GPU again, if it was us who changed that."""
    if os.path.exists(place.exclusive) and _ask(visible, "-c", "DEFAULT")[1]:
        _forget(place)


def _forget(place: Place) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(place.exclusive)


def _ask(visible: str, *words: str) -> tuple[str, bool]:
    """What nvidia-smi says, in one line, and whether it did what it was told."""
    import subprocess  # `stoker submit` loads this module, and starts no process beside a living engine

    try:
        done = subprocess.run(
            [PROGRAM, "-i", visible, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{PROGRAM} does not answer", False
    except OSError as error:
        return f"{PROGRAM}: {error.strerror}", False
    return " ".join(done.stdout.split()) or f"{PROGRAM} gave no reason", done.returncode == 0
