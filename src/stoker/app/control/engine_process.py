"""Start the background engine and read its log."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from stoker.core.errors import Impossible, StokerError
from stoker.core.text import to_json
from stoker.core.units import device_sizes, sim_text
from stoker.store.database import WriteLock
from stoker.store.engine_lock import QUEUE, EngineRuns, engine_lives, engine_of, signal_engine, wait_gone, wake
from stoker.store.paths import Paths
from stoker.store.status_file import Machine, read_machine

if TYPE_CHECKING:
    import subprocess

LIMIT = 10 * 2**20
"""Bytes at which the log is rotated; one old log is kept."""
LONGEST_LINE = 500
"""Bytes of the log's last line that are shown."""


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


def last_words(path: Path) -> str:
    """The last line of the engine's log, to follow a sentence about its death; empty if there is none."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST_LINE))
        lines = file.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""
    return ""


def _keep_old(path: Path) -> None:
    path.replace(path.with_suffix(".log.1"))


READY_SECONDS = 60.0
"""How long an engine may take to start; a driver may need 20 s for its first answer."""
READY = b"ready\n"


class EngineFailed(StokerError):
    """The engine could not be started."""

    exit_code = 3


def ensure_engine(paths: Paths, arguments: Sequence[str], environment: Mapping[str, str], cluster: str = "") -> bool:
    """Start the engine of the queue, or of a cluster, unless it runs; True if it was started.

    One more try where another engine was faster, and was gone before it could be seen.
    """
    for _ in range(2):
        if engine_lives(paths, engine_of(cluster)):
            return False
        try:
            return _started(paths, arguments, environment, cluster)
        except EngineRuns as error:
            refused = error
    raise EngineFailed(refused.message, refused.hint)


def _started(paths: Paths, arguments: Sequence[str], environment: Mapping[str, str], cluster: str) -> bool:
    read_end, write_end = os.pipe()
    words = [*arguments, *(["--cluster", cluster] if cluster else []), "--ready-fd", str(write_end)]
    try:
        process = _spawn(paths.engine_log(cluster), words, environment, write_end)
    finally:
        os.close(write_end)
    with open(read_end, "rb", buffering=0) as answers:
        answer = _answer(answers.fileno())
    if answer != READY:
        there = _still_there(process)  # before testing the lock: a dying engine may hold it to the last
        if not engine_lives(paths, engine_of(cluster)):  # else another process started one at the same time
            raise _failure(paths.engine_log(cluster), answer, process, there=there)
    elif process.poll():
        raise _failure(paths.engine_log(cluster), b"", process, there=False)
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
        os.write(descriptor, to_json(body))
        os.close(descriptor)


def _spawn(
    path: Path, arguments: Sequence[str], environment: Mapping[str, str], descriptor: int
) -> subprocess.Popen[bytes]:
    """A process in its own session, without a terminal, that inherits only the log and the pipe."""
    import subprocess  # a submit beside a living engine starts no process

    with open_log(path) as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "stoker", "engine", "run", "--restartable", *arguments],
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
    """Read what the new engine writes to the pipe, until it closes it or time is up."""
    said = b""
    while select.select([descriptor], [], [], READY_SECONDS)[0]:
        part = os.read(descriptor, 65_536)
        said += part
        if not part or said == READY:
            break
    return said


def _failure(log: Path, answer: bytes, process: subprocess.Popen[bytes], *, there: bool) -> StokerError:
    try:
        body = msgspec.json.decode(answer)
    except msgspec.DecodeError:
        how = "did not start in time" if there else f"ended with {process.returncode}"
        return EngineFailed(f"the engine {how}{last_words(log)}", f"see {log}; the queue was not changed")
    kinds = {Impossible.exit_code: Impossible, EngineRuns.exit_code: EngineRuns}
    return kinds.get(body["code"], EngineFailed)(body["message"], body["hint"])


def _still_there(process: subprocess.Popen[bytes]) -> bool:
    """Whether it lives; one that has just closed its end of the pipe gets a second to exit."""
    import subprocess

    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        process.returncode = 0  # it goes on alone
        return True
    return False


DEFAULT_SIM = "4x24G"


def simulated_gpus(paths: Paths) -> str:
    """The simulated GPUs for a new engine: those that were typed, else those of the last one; empty for real GPUs."""
    if paths.gpus or not paths.is_simulated:
        return paths.gpus
    machine = read_machine(paths.status_file(QUEUE))
    sizes = [device.memory for device in machine.devices if device.memory] if machine else []
    return ",".join(f"1x{size // 2**20}M" for size in sizes) or DEFAULT_SIM


LEAVING_SECONDS = 3.0
"""How long to wait for an engine that was told to exit."""


class Background:
    """The engine of the queue as a front end needs it; `failure` is set if it cannot be started or reached."""

    def __init__(self, paths: Paths, devices: str = "", cluster: str = "") -> None:
        """`devices` are those that the user wants; an engine that runs already may have others."""
        self._cluster = cluster
        self._engine = engine_of(cluster)
        self.failure: StokerError | None = None
        self._paths = paths
        self._devices = devices
        self._started = False

    @contextlib.contextmanager
    def stop_engine_if_impossible(self) -> Iterator[None]:
        """Stop an engine that was started here and found no GPU, if that makes the job impossible.

        It would stay without GPUs, whatever devices the next call names. It goes on if it has jobs by now. Where an
        engine with other devices runs, the error says so.
        """
        try:
            yield
        except Impossible as error:
            machine = read_machine(self._paths.status_file(self._engine))
            if self._started and not (machine and machine.devices):
                self._stop()
            if difference := self.difference():
                raise Impossible(error.message, difference) from error
            raise

    def difference(self) -> str:
        """How the devices of the running engine differ from those that the user wants; empty if they do not."""
        if self._started or self._cluster or self.failure:
            return ""
        machine = read_machine(self._paths.status_file(QUEUE))
        if machine is None or not engine_lives(self._paths, QUEUE):
            return ""
        if other := _other_ledger(self._paths):
            return other
        named = machine.settings.devices if machine.settings else ""
        sizes = [device.memory or 0 for device in machine.devices]
        simulated = simulated_gpus(self._paths)
        if simulated and not named and sorted(device_sizes(simulated)) != sorted(sizes):
            return _other(sim_text(sizes), simulated, f"stoker engine restart --sim {shlex.quote(simulated)}")
        if self._devices and self._devices != named:
            restart = f"STOKER_DEVICES={shlex.quote(self._devices)} stoker engine restart"
            has = ",".join(device.label for device in machine.devices) or "no device"
            return _other(has, self._devices, f"{restart} --sim {simulated}" if simulated else restart)
        return ""

    def machine(self) -> Machine | None:
        """The devices that the engine sees, or the last one saw."""
        self._ensure()
        return read_machine(self._paths.status_file(QUEUE))

    def wake(self) -> None:
        """Tell the engine of new jobs; start one if there is none."""
        with self._failing():
            if not wake(self._paths, self._engine) and self.failure is None:
                self._ensure()
            if self._started and self.failure is None and not engine_lives(self._paths, self._engine):
                self.failure = died_again(self._paths)

    def _ensure(self) -> None:
        with self._failing():
            if not engine_lives(self._paths, self._engine):
                self._started = start_engine(self._paths, self._cluster)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Keep an error as the failure: the jobs may be in the queue, and must not be submitted again."""
        try:
            yield
        except StokerError as error:
            self.failure = error
        except OSError as error:
            hint = f"check the permissions of {self._paths.state}, then: stoker engine start"
            self.failure = StokerError(f"{error.strerror} ({error.filename})", hint)

    def _stop(self) -> None:
        pid = signal_engine(self._paths, QUEUE, signal.SIGUSR2)
        if pid is not None:
            wait_gone(self._paths, QUEUE, pid, LEAVING_SECONDS)


