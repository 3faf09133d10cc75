"""The queue in the background as people use it: an engine on simulated GPUs, in a state directory of the test's own.

The fixture `background` gives a `Background`, which is a `Stoker` (so `background("cancel", "3")` types a command line,
and all of them mean the simulated GPUs, since STOKER_SIM is set) and can besides:

- `submit(*lines, ...)` puts shell lines into the queue, starts the engine where none lives, and returns the ids;
- `start_engine()`, `kill_engine()` (SIGKILL), `hang_engine()` (SIGSTOP) and `engine_process` are about the engine;
- `start_run(*lines)` is a foreground run on one of the GPUs; `kill_workers()` kills what a dead engine or run left;
- `job(id)`, `word(id)`, `ended(id)`, `log(id)` tell of a job as the store has it; `open_store()` gives the store;
- `wait_word("running", *ids)` and `wait_over(*ids)` wait for jobs;
- `open_gate(name)` lets go on what waits in `until(name)` of support.cli.

Everything that has the test's state directory in its environment ends with the test: engine, workers and jobs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest
from msgspec.structs import replace

from stoker.app.control.engine_process import READY, open_log
from stoker.app.control.requests import Submission, ask, submit
from stoker.core.job import Ended, Job, Running, started_at, state_word
from stoker.core.requests import Edit
from stoker.core.spec import Command, JobSpec, NewJob
from stoker.store.engine_lock import QUEUE, engine_lives, process_of, wake
from stoker.store.paths import find_paths
from stoker.store.restart import remove_restart
from stoker.store.schema import Change
from stoker.store.writer import Store, open_store
from support.cli import Stoker
from support.forked import MODULE, Forked, can_fork
from support.wait import PATIENCE_SECONDS, wait_until

SIMULATED = "2x24G"


class Background(Stoker):
    """Types `stoker ...` beside an engine in the background."""

    def __init__(self, home: Path, sim: str = SIMULATED) -> None:
        super().__init__(home)
        self.environment["STOKER_SIM"] = sim
        self.paths = find_paths(self.environment, socket.gethostname(), simulated=True)

    # -- jobs ------------------------------------------------------------------------------------

    def submit(
        self,
        *lines: str,
        names: Sequence[str] = (),
        array: bool = False,
        held: str = "",
        start: bool = True,
        **spec: Any,
    ) -> list[int]:
        """Queue shell lines (a name each, if any), and start an engine where none lives unless that is not wanted.

        `spec` are fields of JobSpec. The output goes to `<id>.log` in the working directory.
        """

        def jobs(environment: str) -> list[NewJob]:
            usual = {"cwd": str(self.cwd), "out": str(self.cwd / "%j.log"), "environment": environment}
            shared = JobSpec(**{**usual, **spec})
            commands = [Command((line,), "/bin/sh") for line in lines]
            return [
                NewJob(command, shared, names[index] if names else "", index if array else None)
                for index, command in enumerate(commands)
            ]

        with self.open_store() as store:
            ids = submit(store, Submission("test", self.environment, jobs, array, held), time.time())
        if start and not wake(self.paths, QUEUE):
            self.start_engine()
        return list(ids)

    @contextlib.contextmanager
    def open_store(self) -> Iterator[Store]:
        """The store of this queue."""
        with contextlib.closing(open_store(self.paths)) as store:
            yield store

    def job(self, job_id: int) -> Job:
        """A job as the store has it."""
        with self.open_store() as store:
            job = store.job(job_id)
        assert job is not None
        return job

    def word(self, job_id: int) -> str:
        """The state of a job in one word."""
        return state_word(self.job(job_id))

    def ended(self, job_id: int) -> Ended:
        """How a job ended."""
        state = self.job(job_id).state
        assert isinstance(state, Ended)
        return state

    def log(self, job_id: int, retry: int = 0) -> str:
        """What a job wrote in its first run, or in a later one."""
        name = f"{job_id}.log.{retry}" if retry else f"{job_id}.log"
        return (self.cwd / name).read_text()

    def wait_word(self, word: str, *ids: int) -> None:
        """Wait until the jobs are in a state."""
        with self.open_store() as store:
            wait_until(lambda: all(job is not None and state_word(job) == word for job in map(store.job, ids)))

    def wait_begun(self, *ids: int) -> None:
        """Wait until the jobs have started; short ones may be over already."""
        with self.open_store() as store:
            wait_until(lambda: all(job is not None and has_begun(job) for job in map(store.job, ids)))

    def wait_over(self, *ids: int) -> None:
        """Wait until the jobs are over."""
        with self.open_store() as store:
            wait_until(lambda: all(job is not None and isinstance(job.state, Ended) for job in map(store.job, ids)))

    def limit(self, job_id: int, seconds: float) -> None:
        """Change the time limit of a job that runs; `stoker edit` does so, but refuses one that has passed."""
        job = self.job(job_id)
        with self.open_store() as store:
            spec = replace(job.spec, limit=seconds)
            ask(self.paths, store, [Edit(job_id, spec, job.name)], time.time())

    def started_earlier(self, job_id: int, seconds: float) -> None:
        """Let a running job seem to have started so much earlier; only while no engine lives."""
        job = self.job(job_id)
        assert isinstance(job.state, Running)
        earlier = replace(job, state=replace(job.state, since=job.state.since - seconds))
        with self.open_store() as store:
            store.record([Change(earlier, [])])

    def open_gate(self, name: str) -> None:
        """Make the file that jobs wait for."""
        (self.cwd / name).touch()

    # -- the engine ------------------------------------------------------------------------------

    @property
    def engine_process(self) -> int | None:
        """The number of the engine's process, None where no engine lives."""
        return process_of(self.paths, QUEUE)

    def start_engine(self) -> None:
        """Start the engine, if none lives, as a submit does; a command line of its own would cost as much again."""
        if self.engine_process is not None:
            return
        read_end, write_end = os.pipe()
        sim = self.environment.get("STOKER_SIM", "")
        words = [*MODULE, "engine", "run", "--restartable", *(["--sim", sim] if sim else [])]
        words += ["--ready-fd", str(write_end)]
        with open_log(self.paths.log) as log, open(read_end, "rb", buffering=0) as answers:
            start_daemon(words, self.environment, log, write_end)
            os.close(write_end)
            answer = answers.read(1000)
        assert answer == READY, answer

    def kill_engine(self) -> None:
        """End the engine as a crash would, and let no worker start it again; what runs goes on under its workers."""
        pid = self.engine_process
        assert pid is not None, "no engine lives"
        remove_restart(self.paths, pid)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not engine_lives(self.paths, QUEUE))

    def hang_engine(self) -> int:
        """Stop the process of the engine, but not while it writes, which would keep others from it; its number."""
        pid = self.engine_process
        assert pid is not None, "no engine lives"
        with self.open_store() as store, store.writing():
            os.kill(pid, signal.SIGSTOP)
        return pid

    def start_run(self, *lines: str) -> subprocess.Popen[bytes]:
        """Start a foreground run of a list on one GPU, and wait until its first job runs."""
        with self.open_store() as store:
            first = (store.last_job() or 0) + 1
        run = self.start("run", "--devices", "0", str(self.write(f"list{first}.txt", *lines)))
        wait_until(lambda: self.has(first + len(lines) - 1) and self.word(first) == "running")
        return run

    def has(self, job_id: int) -> bool:
        """Whether there is such a job."""
        with self.open_store() as store:
            return store.job(job_id) is not None

    def kill_workers(self) -> None:
        """Kill all workers while no engine lives, and wait until they are gone."""
        wait_until(self._no_worker_left)

    def _no_worker_left(self) -> bool:
        workers = [int(name) for name in os.listdir("/proc") if name.isdecimal() and self._is_worker(int(name))]
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not workers

    def _is_worker(self, pid: int) -> bool:
        """Whether a process has the lock of a worker open. Jobs inherit another one."""
        with contextlib.suppress(OSError):
            links = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
            return any(link.startswith(f"{self.paths.workers}/") and link.endswith("/lock") for link in links)
        return False


def has_begun(job: Job) -> bool:
    """Whether the process of a job has started, and perhaps ended."""
    return started_at(job) is not None or isinstance(job.state, Ended)


def start_daemon(words: Sequence[str], environment: Mapping[str, str], log: IO[bytes], descriptor: int) -> None:
    """Start a process in a session of its own that is no child of this one."""
    forked = can_fork(environment, words)
    process = Forked(
        words if forked else ["setsid", "--fork", *words],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd="/",
        env=environment,
        pass_fds=[descriptor],
        umask=0o077,
        start_new_session=True,
    )
    process.returncode = 0 if forked else process.wait(PATIENCE_SECONDS)
    assert process.returncode == 0


@pytest.fixture
def background(tmp_path: Path) -> Iterator[Background]:
    """A queue in the background; its engine starts with the first job."""
    with contextlib.closing(Background(tmp_path)) as queue:
        yield queue
