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

# Every simulated job imports this file, so it loads nothing outside the standard library and compiles no
# regular expressions.

TOKEN_BYTES = 4
"""Of the random part in the name of a process's file."""

ENDED = ".ended"
"""What is added to the name of the file of a process that has ended, where its account is kept."""

FAULT = ".fault"
"""What is added to the name of a process's file to tell it that its MPS server died."""

_ACCOUNTING = "accounting"

_KEPT_SECONDS = 60.0

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
    peak: Mapping[int, int]
    """The most bytes that it ever held."""
    busy: Mapping[int, int]
    """The mean utilisation of the device since the process has it."""
    pipe: str
    """The pipe directory of its MPS server; empty without one."""


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


def accounting_is_on(directory: str) -> bool:
    """Whether accounts of processes are kept after their end: the simulator's `nvidia-smi -am 1`."""
    return os.path.exists(f"{directory}/{_ACCOUNTING}")


def switch_accounting(directory: str, *, on: bool) -> None:
    """Keep accounts from now on, or no longer."""
    path = f"{directory}/{_ACCOUNTING}"
    if on:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    else:
        with suppress(FileNotFoundError):
            os.unlink(path)


def ended(directory: str, now: float) -> list[Holding]:
    """The accounts of processes that ended within the last minute, the newest last; older ones are removed."""
    with os.scandir(directory) as files:
        found = sorted((_changed_at(file.path), file.path, file.name) for file in files if _is_ended(file))
    for at, path, _ in found:
        if abs(now - at) > _KEPT_SECONDS:
            _remove(path)
    accounts = [_account(path, name) for at, path, name in found if abs(now - at) <= _KEPT_SECONDS]
    return [account for account in accounts if account]


def clean_up(path: str) -> None:
    """Take away the file of a process that is no more; where accounting is on, its account stays for a while."""
    if accounting_is_on(os.path.dirname(path)):
        os.utime(path)
        os.rename(path, path + ENDED)  # noqa: PTH104 - jobs would have to load pathlib
    else:
        os.unlink(path)
    _remove(path + FAULT)


def _is_entry(file: os.DirEntry[str]) -> bool:
    return _is_name(file.name) and file.is_file(follow_symlinks=False)


def _is_ended(file: os.DirEntry[str]) -> bool:
    name = file.name.removesuffix(ENDED)
    return name != file.name and _is_name(name) and file.is_file(follow_symlinks=False)


def _is_name(name: str) -> bool:
    pid, _, token = name.partition(".")
    return is_number(pid) and len(token) == 2 * TOKEN_BYTES


