"""Measure a very long queue: an array, a grid and lines of a file; submit, look, wait, cancel; time, memory, disk."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from bars import Bar, bars_shown, table
from cost import Cost, cpu_seconds, memory_of, peak_bytes, spend_on_terminal
from machine import exit_code, queue_parser, say, workshop
from programs import COMPETITORS, GFLOW, HYPERQUEUE, OURS, SLOTS, STOKER_QUEUE
from rounds import Incomplete
from servers import Server, StokerServer, gflow, hyperqueue, present, stoker
from stoker.core.errors import NoSuchJob
from stoker.store.engine_lock import QUEUE, process_of
from top import QUIT, View
from waiting import gflow_arrays, wait_until_accepted
from web import FIRST, look, serving

PROGRAM = str(OURS / "stoker")
ARRAY = str(SLOTS + 1)
"""The id of the array: the jobs before it keep the slots."""
TOP, PAGE = "top, first screen", "page, first table"
LOOKS = {
    "status": ("status",),
    "status ARRAY": ("status", ARRAY),
    "history": ("history",),
    "logs ARRAY": ("logs", ARRAY),
}
ARRAY_BARS = {
    "submit, s": 0.3,
    "engine, MB": 60.0,
    "disk, MB": 1.0,
    "status, all waiting, ms of CPU": 150.0,
    "status ARRAY, all waiting, ms of CPU": 150.0,
    "wait, % of a core": 1.0,
    "cancel, s": 0.3,
}
LINES_BARS = {
    "submit, s": 15.0,
    "submit, MB": 300.0,
    "engine, MB": 500.0,
    "cancel all, s": 5.0,
    "cancel all, MB of the command": 600.0,
    "cancel all, MB of the engine": 600.0,
}
SEEDS = 1_000
"""Values of one of the two parameters of the grid."""
PAGE_LOOKS = 5
SETTLE_SECONDS = 2.0
Figures = Mapping[str, Sequence[float]]
"""By what was measured, in the order of rounds."""


def main() -> None:
    """Measure and print; raises Incomplete where a program failed."""
    options = _options()
    names = [] if options.alone else present([HYPERQUEUE, GFLOW])
    array: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    grid: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    lines: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with workshop(options.directory) as directory:
        for number in range(options.rounds):
            kinds = (("array", options.tasks, array), ("grid", options.points, grid), ("lines", options.lines, lines))
            for kind, jobs, figures in kinds:
                say(f"{jobs:,} jobs, {kind}: round {number + 1} of {options.rounds}")
                for name in (STOKER_QUEUE, *(names if kind != "grid" else ())) if jobs else ():
                    place = directory / f"{kind}-{number}" / name
                    for what, value in _measured(name, kind, place, jobs, options.seconds):
                        figures[name][what].append(value)
    if array:
        _print(f"an array of {options.tasks:,} tasks", array, ARRAY_BARS)
    if grid:
        _print(f"a grid of {options.points:,} points", grid, ARRAY_BARS)
    if lines:
        _print(f"{options.lines:,} lines", lines, LINES_BARS)


def _options() -> argparse.Namespace:
    options = queue_parser(__doc__ or "")
    options.add_argument("--tasks", type=int, default=50_000, help="tasks of the array, default %(default)s")
    options.add_argument("--points", type=int, default=50_000, help="points of the grid, default %(default)s")
    options.add_argument("--lines", type=int, default=50_000, help="different lines, default %(default)s")
    options.add_argument("--rounds", type=int, default=1, help="default %(default)s")
    options.add_argument("--seconds", type=float, default=10.0, help="how long `stoker wait` is watched")
    return options.parse_args()


def _measured(name: str, kind: str, place: Path, jobs: int, seconds: float) -> Iterator[tuple[str, float]]:
    if name == HYPERQUEUE:
        yield from _hyperqueue(place, kind, jobs)
    elif name == GFLOW:
        if kind == "array":  # it submits a line by a command of its own
            yield from _gflow(place, jobs)
    else:
        with stoker(place) as queue:
            queue.occupy()
            match kind:
                case "array":
                    yield from _array(queue, jobs, seconds, "submit", "--array", f"0-{jobs - 1}", "--", "true")
                case "grid":
                    space = f"rate=0..{jobs // SEEDS - 1}", f"seed=0..{SEEDS - 1}"
                    yield from _array(queue, jobs // SEEDS * SEEDS, seconds, "sweep", "--yes", *space, "--", "true")
                case _:
                    yield from _lines(queue, jobs)


# -- an array ------------------------------------------------------------------------------------


def _array(queue: StokerServer, tasks: int, seconds: float, *submit: str) -> Iterator[tuple[str, float]]:
    submitted, engine = _with_engine(queue, *submit)
    wait_until_accepted(queue, tasks)
    yield from _times("submit", submitted, engine)
    yield from _memory(queue)
    yield "disk, MB", sum(file.stat().st_size for file in queue.paths.database.parent.glob("queue.db*")) / 1e6
    yield from _looks(queue, "all waiting")
    yield "wait, % of a core", _share_of_wait(queue, seconds)
    cancelled, engine = _with_engine(queue, "cancel", ARRAY)
    yield from _times("cancel", cancelled, engine)
    yield from _looks(queue, "all cancelled")


def _looks(queue: StokerServer, state: str) -> Iterator[tuple[str, float]]:
    for name, words in LOOKS.items():
        # no task has a log
        cost = spend_on_terminal([PROGRAM, *words], queue.directory, queue.environment, codes=(0, NoSuchJob.exit_code))
        yield f"{name}, {state}, ms of CPU", 1000 * cost.cpu
    with contextlib.closing(View([PROGRAM, "top"], queue.environment)) as view:
        yield f"{TOP}, {state}, ms of CPU", 1000 * view.wait_for(QUIT)
    with serving(queue) as page:
        before = page.cpu
        page.get(FIRST).read()
        yield f"{PAGE}, {state}, ms of CPU at first", 1000 * (page.cpu - before)
        yield f"{PAGE}, {state}, ms of CPU later", 1000 * look(page, FIRST, PAGE_LOOKS).cpu


def _share_of_wait(queue: StokerServer, seconds: float) -> float:
    """Percent of a core that `stoker wait` takes once it waits."""
    command = [PROGRAM, "wait", ARRAY]
    with subprocess.Popen(
        command, cwd=queue.directory, env=dict(queue.environment), stderr=subprocess.DEVNULL
    ) as process:
        try:
            time.sleep(SETTLE_SECONDS)
            before = cpu_seconds([process.pid])
            time.sleep(seconds)
            return 100 * (cpu_seconds([process.pid]) - before) / seconds
        finally:
            process.kill()


# -- different lines -----------------------------------------------------------------------------


def _lines(queue: StokerServer, lines: int) -> Iterator[tuple[str, float]]:
    listed = _written(queue.directory, lines)
    submitted, _ = _with_engine(queue, "submit", "-f", str(listed))
    yield from _times("submit", submitted)
    yield "submit, MB", submitted.memory / 1e6
    before = cpu_seconds([_engine(queue)])
    wait_until_accepted(queue, lines)
    yield "accepted by the engine, s of CPU since", cpu_seconds([_engine(queue)]) - before
    yield from _memory(queue)
    yield "disk, MB", sum(file.stat().st_size for file in queue.paths.database.parent.glob("queue.db*")) / 1e6
    cost = spend_on_terminal([PROGRAM, "status"], queue.directory, queue.environment)
    yield "status, all waiting, ms of CPU", 1000 * cost.cpu
    cancelled, engine = _with_engine(queue, "cancel", "all")
    yield from _times("cancel all", cancelled, engine)
    yield "cancel all, MB of the command", cancelled.memory / 1e6
    yield "cancel all, MB of the engine", peak_bytes(_engine(queue)) / 1e6


def _written(directory: Path, lines: int) -> Path:
    file = directory / "list.txt"
    with file.open("w") as out:
        out.writelines(f"python3 train.py --seed {number} --rate 0.001\n" for number in range(lines))
    return file


# -- other programs ------------------------------------------------------------------------------


def _hyperqueue(place: Path, kind: str, jobs: int) -> Iterator[tuple[str, float]]:
    """Its library has no arrays and no cancel."""
    with hyperqueue(place) as server:
        server.occupy()
        asked = f"bulk {jobs}" if kind == "array" else f"lines {_written(place, jobs)}"
        yield "submit, s", float(server.ask(asked))
        yield from _memory(server)


def _gflow(place: Path, jobs: int) -> Iterator[tuple[str, float]]:
    with gflow(place) as server:
        server.occupy()
        costs = [server.run(*server.submit, "--array", f"1-{size}", "true") for size in gflow_arrays(jobs)]
        yield from _times("submit", Cost(sum(cost.seconds for cost in costs), sum(cost.cpu for cost in costs)))
        yield from _memory(server)
        looked = spend_on_terminal([COMPETITORS / "bin" / "gqueue"], server.directory, server.environment)
        yield "status, all waiting, ms of CPU", 1000 * looked.cpu
        cancelled = server.run(str(COMPETITORS / "bin" / "gcancel"), f"{ARRAY}-{SLOTS + jobs}")
        yield from _times("cancel", cancelled)


# -- figures -------------------------------------------------------------------------------------


def _engine(queue: StokerServer) -> int:
    pid = process_of(queue.paths, QUEUE)
    if pid is None:
        raise Incomplete("the engine is gone")
    return pid


def _with_engine(queue: StokerServer, *words: str) -> tuple[Cost, float]:
    """The cost of a command, and the CPU seconds that the engine took meanwhile."""
    before = cpu_seconds([_engine(queue)])
    cost = queue.run(PROGRAM, *words)
    return cost, cpu_seconds([_engine(queue)]) - before


def _times(name: str, cost: Cost, engine: float | None = None) -> Iterator[tuple[str, float]]:
    yield f"{name}, s", cost.seconds
    yield f"{name}, s of CPU", cost.cpu
    if engine is not None:
        yield f"{name}, s of CPU of the engine", engine


def _memory(server: Server) -> Iterator[tuple[str, float]]:
    engine = process_of(server.paths, QUEUE) if isinstance(server, StokerServer) else None
    memory = memory_of(server.processes, engine)
    yield "engine, MB", memory.engine / 1e6
    yield "all processes, MB", memory.together / 1e6


def _print(title: str, figures: Mapping[str, Figures], wanted: Mapping[str, float]) -> None:
    ours = figures[STOKER_QUEUE]
    others = [name for name in figures if name != STOKER_QUEUE]
    rows = [
        [what, _text(min(values)), _text(median(values)), *(_ratio(figures[name], ours, what) for name in others)]
        for what, values in ours.items()
    ]
    print(f"\n{title}")
    print(table([STOKER_QUEUE, "lowest", "median", *(f"{name} / it" for name in others)], rows))
    bars = [Bar(what, min(ours[what]), most, at_most=True) for what, most in wanted.items()]
    print(f"\nbars, for a million; the lowest of all rounds\n{bars_shown(bars)}")


def _ratio(theirs: Figures, ours: Figures, what: str) -> str:
    """The median over rounds: two runs of one round met the same machine."""
    if what not in theirs:
        return "-"
    return f"{median(their / our for their, our in zip(theirs[what], ours[what], strict=True)):.2g}"


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(exit_code(main))
