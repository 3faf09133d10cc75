"""The program nvidia-cuda-mps-control: what it is told, and what its words mean.

It returns 0 for commands that it refused, and may not return at all. So only its texts are believed, and everything
has a deadline. Standard library only.
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

from stoker.devices.mps.daemon import MpsTrouble, Place, prepare, trim_log

PROGRAM = "nvidia-cuda-mps-control"
PAUSE = 0.05

_PERCENTAGE = re.compile(r"\d+(\.\d+)?")
_NUMBER = re.compile(r"\d{1,10}")
_LOCK = "hhqqi4x"
"""struct flock on 64-bit Linux, the only system that has MPS."""


class Patience(NamedTuple):
    """Seconds that the program is given."""

    start: float = 5.0
    """To start the daemon, and for that one to answer."""
    ask: float = 2.0
    quit: float = 5.0
    """For the daemon to leave; its servers are forced within half of that, once it did not do so by itself."""
    gone: float = 1.0
    """For its process to end after that."""


USUAL = Patience()


class Control:
    """The control daemon of one GPU, and the program that speaks with it."""

    def __init__(self, program: str, place: Place, environment: Mapping[str, str], patience: Patience = USUAL) -> None:
        self._program = program
        self._patience = patience
        self._place = place
        kept = {name: value for name, value in environment.items() if not name.startswith("CUDA_MPS_")}
        self._environment = {
            **kept,
            "CUDA_MPS_PIPE_DIRECTORY": place.pipe,
            "CUDA_MPS_LOG_DIRECTORY": place.log,
        }

    def alive(self) -> bool:
        """Whether the daemon answers a question."""
        answer = self._ask("get_default_active_thread_percentage")
        return answer is not None and bool(_PERCENTAGE.fullmatch(answer.strip()))

    def start(self, visible: str) -> None:
        """Start the daemon for the GPU that is so called in CUDA_VISIBLE_DEVICES; one that runs already is as good."""
        prepare(self._place)
        if self.holder() is None:
            trim_log(self._place)
        said = self._run(["-d"], "", self._patience.start, {"CUDA_VISIBLE_DEVICES": visible})
        for _ in _until(self._patience.start):
            if self.alive():
                return
            if self.holder() is None:
                break
        raise MpsTrouble(f"the MPS daemon does not {self._refusal(said)}", f"see {self._place.log}/control.log")

    def quit(self) -> None:
        """Let the daemon leave, then force it; one that does not even listen is killed."""
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
        """End the GPU work of these clients, and return those that still had some when patience was over."""
        working = self._clients(pids)
        for _ in _until(patience):
            working = [client for client in working if not self._terminated(*client)]
            if not working:
                break
            connected = set(self._clients(pids))
            working = [client for client in working if client in connected]
        return [pid for _, pid in working]

    def holder(self) -> int | None:
        """The daemon's process, by the lock that it holds in our own directory; None where there is none."""
        try:
            descriptor = os.open(self._place.daemon_lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            wanted = struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(_LOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted))
        finally:
            os.close(descriptor)
        return pid if kind != fcntl.F_UNLCK and pid > 0 else None

    def _clients(self, pids: Collection[int]) -> list[tuple[int, int]]:
        """Server and client, for all clients among these processes."""
        servers = _numbers(self._ask("get_server_list"))
        clients = [(server, pid) for server in servers for pid in _numbers(self._ask(f"get_client_list {server}"))]
        return [(server, pid) for server, pid in clients if pid in pids]

    def _terminated(self, server: int, client: int) -> bool:
        """It says 0, after what else there was to say, once the client's work has ended."""
        words = (self._ask(f"terminate_client {server} {client}", self._patience.quit) or "").split()
        return words[-1:] == ["0"]

    def _is_gone(self) -> bool:
        """Whether the daemon has left, or does so soon; the sockets it leaves behind mean nothing."""
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
        """All that the program writes; None where it does not come to an end."""
        try:
            done = subprocess.run(
                [self._program, *words],
                input=said,
                env={**self._environment, **extra},
                cwd="/",
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=patience,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
        except OSError as error:
            return f"{self._program}: {error.strerror}"
        return done.stdout


def _numbers(answer: str | None) -> list[int]:
    """The lines that are numbers of processes; all others are complaints."""
    return [int(line) for line in (answer or "").split("\n") if _NUMBER.fullmatch(line.strip())]


def _until(patience: float) -> Iterator[None]:
    """At least once, and then every now and then until patience is over."""
    deadline = time.monotonic() + patience
    while True:
        yield
        if time.monotonic() >= deadline:
            return
        time.sleep(PAUSE)
