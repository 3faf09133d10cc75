"""Becoming a client of the MPS daemon of a GPU, without waiting, and the variables of a client."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

import stoker
from stoker.core.launch import MPS_GIVEN
from stoker.devices.mps.daemon import DaemonPaths, MpsTrouble, lock_client, prepare

_MIB = 2**20
ATTEMPTS = 3
PAUSE_SECONDS = 0.5
"""Between two attempts: a daemon that hangs is stopped meanwhile, if it has no other client."""
SUPERVISOR_SECONDS = 60.0
"""For the supervisor, whose own deadlines are shorter, to end."""
_KILLED = ["the MPS daemon cannot be started: its supervisor was killed", "check dmesg and ulimit, then try again"]
_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from stoker.devices.mps.supervisor import main; main(sys.argv[1:])"
)


class Client(NamedTuple):
    """A client of a daemon that is ready."""

    paths: DaemonPaths
    lock: int
    """A descriptor that keeps the daemon from being stopped; to be open for as long as the client lives."""
    mps_terminate: tuple[str, ...]
    """The command to run before the client is killed."""
    note: str = ""
    """A note for the user, though the daemon is ready."""


class PendingClient:
    """Makes the daemon of one GPU ready for a client; the caller polls until it is."""

    def __init__(
        self, program: str, paths: DaemonPaths, visible: str, environment: Mapping[str, str], *, exclusive: bool
    ) -> None:
        """`visible` is the GPU's name in CUDA_VISIBLE_DEVICES; a daemon starts in this environment."""
        prepare(paths)
        self._paths = paths
        self._program = program
        self._visible = visible
        self._mode = "exclusive" if exclusive else ""
        self._environment = environment
        self._lock: int | None = None
        self._supervisor: subprocess.Popen[str] | None = None
        self._since = 0.0
        self._again_at = 0.0
        self._attempts = 0
        self.trouble: MpsTrouble | None = None
        """Why the last attempt failed."""

    def poll(self, now: float) -> Client | None:
        """The client, as soon as the daemon is ready; MpsTrouble if it will not be."""
        if self._supervisor is None:
            self._start(now)
            return None
        if self._supervisor.poll() is None:
            if now - self._since > SUPERVISOR_SECONDS:
                self._supervisor.kill()
            return None
        return self._finish(now)

    def close(self) -> None:
        """Give up; the process that the supervisor left behind stops what was started."""
        self._unlock()
        if self._supervisor is not None:
            self._supervisor.kill()
            self._supervisor.communicate()
            self._supervisor = None

    def _start(self, now: float) -> None:
        if now < self._again_at:
            return
        self._lock = lock_client(self._paths)
        if self._lock is None:  # a daemon is just being stopped, which must be over before another starts
            return
        self._since = now
        self._supervisor = subprocess.Popen(
            [*self._words("supervise"), self._visible, str(self._lock), self._mode],
            pass_fds=[self._lock],
            env=self._environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def _finish(self, now: float) -> Client | None:
        assert self._supervisor is not None
        lines = [line.split("\t") for line in self._supervisor.communicate()[0].splitlines()]
        self._supervisor = None
        if ["ready"] in lines and self._lock is not None:
            lock, self._lock = self._lock, None
            note = next((line[1] for line in lines if line[0] == "note"), "")
            return Client(self._paths, lock, self._words("terminate"), note)
        self._unlock()  # so that a daemon that hangs can be stopped
        self._attempts += 1
        self._again_at = now + PAUSE_SECONDS
        failed = next((line[1:3] for line in lines if line[0] == "failed"), _KILLED)
        self.trouble = MpsTrouble(*failed)
        if self._attempts >= ATTEMPTS:
            raise self.trouble
        return None

    def _words(self, task: str) -> tuple[str, ...]:
        """The command of the supervisor's program; what the task needs follows."""
        source = os.path.dirname(os.path.dirname(os.path.abspath(stoker.__file__)))
        return (sys.executable, "-I", "-S", "-c", _START, source, task, self._program, self._paths.root)

    def _unlock(self) -> None:
        if self._lock is not None:
            with contextlib.suppress(OSError):
                os.close(self._lock)
            self._lock = None


def client_variables(paths: DaemonPaths, percentage: int, amount: int | None, own: Mapping[str, str]) -> dict[str, str]:
    """How a client finds its daemon, and its limits; values of the user win, except for the daemon.

    The amount is in bytes, None if nothing is reserved. It holds for each process, which can get no more.
    """
    limits = {"CUDA_MPS_LOG_DIRECTORY": paths.log}
    if percentage < 100:
        limits["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(percentage)
    if amount is not None:  # a client sees one GPU, which is its first
        limits["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={-(-amount // _MIB)}M"
    unset = {name: value for name, value in limits.items() if name not in own}
    variables = {"CUDA_MPS_PIPE_DIRECTORY": paths.pipe, **unset}
    return {**variables, MPS_GIVEN: ",".join(variables)}
