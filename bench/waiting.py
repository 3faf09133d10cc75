"""Measure a long queue: the time of `status`, of one plan, and the memory of the engine."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

from bars import Bar, bars_shown, table
from cost import FLOORS, MEMORY_HEAD, Cost, Memory, cpu_seconds, memory_of, spend
from machine import exit_code, milliseconds, queue_parser, say, workshop
from programs import COMPETITORS, GFLOW, HYPERQUEUE, SLOTS
from rounds import Incomplete
from servers import Server, StokerServer, gflow, hyperqueue, present, stoker
from stoker.core.device import Device, Reading, Snapshot
from stoker.core.job import Job, Waiting
from stoker.core.learning import Learnt, Runs, expected_seconds
from stoker.core.planner.lanes import Lanes
from stoker.core.planner.occupancy import Slot
from stoker.core.planner.plan import plan
from stoker.core.planner.queue import JobKind, WaitingJobs, resolved
from stoker.core.settings import Policy
from stoker.core.spec import Command, JobSpec, Resources
from stoker.core.units import count_text
from stoker.store.engine_lock import QUEUE, process_of
from stoker.store.status_file import read_status
from submit_jobs import NOTHING, submit_all

STATUS_MILLISECONDS = 150.0
PLAN_MILLISECONDS = 2.0
MEMORY_MEGABYTES = 150.0
LOOKS = (("status", "--json"), ("status", "--plain"), ("status",), ("status", "1"), ("status", "--json", "--all"))
GFLOW_LOOKS = (("gqueue",), ("gqueue", "-n", "200"), ("gqueue", "-o", "json"))
SHAPES = (1, 100)
"""Numbers of different shapes among the waiting jobs: the plan considers each."""
KINDS_MILLISECONDS = {10: 0.3, 1_000: 0.5, 10_000: 0.5, 100_000: 0.5}
"""Numbers of different kinds of work, and what a plan on a full machine may take with each."""
ACCEPT_SECONDS = 300.0
GPUS, GPU_MEMORY = 8, 40 * 2**30


def main() -> None:
    """Measure and print; raises Incomplete where a program failed."""
    options = _options()
    if options.kinds:
        _print_kinds(options.jobs)
        return
    names = [] if options.alone else present([HYPERQUEUE, GFLOW])
    with workshop(options.directory) as directory:
        looks, memory, busy = _measure(directory, names, options)
        plans = {shapes: _planning_seconds(options.jobs, shapes) for shapes in SHAPES}
        _print(looks, memory, busy, plans, options)
        _print_kinds(options.jobs)


def _options() -> argparse.Namespace:
    options = queue_parser(__doc__ or "")
    options.add_argument("--jobs", type=int, default=100_000, help="jobs that wait, default %(default)s")
    options.add_argument("--kinds", action="store_true", help="only the plans on a full machine")
    options.add_argument("--rounds", type=int, default=10, help="looks of each kind, default %(default)s")
    options.add_argument("--seconds", type=float, default=10.0, help="how long the engine is watched while they wait")
    return options.parse_args()


def _measure(
    directory: Path, names: Sequence[str], options: argparse.Namespace
) -> tuple[dict[str, list[Cost]], dict[str, Memory], float]:
    jobs = options.jobs
    with contextlib.ExitStack() as running:
        say(f"{jobs:,} jobs into each queue")
        ours = running.enter_context(stoker(directory / "stoker"))
        ours.occupy()
        submit_all(ours.paths, [NOTHING] * jobs, ours.environment, str(ours.directory))
        servers: list[Server] = [ours]
        if GFLOW in names:
            servers.append(running.enter_context(gflow(directory / "gflow")))
            servers[-1].occupy()
            for size in gflow_arrays(jobs):
                servers[-1].run(*servers[-1].submit, "--array", f"1-{size}", "true")
        if HYPERQUEUE in names:
            library = running.enter_context(hyperqueue(directory / "hyperqueue"))
            library.occupy()
            library.ask(f"bulk {jobs}")
            servers.append(library)
        wait_until_accepted(ours, jobs)
        looks = _looks(servers, options.rounds)
        busy = _busy_share(ours, options.seconds)
        return looks, {server.name: _memory(server) for server in servers}, busy


def gflow_arrays(jobs: int) -> Iterator[int]:
    """gflow takes arrays of 1,000 at most."""
    for first in range(0, jobs, 1000):
        yield min(1000, jobs - first)


def wait_until_accepted(server: StokerServer, jobs: int) -> None:
    """Wait until the engine knows so many jobs that wait."""
    deadline = time.monotonic() + ACCEPT_SECONDS
    while (view := read_status(server.paths.status_file(QUEUE))) is None or view.waiting < jobs:
        if time.monotonic() > deadline:
            raise Incomplete(
                f"the engine knows {view.waiting if view else 0:,} of {jobs:,} jobs after {ACCEPT_SECONDS:g} s"
            )
        time.sleep(0.2)


def _looks(servers: Sequence[Server], rounds: int) -> dict[str, list[Cost]]:
    found: dict[str, list[Cost]] = {}
    for number in range(rounds):
        say(f"looking: round {number + 1} of {rounds}")
        for server in servers:
            for name, words in _look_words(server):
                found.setdefault(name, []).append(server.run(*words))
        for name, floor in FLOORS.items():
            found.setdefault(name, []).append(spend(floor, Path("/"), {}))
    return found


def _look_words(server: Server) -> Iterator[tuple[str, list[str]]]:
    if isinstance(server, StokerServer):
        yield from ((" ".join(("stoker", *words)), [server.submit[0], *words]) for words in LOOKS)
    elif server.name == GFLOW:
        yield from ((" ".join(words), [str(COMPETITORS / "bin" / words[0]), *words[1:]]) for words in GFLOW_LOOKS)


def _busy_share(server: StokerServer, seconds: float) -> float:
    """The part of a core that the engine takes while jobs run and wait and nothing changes."""
    before = cpu_seconds(server.processes)
    time.sleep(seconds)
    return (cpu_seconds(server.processes) - before) / seconds


def _memory(server: Server) -> Memory:
    engine = process_of(server.paths, QUEUE) if isinstance(server, StokerServer) else None
    return memory_of(server.processes, engine)


def _planning_seconds(jobs: int, shapes: int) -> float:
    """The median of many plans that each start one job, with all devices but one occupied."""
    spec = [JobSpec(resources=Resources(), priority=number) for number in range(shapes)]
    waiting = WaitingJobs()
    for number in range(jobs):
        waiting.add(Job(number + 1, 1, Command(("true",)), spec[number % shapes], Waiting(0.0), 0.0))
    names = [str(slot) for slot in range(SLOTS)]
    devices = tuple(Device(name, name, name, (name,), "declared") for name in names)
    slots = [Slot(f"worker-{name}", jobs + 1 + int(name), Resources(), (name,)) for name in names[1:]]
    return median(_one_plan(waiting, slots, Snapshot(1.0, devices)) for _ in range(100))


def _one_plan(waiting: WaitingJobs, slots: Sequence[Slot], snapshot: Snapshot) -> float:
    started = time.process_time()
    decided = plan(waiting, slots, snapshot, (), Policy(), 1.0)
    seconds = time.process_time() - started
    if len(decided.starts) != 1:
        raise Incomplete(f"planned {len(decided.starts)} starts instead of one")
    return seconds


class KindsCost(NamedTuple):
    """Seconds of processor time with jobs of many kinds on a full machine."""

    filing: float
    """Of the first plan, which files all jobs."""
    plan: float
    """Of each plan after it: the median."""


def _kinds_cost(kinds: int, known: bool) -> KindsCost:
    """Each kind has one job, and is as unlike the others as can be where its memory, load and time are known."""
    random = Random(0)
    learnt = {str(kind): _drawn(random) if known else Learnt() for kind in range(kinds)}
    spec, waiting = JobSpec(resources=Resources(auto=True)), WaitingJobs()
    for number in range(kinds):
        waiting.add(Job(number + 1, 1, Command(("true",)), spec, Waiting(0.0), 0.0, kind=str(number)))
    names = [str(number) for number in range(GPUS)]
    devices = [Device(name, name, name, (name,), "simulated", memory=GPU_MEMORY) for name in names]
    snapshot = Snapshot(1.0, tuple(devices), {name: Reading(used=0) for name in names})
    slots = [Slot(name, kinds + 1 + int(name), Resources(), (name,), since=0.0) for name in names]

    def expects(job: Job) -> float | None:
        return expected_seconds(learnt[job.kind])

    def estimate(shape: JobKind) -> Resources:
        return resolved(shape, learnt[shape.kind], Policy().margin)

    lanes = Lanes(waiting, estimate)

    def one(now: float) -> float:
        started = time.process_time()
        plan(waiting, slots, snapshot, (), Policy(), now, expects=expects, estimate=estimate, lanes=lanes)
        return time.process_time() - started

    return KindsCost(one(1.0), median(one(2.0 + turn) for turn in range(200)))


def _drawn(random: Random) -> Learnt:
    runs = Runs((random.randrange(GPU_MEMORY),), (random.randrange(100),))
    return Learnt((random.lognormvariate(7.0, 2.0),), {"": runs})


def _print_kinds(jobs: int) -> None:
    bars_of_kinds = {kinds: wanted for kinds, wanted in KINDS_MILLISECONDS.items() if kinds <= jobs}
    costs = {(kinds, known): _kinds_cost(kinds, known) for known in (False, True) for kinds in bars_of_kinds}
    print("\none job of each kind on a full machine, processor time")
    rows = [
        [f"{kinds:,}", "known" if known else "new", f"{1000 * cost.plan:.2f}", f"{cost.filing:.2f}"]
        for (kinds, known), cost in costs.items()
    ]
    print(table(["kinds", "durations and memory", "ms per plan", "s for the first"], rows))
    bars = [
        Bar(f"ms per plan, {kinds:,} known kinds", 1000 * costs[kinds, True].plan, wanted, at_most=True)
        for kinds, wanted in bars_of_kinds.items()
    ]
    print("\nbars\n" + bars_shown(bars))


def _print(
    looks: dict[str, list[Cost]],
    memory: dict[str, Memory],
    busy: float,
    plans: dict[int, float],
    options: argparse.Namespace,
) -> None:
    print(f"\nlooking at {options.jobs:,} waiting jobs, median of {options.rounds}")
    rows = [[name, *milliseconds(_figures(costs))] for name, costs in looks.items()]
    print(table(["command", "ms", "ms of CPU", "lowest"], rows))
    print("\nmemory with so many waiting, MB")
    print(table(["program", *MEMORY_HEAD], [[name, *one.cells] for name, one in memory.items()]))
    print(f"\nStoker's engine takes {100 * busy:.2f} % of a core while {SLOTS} jobs run and these wait")
    for shapes, seconds in plans.items():
        print(f"planning one start takes {1000 * seconds:.3f} ms with jobs of {count_text(shapes, 'kind')}")
    print("\nbars")
    print(bars_shown(_bars(looks, memory, plans)))


def _figures(costs: Sequence[Cost]) -> list[float]:
    cpu = [cost.cpu for cost in costs]
    return [median(cost.seconds for cost in costs), median(cpu), min(cpu)]


def _bars(looks: dict[str, list[Cost]], memory: dict[str, Memory], plans: dict[int, float]) -> list[Bar]:
    forms = [" ".join(("stoker", *words)) for words in LOOKS[:2]]
    engine, *_ = memory.values()
    return [
        *(
            Bar(f"{form}, ms of CPU", 1000 * _figures(looks[form])[1], STATUS_MILLISECONDS, at_most=True)
            for form in forms
        ),
        Bar("planning one start, ms of CPU", 1000 * plans[1], PLAN_MILLISECONDS, at_most=True),
        Bar("engine's memory, MB", engine.engine / 1e6, MEMORY_MEGABYTES, at_most=True),
    ]


if __name__ == "__main__":
    sys.exit(exit_code(main))
