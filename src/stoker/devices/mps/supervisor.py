"""The program that makes a daemon ready for one more client, stops it after the last one, and ends the work of clients.

It runs nvidia-cuda-mps-control, which returns 0 for commands that it refused and may not return at all. So only its
output counts, and every call has a deadline. Standard library only: it is started often, and without site packages.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import struct
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from stoker.core.errors import StokerError
from stoker.devices.mps.daemon import DaemonPaths, MpsTrouble, lock_supervisor, prepare, trim_log, wait_last_client

TERMINATE_SECONDS = 5.0
"""A worker waits a little longer than that."""
_PAUSE_SECONDS = 0.05
_SMI = "nvidia-smi"
_SMI_SECONDS = 10.0
_PERCENTAGE = re.compile(r"\d+(\.\d+)?")
_PID = re.compile(r"\d{1,10}")
_FLOCK = "hhqqi4x"
"""struct flock on 64-bit Linux, the only system that has MPS."""


def main(words: list[str]) -> None:
    """The words are a task, the control program, the daemon's directory, and what the task needs."""
    task, program, root, *rest = words
    if task == "terminate":
        # Before a worker kills these processes: a kill in the midst of GPU work may wedge the MPS server.
        control = MpsDaemon(program, DaemonPaths(root), {"PATH": os.defpath})
        control.terminate({int(pid) for pid in rest}, TERMINATE_SECONDS)
    else:
        supervise(program, DaemonPaths(root), *rest)


def supervise(program: str, paths: DaemonPaths, visible: str, client_lock: str, mode: str) -> None:
    """Print `ready`, or `failed` with a reason and a hint, once the daemon is ready or will not be.

    A child stays behind that stops the daemon after the last client: the kernel tells it, so no engine has to be
    there for that. As long as this process has the client's lock, nothing stops the daemon it starts; when it is
    killed, the child does.
    """
    control = MpsDaemon(program, paths, os.environ)
    supervisor_lock = lock_supervisor(paths)
    if supervisor_lock is not None:
        _fork_supervisor(control, paths, visible, supervisor_lock, int(client_lock))
    try:
        if not control.alive():
            if mode == "exclusive" and (note := make_exclusive(visible, paths)):
                print(f"note\t{note}")
            control.start(visible)
    except StokerError as error:
        print(f"failed\t{error.message}\t{error.hint}", flush=True)
    else:
        print("ready", flush=True)


def _fork_supervisor(
    control: MpsDaemon, paths: DaemonPaths, visible: str, supervisor_lock: int, client_lock: int
) -> None:
    """Let a child wait for the last client; it keeps the supervisor's lock and is no client itself."""
    if os.fork() > 0:
        os.close(supervisor_lock)
        return
    try:
        os.close(client_lock)
        # Survive the end of the terminal, and keep no stream of the parent open.
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        last = wait_last_client(paths)
        control.quit()
        restore_mode(visible, paths)
        os.close(supervisor_lock)  # before others may become clients: the next supervisor must find it free
        os.close(last)
    finally:
        os._exit(0)


class Deadlines(NamedTuple):
    """Deadlines in seconds."""

    start: float = 5.0
    """To start the daemon, and for the daemon to answer."""
    ask: float = 2.0
    quit: float = 5.0
    """For the daemon to quit; when it does not, its servers are forced within half of that."""
    gone: float = 1.0
    """For its process to end after that."""


