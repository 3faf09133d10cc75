"""Options, working directory, exit code and machine load of every benchmark."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rounds import Incomplete, keep_apart
from stoker.store.paths import file_system_of


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with the option that all benchmarks have."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument(
        "--directory", default="/var/tmp", help="where to work, on a disk rather than in memory; default %(default)s"
    )
    return options


def queue_parser(description: str) -> argparse.ArgumentParser:
    """The same for benchmarks beside other queues."""
    options = parser(description)
    options.add_argument("--alone", action="store_true", help="without the other programs")
    return options


@contextlib.contextmanager
def workshop(parent: str) -> Iterator[Path]:
    """A directory for all runs, gone at the end; the load of the machine is printed at both ends."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent) as name:
        directory = Path(name)
        keep_apart(directory)
        print(f"{os.cpu_count()} cores, load average {load()}, working in {name} ({file_system_of(directory)})")
        yield directory
        print(f"\nload average at the end: {load()}")


def exit_code(measure: Callable[[], None]) -> int:
    """Run a benchmark; 1 where a program did not do its work."""
    try:
        measure()
    except Incomplete as error:
        say(str(error))
        return 1
    return 0


def load() -> str:
    """The load averages."""
    return ", ".join(f"{value:.1f}" for value in os.getloadavg())


def say(text: str) -> None:
    """Print the progress."""
    print(text, file=sys.stderr)


def milliseconds(values: Sequence[float]) -> list[str]:
    """Seconds as cells of a table."""
    return [f"{1000 * value:.1f}" for value in values]
