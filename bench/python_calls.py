"""Measure an empty Python function call beside loky, submitit, Ray and dask, on four slots."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bars import table
from machine import milliseconds, queue_parser, say, workshop
from programs import COMPETITORS, HERE, SLOTS, Program, environment, install

PATIENCE_SECONDS = 600.0
THEIRS = str(COMPETITORS / "bin" / "python")


@dataclass(frozen=True)
class Library:
    """A way to call functions elsewhere."""

    name: str
    way: str
    """The function of run_calls.py."""
    fresh: bool
    """Whether each call has a process of its own."""
    package: str = ""

    @property
    def program(self) -> Program:
        """The program to install and run."""
        python = THEIRS if self.package else sys.executable
        return Program(self.name, (python, str(HERE / "run_calls.py"), self.way), package=self.package)


LIBRARIES = (
    Library("stoker.Executor.submit", "stoker_executor", fresh=True),
    Library("stoker.Executor.map", "stoker_array", fresh=True),
    Library("stoker, warm=True", "stoker_warm", fresh=True),
    Library("loky", "loky", fresh=False, package="joblib==1.6.0"),
    Library("submitit, local", "submitit", fresh=True, package="submitit==1.5.4"),
    Library("Ray, num_gpus=1", "ray", fresh=True, package="ray==2.60.0"),
    Library("Ray, max_calls=0", "ray_kept", fresh=False, package="ray==2.60.0"),
    Library("dask", "dask", fresh=False, package="distributed==2026.8.0"),
)


@dataclass(frozen=True)
class Taken:
    """Seconds of one round."""

    single: Sequence[float]
    together: float


Rounds = Mapping[str, Sequence[Taken]]


def main() -> int:
    """Measure and print; 1 where our own calls failed."""
    options = _options()
    libraries = [library for library in LIBRARIES if not (options.alone and library.package)]
    for library in libraries:
        install(library.program)
    found: dict[str, list[Taken]] = defaultdict(list)
    with workshop(options.directory) as directory:
        for number in range(options.rounds):
            for library in list(libraries):
                say(f"round {number + 1} of {options.rounds}: {library.name}")
                place = directory / f"{number}{library.way}"
                taken = _take(library, place, options)
                if taken is None:
                    libraries.remove(library)
                else:
                    found[library.name].append(taken)
        _print(found, options.calls)
    return 0 if {library.name for library in LIBRARIES if not library.package} <= set(found) else 1


def _options() -> argparse.Namespace:
    options = queue_parser(__doc__ or "")
    options.add_argument("--rounds", type=int, default=3, help="default %(default)s")
    options.add_argument("--singles", type=int, default=20, help="calls one by one, default %(default)s")
    options.add_argument("--calls", type=int, default=200, help="calls at once, default %(default)s")
    return options.parse_args()


def _take(library: Library, place: Path, options: argparse.Namespace) -> Taken | None:
    """One round of one library; None, after a message, where it fails."""
    place.mkdir()
    words = [*library.program.words, str(place), str(options.singles), str(options.calls)]
    variables = {**environment(place), "STOKER_DEVICES": ",".join(map(str, range(SLOTS))), "STOKER_IDLE_EXIT": "2s"}
    with (place / "errors").open("w+") as errors:
        try:
            done = subprocess.run(
                words,
                cwd=place,
                env=variables,
                stdout=subprocess.PIPE,
                stderr=errors,
                check=True,
                timeout=PATIENCE_SECONDS,
            )
        except (OSError, subprocess.SubprocessError) as error:
            errors.seek(0)
            say(f"{library.name} is left out: {error}\n{errors.read()[-2000:]}")
            return None
        finally:
            _stop_engine(library, variables)
    return Taken(**json.loads(done.stdout.splitlines()[-1]))


def _stop_engine(library: Library, variables: Mapping[str, str]) -> None:
    if not library.package:
        words = [sys.executable, "-m", "stoker", "engine", "stop"]
        subprocess.run(words, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def _print(found: Rounds, calls: int) -> None:
    ours = LIBRARIES[0].name
    rows = []
    for library in LIBRARIES:
        if rounds := found.get(library.name):
            singles = [seconds for taken in rounds for seconds in taken.single]
            each = [taken.together / calls for taken in rounds]
            ratio = median(taken.together / our.together for taken, our in zip(rounds, found[ours], strict=False))
            process = "its own" if library.fresh else "shared"
            rows.append([library.name, process, *milliseconds([median(singles), median(each)]), f"{ratio:.2f}"])
    print(f"\na call of a function that does nothing, {SLOTS} slots; at once: {calls} calls, median of the rounds")
    print(table(["library", "process", "alone, ms", "each of many, ms", f"x {ours}"], rows))


if __name__ == "__main__":
    sys.exit(main())
