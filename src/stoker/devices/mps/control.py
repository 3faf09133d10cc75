"""NVIDIA's programs for MPS: nvidia-cuda-mps-control runs the daemon, nvidia-smi sets the compute mode.

The control program returns 0 for commands that it refused, and may not return at all. So only its output counts, and
every call has a deadline. Standard library only.
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

from stoker.devices.mps.daemon import DaemonPaths, MpsTrouble, prepare, trim_log

PROGRAM = "nvidia-cuda-mps-control"

_PAUSE_SECONDS = 0.05
_SMI = "nvidia-smi"
_SMI_SECONDS = 10.0

_PERCENTAGE = re.compile(r"\d+(\.\d+)?")
_PID = re.compile(r"\d{1,10}")
_FLOCK = "hhqqi4x"
"""struct flock on 64-bit Linux, the only system that has MPS."""


class Patience(NamedTuple):
    """Deadlines in seconds."""

    start: float = 5.0
    """To start the daemon, and for the daemon to answer."""
    ask: float = 2.0
    quit: float = 5.0
    """For the daemon to quit; when it does not, its servers are forced within half of that."""
    gone: float = 1.0
    """For its process to end after that."""


USUAL = Patience()


class Control:
    """The control daemon of one GPU."""

    def __init__(
        self, program: str, paths: DaemonPaths, environment: Mapping[str, str], patience: Patience = USUAL
    ) -> None:
        self._program = program
        self._patience = patience
        self._paths = paths
        kept = {name: value for name, value in environment.items() if not name.startswith("CUDA_MPS_")}
        self._environment = {
            **kept,
            "CUDA_MPS_PIPE_DIRECTORY": paths.pipe,
            "CUDA_MPS_LOG_DIRECTORY": paths.log,
        }

    def alive(self) -> bool:
        """Whether the daemon answers a question."""
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
        """The daemon's process, by the lock that it holds; None where there is none."""
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
        """The last word of the output is 0 once the client's work has ended."""
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
        """The output of the program; None where it does not end in time."""
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
    return f"the compute mode of {visible} stays as it is: {said}"


def restore_mode(visible: str, paths: DaemonPaths) -> None:
    """Set the default compute mode again, if Stoker changed it."""
    if os.path.exists(paths.exclusive) and _ask_smi(visible, "-c", "DEFAULT")[1]:
        _forget_mode(paths)


def _forget_mode(paths: DaemonPaths) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(paths.exclusive)


def _ask_smi(visible: str, *words: str) -> tuple[str, bool]:
    """What nvidia-smi says, in one line, and whether it succeeded."""
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
    """At least once, and then every few milliseconds until the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        yield
        if time.monotonic() >= deadline:
            return
        time.sleep(_PAUSE_SECONDS)
