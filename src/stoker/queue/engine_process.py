"""Start the background engine and read its log."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from stoker.core.errors import Impossible, StokerError
from stoker.store.engine_lock import QUEUE, engine_lives, process_of, signal_engine, wake
from stoker.store.paths import Paths
from stoker.store.status_file import Machine, read_machine

if TYPE_CHECKING:
    import subprocess

LIMIT = 10 * 2**20
"""Bytes at which the log is rotated; one old log is kept."""


def open_log(path: Path) -> IO[bytes]:
    """The log, opened for appending; one that has grown too long is rotated."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > LIMIT:
            _keep_old(path)
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab")


def log(path: Path, text: str) -> None:
    """Write a line to the log of the engine that this process is: standard error, which is a file or systemd's."""
    with contextlib.suppress(OSError):  # a full disk must not keep jobs from running
        rotate(path)
        print(time.strftime("%Y-%m-%d %H:%M:%S"), text, file=sys.stderr, flush=True)


def rotate(path: Path, limit: int = LIMIT) -> None:
    """Rotate the log that this process writes to, if it has grown too long."""
    written = os.fstat(sys.stderr.fileno())
    if written.st_size <= limit or not path.exists() or not os.path.samestat(written, path.stat()):
        return
    _keep_old(path)
    with open_log(path) as new:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(new.fileno(), stream.fileno())


def _keep_old(path: Path) -> None:
    path.replace(path.with_suffix(".log.1"))


READY_SECONDS = 60.0
"""How long an engine may take to start; a driver may need 20 s for its first answer."""
READY = b"ready\n"


class EngineFailed(StokerError):
    """The engine could not be started."""

    exit_code = 3


def ensure_engine(paths: Paths, arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Start the engine of the queue unless one runs; True where it was started."""
    if engine_lives(paths, QUEUE):
        return False
    read_end, write_end = os.pipe()
    try:
        process = _spawn(paths, [*arguments, "--ready-fd", str(write_end)], environment, write_end)
    finally:
        os.close(write_end)
    with open(read_end, "rb", buffering=0) as answers:
        answer = _answer(answers.fileno())
    if answer != READY:
        there = _still_there(process)  # before testing the lock: a dying engine may hold it to the last
        if not engine_lives(paths, QUEUE):  # else another process started one at the same time
            raise _failure(paths, answer, process, there=there)
    elif process.poll():
        raise _failure(paths, b"", process, there=False)
    process.returncode = 0  # it outlives this process, and Popen must not warn of that
    return True


def tell_ready(descriptor: int | None) -> None:
    """Tell the process that started the engine to go on."""
    if descriptor is not None:
        os.write(descriptor, READY)
        os.close(descriptor)


def tell_failure(descriptor: int | None, error: StokerError) -> None:
    """Tell the process that started the engine why it failed."""
    if descriptor is not None:
        body = {"message": error.message, "hint": error.hint, "code": error.exit_code}
        os.write(descriptor, msgspec.json.encode(body))
        os.close(descriptor)


def _spawn(
    paths: Paths, arguments: Sequence[str], environment: Mapping[str, str], descriptor: int
) -> subprocess.Popen[bytes]:
    """A process in its own session, without a terminal, that inherits only the log and the pipe."""
    import subprocess  # a submit beside a living engine starts no process

    with open_log(paths.log) as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "stoker", "engine", "run", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=dict(environment),
            umask=0o077,
            start_new_session=True,
            pass_fds=[descriptor],
        )


def _answer(descriptor: int) -> bytes:
    """What the new engine writes to the pipe, until it closes it or time is up."""
    said = b""
    while select.select([descriptor], [], [], READY_SECONDS)[0]:
        part = os.read(descriptor, 65_536)
        said += part
        if not part or said == READY:
            break
    return said


def _failure(paths: Paths, answer: bytes, process: subprocess.Popen[bytes], *, there: bool) -> StokerError:
    try:
        body = msgspec.json.decode(answer)
    except msgspec.DecodeError:
        how = "did not get ready in time" if there else f"ended with {process.returncode}"
        return EngineFailed(f"the engine {how}", f"see {paths.log}; the queue is as it was")
    kind = Impossible if body["code"] == Impossible.exit_code else EngineFailed
    return kind(body["message"], body["hint"])


def _still_there(process: subprocess.Popen[bytes]) -> bool:
    """Whether it lives; one that has just closed its end of the pipe gets a second to exit."""
    import subprocess

    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        process.returncode = 0  # it goes on alone
        return True
    return False


LEAVING_SECONDS = 3.0
"""How long to wait for an engine that was told to exit."""


class Background:
    """The engine of the queue as a front end needs it; `failure` is set where it cannot be started."""

    def __init__(self, paths: Paths, sim: str | None) -> None:
        self.failure: StokerError | None = None
        self._paths = paths
        self._sim = sim
        self._started = False

    @contextlib.contextmanager
    def not_for_nothing(self) -> Iterator[None]:
        """Stop an engine that was started here and found no GPU, if that makes the job impossible.

        It would stay without GPUs, whatever devices the next call names. It goes on if it has jobs by now.
        """
        try:
            yield
        except Impossible:
            machine = read_machine(self._paths.status_file(QUEUE))
            if self._started and not (machine and machine.devices):
                self._stop()
            raise

    def machine(self) -> Machine | None:
        """The devices that the engine sees, or the last one saw."""
        self._ensure()
        return read_machine(self._paths.status_file(QUEUE))

    def wake(self) -> None:
        """Tell the engine of new jobs; start one if there is none."""
        if not wake(self._paths, QUEUE) and self.failure is None:
            self._ensure()

    def _ensure(self) -> None:
        if engine_lives(self._paths, QUEUE):
            return
        try:
            self._started = start_engine(self._paths, self._sim)
        except StokerError as error:
            self.failure = error
        except OSError as error:
            hint = f"see whether {self._paths.state} can be written to, then stoker engine start"
            self.failure = StokerError(f"{error.strerror} ({error.filename})", hint)

    def _stop(self) -> None:
        pid = signal_engine(self._paths, QUEUE, signal.SIGUSR2)
        deadline = time.monotonic() + LEAVING_SECONDS
        while pid is not None and process_of(self._paths, QUEUE) == pid and time.monotonic() < deadline:
            time.sleep(0.01)


def start_engine(paths: Paths, sim: str | None, arguments: Sequence[str] = ()) -> bool:
    """Start the engine of the queue unless it runs; True where it was started."""
    return ensure_engine(paths, [*(["--sim", sim] if sim else []), *arguments], os.environ)
