"""Measure submits beside other programs: single jobs on the command line, and 100,000 in one call."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bars import Bar, bars_shown, table
from cost import FLOORS, Cost, spend
from machine import exit_code, milliseconds, queue_parser, say, workshop
from programs import GFLOW, HYPERQUEUE, STOKER_QUEUE, TASK_SPOOLER, environment
from servers import HyperQueueServer, Server, StokerServer, gflow, hyperqueue, present, stoker, task_spooler
from submit_jobs import NOTHING, submit_all

STOKER_CALL = "stoker, queue.submit()"
STOKER_FILE = "stoker submit -f"
CPU_MILLISECONDS = 150.0
BULK_SECONDS = 3.0
Costs = Mapping[str, Sequence[Cost]]
"""By the name of the program, in the order of rounds."""
GFLOW_ARRAY = 1000
"""It refuses larger ones."""


@dataclass(frozen=True)
class Rivals:
    """The measured queues, each with all its slots occupied, so that submitted jobs only wait."""

    stoker: StokerServer
    hyperqueue: HyperQueueServer | None
    others: list[Server]

    @property
    def commands(self) -> list[Server]:
        """Those that have a command to submit with."""
        return [*self.others, self.stoker]


def main() -> None:
    """Measure and print; raises Incomplete where a program failed."""
    options = _options()
    names = [] if options.alone else present([HYPERQUEUE, GFLOW, TASK_SPOOLER])
    with workshop(options.directory) as directory:
        with _rivals(directory / "single", names) as rivals:
            single = _one_by_one(rivals, options.singles)
        bulk = _in_bulk(directory, names, options.jobs, options.rounds)
        _print(single, bulk, options)


def _options() -> argparse.Namespace:
    options = queue_parser(__doc__ or "")
    options.add_argument("--singles", type=int, default=40, help="jobs one by one, default %(default)s")
    options.add_argument("--jobs", type=int, default=100_000, help="jobs in one call, default %(default)s")
    options.add_argument("--rounds", type=int, default=3, help="calls with so many, default %(default)s")
    return options.parse_args()


@contextlib.contextmanager
def _rivals(directory: Path, names: Sequence[str]) -> Iterator[Rivals]:
    with contextlib.ExitStack() as running:
        ours = running.enter_context(stoker(directory / "stoker"))
        library = running.enter_context(hyperqueue(directory / "hyperqueue")) if HYPERQUEUE in names else None
        kinds = {GFLOW: gflow, TASK_SPOOLER: task_spooler}
        others = [running.enter_context(kinds[name](directory / name)) for name in names if name in kinds]
        for server in [ours, *([library] if library else []), *others]:
            server.occupy()
        yield Rivals(ours, library, others)


def _one_by_one(rivals: Rivals, count: int) -> Costs:
    """A B C A B C ..., so that other load on the machine affects all alike."""
    say(f"{count} jobs one by one")
    found: dict[str, list[Cost]] = defaultdict(list)
    for _ in range(count):
        for server in rivals.commands:
            found[server.name].append(server.run(*server.submit, "true"))
        for name, words in FLOORS.items():
            found[name].append(spend(words, Path("/"), {}))
        found[STOKER_CALL].append(_call(rivals.stoker, 1))
        if rivals.hyperqueue:
            (seconds,) = rivals.hyperqueue.ask("single 1 0")
            found[HYPERQUEUE].append(Cost(seconds, float("nan")))
    return found


def _in_bulk(directory: Path, names: Sequence[str], jobs: int, rounds: int) -> Costs:
    found: dict[str, list[Cost]] = defaultdict(list)
    for number in range(rounds):
        place = directory / f"bulk {number}"
        for way, others in ((STOKER_FILE, names), (STOKER_CALL, [])):
            say(f"{jobs:,} jobs in one call: round {number + 1} of {rounds}, {way}")
            os.sync()
            with _rivals(place / way, [name for name in others if name != TASK_SPOOLER]) as rivals:
                ours = _from_file(rivals.stoker, jobs) if way == STOKER_FILE else _call(rivals.stoker, jobs)
                found[way].append(ours)
                for name, cost in _rivals_in_bulk(rivals, jobs):
                    found[name].append(cost)
    return found


def _from_file(server: StokerServer, jobs: int) -> Cost:
    listed = server.directory / "list.txt"
    listed.write_text("true\n" * jobs)
    return server.run(*server.submit[:-1], "-f", str(listed))


def _call(server: StokerServer, jobs: int) -> Cost:
    before = time.process_time()
    seconds = submit_all(server.paths, [NOTHING] * jobs, environment(server.directory), str(server.directory))
    return Cost(seconds, time.process_time() - before)


def _rivals_in_bulk(rivals: Rivals, jobs: int) -> Iterator[tuple[str, Cost]]:
    if rivals.hyperqueue:
        yield HYPERQUEUE, Cost(float(rivals.hyperqueue.ask(f"bulk {jobs}")), float("nan"))
    for server in rivals.others:
        sizes = [GFLOW_ARRAY] * (jobs // GFLOW_ARRAY) + ([jobs % GFLOW_ARRAY] if jobs % GFLOW_ARRAY else [])
        costs = [server.run(*server.submit, "--array", f"1-{size}", "true") for size in sizes]
        yield server.name, Cost(sum(cost.seconds for cost in costs), sum(cost.cpu for cost in costs))


def _print(single: Costs, bulk: Costs, options: argparse.Namespace) -> None:
    print(f"\none job by one, median of {options.singles}; what a server does for it is not in the CPU time")
    print(_cost_table(single, STOKER_QUEUE))
    print(f"\n{options.jobs:,} jobs, median of {options.rounds} rounds; gflow in arrays of {GFLOW_ARRAY:,}")
    print(_cost_table(bulk, STOKER_FILE))
    print("\nbars")
    print(bars_shown(_bars(single, bulk, options.jobs)))


def _cost_table(costs: Costs, ours: str) -> str:
    rows = [[name, *_cells(of_one), f"{_ratio(of_one, costs[ours]):.2g}"] for name, of_one in costs.items()]
    return table(["program", "ms", "ms of CPU", "lowest", f"x {ours}"], rows)


def _cells(costs: Sequence[Cost]) -> list[str]:
    cpu = [cost.cpu for cost in costs]
    cells = milliseconds([median(cost.seconds for cost in costs), median(cpu), min(cpu)])
    return ["-" if cell == "nan" else cell for cell in cells]


def _ratio(theirs: Sequence[Cost], ours: Sequence[Cost]) -> float:
    """How many times as long it took, as the median over rounds: two runs of one round met the same machine."""
    return median(their.seconds / our.seconds for their, our in zip(theirs, ours, strict=True))


def _bars(single: Costs, bulk: Costs, jobs: int) -> list[Bar]:
    cpu = 1000 * median(cost.cpu for cost in single[STOKER_QUEUE])
    bars = [Bar("one stoker submit, ms of CPU", cpu, CPU_MILLISECONDS, at_most=True)]
    for way in (STOKER_FILE, STOKER_CALL):
        seconds = median(cost.seconds for cost in bulk[way])
        bars.append(Bar(f"{jobs:,} jobs, {way}, seconds", seconds, BULK_SECONDS, at_most=True))
    return bars


if __name__ == "__main__":
    sys.exit(exit_code(main))
