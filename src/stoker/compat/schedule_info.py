"""The file gpu_scheduler_info: read, write, show."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from stoker.core.device import Device, Reading, Snapshot
from stoker.core.errors import StokerError
from stoker.core.lease import Lease
from stoker.devices.declared import DeclaredDevices
from stoker.devices.detect import known_names
from stoker.devices.interface import Devices
from stoker.devices.nvidia import NvidiaDevices
from stoker.ledger import Ledger

PLACE = Path("/tmp/gpu_scheduler_info")

MOST_GPUS = 1024

SIZE_LIMIT = 1 << 20

LOCK_PATIENCE = 2.0
"""Seconds to wait for somebody else who holds the file."""

# Never O_CREAT on a file that may be another's: fs.protected_regular forbids it. O_NONBLOCK is for a FIFO.
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY

_MOST_PROCESSES = 1 << 22


class InfoUnusable(StokerError):
    """The file cannot be read or written; GPUs are shared through the ledger all the same."""


class Entry(Struct, frozen=True):
    """What the file says of one GPU."""

    avail: bool = True
    gpu_name: str | None = None
    task: tuple[str, ...] | None = None
    task_pid: int | None = None
    task_start: str | None = None
    user: str | None = None

    @property
    def marked(self) -> bool:
        """Whether somebody only wants the GPU left alone: no task is named that could end."""
        return not self.avail and self.user is None and self.task_pid is None


FREE = Entry()

MARKED = Entry(avail=False)

Entries = tuple[Entry, ...]


def place_of_info(environment: Mapping[str, str]) -> Path:
    """Where the file is: in its documented place, or where somebody wants it for a trial."""
    return Path(environment.get("STOKER_SCHEDULE_INFO") or PLACE).absolute()


def text_of(entries: Sequence[Entry]) -> str:
    """The file's contents, in the layout that other scripts know."""
    table = {name: [getattr(entry, name) for entry in entries] for name in Entry.__struct_fields__}
    return json.dumps(table, indent=4, sort_keys=True)


def entries_of(text: bytes) -> Entries:
    """What a file of anybody's says; ValueError where it cannot be understood."""
    try:
        table = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(table, dict) or not isinstance(table.get("avail"), list):
        raise ValueError("there is no list of what is available")
    count = len(table["avail"])
    if not 1 <= count <= MOST_GPUS:
        raise ValueError(f"it is about {count} GPUs")
    return tuple([_entry(table, index) for index in range(count)])


