"""A real Slurm for tests: munged, slurmctld, and slurmd for several nodes on this machine with four fake GPUs each."""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from msgspec import Struct

from support.optional import missing, require, search_path
from support.reaper import Reaper, descendants, is_alive
from support.users import reachable_directory
from support.wait import PATIENCE_SECONDS, wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun")
PATH = search_path()
GPU_FILES = "/dev/null,/dev/zero,/dev/full,/dev/random"
"""Slurm wants character devices; these exist everywhere, and do no harm."""


class Knobs(Struct, frozen=True):
    """What tests set differently."""

    nodes: int = 3
    cpus: int = 16
    min_job_age: int = 300
    """Seconds after which Slurm forgets a job that is over."""
    max_array: int = 1001
    slurmd_timeout: int = 20
    """Seconds after which a node that does not answer is down."""
    kill_wait: int = 2
    lines: tuple[str, ...] = ()
    """More lines of slurm.conf."""


class Slurm:
    """A running cluster; `partition` all is the default, and jobs of `urgent` preempt those of all."""

    def __init__(self, directory: Path, knobs: Knobs) -> None:
        self.directory = directory
        self.knobs = knobs
        self.nodes = tuple(f"n{number}" for number in range(1, knobs.nodes + 1))
        self.environment = {"SLURM_CONF": str(directory / "slurm.conf"), "PATH": PATH}
        """Variables for all that talks to this cluster."""
        self._reaper = Reaper()
        self._pids: dict[str, int] = {}

    @property
    def process(self) -> int:
        """The process from which all daemons and jobs descend."""
        return self._reaper.pid

    def run(self, *words: str, timeout: float = PATIENCE_SECONDS) -> str:
        """What one of Slurm's commands prints; it must succeed."""
        done = self.attempt(*words, timeout=timeout)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout.strip()

    def attempt(self, *words: str, timeout: float = PATIENCE_SECONDS) -> subprocess.CompletedProcess[str]:
        """How one of Slurm's commands ends."""
        return subprocess.run(
            [*words],
            env={**os.environ, **self.environment},
            cwd=self.directory,
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def start(self) -> None:
        self._prepare()
        munge = self.directory / "munge"
        options = {"socket": "s", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        self._launch("munged", "munged", "-F", *(f"--{name}={munge / file}" for name, file in options.items()))
        wait_until((munge / "s").exists)
        self.start_controller("-c")
        for node in self.nodes:
            self.start_node(node)
        wait_until(lambda: any(map(self._is_gone, self.nodes)) or self._is_idle())
        for node in filter(self._is_gone, self.nodes):
            raise OSError((self.directory / f"{node}.out").read_text())

    def start_controller(self, *options: str) -> None:
        """With -c it forgets all jobs."""
        self._launch("slurmctld", "slurmctld", "-D", *options)
        wait_until(lambda: self._is_gone("slurmctld") or "UP" in self.attempt("scontrol", "ping").stdout)
        if self._is_gone("slurmctld"):
            raise OSError((self.directory / "slurmctld.out").read_text())

    def stop_controller(self, number: int = signal.SIGTERM) -> None:
        """With SIGKILL it loses what it has not saved."""
        self._end("slurmctld", number)

    def start_node(self, node: str, *wrapper: str) -> None:
        """Start its slurmd, by a program whose words come first."""
        program = shutil.which("slurmd", path=PATH) or "slurmd"
        self._launch(node, *wrapper, program, "-D", "-N", node)

    def stop_node(self, node: str, number: int = signal.SIGTERM) -> None:
        """Jobs on the node go on."""
        self._end(node, number)

    def kill_node(self, node: str) -> None:
        """As a power cut: slurmd, and all processes that have the node's name in their environment, and all below."""
        mark = f"\0SLURMD_NODENAME={node}\0"
        below = descendants(self._reaper.pid)
        jobs = {pid for pid in below if mark in f"\0{_content(pid, 'environ')}\0"}
        steps = {pid for pid in below if _content(pid, "comm").startswith("slurmstepd") and descendants(pid) & jobs}
        self._end(node, signal.SIGKILL)
        doomed = {pid for root in jobs | steps for pid in (root, *descendants(root))}
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that none sees another die
            for pid in doomed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        wait_until(lambda: not any(map(is_alive, doomed)))

    def wait_idle(self) -> None:
        """Wait until every node can take jobs and has none."""
        wait_until(self._is_idle)

    def _is_idle(self) -> bool:
        return self.states() == {"idle"}

    def states(self) -> set[str]:
        """The states of the nodes, as short words."""
        return set(self.attempt("sinfo", "-h", "-N", "-p", "all", "-o", "%t").stdout.split())

    def close(self) -> None:
        """End all daemons and jobs."""
        self._reaper.close()

    def _prepare(self) -> None:
        for name in ("state", "munge", *(f"spool/{node}" for node in self.nodes)):
            (self.directory / name).mkdir(parents=True)
        key = self.directory / "munge/key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        gres = f"NodeName={','.join(self.nodes)} Name=gpu File={GPU_FILES}\n"
        (self.directory / "gres.conf").write_text(gres)
        (self.directory / "slurm.conf").write_text(self._conf(free_ports(1 + len(self.nodes))))

    def _conf(self, ports: list[int]) -> str:
        host, knobs, names = socket.gethostname(), self.knobs, ",".join(self.nodes)
        user = pwd.getpwuid(os.geteuid()).pw_name
        place = f"NodeHostname={host} NodeAddr=127.0.0.1 CPUs={knobs.cpus} RealMemory=8000 Gres=gpu:4"
        return "\n".join(
            [
                f"ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={ports[0]}",
                f"SlurmUser={user}\nSlurmdUser={user}",
                f"AuthType=auth/munge\nCredType=cred/munge\nAuthInfo=socket={self.directory}/munge/s",
                f"StateSaveLocation={self.directory}/state\nSlurmdSpoolDir={self.directory}/spool/%n",
                f"SlurmctldPidFile={self.directory}/slurmctld.pid\nSlurmdPidFile={self.directory}/%n.pid",
                f"SlurmctldLogFile={self.directory}/slurmctld.log\nSlurmdLogFile={self.directory}/%n.log",
                "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\nReturnToService=2",
                "SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU_Memory\nDefMemPerCPU=100\nGresTypes=gpu",
                "JobAcctGatherType=jobacct_gather/linux\nJobAcctGatherFrequency=task=1",
                "JobAcctGatherParams=OverMemoryKill\nSlurmdParameters=config_overrides\nSlurmctldTimeout=10",
                f"MinJobAge={knobs.min_job_age}\nMaxArraySize={knobs.max_array}\nKillWait={knobs.kill_wait}",
                f"SlurmdTimeout={knobs.slurmd_timeout}\nPreemptType=preempt/partition_prio\nPreemptMode=REQUEUE",
                "SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,bf_interval=1",
                *(f"NodeName={node} Port={port} {place}" for node, port in zip(self.nodes, ports[1:], strict=True)),
                f"PartitionName=all Nodes={names} Default=YES PriorityTier=1 DefaultTime=60 MaxTime=600",
                f"PartitionName=urgent Nodes={names} PriorityTier=10 PreemptMode=OFF",
                *knobs.lines,
                "",
            ]
        )

    def _launch(self, name: str, *command: str) -> None:
        environment = {**os.environ, **self.environment}
        words = [shutil.which(command[0], path=PATH) or command[0], *command[1:]]
        self._pids[name] = self._reaper.start(words, environment, self.directory / f"{name}.out")

    def _end(self, name: str, number: int) -> None:
        os.kill(self._pids[name], number)
        wait_until(lambda: self._is_gone(name))

    def _is_gone(self, name: str) -> bool:
        return not is_alive(self._pids[name])


@contextmanager
def running_slurm(**knobs: object) -> Iterator[Slurm]:
    """A Slurm of its own with nothing in it."""
    require_slurm()
    for tries_left in (2, 1, 0):
        with ExitStack() as stack:
            directory = stack.enter_context(reachable_directory())
            slurm = Slurm(directory, Knobs(**knobs))  # type: ignore[arg-type]
            stack.callback(slurm.close)
            try:
                slurm.start()
            except OSError:  # another process may have taken a port since it was found free
                if not tries_left:
                    raise
                continue
            yield slurm
            return


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """The cluster of the session. A test that stops daemons or needs other knobs uses running_slurm()."""
    with running_slurm() as cluster:
        yield cluster


def missing_slurm() -> str:
    """Say which programs of Slurm this machine lacks."""
    return missing(*PROGRAMS)


def require_slurm() -> None:
    """Skip at a desk without Slurm; in CI fail."""
    require(*PROGRAMS)


def free_ports(count: int) -> list[int]:
    """Ports on which nothing listens, below those that the kernel gives to connections."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(15_000, 32_000)
        if port in found:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found


def _content(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""
