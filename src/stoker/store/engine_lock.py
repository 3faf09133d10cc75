"""Which engines are alive (one lock file each), which jobs they own, and the FIFO by which front ends wake one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stoker import __version__
from stoker.core.errors import StokerError
from stoker.store.paths import Paths, try_lock
from stoker.store.waiting import wait_until

if TYPE_CHECKING:
    from stoker.core.job import Job
    from stoker.store.reader import Reader

QUEUE = "queue"
"""Name of the background engine, which owns submitted jobs; at most one per state directory."""
CLUSTER = "cluster:"
"""Prefix of the name of a cluster's background engine, before the name of the cluster."""
PROBE_SECONDS = 0.25
"""How long a lock may be held by processes that only probe it; after that an engine holds it."""
_PAGE = 10_000
UNFINISHED_SECONDS = 60.0
"""Age at which an unfinished file counts as left by a dead process."""


def engine_of(cluster: str) -> str:
    """The background engine for jobs of a cluster; of this machine if there is no name."""
    return f"{CLUSTER}{cluster}" if cluster else QUEUE


def cluster_of(engine: str) -> str:
    """The cluster that an engine serves; empty for this machine and for foreground runs."""
    return engine.removeprefix(CLUSTER) if engine.startswith(CLUSTER) else ""


def is_background(engine: str) -> bool:
    """Whether an engine owns submitted jobs, which wait for it while it does not live."""
    return engine == QUEUE or engine.startswith(CLUSTER)


class EngineRuns(StokerError):
    """Another engine of the same name is alive."""

    exit_code = 3


class EngineLock:
    """The lock that proves that an engine is alive. The kernel releases it however the engine dies."""

    def __init__(self, paths: Paths, name: str = "") -> None:
        """Without a name the engine gets a unique one."""
        self.name = name or f"{os.getpid()}-{os.urandom(4).hex()}"
        self._path = lock_path(paths, self.name)
        try:
            paths.engines.mkdir(mode=0o700, exist_ok=True)
            self._descriptor = _take_named(self._path) if name else _make_locked(self._path)
            self._sign()
        except OSError as error:
            raise StokerError(
                f"cannot write to the state directory {paths.state}: {error.strerror}", "free some space there"
            ) from error

    def _sign(self) -> None:
        """Write process id and version; without them, as on a full disk, the engine does not start."""
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n{__version__}\n".encode(), 0)
        except OSError:
            self.close()
            raise

    @property
    def in_place(self) -> bool:
        """Whether other processes can find the lock: the file or its directory may have been removed or moved."""
        return _is_at(self._path, self._descriptor)

    def close(self) -> None:
        """Release the lock. Another engine's file may be at the path by now."""
        if self.in_place:
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


class WakeFifo:
    """A FIFO that becomes readable when a front end wakes the engine."""

    def __init__(self, paths: Paths, engine: str) -> None:
        self._path = _wake_fifo_path(paths, engine)
        self._path.unlink(missing_ok=True)
        os.mkfifo(self._path, 0o600)
        # Opened for reading and writing, it never reports end of file when the last writer closes.
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        return self._descriptor

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._descriptor, 65_536)

    def close(self) -> None:
        if _is_at(self._path, self._descriptor):
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def wake(paths: Paths, engine: str) -> bool:
    """Wake an engine; False if none listens. A lost wake-up only delays."""
    try:
        descriptor = os.open(_wake_fifo_path(paths, engine), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENOENT):
            return False
        raise
    with contextlib.suppress(BlockingIOError):  # full of earlier wake-ups
        os.write(descriptor, b"!")
    os.close(descriptor)
    return True


def engine_lives(paths: Paths, engine: str) -> bool:
    """Whether an engine holds the lock of this name."""
    try:
        return _is_locked(lock_path(paths, engine))
    except FileNotFoundError:
        return False


