"""Measures the live view: CPU time until its first screen, and its share of a core afterwards, beside nvitop."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import standin
from bars import Bar, bars_shown, table
from cost import cpu_seconds, open_terminal, spend
from machine import exit_code, parser, workshop
from rounds import Incomplete
from servers import StokerServer, stoker
from stoker.core.spec import Command
from submit_jobs import submit_all

FIRST_SCREEN_SECONDS = 1.0
IDLE_PERCENT = 2.0
PATIENCE_SECONDS = 60.0
_PROGRAMS = Path(sys.executable).parent
QUIT = b"quit"
"""The last word of the first screen."""


@dataclass(frozen=True)
class Result:
    """The cost of one view."""

    first: float
    """CPU seconds until the first screen was complete."""
    percent: float
    """Of a core, afterwards."""


class View:
    """A program on a terminal of its own."""

    def __init__(self, words: Sequence[str], variables: Mapping[str, str]) -> None:
        self._pid, self._terminal = open_terminal(words, Path.cwd(), variables)

    def wait_for(self, text: bytes) -> float:
        """CPU seconds that it has used when the text has been written."""
        seen, deadline = b"", time.monotonic() + PATIENCE_SECONDS
        while text not in seen:
            if not select.select([self._terminal], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise Incomplete(f"the view showed {seen[-300:]!r} and not {text!r}")
            seen += os.read(self._terminal, 65536)
        return cpu_seconds([self._pid])

    def watch(self, seconds: float) -> float:
        """Its share of a core, in percent, while it is shown."""
        before, started = cpu_seconds([self._pid]), time.monotonic()
        while (left := started + seconds - time.monotonic()) > 0:
            if select.select([self._terminal], [], [], left)[0]:
                os.read(self._terminal, 65536)
        return 100 * (cpu_seconds([self._pid]) - before) / (time.monotonic() - started)

    def close(self) -> None:
        """End it."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._terminal)


def main() -> None:
    """Measure and print; raises Incomplete where a view did not show anything."""
    options = _options()
    with workshop(options.directory) as directory:
        found = dict(_results(directory, options))
    rows = [[name, f"{one.first:.2f}", f"{one.percent:.2f}"] for name, one in found.items()]
    print(f"\nthe view for {options.seconds:g} s")
    print(table(["what is shown", "first screen, s of CPU", "then % of a core"], rows))
    print("\nbars")
    print(bars_shown([bar for name, one in found.items() if name.startswith("stoker") for bar in _bars(name, one)]))


def _options() -> argparse.Namespace:
    options = parser(__doc__ or "")
    options.add_argument("--seconds", type=float, default=20.0, help="how long each is watched, default %(default)s")
    options.add_argument("--jobs", type=int, default=100_000, help="that wait in a long queue, default %(default)s")
    return options.parse_args()


def _results(directory: Path, options: argparse.Namespace) -> Iterator[tuple[str, Result]]:
    for name, jobs in (("no jobs", 0), ("4 running", 4), (f"4 running, {options.jobs:,} waiting", 4 + options.jobs)):
        with stoker(directory / f"queue{jobs}", sim="4x24G") as server:
            commands = [Command(("sleep", "600"))] * jobs
            if commands:
                submit_all(server.paths, commands, server.environment, str(server.directory))
                time.sleep(3.0)  # the engine reads and plans them first
            words = [str(_PROGRAMS / "stoker"), "top", "--sim"]
            yield f"stoker top, {name}", _measured(words, server.environment, options.seconds)
            _stop_jobs(server)
    if standin.compiler_is_here():
        variables = {**os.environ, **standin.gpus(directory / "nvml")}
        yield (
            "nvitop, 4 GPUs of the stand-in",
            _measured([str(_PROGRAMS / "nvitop"), "-m", "full"], variables, options.seconds, b"GPU"),
        )


def _stop_jobs(server: StokerServer) -> None:
    """Let the directory be removed: jobs hold files in it."""
    program = str(_PROGRAMS / "stoker")
    spend([program, "pause", "--queue", "--sim"], server.directory, server.environment)
    spend(
        [program, "cancel", "--sim", "--state", "running,starting", "--grace", "0"],
        server.directory,
        server.environment,
    )


def _measured(words: Sequence[str], variables: Mapping[str, str], seconds: float, mark: bytes = QUIT) -> Result:
    with contextlib.closing(View(words, variables)) as view:
        first = view.wait_for(mark)
        view.watch(min(2.0, seconds))  # the rest of the first screen
        return Result(first, view.watch(seconds))


def _bars(name: str, one: Result) -> list[Bar]:
    return [
        Bar(f"{name}, first screen, s of CPU", one.first, FIRST_SCREEN_SECONDS, at_most=True),
        Bar(f"{name}, % of a core", one.percent, IDLE_PERCENT, at_most=True),
    ]


if __name__ == "__main__":
    sys.exit(exit_code(main))
