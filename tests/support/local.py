"""Workers at work for tests: a backend, orders for it, and everything that its workers said."""

from __future__ import annotations

import ctypes
import os
import secrets
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from stoker.core.launch import LaunchOrder
from stoker.core.warm import Template, WarmRun
from stoker.runner.interface import WorkerLost
from stoker.runner.journal import AttemptExited, AttemptReturned, AttemptStarted, Fact
from stoker.runner.local import LocalRunner
from support.wait import ending, wait_until

VARIABLES = {"PATH": os.environ["PATH"]}


class Yard:
    """A backend, what its workers said so far, and a log file for every attempt."""

    def __init__(
        self, directory: Path, engine: str = "engine", *, share_output: bool = False, tied_to: str = ""
    ) -> None:
        self.directory = directory
        self.workers = directory / "workers"
        # As with real engines no two have the same name: processes of a dead worker are found by it and killed.
        self.runner = LocalRunner(
            self.workers, f"{engine}{secrets.token_hex(4)}", share_output=share_output, tied_to=tied_to
        )
        self.said: dict[str, list[Fact | WorkerLost]] = defaultdict(list)

    def order(self, attempt: str, *words: str, **changes: Any) -> LaunchOrder:
        """An order to run the words, in the yard's directory unless the changes say otherwise."""
        log = str(self.log(attempt))
        usual: dict[str, Any] = {
            "shell": "",
            "cwd": str(self.directory),
            "umask": 0o022,
            "environment": "usual",
            "extra": {},
            "out": log,
            "err": changes.get("out", log),
            "limit": None,
            "grace": 10.0,
        }
        return LaunchOrder(attempt=attempt, words=words, **{**usual, **changes})

    def log(self, attempt: str = "1.1") -> Path:
        """Where an attempt writes unless told otherwise."""
        return self.directory / f"{attempt}.log"

    def start(
        self, worker: str, attempt: str, *words: str, variables: Mapping[str, str] = VARIABLES, **changes: Any
    ) -> None:
        """Give an attempt to a worker."""
        self.runner.start(worker, self.order(attempt, *words, **changes), variables)
        self.runner.flush()

    def begin(self, *words: str, **changes: Any) -> str:
        """Start the words as attempt 1.1 of a new worker, and return its name when they run."""
        worker = self.runner.start_worker()
        self.start(worker, "1.1", *words, **changes)
        self.wait_began()
        return worker

    def run(self, *words: str, **changes: Any) -> AttemptExited:
        """Run the words to their end as attempt 1.1 of a new worker."""
        self.begin(*words, **changes)
        return self.wait_over()

    def template(self, *modules: str, start: Sequence[str] = (sys.executable,), **changes: Any) -> Template:
        """A template in the yard's directory, whose modules are also found there."""
        usual: dict[str, Any] = {
            "directory": str(self.directory),
            "search_path": str(self.directory),
            "environment": tuple(VARIABLES.items()),
        }
        return Template(tuple(start), modules, **{**usual, **changes})

    def fork(self, attempt: str, template: Template, target: str, *arguments: str, **changes: Any) -> str:
        """Give an attempt that runs a script to a new worker with the modules of a template."""
        kind = changes.pop("kind", "file")
        worker = self.runner.start_worker(template)
        words = (*template.start, *(["-m"] if kind == "module" else []), target, *arguments)
        self.start(worker, attempt, *words, warm=WarmRun(template.key, kind, target, arguments), **changes)
        return worker

    def listen(self) -> None:
        """Collect what workers said since the last time."""
        for worker, record in self.runner.poll():
            self.said[worker].append(record)

    def records(self, kind: type[Fact], attempt: str = "1.1") -> list[Fact]:
        """What any worker said of the kind about the attempt."""
        self.listen()
        everything = [record for records in self.said.values() for record in records]
        return [record for record in everything if isinstance(record, kind) and record.attempt == attempt]

    def wait_began(self, attempt: str = "1.1") -> None:
        """Wait until a worker says that the attempt began."""
        wait_until(lambda: self.records(AttemptStarted, attempt))

    def wait_log(self, text: str) -> None:
        """Wait until attempt 1.1 has written just this; it begins a moment before its log is there."""
        wait_until(lambda: self.log().exists() and self.log().read_text() == text)

    def wait_back(self, attempt: str) -> None:
        """Wait until a worker gives the attempt back."""
        wait_until(lambda: self.records(AttemptReturned, attempt))

    def wait_over(self, attempt: str = "1.1") -> AttemptExited:
        """Wait for the end of the attempt, of which there must be one only."""
        wait_until(lambda: self.records(AttemptExited, attempt))
        (over,) = self.records(AttemptExited, attempt)
        assert isinstance(over, AttemptExited)
        return over

    def wait_gone(self, worker: str) -> None:
        """Wait until the worker is dead and nothing of it is left."""

        def gone() -> bool:
            self.listen()
            return WorkerLost() in self.said[worker]

        wait_until(gone)

    def wait_lost(self, worker: str) -> None:
        """Wait until the worker is dead and nothing of it is left, whatever its journal was like."""

        def lost() -> bool:
            self.listen()
            return WorkerLost in map(type, self.said[worker])

        wait_until(lost)

    def process_of(self, worker: str) -> psutil.Process:
        """The worker's own process, as soon as the forkserver has let go of its lock."""
        found: list[psutil.Process] = []

        def exclusive() -> bool:
            found[:] = holders(self.workers / worker / "lock")
            return len(found) == 1 and found[0].ppid() != os.getpid()  # before it forks, the forkserver is alone too

        wait_until(exclusive)
        return found[0]

    def sleepers(self) -> list[psutil.Process]:
        """The living processes that work in the yard's directory."""
        return [process for process in psutil.process_iter() if _works_in(process, self.directory)]

    @contextmanager
    def inherited_lock(self, worker: str) -> Iterator[None]:
        """Hold the lock that jobs of the worker inherit, as a process of theirs would that cannot be found."""
        held = os.pidfd_open(self.process_of(worker).pid)
        number = next(
            int(entry.name)
            for entry in Path(f"/proc/{self.process_of(worker).pid}/fd").iterdir()
            if os.readlink(entry).endswith("/jobs")
        )
        try:
            descriptor = _pidfd_getfd(held, number)
        finally:
            os.close(held)
        try:
            yield
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Close the backend, and end every worker that is left with all it started."""
        self.runner.close()
        for lock in self.workers.glob("*/lock"):
            for worker in holders(lock):
                end([worker, *worker.children(recursive=True)])


@contextmanager
def yard(directory: Path, engine: str = "engine") -> Iterator[Yard]:
    """A yard of which nothing is left at the end."""
    made = Yard(directory, engine)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def engine_process(program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A Python program with an engine of its own, which the test may kill."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with ending(
        subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _works_in(process: psutil.Process, directory: Path) -> bool:
    with suppress(psutil.Error):
        return process.cwd() == str(directory)
    return False


def _pidfd_getfd(pidfd: int, number: int) -> int:
    """A descriptor of another process, as a copy of our own."""
    descriptor: int = ctypes.CDLL(None, use_errno=True).syscall(438, pidfd, number, 0)
    assert descriptor >= 0, os.strerror(ctypes.get_errno())
    return descriptor


def holders(path: Path) -> list[psutil.Process]:
    """The other processes that have the file open."""
    return [process for process in psutil.process_iter() if process.pid != os.getpid() and _has_open(process, path)]


def lives(pid: int) -> bool:
    """Whether a process lives; one that is dead and not yet collected does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_pid(path: Path) -> int:
    """The number that a job writes, as a whole line, into a file."""
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


def end(processes: list[psutil.Process]) -> None:
    """Kill the processes and wait until they are dead."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    wait_until(lambda: not any(lives(process.pid) for process in processes))


def _has_open(process: psutil.Process, path: Path) -> bool:
    try:
        return any(file.path == str(path) for file in process.open_files())
    except psutil.Error:
        return False
