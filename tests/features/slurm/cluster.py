"""A queue on a cluster as people use it: the console script, a real Slurm, and a shared directory of the test's own.

Jobs append a line to `ran` in the working directory when they run, so that a double run is seen.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.job import Ended, Job, state_word
from stoker.features.slurm.commands import TAG
from stoker.store.engine_lock import engine_lives, engine_of, process_of
from stoker.store.paths import find_paths, identity_of
from stoker.store.writer import open_store
from support.cli import Outcome, Stoker
from support.slurm import Slurm
from support.wait import wait_until

NAME = "lab"
RAN = "echo $STOKER_JOB_ID >> ran; "
"""Put before a command: notes that it runs."""


class ClusterQueue(Stoker):
    """Types `stoker ...` where a cluster is configured."""

    def __init__(self, home: Path, slurm: Slurm, *, sim: str = "", **settings: object) -> None:
        """`sim` are simulated GPUs for pilots."""
        super().__init__(home)
        self.environment |= {"STOKER_SIM": sim} if sim else {}
        self.slurm = slurm
        self.shared = home / "shared"
        self.environment |= {"XDG_CONFIG_HOME": str(home / "config"), **slurm.environment}
        self.environment["PATH"] = f"{Path(sys.executable).parent}:{slurm.environment['PATH']}"
        self.paths = find_paths(self.environment, socket.gethostname(), simulated=bool(sim))
        self.configure(**settings)

    def configure(self, **settings: object) -> None:
        """Write the configuration of the cluster."""
        usual = {"shared": str(self.shared), "poll": "1s", "conf": self.slurm.environment["SLURM_CONF"]}
        lines = [f"{key} = {_toml(value)}" for key, value in {**usual, "pilots": "never", **settings}.items()]
        file = self.home / "config/stoker/config.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join([f"[cluster.{NAME}]", *lines, ""]))

    def submit(self, *words: str, count: str = "") -> int:
        """Submit a command for the cluster, or an array of it, and return the id."""
        *options, line = words
        array = ["-a", count] if count else []
        done = self("submit", "-M", NAME, "--parsable", *array, *options, "--", "sh", "-c", line)
        assert done.code == 0, done.err
        return int(done.out)

    def job(self, job_id: int) -> Job:
        with contextlib.closing(open_store(self.paths)) as store:
            job = store.job(job_id)
        assert job is not None
        return job

    def word(self, job_id: int) -> str:
        return state_word(self.job(job_id))

    def ended(self, job_id: int) -> Ended:
        state = self.job(job_id).state
        assert isinstance(state, Ended), state
        return state

    def wait(self, job_id: int) -> Outcome:
        return self("wait", str(job_id))

    def wait_word(self, word: str, *ids: int) -> None:
        wait_until(lambda: all(self.word(job_id) == word for job_id in ids))

    def ran(self) -> list[int]:
        """Ids of the jobs that ran, once for each run."""
        return sorted(map(int, self.lines("ran")))

    @property
    def engine(self) -> int | None:
        """The process of the cluster's engine."""
        return process_of(self.paths, engine_of(NAME))

    def kill_engine(self) -> None:
        """As a site that kills daemons on its login node."""
        pid = self.engine
        assert pid is not None
        _kill(pid)
        wait_until(lambda: not engine_lives(self.paths, engine_of(NAME)))

    def close(self) -> None:
        """End the engine and what it left in Slurm, and jobs of no queue at all."""
        if (pid := self.engine) is not None:
            _kill(pid)
        own = f"{TAG}{identity_of(self.paths)}/"
        shown = [line.split(" ", 1) for line in self.slurm.attempt("squeue", "-h", "-o", "%A %k").stdout.splitlines()]
        if left := [number for number, tag in shown if tag.startswith(own) or not tag.startswith(TAG)]:
            self.slurm.attempt("scancel", *left)
        super().close()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _toml(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return str(value).lower() if isinstance(value, bool | int) else f'"{value}"'


@contextlib.contextmanager
def two_queues(home: Path, slurm: Slurm, **settings: object) -> Iterator[tuple[ClusterQueue, ClusterQueue]]:
    """Two queues on one Slurm: one hands jobs to it directly, the other to pilots with simulated GPUs."""
    with contextlib.ExitStack() as stack:
        for name in ("direct", "pilots"):
            (home / name).mkdir()
        direct = ClusterQueue(home / "direct", slurm, sim="", **settings)
        stack.enter_context(contextlib.closing(direct))
        pilots = ClusterQueue(home / "pilots", slurm, sim="4x24G", pilots="always", pilots_max=1, **settings)
        stack.enter_context(contextlib.closing(pilots))
        yield direct, pilots


def once(name: str) -> str:
    """Shell text that stays for ten minutes at its first run, and ends at once at the next."""
    return f"{RAN} [ -e {name} ] || {{ touch {name}; sleep 600; }}"


@pytest.fixture
def lab(tmp_path: Path, slurm: Slurm) -> Iterator[ClusterQueue]:
    """A queue on the cluster of the session."""
    with contextlib.closing(ClusterQueue(tmp_path, slurm)) as queue:
        yield queue
