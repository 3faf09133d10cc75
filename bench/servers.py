"""The programs with a queue, each in its own directory; all processes are killed at the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import standin
from cost import Cost, processes_at_home, spend
from programs import (
    COMPETITORS,
    GFLOW,
    HERE,
    HYPERQUEUE,
    OURS,
    SLOTS,
    STOKER_QUEUE,
    TASK_SPOOLER,
    Program,
    environment,
    install,
    program_named,
)
from rounds import Incomplete
from stoker.store.paths import Paths, find_paths

FOREVER = ("sleep", "100000")
"""A job that keeps a slot until the run is over."""
_START_SECONDS = 30.0
_ANSWER = "answer "
"""The prefix of answers of serve_hyperqueue.py."""


@dataclass(frozen=True)
class Server:
    """A running queue."""

    name: str
    directory: Path
    environment: Mapping[str, str]
    submit: tuple[str, ...] = ()
    """The command that submits a job, without the job's words; empty where there is none."""

    def run(self, *words: str) -> Cost:
        """Run one of its commands."""
        return spend(words, self.directory, self.environment)

    def occupy(self) -> None:
        """Let a job of its own keep every slot, so that all others wait."""
        for _ in range(SLOTS):
            self.run(*self.submit, *FOREVER)

    @property
    def processes(self) -> list[int]:
        """All its processes, with those of its jobs."""
        return processes_at_home(self.directory)


@dataclass(frozen=True)
class StokerServer(Server):
    """Stoker's queue and its engine."""

    simulated: bool = False

    @property
    def paths(self) -> Paths:
        """Where its state is."""
        return find_paths(self.environment, os.uname().nodename, simulated=self.simulated)


@dataclass(frozen=True)
class HyperQueueServer(Server):
    """HyperQueue's server and worker in one process, with one command per line."""

    process: subprocess.Popen[str] | None = None

    def ask(self, words: str) -> Any:
        """Send a command and return the answer."""
        assert self.process is not None
        print(words, file=self.process.stdin, flush=True)
        return self.answer()

    def answer(self) -> Any:
        """The next answer; the library prints other lines too."""
        assert self.process is not None
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(_ANSWER):
                return json.loads(line.removeprefix(_ANSWER))
        raise Incomplete(f"{self.name} is gone")

    def occupy(self) -> None:
        """Let a job of its own keep every slot."""
        self.ask("occupy")


@contextlib.contextmanager
def stoker(
    directory: Path, extra: Mapping[str, str] | None = None, sim: str = "", name: str = STOKER_QUEUE
) -> Iterator[StokerServer]:
    """Stoker with four declared devices, unless something else is given."""
    own = {"STOKER_DEVICES": ",".join(map(str, range(SLOTS)))} if extra is None and not sim else extra or {}
    with _home(directory, own) as variables:
        program = str(OURS / "stoker")
        spend([program, "engine", "start", "--stay", *(["--sim", sim] if sim else [])], directory, variables)
        yield StokerServer(name, directory, variables, (program, "submit", "--"), simulated=bool(sim))


@contextlib.contextmanager
def gflow(directory: Path) -> Iterator[Server]:
    """gflow on four GPUs of the stand-in, with the executor that needs no tmux."""
    with _home(directory, standin.gpus(directory / "nvml")) as variables:
        config = directory / ".config" / "gflow" / "gflow.toml"
        config.parent.mkdir(parents=True)
        config.write_text(f'[daemon]\nhost = "localhost"\nport = {_free_port()}\n[executor]\ntype = "process"\n')
        server = Server(GFLOW, directory, variables, (str(COMPETITORS / "bin" / "gbatch"), "-g", "1"))
        with _daemon([str(COMPETITORS / "bin" / "gflowd")], server):
            _wait_until_answers(server, str(COMPETITORS / "bin" / "ginfo"))
            yield server


@contextlib.contextmanager
def task_spooler(directory: Path) -> Iterator[Server]:
    """task-spooler, whose server starts with the first command."""
    with _home(directory, {}) as variables:
        spend(["tsp", "-S", str(SLOTS)], directory, variables)
        yield Server(TASK_SPOOLER, directory, variables, ("tsp", "-n"))


@contextlib.contextmanager
def hyperqueue(directory: Path) -> Iterator[HyperQueueServer]:
    """HyperQueue as a library: server, worker and client are one process."""
    with _home(directory, {}) as variables:
        server = HyperQueueServer(HYPERQUEUE, directory, variables)
        python = str(COMPETITORS / "bin" / "python")
        with _daemon([python, str(HERE / "serve_hyperqueue.py"), str(SLOTS)], server) as process:
            server = replace(server, process=process)
            server.answer()
            yield server


def is_here(name: str) -> bool:
    """Whether a rival can be measured; installs one from PyPI, and reports another that is missing."""
    program = program_named(name)
    install(program)
    missing = _missing(program)
    if missing:
        print(f"{name} is left out: {missing}", file=sys.stderr)
    return not missing


def present(names: Sequence[str]) -> list[str]:
    """Those of the rivals that can be measured here."""
    return [name for name in names if is_here(name)]


def _missing(program: Program) -> str:
    if not program.installed:
        return f"it is not here: {program.hint}"
    if program.name == GFLOW and not standin.compiler_is_here():
        return "it needs NVIDIA's library, and there is no C compiler for the stand-in: install gcc"
    return ""


@contextlib.contextmanager
def _daemon(words: Sequence[str], server: Server) -> Iterator[subprocess.Popen[str]]:
    """A process with pipes to this one, which ends with it."""
    with subprocess.Popen(
        words,
        cwd=server.directory,
        env=server.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if isinstance(server, HyperQueueServer) else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def _home(directory: Path, extra: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """A new home directory; processes started there are killed after the run."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        yield {**environment(directory), **extra}
    finally:
        end_all(directory)


def end_all(directory: Path) -> None:
    """Kill every process with this home directory at once."""
    deadline = time.monotonic() + _START_SECONDS
    while pids := processes_at_home(directory):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise Incomplete(f"left processes behind: {pids}")
        time.sleep(0.02)


def _wait_until_answers(server: Server, *words: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            server.run(*words)
        except Incomplete:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])