def _entry(table: Mapping[str, Any], index: int) -> Entry:
    """One GPU of a table that any script may have written: what makes no sense counts as not said."""

    def said(name: str) -> Any:
        column = table.get(name)
        return column[index] if isinstance(column, list) and index < len(column) else None

    pid = said("task_pid")
    return Entry(
        avail=bool(said("avail")),
        gpu_name=_text(said("gpu_name")),
        task=_words(said("task")),
        task_pid=pid if type(pid) is int and 0 < pid <= _MOST_PROCESSES else None,
        task_start=_text(said("task_start")),
        user=_text(said("user")),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _words(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return (value,)
    return tuple(map(str, value)) if isinstance(value, list) else None


class InfoFile:
    """The file, read and rewritten in place under its own lock, as the older tool does it.

    In a sticky directory nobody can replace the file of another user, so it is never renamed over.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Entries | None:
        """What it says; None where it is not there, or says nothing yet."""
        try:
            with self._opened(os.O_RDONLY) as descriptor:
                with contextlib.suppress(BlockingIOError):  # who holds it for long cannot keep anybody from reading
                    _lock(descriptor, fcntl.LOCK_SH, LOCK_PATIENCE / 10)
                return self._entries(descriptor)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable("read", error) from error

    def update(self, change: Callable[[Entries | None], Entries]) -> Entries:
        """Change what it says, and make it where it is not there; None stands for what cannot be understood."""
        try:
            with self._opened(os.O_RDWR, create=True) as descriptor:
                _lock(descriptor, fcntl.LOCK_EX, LOCK_PATIENCE)
                before = self._understood(descriptor)
                after = change(before)
                if after != before:
                    _rewrite(descriptor, text_of(after).encode())
                return after
        except OSError as error:
            raise self._unusable("updated", error) from error

    def stamp(self) -> tuple[int, ...]:
        """Something that changes whenever the file does."""
        try:
            status = os.lstat(self.path)
        except OSError:
            return ()
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _understood(self, descriptor: int) -> Entries | None:
        try:
            return self._entries(descriptor)
        except InfoUnusable:
            return None

    def _entries(self, descriptor: int) -> Entries | None:
        text = os.pread(descriptor, SIZE_LIMIT + 1, 0)
        if not text:  # its maker is about to fill it
            return None
        try:
            if len(text) > SIZE_LIMIT:
                raise ValueError(f"larger than {SIZE_LIMIT} bytes")
            return entries_of(text)
        except ValueError as error:
            reason = str(error) or "not JSON"
            raise InfoUnusable(f"{self.path} cannot be understood ({reason})", "schedule -i N makes it anew") from error

    @contextlib.contextmanager
    def _opened(self, mode: int, *, create: bool = False) -> Iterator[int]:
        descriptor = self._open(mode, create=create)
        try:
            status = os.fstat(descriptor)
            # A second name would let somebody have us write into another file of ours.
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                raise OSError(errno.EINVAL, "it is no plain file")
            yield descriptor
        finally:
            os.close(descriptor)

    def _open(self, mode: int, *, create: bool) -> int:
        try:
            return os.open(self.path, mode | _OPEN)
        except FileNotFoundError:
            if not create:
                raise
        mask = os.umask(0)  # everybody has to update it from its first moment on, even if we are killed right here
        try:
            return os.open(self.path, mode | _OPEN | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return os.open(self.path, mode | _OPEN)
        finally:
            os.umask(mask)

    def _unusable(self, verb: str, error: OSError) -> InfoUnusable:
        reasons = {errno.ELOOP: "it is a symbolic link", errno.EAGAIN: "somebody keeps it locked"}
        reason = reasons.get(error.errno or 0, error.strerror)
        return InfoUnusable(f"{self.path} cannot be {verb}: {reason}", "the GPUs are shared all the same")


def _lock(descriptor: int, kind: int, patience: float) -> None:
    """Take the lock; BlockingIOError where somebody keeps it for longer than that."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.01)


def _rewrite(descriptor: int, text: bytes) -> None:
    """Put the text in place so that a reader without the lock finds JSON, and after a full disk the old one."""
    if os.fstat(descriptor).st_size > SIZE_LIMIT:
        os.ftruncate(descriptor, 0)
    before = os.pread(descriptor, SIZE_LIMIT, 0)
    if os.pwrite(descriptor, text.ljust(len(before)), 0) < len(text):
        os.pwrite(descriptor, before, 0)
        os.ftruncate(descriptor, len(before))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(descriptor, len(text))


GPUS_WHERE_NONE_IS_FOUND = 4

CLOCK = "%Y-%m-%d %H:%M:%S"

FIRST_PORT, PORTS_EACH = 3600, 100
"""What `__num__` stands for in a task: a port that no task on another GPU uses."""

SLACK = 60.0
"""Seconds by which a task may seem to start after its entry says so; a later process only got its number."""

Change = Callable[[Entries, Mapping[int, Lease]], Entries]
"""From what the file says, and the leases by number, to what it shall say."""

LEFT_ALONE = Reading(problem="marked unavailable, see schedule -s")

_TICKS = os.sysconf("SC_CLK_TCK")


class Numbered:
    """GPUs 0 to N-1 in the order of the driver, which tasks find in the variable GPU as cuda0 to cudaN-1."""

    def __init__(self, devices: Devices, count: int, *, visible: bool) -> None:
        """`visible` sets CUDA_VISIBLE_DEVICES too; else it stays as it is, so that cuda2 is what the task sees as 2."""
        self.closed: Callable[[], Collection[int]] = lambda: ()
        """Tells which of them are to be left alone."""
        self._devices = devices
        self._visible = visible
        self._seen: tuple[Device, ...] = ()
        self._named: tuple[Device, ...] = ()
        self.ids = [device.id for device in devices.snapshot(time.time()).devices[:count]]
        self.variables = devices.variables

    @property
    def claims(self) -> list[tuple[str, ...]]:
        """The names of each in the ledger, by number."""
        return [device.claims for device in self.snapshot(time.time()).devices]

    def snapshot(self, now: float, newer_than: float = 0.0) -> Snapshot:
        """The first N devices under their numbers."""
        snapshot = self._devices.snapshot(now, newer_than)
        if snapshot.devices is not self._seen:
            self._seen = snapshot.devices
            self._named = tuple(self._name(device) for device in snapshot.devices if device.id in self.ids)
        closed = {self.ids[number]: LEFT_ALONE for number in self.closed() if number < len(self.ids)}
        return msgspec.structs.replace(snapshot, devices=self._named, readings={**snapshot.readings, **closed})

    def fileno(self) -> int:
        """As the devices themselves."""
        return self._devices.fileno()

    def close(self) -> None:
        """Close the devices themselves."""
        self._devices.close()

    def _name(self, device: Device) -> Device:
        number = self.ids.index(device.id)
        visible = str(number) if device.label == str(number) else device.visible
        return msgspec.structs.replace(
            device,
            variables=(("GPU", f"cuda{number}"), *([("CUDA_VISIBLE_DEVICES", visible)] if self._visible else [])),
            words=(("__num__", str(FIRST_PORT + PORTS_EACH * number)),),
        )


def numbered(driver: NvidiaDevices | None, count: int, *, visible: bool) -> Numbered:
    """So many GPUs: the driver's own where it has as many, else names that claim those that it has."""
    snapshot = None if driver is None else driver.snapshot(time.time())
    if driver is not None and snapshot is not None and len(snapshot.devices) >= count:
        return Numbered(driver, count, visible=visible)
    names = [str(number) for number in range(count)]
    return Numbered(DeclaredDevices(names, known_names(snapshot) if snapshot else None), count, visible=visible)


class Board:
    """What is known of each GPU, kept in step with the ledger, the info file and our own task."""

    def __init__(self, file: InfoFile, ledger: Ledger, claims: Sequence[tuple[str, ...]]) -> None:
        self.entries: Entries = ()
        self.trouble = ""
        """Why the file could not be used the last time, in words; empty when it could."""
        self.own: Mapping[int, Entry] = {}
        """What our own task has, by the number of the GPU."""
        self._file = file
        self._ledger = ledger
        self._claims = claims
        self._stamp: tuple[int, ...] = ()

    def sync(self, change: Change = lambda entries, leases: entries) -> None:
        """Bring the file in step; where that is not possible, know at least what it would say."""

        def settle(found: Entries | None) -> Entries:
            leases = self._leases()  # read under the lock: whoever wrote an entry had its lease before
            entries = change(found or self.entries or (FREE,) * len(self._claims), leases)
            settled = [settled_entry(number, entry, leases.get(number)) for number, entry in enumerate(entries)]
            return tuple([self.own.get(number, entry) for number, entry in enumerate(settled)])

        try:
            self.entries, self.trouble = self._file.update(settle), ""
        except InfoUnusable as unusable:
            self.entries, self.trouble = settle(self._readable()), f"{unusable.message}; {unusable.hint}"
        self._stamp = self._file.stamp()

    def heal(self) -> None:
        """Bring the file in step again if somebody changed it, be it while we wrote ourselves."""
        if self._file.stamp() != self._stamp or self._readable() != self.entries:
            self.sync()

    def closed(self) -> set[int]:
        """GPUs that only the file wants left alone; those that are leased are the business of ledger and engine."""
        with contextlib.suppress(InfoUnusable):  # as it was when it could be read
            self.entries = self._file.read() or self.entries
        missing = range(len(self.entries), len(self._claims))
        marked = {number for number, entry in enumerate(self.entries) if entry.marked}
        named = {number for number, entry in enumerate(self.entries) if foreign(entry)}
        return marked | (named - set(self._leases()) if named else named) | set(missing)

    def _readable(self) -> Entries | None:
        with contextlib.suppress(InfoUnusable):
            return self._file.read()
        return None

    def _leases(self) -> dict[int, Lease]:
        """The live lease on each GPU that has one."""
        by_name = {claim.name: lease for lease in self._ledger.live().leases.values() for claim in lease.claims}
        claimed = [(number, name) for number, names in enumerate(self._claims) for name in names]
        return {number: by_name[name] for number, name in claimed if name in by_name}


def settled_entry(number: int, entry: Entry, lease: Lease | None) -> Entry:
    """What is true of a GPU, given what the file said: an entry whose task is gone frees itself."""
    if entry.marked or foreign(entry):
        return entry
    return FREE if lease is None else reflection(number, lease)


def foreign(entry: Entry) -> bool:
    """Whether the entry names a process that lives, whoever started it."""
    return not entry.avail and entry.task_pid is not None and lives(entry.task_pid, entry.task_start)


def reflection(number: int, lease: Lease) -> Entry:
    """A lease as an entry. Without a process, so that it goes with the lease even if whoever holds it has others."""
    return Entry(False, f"cuda{number}", (lease.what,), None, clock_text(lease.since), lease.owner)


def clock_text(moment: float) -> str | None:
    """A moment as the file shows it, in local time; None where no clock could show it."""
    try:
        return datetime.fromtimestamp(moment).strftime(CLOCK)
    except (ValueError, OverflowError, OSError):
        return None


def initialised(count: int, unavailable: Sequence[int]) -> Change:
    """A new table; of the old one only tasks are kept that the ledger knows."""

    def change(entries: Entries, leases: Mapping[int, Lease]) -> Entries:
        kept = {number: entry for number, entry in enumerate(entries) if number in leases and not entry.marked}
        return tuple([MARKED if number in unavailable else kept.get(number, FREE) for number in range(count)])

    return change


def released(numbers: Sequence[int]) -> Change:
    """Marks and stale entries go; a task that lives keeps its GPU."""

    def change(entries: Entries, leases: Mapping[int, Lease]) -> Entries:
        return tuple(
            [FREE if number in numbers and not foreign(entry) else entry for number, entry in enumerate(entries)]
        )

    return change


def lives(pid: int, start: str | None) -> bool:
    """Whether a process with the number lives that was there when the task started."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    began = _began(pid)
    return began is not None and began <= _latest_moment(start) + SLACK


def _began(pid: int) -> float | None:
    """When a process began (seconds since the epoch): the beginning of time where that is hidden, None for a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *rest = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    if state in (b"Z", b"X"):
        return None
    running = time.clock_gettime(time.CLOCK_BOOTTIME) - int(rest[18]) / _TICKS
    return time.time() - running


def _latest_moment(start: str | None) -> float:
    """The last moment that a local time may mean; an hour comes twice when the clock is set back in autumn."""
    try:
        local = datetime.strptime(start or "", CLOCK)
        return max(local.replace(fold=fold).timestamp() for fold in (0, 1))
    except (ValueError, OverflowError):
        return math.inf
