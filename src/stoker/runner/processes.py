"""Find and signal every descendant of a process, whatever session it moved to.

Standard library only: workers are forked from a process that must stay small.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

ALLOCATION = "STOKER_BUNDLE"
"""Variable in the environment of all processes of an allocation of a cluster, by which what is left is found."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TICK = 10**9 // os.sysconf("SC_CLK_TCK")
"""Nanoseconds."""
_KILL_PAUSE_SECONDS = 0.01
"""Seconds that killed processes get to disappear before the next look."""


class SeenProcess(NamedTuple):
    """A process as it was seen; the start time tells it from a later one with the same id."""

    pid: int
    parent: int
    started: int
    """In clock ticks since boot."""
    group: int = 0
    session: int = 0


def become_subreaper() -> None:
    """Make orphaned descendants children of this process instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def get_signal_at_death_of(parent: int, signal_number: int) -> None:
    """Let the kernel send a signal to this process when its parent dies; exit if that has happened already."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def parent_of(pid: int) -> int | None:
    """The parent of a process; None if the process does not exist."""
    process = _look(str(pid))
    return None if process is None else process.parent


def stopped(pid: int) -> SeenProcess | None:
    """The process, if a signal or a debugger has stopped it."""
    state = _content(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:1]
    return _look(str(pid)) if state in ([b"T"], [b"t"]) else None


def descendants(root: int) -> list[SeenProcess]:
    """All living processes below root, parents before their children."""
    return _below([root], _all_processes())


def end(find: Callable[[], list[SeenProcess]], patience: float | None = None) -> bool:
    """Kill processes until a look finds none; False if some are left after so many seconds."""
    until = None if patience is None else time.monotonic() + patience
    while until is None or time.monotonic() <= until:
        with contextlib.suppress(OSError):  # a machine that is short of descriptors or memory: look again
            if not (left := find()):
                return True
            send(left, signal.SIGKILL)
        time.sleep(_KILL_PAUSE_SECONDS)
    return False


def cpu_seconds(process: int) -> float:
    """CPU time of a process, its siblings and all their descendants, with that of children that have ended.

    The siblings of a command are its orphans, since the worker is their subreaper.
    """
    parent = parent_of(process)
    ticks = 0
    for descendant in descendants(parent) if parent is not None else ():
        fields = _content(f"/proc/{descendant.pid}/stat").rpartition(b")")[2].split()
        ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return ticks * _TICK / 10**9


def marked(marker: bytes) -> list[SeenProcess]:
    """This user's processes with the marker in their environment, and all their descendants.

    A child that cleared its environment is found through its parent, as long as that lives.
    """
    every = _all_processes()
    user = os.getuid()
    carriers = [process for process in every if _carries(process.pid, marker, user)]
    return list(dict.fromkeys([*carriers, *_below([process.pid for process in carriers], every)]))


def ticks_now() -> int:
    """Clock ticks since boot: what /proc would show as the start of a process that starts now."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // _TICK


def boot_id() -> str:
    """The kernel's id of this boot; empty if it does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().decode().strip()
    except OSError:
        return ""


def of_session(leader: int, ticks: int) -> list[SeenProcess]:
    """The processes in the session or group that a process opened, and their descendants.

    The process had started at `ticks`: one with its number that started later is another. The kernel gives the number
    of a session to no new process while any process is in the session.
    """
    every = _all_processes()
    if any(process.pid == leader and process.started > ticks for process in every):
        return []
    members = [process for process in every if leader in {process.pid, process.group, process.session}]
    return list(dict.fromkeys([*members, *_below([process.pid for process in members], every)]))


def holding(path: str) -> list[SeenProcess]:
    """The other processes that hold an flock on a file, by a descriptor that they inherited, and their descendants.

    One that only reads the file, such as a backup, is none. Those of other users cannot be seen.
    """
    every = _all_processes()
    holders = [
        process
        for process in every
        for number in _open_as(process.pid, {path, f"{path} (deleted)"})
        if b"FLOCK" in _content(f"/proc/{process.pid}/fdinfo/{number}")
    ]
    return list(dict.fromkeys([*holders, *_below([process.pid for process in holders], every)]))


def having_open(paths: Iterable[str]) -> list[SeenProcess]:
    """The other processes that have one of the files open, even if it was removed."""
    wanted = {name for path in paths for name in (path, f"{path} (deleted)")}
    return [process for process in _all_processes() if any(_open_as(process.pid, wanted))]