class MpsDaemon:
    """The control daemon of one GPU."""

    def __init__(
        self, program: str, paths: DaemonPaths, environment: Mapping[str, str], patience: Deadlines | None = None
    ) -> None:
        self._program = program
        self._patience = patience or Deadlines()
        self._paths = paths
        kept = {name: value for name, value in environment.items() if not name.startswith("CUDA_MPS_")}
        self._environment = {**kept, "CUDA_MPS_PIPE_DIRECTORY": paths.pipe, "CUDA_MPS_LOG_DIRECTORY": paths.log}

    def alive(self) -> bool:
        answer = self._ask("get_default_active_thread_percentage")
        return answer is not None and bool(_PERCENTAGE.fullmatch(answer.strip()))

    def start(self, visible: str) -> None:
        """Start the daemon for the GPU with this name in CUDA_VISIBLE_DEVICES; one that runs already is as good."""
        prepare(self._paths)
        if self.holder() is None:
            trim_log(self._paths)
        said = self._run(["-d"], "", self._patience.start, {"CUDA_VISIBLE_DEVICES": visible})
        for _ in _until(self._patience.start):
            if self.alive():
                return
            if self.holder() is None:
                break
        raise MpsTrouble(f"the MPS daemon does not {self._refusal(said)}", f"see {self._paths.log}/control.log")

    def quit(self) -> None:
        """Ask the daemon to quit, then force it; kill one that does not answer at all."""
        if self.alive():
            self._ask("quit", self._patience.quit)
            if self._is_gone():
                return
            self._ask(f"quit -t {max(1, round(self._patience.quit / 2))}", self._patience.quit)
        for number in (signal.SIGTERM, signal.SIGKILL):
            holder = None if self._is_gone() else self.holder()
            if holder is not None:
                with contextlib.suppress(OSError):
                    os.kill(holder, number)
        self._is_gone()

    def terminate(self, pids: Collection[int], patience: float) -> list[int]:
        """End the GPU work of these clients, and return those that still had some at the deadline."""
        working = self._clients(pids)
        for _ in _until(patience):
            working = [client for client in working if not self._terminated(*client)]
            if not working:
                break
            connected = set(self._clients(pids))
            working = [client for client in working if client in connected]
        return [pid for _, pid in working]

    def holder(self) -> int | None:
        """The daemon's process, by the lock that it holds; None if there is none."""
        try:
            descriptor = os.open(self._paths.daemon_lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted))
        finally:
            os.close(descriptor)
        return pid if kind != fcntl.F_UNLCK and pid > 0 else None

    def _clients(self, pids: Collection[int]) -> list[tuple[int, int]]:
        """Server and client, for all clients among these processes."""
        servers = _numbers(self._ask("get_server_list"))
        clients = [(server, pid) for server in servers for pid in _numbers(self._ask(f"get_client_list {server}"))]
        return [(server, pid) for server, pid in clients if pid in pids]

    def _terminated(self, server: int, client: int) -> bool:
        # The last word of the output is 0 once the client's work has ended.
        words = (self._ask(f"terminate_client {server} {client}", self._patience.quit) or "").split()
        return words[-1:] == ["0"]

    def _is_gone(self) -> bool:
        """Whether the daemon ends soon; sockets that it leaves behind mean nothing."""
        return any(self.holder() is None for _ in _until(self._patience.gone))

    def _refusal(self, said: str | None) -> str:
        if holder := self.holder():
            return f"answer (process {holder})"
        if said is None:
            return "start: the program hangs"
        return f"start: {' '.join(said.split()) or 'it gave no reason'}"

    def _ask(self, command: str, patience: float | None = None) -> str | None:
        return self._run([], f"{command}\n", patience or self._patience.ask)

    def _run(self, words: list[str], said: str, patience: float, extra: Mapping[str, str] = {}) -> str | None:
        """The output of the program; None if it does not end in time."""
        try:
            return _output([self._program, *words], patience, said, {**self._environment, **extra})[0]
        except subprocess.TimeoutExpired:
            return None
        except OSError as error:
            return f"{self._program}: {error.strerror}"


def make_exclusive(visible: str, paths: DaemonPaths) -> str:
    """Let only the daemon use the GPU; returns why that was not possible, or nothing.

    A mode that an administrator chose is left alone, now and afterwards.
    """
    if os.path.exists(paths.exclusive):
        return ""
    said, well = _ask_smi(visible, "--query-gpu=compute_mode", "--format=csv,noheader")
    if well and said != "Default":
        return ""
    with open(paths.exclusive, "w"):  # first: a process that finds the mode changed must know by whom
        pass
    said, well = _ask_smi(visible, "-c", "EXCLUSIVE_PROCESS")
    if well:
        return ""
    _forget_mode(paths)
    return f"cannot change the compute mode of {visible}: {said}"


def restore_mode(visible: str, paths: DaemonPaths) -> None:
    """Set the default compute mode again, if Stoker changed it."""
    if os.path.exists(paths.exclusive) and _ask_smi(visible, "-c", "DEFAULT")[1]:
        _forget_mode(paths)


def _forget_mode(paths: DaemonPaths) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(paths.exclusive)


def _ask_smi(visible: str, *words: str) -> tuple[str, bool]:
    """The output of nvidia-smi in one line, and whether it succeeded."""
    try:
        text, code = _output([_SMI, "-i", visible, *words], _SMI_SECONDS)
    except subprocess.TimeoutExpired:
        return f"{_SMI} does not answer", False
    except OSError as error:
        return f"{_SMI}: {error.strerror}", False
    return " ".join(text.split()) or f"{_SMI} gave no reason", code == 0


def _output(
    command: list[str], seconds: float, said: str = "", environment: Mapping[str, str] | None = None
) -> tuple[str, int]:
    """Standard output and error of a program, and its exit code."""
    done = subprocess.run(
        command,
        input=said,
        env=environment,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=seconds,
        check=False,
    )
    return done.stdout, done.returncode


def _numbers(answer: str | None) -> list[int]:
    """The lines that are numbers of processes; all others are error messages."""
    return [int(line) for line in (answer or "").split("\n") if _PID.fullmatch(line.strip())]


def _until(seconds: float) -> Iterator[None]:
    """Once, and then every few milliseconds until the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        yield
        if time.monotonic() >= deadline:
            return
        time.sleep(_PAUSE_SECONDS)
