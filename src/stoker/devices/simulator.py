"""How processes on simulated GPUs tell what they hold: a locked file each, in a directory they share."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

from stoker.core.errors import StokerError, UsageError
from stoker.core.units import parse_size

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
    peak: Mapping[int, int]
    """The most bytes that it ever held."""
    busy: Mapping[int, int]
    """The mean utilisation of the device since the process has it."""
    pipe: str
    """The pipe directory of its MPS server; empty without one."""


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


def bury(path: str) -> None:
    """Take away the file of a process that is no more; where accounting is on, its account stays for a while."""
    if accounting_is_on(os.path.dirname(path)):
        os.utime(path)
        os.rename(path, path + ENDED)  # noqa: PTH104 - jobs would have to load pathlib
    else:
        os.unlink(path)
    _remove(path + FAULT)


def _group(text: str) -> tuple[int, int]:
    count, _, size = text.partition("x")
    if not (_is_number(count) and len(count) <= 3 and 0 < len(size) <= 12):
        return 0, 0
    return int(count), parse_size(size)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _is_entry(file: os.DirEntry[str]) -> bool:
    return _is_name(file.name) and file.is_file(follow_symlinks=False)


def _is_ended(file: os.DirEntry[str]) -> bool:
    name = file.name.removesuffix(ENDED)
    return name != file.name and _is_name(name) and file.is_file(follow_symlinks=False)


def _is_name(name: str) -> bool:
    pid, _, token = name.partition(".")
    return _is_number(pid) and len(token) == 2 * TOKEN_BYTES


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
            bury(path)
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
