"""The GPUs of `schedule`: their numbers, and the file gpu_scheduler_info that shows who uses them."""

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

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.device import Device, Reading, Snapshot
from stoker.core.errors import StokerError
from stoker.core.lease import Lease
from stoker.core.text import printable
from stoker.devices.detect import DeclaredDevices, known_names
from stoker.devices.interface import Devices
from stoker.devices.nvidia import NvidiaDevices
from stoker.features.compat.tool import lock_within
from stoker.ledger import Ledger

PLACE = Path("/tmp/gpu_scheduler_info")

MOST_GPUS = 1024

FIRST_PORT, PORTS_EACH = 3600, 100
"""`__num__` in a task stands for a port that no task on another GPU uses."""

CLOCK = "%Y-%m-%d %H:%M:%S"

MOST_BYTES = 1 << 20

LOCK_PATIENCE_SECONDS = 2.0
"""Seconds to wait for a lock that another process holds."""

SLACK_SECONDS = 60.0
"""Seconds by which a task's process may begin after its entry says so. A process that began later reuses the pid."""

# Never O_CREAT on a file that may be another's: fs.protected_regular forbids it. O_NONBLOCK is for a FIFO.
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_MOST_PROCESSES = 1 << 22
_TICKS = os.sysconf("SC_CLK_TCK")


# -- entries ---------------------------------------------------------------------------------------


class Entry(Struct, frozen=True):
    """The entry of one GPU in the file."""

    avail: bool = True
    gpu_name: str | None = None
    task: tuple[str, ...] | None = None
    task_pid: int | None = None
    task_start: str | None = None
    user: str | None = None

    @property
    def is_mark(self) -> bool:
        """Unavailable without a task that could end."""
        return not self.avail and self.user is None and self.task_pid is None

    @property
    def is_running(self) -> bool:
        """It names a living process, of this program or another."""
        return not self.avail and self.task_pid is not None and _lives(self.task_pid, self.task_start)


FREE = Entry()
MARKED = Entry(avail=False)
Entries = tuple[Entry, ...]


def text_of(entries: Sequence[Entry]) -> str:
    """The content of the file, in the layout that other scripts read."""
    table = {name: [getattr(entry, name) for entry in entries] for name in Entry.__struct_fields__}
    return json.dumps(table, indent=4, sort_keys=True)


def entries_of(text: bytes) -> Entries:
    """Parse a file that any script may have written; a ValueError says what is wrong with it."""
    try:
        table = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(table, dict) or not isinstance(table.get("avail"), list):
        raise ValueError("it has no list of available GPUs")
    count = len(table["avail"])
    if not 1 <= count <= MOST_GPUS:
        raise ValueError(f"it is about {count} GPUs")
    return tuple([_entry(table, index) for index in range(count)])


def _entry(table: Mapping[str, Any], index: int) -> Entry:
    """A value of the wrong type counts as missing."""

    def cell(name: str) -> Any:
        column = table.get(name)
        return column[index] if isinstance(column, list) and index < len(column) else None

    def text(name: str) -> str | None:
        return value if isinstance(value := cell(name), str) else None

    pid, task = cell("task_pid"), cell("task")
    task = [task] if isinstance(task, str) else task
    return Entry(
        avail=bool(cell("avail")),
        gpu_name=text("gpu_name"),
        task=tuple(map(str, task)) if isinstance(task, list) else None,
        task_pid=pid if type(pid) is int and 0 < pid <= _MOST_PROCESSES else None,
        task_start=text("task_start"),
        user=text("user"),
    )


def status_text(entries: Entries) -> str:
    """The used GPUs with their users, and the free ones."""
    used = [
        f"GPU: {printable(entry.gpu_name or f'cuda{number}')}\nUser: {printable(str(entry.user))}\n"
        f"Task: {None if entry.task is None else list(entry.task)}\nTask PID: {entry.task_pid}\n"
        f"Started: {printable(str(entry.task_start))}\n\n"
        for number, entry in enumerate(entries)
        if not entry.avail
    ]
    free = [f"GPU {number}\n" for number, entry in enumerate(entries) if entry.avail]
    head = "Currently used GPU:\n-------------------\n" if used else ""
    tail = "Free GPU:\n---------\n" + "".join(free) if free else "No GPU available.\n"
    return head + "".join(used) + tail


def clock_text(moment: float) -> str | None:
    """A moment in local time; None if no clock could show it."""
    try:
        return datetime.fromtimestamp(moment).strftime(CLOCK)
    except (ValueError, OverflowError, OSError):
        return None


