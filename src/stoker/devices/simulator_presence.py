"""What a process does to be on simulated GPUs: it holds memory, meets its neighbours, and may take them with it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from stoker.devices.simulator import (
    FAULT,
    TOKEN_BYTES,
    Holding,
    accounting_is_on,
    bury,
    holdings,
    make_directory,
)

# Every simulated job imports this file, so it loads nothing outside the standard library.

_NEW = ".new"
_SECONDS_BETWEEN_LOOKS = 0.5


class Shortage(NamedTuple):
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


class Presence:
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
    ) -> Shortage | None:
        """Hold exactly this from now on; if one device has too little left, nothing changes."""
        with _turn(self._directory) as folder:
            others = [other for other in holdings(self._directory) if other.name != self._name]
            for device, wanted in memory.items():
                shortage = self._shortage(device, wanted, others)
                if shortage.is_real:
                    return shortage
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
                bury(f"{self._directory}/{self._name}")
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

    def _shortage(self, device: int, size: int, others: Sequence[Holding]) -> Shortage:
        mine = self._memory.get(device, 0)
        taken = tuple((other.pid, other.memory[device]) for other in others if other.memory.get(device))
        return Shortage(device, self._sizes[device], size - mine, mine, taken, self._limits.get(device))

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
