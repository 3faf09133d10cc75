"""How processes on simulated GPUs tell what they hold: a locked file each, in a directory they share."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from stoker.core.errors import StokerError, UsageError
from stoker.core.units import parse_size

# Every simulated job imports this file, so it loads nothing outside the standard library and compiles no
# regular expressions.

_NEW = ".new"
_TOKEN_BYTES = 4
_SMALLEST_DEVICE = 2**20
_LARGEST_FILE = 65536
_LARGEST_NUMBER = 2**60


class Holding(NamedTuple):
    """What one live process holds, by the index of the simulated device."""

    name: str
    pid: int
    owner: int
    """The numeric user, from the owner of the file and never from its contents."""
    memory: Mapping[int, int]
    load: Mapping[int, int]


class Shortage(NamedTuple):
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
        """Bytes that nobody holds."""
        return max(0, self.total - self.mine - sum(size for _, size in self.others))


def parse_sim(spec: str) -> list[tuple[int, int]]:
    """Count and bytes of each group in `2x80G,4x24G`."""
    groups = [_group(part.strip().lower()) for part in spec.split(",")]
    if not all(count and size >= _SMALLEST_DEVICE for count, size in groups):
        hint = "write COUNTxMEMORY, for example 4x24G, or 2x80G,4x24G for two kinds"
        raise UsageError(f"{spec!r} does not describe simulated GPUs", hint)
    return groups


def device_sizes(spec: str) -> list[int]:
    """Bytes of each simulated device, by its index."""
    return [size for count, size in parse_sim(spec) for _ in range(count)]


def make_directory(directory: str) -> None:
    """Make the simulator's directory for this user alone; one that exists stays as it is."""
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
    except OSError as error:
        message = f"the simulator cannot use {directory}: {error.strerror}"
        raise StokerError(message, "set STOKER_SIM_DIR to a directory that you may write to") from error


def holdings(directory: str) -> list[Holding]:
    """What live processes hold; files left by dead ones are removed, anything odd is passed over."""
    with os.scandir(directory) as files:
        entries = sorted((file.path, file.name) for file in files if _is_entry(file))
    found = [_holding(path, name) for path, name in entries]
    return [holding for holding in found if holding]


class Presence:
    """What this process holds, as a file whose lock ends with the process, however that dies.

    Every change makes a new file that is locked and complete before it takes the old one's name, so
    a reader never meets half of a file, nor a live process without a lock.
    """

    def __init__(self, directory: str, sizes: Sequence[int]) -> None:
        make_directory(directory)
        self._directory = directory
        self._sizes = sizes
        self._name = f"{os.getpid()}.{os.urandom(_TOKEN_BYTES).hex()}"
        self._memory: Mapping[int, int] = {}
        self._descriptor = -1

    def hold(self, memory: Mapping[int, int], load: Mapping[int, int]) -> Shortage | None:
        """Hold exactly this from now on; if one device has too little left, nothing changes."""
        with _turn(self._directory) as folder:
            others = [other for other in holdings(self._directory) if other.name != self._name]
            for device, wanted in memory.items():
                if shortage := self._shortage(device, wanted, others):
                    return shortage
            self._publish(folder, memory, load)
        return None

    def close(self) -> None:
        """Give everything back."""
        if self._descriptor >= 0:
            with suppress(FileNotFoundError):
                os.unlink(f"{self._directory}/{self._name}")
            os.close(self._descriptor)
            self._descriptor = -1
            self._memory = {}

    def _shortage(self, device: int, size: int, others: Sequence[Holding]) -> Shortage | None:
        mine = self._memory.get(device, 0)
        taken = tuple((other.pid, other.memory[device]) for other in others if other.memory.get(device))
        shortage = Shortage(device, self._sizes[device], size - mine, mine, taken)
        return shortage if shortage.wanted > shortage.free else None

    def _publish(self, folder: int, memory: Mapping[int, int], load: Mapping[int, int]) -> None:
        text = json.dumps({"pid": os.getpid(), "devices": memory, "load": load})
        descriptor = _replace(folder, self._name, text.encode())
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = descriptor
        self._memory = dict(memory)


def _group(text: str) -> tuple[int, int]:
    count, _, size = text.partition("x")
    if not (_is_number(count) and len(count) <= 3 and 0 < len(size) <= 12):
        return 0, 0
    return int(count), parse_size(size)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _is_entry(file: os.DirEntry[str]) -> bool:
    pid, _, token = file.name.partition(".")
    return _is_number(pid) and len(token) == 2 * _TOKEN_BYTES and file.is_file(follow_symlinks=False)


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


def _holding(path: str, name: str, attempts: int = 10) -> Holding | None:
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


def _parsed(contents: bytes, name: str, owner: int) -> Holding | None:
    pid = int(name.partition(".")[0])
    try:
        told = json.loads(contents)
        if told["pid"] != pid:
            return None
        return Holding(name, pid, owner, _amounts(told["devices"]), _amounts(told["load"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _amounts(told: dict[str, object]) -> dict[int, int]:
    return {int(index): _amount(value) for index, value in told.items()}


def _amount(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST_NUMBER:
        raise ValueError(value)
    return value