def _changed_at(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except FileNotFoundError:  # somebody else found it too old
        return 0.0


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _account(path: str, name: str) -> Holding | None:
    with suppress(FileNotFoundError, PermissionError), _opened(path) as descriptor:
        return _parsed(os.read(descriptor, _LARGEST_FILE), name, os.fstat(descriptor).st_uid)
    return None


def _holding(path: str, name: str, attempts: int = 10) -> Holding | None:
    # Other errors go up to the caller: a file that cannot be asked is not the same as free memory.
    with suppress(FileNotFoundError, PermissionError), _opened(path) as descriptor:
        facts = os.fstat(descriptor)
        if _is_locked(descriptor):
            return _parsed(os.read(descriptor, _LARGEST_FILE), name, facts.st_uid)
        if os.path.samestat(facts, os.lstat(path)):
            clean_up(path)
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
        memory, load = _amounts(told["devices"]), _amounts(told["load"])
        peak, busy = _amounts(told.get("peak", memory)), _amounts(told.get("busy", load))
        return Holding(name, pid, owner, memory, load, peak, busy, str(told.get("pipe", "")))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _amounts(told: Mapping[str, object]) -> dict[int, int]:
    return {int(index): _amount(value) for index, value in told.items()}


def _amount(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST_NUMBER:
        raise ValueError(value)
    return value


# Every simulated job imports this file, so it loads nothing outside the standard library.

_NEW = ".new"

_SECONDS_BETWEEN_LOOKS = 0.5


class OutOfMemory(NamedTuple):
    """The device that has too little memory left, and who holds it."""

    device: int
    total: int
    wanted: int
    """Bytes asked for on top of what the process has."""
    mine: int
    others: tuple[tuple[int, int], ...]
    """Pid and bytes of every other process on the device."""
    limit: int | None = None
    """Bytes that the process may have there, whatever is free."""

    @property
    def free(self) -> int:
        """Bytes that nobody holds."""
        return max(0, self.total - self.mine - sum(size for _, size in self.others))

    @property
    def is_real(self) -> bool:
        """Whether there is too little left, or the process may not have so much."""
        return self.wanted > (self.free if self.limit is None else min(self.free, max(0, self.limit - self.mine)))


class SimulatedProcess:
    """What this process holds, as a file whose lock ends with the process, however that dies.

    Every change makes a new file that is locked and complete before it takes the old one's name, so
    a reader never meets half of a file, nor a live process without a lock.
    """

    def __init__(
        self, directory: str, sizes: Sequence[int], limits: Mapping[int, int] | None = None, pipe: str = ""
    ) -> None:
        make_directory(directory)
        self._directory = directory
        self._sizes = sizes
        self._limits = limits or {}
        self._pipe = pipe
        self._name = f"{os.getpid()}.{os.urandom(TOKEN_BYTES).hex()}"
        self._memory: Mapping[int, int] = {}
        self._peak: dict[int, int] = {}
        self._descriptor = -1
        self._present: list[Holding] = []
        self._seen = (0, 0.0)
        """How old the directory was at the last look around, and when that was."""

    def hold(
        self, memory: Mapping[int, int], load: Mapping[int, int], busy: Mapping[int, int] | None = None
    ) -> OutOfMemory | None:
        """Hold exactly this from now on; if one device has too little left, nothing changes."""
        with _turn(self._directory) as folder:
            others = [other for other in holdings(self._directory) if other.name != self._name]
            for device, wanted in memory.items():
                oom = self._oom(device, wanted, others)
                if oom.is_real:
                    return oom
            self._publish(folder, memory, load, load if busy is None else busy)
        return None

    def present(self) -> list[Holding]:
        """All that is held by anybody, this process included, as it was half a second ago at most."""
        # Whoever takes or gives back something changes the directory; only one that was killed does not.
        changed, now = os.stat(self._directory).st_mtime_ns, time.monotonic()
        is_alone = len(self._present) < 2
        if changed != self._seen[0] or (now - self._seen[1] >= _SECONDS_BETWEEN_LOOKS and not is_alone):
            self._present = holdings(self._directory)
            self._seen = (changed, now)
        return self._present

    def strike(self) -> None:
        """Let every other client of the same MPS server on one of the same devices know that it is dead."""
        with _turn(self._directory) as folder:
            for victim in filter(self._shares_server, holdings(self._directory)):
                os.close(os.open(victim.name + FAULT, os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=folder))

    def is_struck(self) -> bool:
        """Whether another client has taken this one's MPS server with it."""
        return bool(self._pipe) and os.path.exists(f"{self._directory}/{self._name}{FAULT}")

    def close(self) -> None:
        """Give everything back."""
        if self._descriptor >= 0:
            with suppress(FileNotFoundError):
                clean_up(f"{self._directory}/{self._name}")
            os.close(self._descriptor)
            self._descriptor = -1
            self._memory = {}

    @property
    def is_accounted(self) -> bool:
        """Whether anybody will want to know how this process fared."""
        return accounting_is_on(self._directory)

    def _shares_server(self, other: Holding) -> bool:
        is_client = bool(self._pipe) and other.pipe == self._pipe
        return is_client and other.name != self._name and bool(other.memory.keys() & self._memory.keys())

    def _oom(self, device: int, size: int, others: Sequence[Holding]) -> OutOfMemory:
        mine = self._memory.get(device, 0)
        taken = tuple((other.pid, other.memory[device]) for other in others if other.memory.get(device))
        return OutOfMemory(device, self._sizes[device], size - mine, mine, taken, self._limits.get(device))

    def _publish(
        self, folder: int, memory: Mapping[int, int], load: Mapping[int, int], busy: Mapping[int, int]
    ) -> None:
        peak = {device: max(size, self._peak.get(device, 0)) for device, size in memory.items()}
        told = {"pid": os.getpid(), "devices": memory, "load": load, "peak": peak, "busy": busy, "pipe": self._pipe}
        descriptor = _replace(folder, self._name, json.dumps(told).encode())
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = descriptor
        self._memory = dict(memory)
        self._peak = peak


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
