"""Which engines live: a lock each, and a bell that doors ring when they have left something for one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from stoker import __version__
from stoker.core.errors import StokerError
from stoker.store.paths import Paths

QUEUE = "queue"
"""The engine in the background, which owns what is submitted; there is at most one in a state directory."""
GLANCE_SECONDS = 0.25
"""For how long a lock may be held by people who only look, before it counts as an engine's."""

UNFINISHED_SECONDS = 60.0
"""Age at which a file that nobody has finished counts as left behind."""


class EngineRuns(StokerError):
    """Another engine of the same name is at work here."""

    exit_code = 3


class EngineLock:
    """An engine's proof of life: a lock that the kernel gives back at any death."""

    def __init__(self, paths: Paths, name: str = "") -> None:
        """Without a name it is an engine like no other."""
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
        """Say who we are; an engine that cannot, as on a full disk, is none."""
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n{__version__}\n".encode(), 0)
        except OSError:
            self.close()
            raise

    @property
    def in_place(self) -> bool:
        """Whether others find the lock: not where somebody removed it, or put the whole state directory elsewhere."""
        return _is_at(self._path, self._descriptor)

    def close(self) -> None:
        """No longer alive; what is at the path by now may be another's."""
        if self.in_place:
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


class WakeFifo:
    """Readable when somebody has rung it."""

    def __init__(self, paths: Paths, engine: str) -> None:
        self._path = _wake_fifo_path(paths, engine)
        self._path.unlink(missing_ok=True)
        os.mkfifo(self._path, 0o600)
        # Opened for both, it never sees its last writer leave.
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """Readable when somebody has rung."""
        return self._descriptor

    def silence(self) -> None:
        """Take back all rings so far."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._descriptor, 65_536)

    def close(self) -> None:
        """Nobody hears it any more."""
        if _is_at(self._path, self._descriptor):
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def wake(paths: Paths, engine: str) -> bool:
    """Wake an engine that there is something for; False where none hears. A lost ring only delays."""
    try:
        descriptor = os.open(_wake_fifo_path(paths, engine), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENOENT):
            return False
        raise
    with contextlib.suppress(BlockingIOError):  # rung so often already that there is no room for one more
        os.write(descriptor, b"!")
    os.close(descriptor)
    return True


def engine_lives(paths: Paths, engine: str) -> bool:
    """Whether somebody holds the engine's lock."""
    try:
        return _is_locked(lock_path(paths, engine))
    except FileNotFoundError:
        return False


def _is_locked(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def process_of(paths: Paths, engine: str) -> int | None:
    """The process that holds the engine's lock, as it wrote there itself."""
    with contextlib.suppress(ValueError):
        return int(_written(paths, engine)[0])
    return None


def version_of(paths: Paths, engine: str) -> str:
    """The version of Stoker that a living engine runs; empty where none lives, or it does not tell."""
    return _written(paths, engine)[1]


def version_notice(paths: Paths) -> str:
    """What to say where the engine in the background is of another version than this program; else empty."""
    version = version_of(paths, QUEUE)
    if version in ("", __version__):
        return ""
    return (
        f"the engine runs {version}, this is {__version__}; "
        "restart it when you like: stoker engine stop && stoker engine start; jobs go on"
    )


def signal_engine(paths: Paths, engine: str, number: signal.Signals) -> int | None:
    """Send a living engine a signal, and tell its process; None where none lives.

    Its number is looked up again once the process is held, since it could have become somebody else's meanwhile.
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


def living_engines(paths: Paths) -> Iterator[str]:
    """The engines at work in this state directory."""
    for path in sorted(paths.engines.glob("*.lock")):
        if engine_lives(paths, path.stem):
            yield path.stem


def sweep_engine(paths: Paths, engine: str) -> None:
    """Remove what a dead engine left beside its jobs; by the lock, which goes last, the rest is found again."""
    lock = lock_path(paths, engine)
    for path in (*(path for path in paths.engines.glob(f"{engine}.*") if path != lock), lock):
        with contextlib.suppress(OSError):
            path.unlink()


def sweep_unfinished(paths: Paths) -> None:
    """Remove what engines that were killed had only begun to write; what is locked or new may still be finished."""
    for path in paths.engines.glob("*.new"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > UNFINISHED_SECONDS and not _is_locked(path):
                path.unlink()


def lock_path(paths: Paths, engine: str) -> Path:
    """The file whose lock proves that an engine lives."""
    return paths.engines / f"{engine}.lock"


def _written(paths: Paths, engine: str) -> tuple[str, str]:
    """Process and version of a living engine as it wrote them into its lock."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if engine_lives(paths, engine):
            pid, _, version = lock_path(paths, engine).read_text().partition("\n")
            return pid, version.strip()
    return "", ""


def _wake_fifo_path(paths: Paths, engine: str) -> Path:
    return paths.engines / f"{engine}.bell"


def _is_at(path: Path, descriptor: int) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def _take_named(path: Path) -> int:
    """The lock of an engine that there may be one of.

    Whoever looks whether one lives has the lock for a moment, so one refusal means nothing; and the file may go while
    we reach for it, and comes anew.
    """
    deadline = time.monotonic() + GLANCE_SECONDS
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, descriptor):
                return descriptor
        os.close(descriptor)
        if time.monotonic() > deadline:
            raise EngineRuns("an engine is already at work here", "see stoker engine status")
        time.sleep(0.002)


def _make_locked(path: Path) -> int:
    """A new file that nobody finds unlocked, when it would be swept: it gets its name after its lock."""
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
