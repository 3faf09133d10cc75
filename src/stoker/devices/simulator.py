"""Simulated GPUs: files in which processes report what they use."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from stoker.core.errors import StokerError
from stoker.core.units import is_number

# Every simulated job imports this file, so it loads nothing outside the standard library.

TOKEN_BYTES = 4
"""Of the random part in the name of a process's file."""
_LARGEST_FILE = 65536
_LARGEST_NUMBER = 2**60
_NEW = ".new"
_SECONDS_BETWEEN_READS = 0.5


class SimulatedMemory(NamedTuple):
    """The memory that one live process holds, by the index of the simulated device."""

    name: str
    pid: int
    owner: int
    """The numeric user, from the owner of the file and never from its contents."""
    memory: Mapping[int, int]
    load: Mapping[int, int]
    """Percent of each device."""


def make_directory(directory: str) -> None:
    """Make the simulator's directory for this user alone; one that exists stays as it is."""
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
    except OSError as error:
        message = f"the simulator cannot use {directory}: {error.strerror}"
        raise StokerError(message, "set STOKER_SIM_DIR to a writable directory") from error


def holdings(directory: str) -> list[SimulatedMemory]:
    """The memory of live processes; files left by dead ones are removed, anything odd is passed over."""
    with os.scandir(directory) as files:
        entries = sorted(
            (file.path, file.name) for file in files if _is_name(file.name) and file.is_file(follow_symlinks=False)
        )
    read = [_holding(path, name) for path, name in entries]
    return [holding for holding in read if holding]


def _is_name(name: str) -> bool:
    pid, _, token = name.partition(".")
    return is_number(pid) and len(token) == 2 * TOKEN_BYTES


def _holding(path: str, name: str, attempts: int = 10) -> SimulatedMemory | None:
    # Other errors go up to the caller: a file that cannot be asked is not the same as free memory.
    with suppress(FileNotFoundError, PermissionError), _opened(path) as descriptor:
        facts = os.fstat(descriptor)
        if _is_locked(descriptor):
            return _parsed(os.read(descriptor, _LARGEST_FILE), name, facts.st_uid)
        if os.path.samestat(facts, os.lstat(path)):
            os.unlink(path)
        elif attempts:
            # The process replaced its file after we had opened the old one.
            return _holding(path, name, attempts - 1)
    return None


@contextmanager
def _opened(path: str) -> Iterator[int]:
    # A pipe or link that took the file's place a moment ago must neither block nor lead elsewhere.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    # A shared lock, so that two readers do not take each other for the living owner.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _parsed(contents: bytes, name: str, owner: int) -> SimulatedMemory | None:
    pid = int(name.partition(".")[0])
    try:
        facts = json.loads(contents)
        if facts["pid"] != pid:
            return None
        return SimulatedMemory(name, pid, owner, _amounts(facts["devices"]), _amounts(facts["load"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _amounts(by_index: Mapping[str, object]) -> dict[int, int]:
    return {int(index): _amount(value) for index, value in by_index.items()}


def _amount(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST_NUMBER:
        raise ValueError(value)
    return value


class SimulatedOutOfMemory(NamedTuple):
    """The device that has too little memory left, and who holds it."""

    device: int
    total: int
    wanted: int
    """Bytes asked for on top of what the process has."""
    mine: int
    others: tuple[tuple[int, int], ...]
    """Pid and bytes of every other process on the device."""

    @property
    def free(self) -> int:
        return max(0, self.total - self.mine - sum(size for _, size in self.others))

    @property
    def is_real(self) -> bool:
        return self.wanted > self.free


class SimulatedProcess:
    """The memory of this process, as a file whose lock ends with the process, however that dies.

    Every change makes a new file that is locked and complete before it takes the old one's name, so a reader never
    meets half of a file, nor a live process without a lock.
    """

    def __init__(self, directory: str, sizes: Sequence[int]) -> None:
        make_directory(directory)
        self._directory = directory
        self._sizes = sizes
        self._name = f"{os.getpid()}.{os.urandom(TOKEN_BYTES).hex()}"
        self._memory: Mapping[int, int] = {}
        self._descriptor = -1
        self._present: list[SimulatedMemory] = []
        self._read = (0, 0.0)
        """Modification time of the directory when it was last read, and when that was."""

    def hold(self, memory: Mapping[int, int], load: Mapping[int, int]) -> SimulatedOutOfMemory | None:
        """Hold exactly this from now on; if one device has too little left, nothing changes."""
        with _turn(self._directory) as folder:
            holders = holdings(self._directory)
            for device, size in memory.items():
                oom = self.refusal(device, size, holders)
                if oom.is_real:
                    return oom
            self._publish(folder, memory, load)
        return None

    def refusal(self, device: int, size: int, holders: Sequence[SimulatedMemory]) -> SimulatedOutOfMemory:
        """The error of a process that may not hold so much of a device beside these holders."""
        mine = self._memory.get(device, 0)
        others = [other for other in holders if other.name != self._name and other.memory.get(device)]
        taken = tuple((other.pid, other.memory[device]) for other in others)
        return SimulatedOutOfMemory(device, self._sizes[device], size - mine, mine, taken)

    def present(self) -> list[SimulatedMemory]:
        """The memory of every process, this one included; at most half a second old."""
        # A process that takes or gives back something changes the directory; only one that was killed does not.
        changed, now = os.stat(self._directory).st_mtime_ns, time.monotonic()
        is_alone = len(self._present) < 2
        if changed != self._read[0] or (now - self._read[1] >= _SECONDS_BETWEEN_READS and not is_alone):
            self._present = holdings(self._directory)
            self._read = (changed, now)
        return self._present

    def close(self) -> None:
        """Give everything back."""
        if self._descriptor >= 0:
            with suppress(FileNotFoundError):
                os.unlink(f"{self._directory}/{self._name}")
            os.close(self._descriptor)
            self._descriptor = -1
            self._memory = {}

    def _publish(self, folder: int, memory: Mapping[int, int], load: Mapping[int, int]) -> None:
        facts = {"pid": os.getpid(), "devices": memory, "load": load}
        descriptor = _replace(folder, self._name, json.dumps(facts).encode())
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = descriptor
        self._memory = dict(memory)


@contextmanager
def _turn(directory: str) -> Iterator[int]:
    """The open directory, while no other process counts what is left and takes it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _replace(folder: int, name: str, contents: bytes) -> int:
    # Callers have their turn, so a file found under the new one's name is what a killed process left.
    with suppress(FileNotFoundError):
        os.unlink(_NEW, dir_fd=folder)
    descriptor = os.open(_NEW, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, contents)
        os.rename(_NEW, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
