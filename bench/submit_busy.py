"""Measure submits while the engine is idle, and while it starts and ends jobs as fast as it can."""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bars import Bar, bars_shown, table
from gaps import percentile
from machine import exit_code, milliseconds, queue_parser, say, workshop
from programs import GFLOW, HYPERQUEUE, STOKER_QUEUE
from rounds import Incomplete
from servers import StokerServer, gflow, hyperqueue, present, stoker
from stoker.store.engine_lock import QUEUE
from stoker.store.writer import open_store
from submit_jobs import NOTHING, submit_all, submit_to

CALL = "stoker, queue.submit()"
PAUSE = 0.02
"""Seconds between two submits, so that they are no load of their own."""
CALL_P99_SECONDS = 0.1
WORST_SECONDS = 1.0


@dataclass(frozen=True)
class Latency:
    """Seconds of each submit, beside an idle engine and beside a busy one."""

    idle: Sequence[float]
    busy: Sequence[float]

    @property
    def cells(self) -> list[str]:
        """As cells of a table."""
        figures = [(median(values), percentile(values, 0.99), max(values)) for values in (self.idle, self.busy)]
        return milliseconds([value for three in figures for value in three])


def main() -> None:
    """Measure and print; raises Incomplete where the queue ran dry before the measuring was over."""
    options = _options()
    names = [] if options.alone else present([HYPERQUEUE, GFLOW])
    with workshop(options.directory) as directory:
        found, rate = _ours(directory / "stoker", options)
        if HYPERQUEUE in names:
            found[HYPERQUEUE] = _hyperqueue(directory / "hyperqueue", options)
        if GFLOW in names:
            found[GFLOW] = _gflow(directory / "gflow", options.commands)
        _print(found, rate, options)


def _options() -> argparse.Namespace:
    options = queue_parser(__doc__ or "")
    options.add_argument("--jobs", type=int, default=30_000, help="jobs that the engine is busy with")
    options.add_argument("--calls", type=int, default=300, help="submits by a program, default %(default)s")
    options.add_argument("--commands", type=int, default=40, help="submits by command, default %(default)s")
    return options.parse_args()


def _ours(directory: Path, options: argparse.Namespace) -> tuple[dict[str, Latency], float]:
    with stoker(directory) as server, contextlib.closing(open_store(server.paths)) as store:

        def call() -> float:
            started = time.perf_counter()
            submit_to(store, server.paths, [NOTHING], server.environment, str(directory))
            return time.perf_counter() - started

        def command() -> float:
            return server.run(*server.submit, "true").seconds

        say("beside an idle engine")
        idle = _many(call, options.calls), _many(command, options.commands)
        submit_all(server.paths, [NOTHING] * options.jobs, server.environment, str(directory))
        _wait_until_busy(server)
        say("beside a busy engine")
        started = time.time()
        busy = _many(call, options.calls), _many(command, options.commands)
        ended = time.time()
        if not store.open_jobs(QUEUE, 0, 1):
            raise Incomplete(f"all {options.jobs:,} jobs were over before the measuring was: give more with --jobs")
    found = {CALL: Latency(idle[0], busy[0]), STOKER_QUEUE: Latency(idle[1], busy[1])}
    return found, _ends(server, started, ended) / (ended - started)


def _many(submit: Callable[[], float], count: int) -> list[float]:
    found = []
    for _ in range(count):
        time.sleep(PAUSE)
        found.append(submit())
    return found


def _wait_until_busy(server: StokerServer) -> None:
    now = time.time()
    while _ends(server, now, float("inf")) < 100:
        time.sleep(0.05)


def _ends(server: StokerServer, since: float, until: float) -> int:
    """How many jobs ended meanwhile."""
    with contextlib.closing(sqlite3.connect(server.paths.database)) as database:
        query = "SELECT count(*) FROM attempts WHERE ended BETWEEN ? AND ?"
        ((count,),) = database.execute(query, (since, until)).fetchall()
    return int(count)


def _hyperqueue(directory: Path, options: argparse.Namespace) -> Latency:
    say(HYPERQUEUE)
    with hyperqueue(directory) as server:
        idle = server.ask(f"single {options.calls} {PAUSE}")
        server.ask(f"bulk {options.jobs}")
        return Latency(idle, server.ask(f"single {options.calls} {PAUSE}"))


def _gflow(directory: Path, count: int) -> Latency:
    """gflow's command; it is kept busy by more jobs than it starts meanwhile."""
    say(GFLOW)
    with gflow(directory) as server:

        def command() -> float:
            return server.run(*server.submit, "true").seconds

        idle = _many(command, count)
        server.run(*server.submit, "--array", "1-1000", "true")
        return Latency(idle, _many(command, count))


def _print(found: dict[str, Latency], rate: float, options: argparse.Namespace) -> None:
    print(f"\na submit in ms beside an idle and a busy engine; Stoker ran {rate:,.0f} jobs/s meanwhile")
    head = ["program", "idle median", "p99", "worst", "busy median", "p99", "worst"]
    print(table(head, [[name, *latency.cells] for name, latency in found.items()]))
    call, command = found[CALL].busy, found[STOKER_QUEUE].busy
    bars = [
        Bar("queue.submit() p99 in ms", 1000 * percentile(call, 0.99), 1000 * CALL_P99_SECONDS, at_most=True),
        Bar("stoker submit, the worst in s", max(command), WORST_SECONDS, at_most=True),
    ]
    print("\nbars, on a quiet machine")
    print(bars_shown(bars))


if __name__ == "__main__":
    sys.exit(exit_code(main))