def send(targets: Iterable[SeenProcess], signal_number: int) -> None:
    """Signal each process that is still the one seen; a stopped one is continued so that it can react."""
    for process in targets:
        with contextlib.suppress(OSError):
            _send_one(process, signal_number)


def handles(process: SeenProcess, signal_number: int) -> bool:
    """Whether a process catches a signal, or keeps it for later, so that it does not die of it.

    One whose first thread is in `sigwait` looks as if it would die: the kernel shows the signal as not blocked.
    """
    status = dict(re.findall(rb"^(State|SigCgt|SigBlk):\t(\w+)", _content(f"/proc/{process.pid}/status"), re.MULTILINE))
    caught, blocked = (int(status.get(name, b"0"), 16) for name in (b"SigCgt", b"SigBlk"))
    # A shell or the C library blocks all signals for a moment while it starts a process. It does not sleep meanwhile.
    if blocked >> (signal.SIGSEGV - 1) & 1 and status[b"State"] != b"S":
        blocked = 0
    return bool((caught | blocked) >> (signal_number - 1) & 1)


def that_handle(seen: Iterable[SeenProcess], signal_number: int) -> list[SeenProcess]:
    """Those of the processes that handle a signal, without copies that such a process made of itself by fork.

    A copy has the handlers of the process only until it becomes another program, which would die of the signal.
    """
    commands = {
        process: _content(f"/proc/{process.pid}/cmdline") for process in seen if handles(process, signal_number)
    }
    told = {process.pid: command for process, command in commands.items()}
    return [process for process, command in commands.items() if told.get(process.parent) != command]


def _send_one(process: SeenProcess, signal_number: int) -> None:
    with _handle(process.pid) as signal_it:
        now = _look(str(process.pid))
        if now is not None and now.started == process.started:
            signal_it(signal_number)
            if signal_number != signal.SIGKILL:
                signal_it(signal.SIGCONT)


@contextlib.contextmanager
def _handle(pid: int) -> Iterator[Callable[[int], None]]:
    """A way to signal the process that has the id now, and no other that gets it later.

    Kernels before 5.3, and Pythons built for them (conda's among these), have no pidfds. There an id that is reused
    between the check and the signal would be hit; that takes a whole round of ids in a millisecond.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOSYS:
            raise
        yield lambda signal_number: os.kill(pid, signal_number)
        return
    try:
        yield lambda signal_number: signal.pidfd_send_signal(descriptor, signal_number)
    finally:
        os.close(descriptor)


def _below(roots: list[int], every: list[SeenProcess]) -> list[SeenProcess]:
    children: dict[int, list[SeenProcess]] = {}
    for process in every:
        children.setdefault(process.parent, []).append(process)
    below_roots: list[SeenProcess] = []
    front = roots
    while front:
        below = [child for parent in front for child in children.get(parent, ())]
        below_roots += below
        front = [process.pid for process in below]
    return below_roots


def _all_processes() -> list[SeenProcess]:
    seen = (_look(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return [process for process in seen if process is not None]


def _look(pid: str) -> SeenProcess | None:
    fields = _content(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if not fields or (fields[0] in b"ZX" and int(fields[17]) <= 1):  # else other threads outlive the first one
        return None
    return SeenProcess(int(pid), int(fields[1]), int(fields[19]), int(fields[2]), int(fields[3]))


def _open_as(pid: int, paths: set[str]) -> Iterator[str]:
    """The numbers of a process's descriptors for one of the files. Their names are read, since a stat may hang."""
    if pid == os.getpid():
        return
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError as error:
        _raise_shortage(error)
        return
    for number in numbers:
        try:
            if os.readlink(f"/proc/{pid}/fd/{number}") in paths:
                yield number
        except OSError as error:
            _raise_shortage(error)


def _carries(pid: int, marker: bytes, owner: int) -> bool:
    try:
        if os.stat(f"/proc/{pid}").st_uid != owner:
            return False
    except OSError:
        return False
    return marker in _content(f"/proc/{pid}/environ").split(b"\0")


def _content(path: str) -> bytes:
    """A file of /proc; empty if the process is gone or another user's."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        _raise_shortage(error)
        return b""


def _raise_shortage(error: OSError) -> None:
    """Raise the error again if it is not about the process: then nothing is known of that."""
    if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}:
        raise error