def _lives(pid: int, start: str | None) -> bool:
    """Whether the process with this pid lives, and began before the task started: pids are used again."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *rest = file.read().rpartition(b")")[2].split()
    except FileNotFoundError:
        return _exists(pid)  # /proc may hide the processes of other users
    except OSError:
        return True
    running = time.clock_gettime(time.CLOCK_BOOTTIME) - int(rest[18]) / _TICKS
    try:
        local = datetime.strptime(start or "", CLOCK)
        # An hour comes twice when daylight saving time ends.
        latest = max(local.replace(fold=fold).timestamp() for fold in (0, 1)) + SLACK_SECONDS
    except (ValueError, OverflowError):
        latest = math.inf
    return state not in (b"Z", b"X") and time.time() - running <= latest


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


# -- the file --------------------------------------------------------------------------------------


class InfoUnusable(StokerError):
    """The file cannot be read or written. GPUs are still shared through the ledger."""


def find_info(environment: Mapping[str, str]) -> Path:
    """The documented path, or the one that STOKER_SCHEDULE_INFO names."""
    return Path(environment.get("STOKER_SCHEDULE_INFO") or PLACE).absolute()


class InfoFile:
    """The file, read and rewritten in place under its own lock, as the older tool does it.

    In a sticky directory no user can replace the file of another user, so it is never renamed over.
    The ledger is the truth; the file is a view of it, with the marks of users.
    """

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self.entries: Entries = ()
        self.trouble = ""
        """Why the last sync could not use the file; empty when it could."""
        self.own: Mapping[int, Entry] = {}
        """The entries of our own task, by the number of the GPU."""
        self.claims: Sequence[tuple[str, ...]] = ()
        """The names of each GPU in the ledger, by number."""
        self._path = path
        self._ledger = ledger

    def read(self) -> Entries | None:
        """The entries of the file; None if it is missing or still empty."""
        try:
            with self._opened(os.O_RDONLY) as descriptor:
                with contextlib.suppress(BlockingIOError):  # a lock held for long must not keep others from reading
                    lock_within(descriptor, fcntl.LOCK_SH, LOCK_PATIENCE_SECONDS / 10)
                return self._parsed(descriptor)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable("read", error) from error

    def sync(self, init: Sequence[int] = (), released: Collection[int] = ()) -> None:
        """Bring the file up to date; if that is impossible, know at least what it would say.

        `init` are the arguments of -i: a new table, in which only tasks that the ledger knows are kept. `released` are
        the numbers of -rg: marks and stale entries go, a living task keeps its GPU.
        """

        def corrected(written: Entries | None) -> Entries:
            leases = self._leases()  # read under the lock: a task gets its lease before its entry
            entries = written or self.entries or (FREE,) * len(self.claims)
            if init:
                entries = _initialised(init[0], init[1:], entries, leases)
            return tuple(
                [
                    self._corrected(number, FREE if number in released and not entry.is_running else entry, leases)
                    for number, entry in enumerate(entries)
                ]
            )

        try:
            self.entries, self.trouble = self._update(corrected), ""
        except InfoUnusable as unusable:
            self.entries, self.trouble = corrected(self._readable()), str(unusable)

    def repair(self) -> None:
        """Sync again if another process changed the file, even while we wrote it."""
        if self._readable() != self.entries:
            self.sync()

    def closed(self) -> set[int]:
        """GPUs that only the file reserves. The ledger and the engine know about leased ones."""
        self.entries = self._readable() or self.entries
        missing = range(len(self.entries), len(self.claims))
        marked = {number for number, entry in enumerate(self.entries) if entry.is_mark}
        running = {number for number, entry in enumerate(self.entries) if entry.is_running}
        return marked | (running - set(self._leases()) if running else running) | set(missing)

    # -- entries and leases ----------------------------------------------------------------------

    def _corrected(self, number: int, entry: Entry, leases: Mapping[int, Lease]) -> Entry:
        """The true entry of a GPU: an entry whose task has ended frees itself."""
        if number in self.own:
            return self.own[number]
        if entry.is_mark or entry.is_running:
            return entry
        if (lease := leases.get(number)) is None:
            return FREE
        # Without a pid, so that the entry goes with the lease even if its owner runs other tasks.
        return Entry(False, f"cuda{number}", (lease.what,), None, clock_text(lease.since), lease.owner)

    def _leases(self) -> dict[int, Lease]:
        by_name = {claim.name: lease for lease in self._ledger.live().leases.values() for claim in lease.claims}
        claimed = [(number, name) for number, names in enumerate(self.claims) for name in names]
        return {number: by_name[name] for number, name in claimed if name in by_name}

    # -- reading and writing ---------------------------------------------------------------------

    def _update(self, corrected: Callable[[Entries | None], Entries]) -> Entries:
        """Rewrite the file, or create it; a file that cannot be parsed counts as missing."""
        try:
            with self._opened(os.O_RDWR, create=True) as descriptor:
                lock_within(descriptor, fcntl.LOCK_EX, LOCK_PATIENCE_SECONDS)
                before = None
                with contextlib.suppress(InfoUnusable):
                    before = self._parsed(descriptor)
                after = corrected(before)
                if after != before:
                    _rewrite(descriptor, text_of(after).encode())
                return after
        except OSError as error:
            raise self._unusable("updated", error) from error

    def _readable(self) -> Entries | None:
        with contextlib.suppress(InfoUnusable):
            return self.read()
        return None

    def _parsed(self, descriptor: int) -> Entries | None:
        text = os.pread(descriptor, MOST_BYTES + 1, 0)
        if not text:  # another process has just created it
            return None
        try:
            if len(text) > MOST_BYTES:
                raise ValueError(f"larger than {MOST_BYTES} bytes")
            return entries_of(text)
        except ValueError as error:
            reason = str(error) or "not JSON"
            what = f"{self._path} cannot be understood ({reason})"
            raise InfoUnusable(what, "create it again with: schedule -i N") from error

    @contextlib.contextmanager
    def _opened(self, mode: int, *, create: bool = False) -> Iterator[int]:
        descriptor = self._open(mode, create=create)
        try:
            status = os.fstat(descriptor)
            # With a second hard link we would write into another file of ours.
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                raise OSError(errno.EINVAL, "it is not a regular file")
            yield descriptor
        finally:
            os.close(descriptor)

    def _open(self, mode: int, *, create: bool) -> int:
        try:
            return os.open(self._path, mode | _OPEN)
        except FileNotFoundError:
            if not create:
                raise
        mask = os.umask(0)  # all users must be able to update it at once, even if we are killed right here
        try:
            return os.open(self._path, mode | _OPEN | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return os.open(self._path, mode | _OPEN)
        finally:
            os.umask(mask)

    def _unusable(self, verb: str, error: OSError) -> InfoUnusable:
        reasons = {errno.ELOOP: "it is a symbolic link", errno.EAGAIN: "another process has locked it"}
        reason = reasons.get(error.errno or 0, error.strerror)
        return InfoUnusable(f"{self._path} cannot be {verb}: {reason}", "the GPUs are still shared correctly")


def _initialised(count: int, unavailable: Collection[int], entries: Entries, leased: Collection[int]) -> Entries:
    kept = {number: entry for number, entry in enumerate(entries) if number in leased and not entry.is_mark}
    return tuple([MARKED if number in unavailable else kept.get(number, FREE) for number in range(count)])


def _rewrite(descriptor: int, text: bytes) -> None:
    """Write so that a reader without the lock finds JSON, and restore the old text if the disk is full."""
    if os.fstat(descriptor).st_size > MOST_BYTES:
        os.ftruncate(descriptor, 0)
    before = os.pread(descriptor, MOST_BYTES, 0)
    if os.pwrite(descriptor, text.ljust(len(before)), 0) < len(text):
        os.pwrite(descriptor, before, 0)
        os.ftruncate(descriptor, len(before))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(descriptor, len(text))


# -- numbers ---------------------------------------------------------------------------------------

_CLOSED = Reading(problem="marked unavailable, see schedule -s")


class NumberedDevices:
    """GPUs 0 to N-1 in the order of the driver, which tasks find in the variable GPU as cuda0 to cudaN-1."""

    def __init__(self, devices: Devices, count: int, *, visible: bool) -> None:
        """`visible` sets CUDA_VISIBLE_DEVICES too. Without it, cuda2 is the GPU that the task sees as 2."""
        self.closed: Callable[[], Collection[int]] = lambda: ()
        """Returns the numbers of the GPUs that must not be used."""
        self._devices = devices
        self._visible = visible
        self._seen: tuple[Device, ...] = ()
        self._named: tuple[Device, ...] = ()
        self.ids = [device.id for device in devices.snapshot(time.time()).devices[:count]]
        self.variables = devices.variables
        self.fileno = devices.fileno
        self.close = devices.close

    @property
    def claims(self) -> list[tuple[str, ...]]:
        """The names of each GPU in the ledger, by number."""
        return [device.claims for device in self.snapshot(time.time()).devices]

    def snapshot(self, now: float, newer_than: float = 0.0) -> Snapshot:
        """A snapshot of the first N devices."""
        snapshot = self._devices.snapshot(now, newer_than)
        if snapshot.devices is not self._seen:
            self._seen = snapshot.devices
            self._named = tuple(self._name(device) for device in snapshot.devices if device.id in self.ids)
        closed = {self.ids[number]: _CLOSED for number in self.closed() if number < len(self.ids)}
        return replace(snapshot, devices=self._named, readings={**snapshot.readings, **closed})

    def _name(self, device: Device) -> Device:
        number = self.ids.index(device.id)
        visible = str(number) if device.label == str(number) else device.visible
        return replace(
            device,
            variables=(("GPU", f"cuda{number}"), *([("CUDA_VISIBLE_DEVICES", visible)] if self._visible else [])),
            words=(("__num__", str(FIRST_PORT + PORTS_EACH * number)),),
        )


def number_devices(driver: NvidiaDevices | None, count: int, *, visible: bool) -> NumberedDevices:
    """The driver's GPUs if it has as many; else declared ones, which claim those that it has."""
    snapshot = None if driver is None else driver.snapshot(time.time())
    if driver is not None and snapshot is not None and len(snapshot.devices) >= count:
        return NumberedDevices(driver, count, visible=visible)
    names = [str(number) for number in range(count)]
    declared = DeclaredDevices(names, known_names(snapshot) if snapshot else None)
    return NumberedDevices(declared, count, visible=visible)
