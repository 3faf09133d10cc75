"""Run a very long list with `stoker run`: time to the first start, memory of the engine, and whether it slows down."""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bars import Bar, bars_shown, table
from cost import peak_bytes
from programs import LIST, STOKER, environment, program_named
from rounds import MARKS, NO_OP, Incomplete

PARTS = 10
MEMORY_MEGABYTES = 150.0
STEADY = 0.9
"""The last part must be as fast as the first; the rest to 1 allows for noise."""


@dataclass(frozen=True)
class LongRun:
    """The measurements of one run."""

    started: float
    peak_bytes: int
    starts: list[float]
    ends: list[float]

    @property
    def rates(self) -> list[float]:
        """Commands per second in each tenth of the run, in the order of their ends."""
        size = len(self.ends) // PARTS
        edges = [self.starts[0], *self.ends[size - 1 :: size]]
        return [size / (edges[part + 1] - edges[part]) for part in range(PARTS)]


def main() -> int:
    """Measure and print; returns 1 where the list was not done."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as name:
        try:
            run = _run(Path(name), options.jobs)
        except Incomplete as error:
            print(f"{STOKER} {error}", file=sys.stderr)
            return 1
    _print(run)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000, help="commands in the list, default %(default)s")
    parser.add_argument("--directory", default="/var/tmp", help="where to work, default %(default)s")
    options = parser.parse_args()
    if options.jobs < PARTS:
        parser.error(f"--jobs {options.jobs} is too few, give {PARTS} or more")
    return options


def _run(directory: Path, jobs: int) -> LongRun:
    (directory / LIST).write_text(f"{NO_OP}\n" * jobs)
    program = program_named(STOKER)
    started = time.time()
    with subprocess.Popen(
        program.words, cwd=directory, env=environment(directory), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        peak_bytes = _watch(process, directory / MARKS, jobs)
    starts, ends = _times(directory)
    if process.returncode != 0 or len(ends) != jobs:
        raise Incomplete(f"ended {len(ends):,} of {jobs:,} commands, exit code {process.returncode}")
    return LongRun(started, peak_bytes, starts, ends)


def _watch(process: subprocess.Popen[bytes], marks: Path, jobs: int) -> int:
    """Show progress until the end, and return the most memory the process had, as the kernel counts it."""
    most = 0
    while process.poll() is None:
        most = peak_bytes(process.pid) or most
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
        ran = marks.stat().st_size if marks.exists() else 0
        print(f"\r{ran:,} of {jobs:,}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return most


def _times(directory: Path) -> tuple[list[float], list[float]]:
    """Start and end times of commands from the queue, each sorted."""
    (database,) = (directory / "state").glob("*/queue.db")
    with contextlib.closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT started, ended FROM attempts WHERE code = 0").fetchall()
    return sorted(start for start, _ in rows), sorted(end for _, end in rows)


def _print(run: LongRun) -> None:
    rates = run.rates
    jobs = len(run.ends)
    seconds = run.ends[-1] - run.started
    print(f"{jobs:,} no-op commands in {seconds:.1f} s, {jobs / seconds:,.0f}/s")
    print(f"first start after {run.starts[0] - run.started:.2f} s")
    print("\n" + table([f"tenth of {jobs:,}", *(str(part + 1) for part in range(PARTS))], [_rate_row(rates)]))
    bars = [
        Bar("engine's memory, MB", run.peak_bytes / 1e6, MEMORY_MEGABYTES, at_most=True),
        Bar("rate of the last tenth / of the first", rates[-1] / rates[0], STEADY),
    ]
    print("\n" + bars_shown(bars))


def _rate_row(rates: list[float]) -> list[str]:
    return ["commands/s", *(f"{rate:,.0f}" for rate in rates)]


if __name__ == "__main__":
    sys.exit(main())