def _is_locked(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return not try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def process_of(paths: Paths, engine: str) -> int | None:
    """The process id that a living engine wrote into its lock."""
    with contextlib.suppress(ValueError):
        return int(_written(paths, engine)[0])
    return None


def version_of(paths: Paths, engine: str) -> str:
    """The version of Stoker that a living engine runs; empty if none lives or the version is unknown."""
    return _written(paths, engine)[1]


def signal_engine(paths: Paths, engine: str, number: signal.Signals) -> int | None:
    """Send a signal to a living engine and return its process id; None if none lives.

    The process id is read again after pidfd_open, since the kernel may have reused it in between.
    """
    pid = process_of(paths, engine)
    if pid is None:
        return None
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            if process_of(paths, engine) == pid:
                signal.pidfd_send_signal(descriptor, number)
                return pid
        finally:
            os.close(descriptor)
    return None


def wait_gone(paths: Paths, engine: str, pid: int, patience: float) -> bool:
    """Wait until this process is not the engine any more; False if it still is after so many seconds."""
    return wait_until(lambda: process_of(paths, engine) != pid, patience)


def living_engines(paths: Paths) -> Iterator[str]:
    for path in sorted(paths.engines.glob("*.lock")):
        if engine_lives(paths, path.stem):
            yield path.stem


def sweep_engine(paths: Paths, engine: str) -> None:
    """Remove the files of a dead engine. The lock goes last: after a crash in between, it leads here again."""
    lock = lock_path(paths, engine)
    for path in (*(path for path in paths.engines.glob(f"{engine}.*") if path != lock), lock):
        with contextlib.suppress(OSError):
            path.unlink()


def sweep_unfinished(paths: Paths) -> None:
    """Remove unfinished files of killed engines. A locked or recent file may still be finished."""
    for path in paths.engines.glob("*.new"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > UNFINISHED_SECONDS and not _is_locked(path):
                path.unlink()


def lock_path(paths: Paths, engine: str) -> Path:
    return paths.engines / f"{engine}.lock"


def _written(paths: Paths, engine: str) -> tuple[str, str]:
    """Process id and version that a living engine wrote into its lock."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if engine_lives(paths, engine):
            pid, _, version = lock_path(paths, engine).read_text().partition("\n")
            return pid, version.strip()
    return "", ""


def _wake_fifo_path(paths: Paths, engine: str) -> Path:
    return paths.engines / f"{engine}.wake"


def _is_at(path: Path, descriptor: int) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def _take_named(path: Path) -> int:
    """Take the lock of an engine name.

    Processes that probe the lock hold it for a moment, so one refusal proves nothing. The previous engine may remove
    the file between our open and our lock; then a new one is made.
    """
    taken: list[int] = []

    def is_taken() -> bool:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if try_lock(descriptor) and _is_at(path, descriptor):
            taken.append(descriptor)
            return True
        os.close(descriptor)
        return False

    if not wait_until(is_taken, PROBE_SECONDS):
        raise EngineRuns("an engine is already running here", "see stoker engine status")
    return taken[0]


def _make_locked(path: Path) -> int:
    """Make a lock file that is locked before it gets its name: a sweep would remove an unlocked one."""
    made = path.with_suffix(".new")
    descriptor = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        made.rename(path)
    except BaseException:
        made.unlink(missing_ok=True)
        os.close(descriptor)
        raise
    return descriptor


def is_served(paths: Paths, engine: str) -> bool:
    """Whether an engine handles requests for these jobs, now or when it starts again.

    The background engine owns adopted jobs under a second name; of those it only records the end.
    """
    if is_background(engine):
        return True
    background = background_processes(paths)  # first: if it dies now, its second name counts as dead, too
    pid = process_of(paths, engine)
    return pid is not None and pid not in background


def background_processes(paths: Paths) -> set[int]:
    """The processes of the background engines."""
    names = [QUEUE, *(path.stem for path in paths.engines.glob(f"{CLUSTER}*.lock"))]
    return {pid for name in names if (pid := process_of(paths, name)) is not None}


class InterruptedJob(NamedTuple):
    """An open job whose foreground run is dead, and that engine."""

    job: Job
    engine: str


def interrupted_jobs(paths: Paths, store: Reader) -> Iterator[InterruptedJob]:
    """Open jobs of dead foreground runs. Submitted jobs are none: they wait for the next background engine."""
    for engine in [engine for engine in store.engines_with_open_jobs() if not is_served(paths, engine)]:
        last = 0
        while jobs := store.open_jobs(engine, last, _PAGE):
            yield from (InterruptedJob(job, engine) for job in jobs)
            last = jobs[-1].last


def interrupted_active_jobs(paths: Paths, store: Reader) -> list[InterruptedJob]:
    """Jobs of dead foreground runs that workers still hold; waiting jobs are not read."""
    engines = store.engines_with_active_jobs()
    dead = [engine for engine in engines if not is_background(engine) and not engine_lives(paths, engine)]
    return [InterruptedJob(job, engine) for engine in dead for job in store.active_jobs(engine)]


def interrupted_nested_jobs(paths: Paths, store: Reader) -> list[InterruptedJob]:
    """Waiting jobs of dead runs inside jobs."""
    return [InterruptedJob(job, engine) for engine, job in store.nested_jobs() if not is_served(paths, engine)]


def sweep_locks(paths: Paths, store: Reader) -> None:
    """Remove the locks of dead engines that own no open job, and unfinished files."""
    owners = {QUEUE, *store.engines_with_open_jobs()}
    for path in paths.engines.glob("*.lock"):
        if path.stem not in owners and not engine_lives(paths, path.stem):
            sweep_engine(paths, path.stem)
    sweep_unfinished(paths)


def leftover_workers(paths: Paths, store: Reader) -> list[str]:
    """Folders of workers whose engine is dead and that hold no open job."""
    names = [folder.name for folder in paths.workers.iterdir()]
    dead = [name for name in names if not engine_lives(paths, name.rpartition("-")[0])]
    needed = store.slots() if dead else set()
    return [name for name in dead if name not in needed]