def _other_ledger(paths: Paths) -> str:
    """A note if STOKER_LEDGER names another shared directory than that of the running engine."""
    wanted = os.environ.get("STOKER_LEDGER", "")
    if not wanted:
        return ""
    from stoker.store.restart import read_restart  # few have another ledger

    record = read_restart(paths)
    has = record.environment.get("STOKER_LEDGER", "") if record else wanted
    if has == wanted:
        return ""
    used = f"the ledger {has}" if has else "the default ledger"
    return _other(used, f"STOKER_LEDGER={wanted}", "stoker engine restart")


def _other(has: str, wanted: str, fix: str) -> str:
    return f"the running engine has {has}, not {wanted}; to change that: {fix} (running jobs continue)"


def died_again(paths: Paths) -> EngineFailed | None:
    """The failure of an engine that died right after its start; None if it left as it should."""
    if not paths.restart.exists():
        return None
    return EngineFailed(f"the engine started, but died{last_words(paths.log)}", f"see {paths.log}")


def start_engine(paths: Paths, cluster: str = "") -> bool:
    """Start the engine of the queue, or of a cluster, unless it runs; True where it was started."""
    return ensure_engine(paths, sim_arguments(paths), os.environ, cluster)


def sim_arguments(paths: Paths) -> list[str]:
    """The arguments by which a new engine gets its simulated GPUs."""
    return ["--sim", gpus] if (gpus := simulated_gpus(paths)) else []


def restart_killed(paths: Paths) -> bool:
    """Start the engine of the queue as it was started before, if it was killed; True if it was started.

    One process at a time: of two workers, the slower one must not start an engine that was stopped meanwhile.
    """
    if not paths.restart.exists() or engine_lives(paths, QUEUE):
        return False
    with contextlib.closing(WriteLock(paths.restart.with_suffix(".starting"), READY_SECONDS)) as lock, lock:
        return _restart_recorded(paths)


def _restart_recorded(paths: Paths) -> bool:
    from stoker.store.restart import TRIES, read_restart, write_restart  # most commands find a living engine

    record = read_restart(paths)
    if record is None or engine_lives(paths, QUEUE):
        return False
    now = time.time()
    if len(recent := record.recent(now)) >= TRIES:
        raise EngineFailed(
            f"the engine died {TRIES} times within a minute, so it is not restarted{last_words(paths.log)}",
            f"see {paths.log}, then: stoker engine start",
        )
    write_restart(paths, msgspec.structs.replace(record, tries=[*recent, now]))
    return ensure_engine(paths, record.arguments, record.environment)
