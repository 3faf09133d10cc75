"""Measure the CPU time and memory of an idle engine."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import standin
from bars import Bar, bars_shown, table
from cost import MEMORY_HEAD, Memory, cpu_seconds, memory_of
from machine import exit_code, queue_parser, say, workshop
from programs import GFLOW, HYPERQUEUE, TASK_SPOOLER
from rounds import Incomplete
from servers import Server, StokerServer, gflow, hyperqueue, present, stoker, task_spooler
from stoker.store.engine_lock import QUEUE, process_of
from submit_jobs import NOTHING, submit_all, wait_until_over

CPU_PERCENT = 0.3
MEMORY_MEGABYTES = 60.0
SETTLE = 5.0
"""Seconds after the start that do not count."""


@dataclass(frozen=True)
class Idle:
    """The cost of one server."""

    percent: float
    """Share of one core, all processes together."""
    memory: Memory

    @property
    def cells(self) -> list[str]:
        """As cells of a table."""
        return [f"{self.percent:.3f}", *self.memory.cells]


def main() -> None:
    """Measure all at once, since all are idle, and print."""
    options = queue_parser(__doc__ or "")
    options.add_argument("--seconds", type=float, default=60.0, help="how long they are watched, default %(default)s")
    options.add_argument("--jobs", type=int, default=2000, help="run before by one of ours, default %(default)s")
    chosen = options.parse_args()
    with workshop(chosen.directory) as directory, contextlib.ExitStack() as running:
        servers = _servers(directory, running, jobs=chosen.jobs, exclusive=chosen.alone)
        time.sleep(min(SETTLE, chosen.seconds))
        say(f"watching {len(servers)} idle servers for {chosen.seconds:g} s")
        _print(_watch(servers, chosen.seconds), chosen)


def _servers(directory: Path, running: contextlib.ExitStack, *, jobs: int, exclusive: bool) -> list[Server]:
    kinds = {GFLOW: gflow, HYPERQUEUE: hyperqueue, TASK_SPOOLER: task_spooler}
    names = [] if exclusive else present(list(kinds))
    servers: list[Server] = [running.enter_context(kinds[name](directory / name)) for name in names]
    ours = [stoker(directory / "declared", name="stoker, declared devices")]
    ours.append(_worked(directory / "worked", jobs))
    ours.append(stoker(directory / "simulated", sim="4x24G", name="stoker, simulated GPUs"))
    if standin.compiler_is_here():
        gpus = standin.gpus(directory / "nvml")
        ours.append(stoker(directory / "nvidia", gpus, name="stoker, NVIDIA's library (stand-in)"))
    return [*servers, *(running.enter_context(one) for one in ours)]


@contextlib.contextmanager
def _worked(directory: Path, jobs: int) -> Iterator[StokerServer]:
    """A server that was busy before: memory that it keeps counts."""
    with stoker(directory, name=f"stoker, after {jobs:,} jobs") as server:
        submit_all(server.paths, [NOTHING] * jobs, server.environment, str(directory))
        wait_until_over(server.paths)
        yield server


def _watch(servers: list[Server], seconds: float) -> dict[str, Idle]:
    before = {server.name: cpu_seconds(server.processes) for server in servers}
    started = time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - started
    return {
        server.name: _idle(server, (cpu_seconds(server.processes) - before[server.name]) / passed) for server in servers
    }


def _idle(server: Server, share: float) -> Idle:
    pids = server.processes
    if not pids:
        raise Incomplete(f"{server.name} is gone")
    engine = process_of(server.paths, QUEUE) if isinstance(server, StokerServer) else None
    return Idle(100 * share, memory_of(pids, engine))


def _print(found: dict[str, Idle], chosen: argparse.Namespace) -> None:
    print(f"\nidle for {chosen.seconds:g} s")
    head = ["program", "% of a core", *MEMORY_HEAD]
    print(table(head, [[name, *idle.cells] for name, idle in found.items()]))
    print("\nbars")
    print(bars_shown([bar for name, idle in found.items() if name.startswith("stoker") for bar in _bars(name, idle)]))


def _bars(name: str, idle: Idle) -> list[Bar]:
    return [
        Bar(f"{name}, % of a core", idle.percent, CPU_PERCENT, at_most=True),
        Bar(f"{name}, MB in all", idle.memory.together / 1e6, MEMORY_MEGABYTES, at_most=True),
    ]


if __name__ == "__main__":
    sys.exit(exit_code(main))
