"""Measures what people and programs do all the time: importing the package, and pressing Tab for the ids of jobs."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from bars import Bar, bars_shown
from cost import FLOORS, spend
from machine import exit_code, parser, workshop
from programs import environment
from rounds import Incomplete

IMPORT_MILLISECONDS = 2.0
IDS_MILLISECONDS = 100.0
"""Of processor, over what an empty Python takes."""
_IMPORT = "import time; t = time.process_time(); import stoker; stoker.report; print(time.process_time() - t)"
_PROGRAM = Path(sys.executable).parent / "stoker"


def main() -> None:
    """Measure and print; raises Incomplete where a program did not do its work."""
    options = _options()
    with workshop(options.directory) as directory:
        variables = environment(directory)
        imported = min(_import_seconds(directory, variables) for _ in range(options.rounds))
        ids = _ids_seconds(directory, variables, options.jobs, options.rounds)
        bars = [
            Bar("import stoker; stoker.report, ms of CPU", 1000 * imported, IMPORT_MILLISECONDS, at_most=True),
            Bar(f"ids of {options.jobs:,} jobs at Tab, ms of CPU", 1000 * ids, IDS_MILLISECONDS, at_most=True),
        ]
        print(f"\n{bars_shown(bars)}")


def _options() -> argparse.Namespace:
    options = parser(__doc__ or "")
    options.add_argument("--jobs", type=int, default=1000, help="jobs in the queue, default %(default)s")
    options.add_argument("--rounds", type=int, default=10, help="of which the best counts, default %(default)s")
    return options.parse_args()


def _import_seconds(directory: Path, variables: Mapping[str, str]) -> float:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT], cwd=directory, env=variables, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Incomplete(done.stderr)
    return float(done.stdout)


def _ids_seconds(directory: Path, variables: Mapping[str, str], jobs: int, rounds: int) -> float:
    """What the ids cost over an empty Python, in the same round."""
    (directory / "jobs.txt").write_text("true\n" * jobs)
    spend([_PROGRAM, "submit", "--hold", "-G", "0", "-f", "jobs.txt"], directory, variables)
    spend([_PROGRAM, "engine", "stop"], directory, variables)
    pressed = {"_STOKER_COMPLETE": "bash_complete", "COMP_WORDS": "stoker cancel 9", "COMP_CWORD": "2"}
    nothing = next(iter(FLOORS.values()))
    return min(
        spend([_PROGRAM], directory, {**variables, **pressed}).cpu - spend(nothing, directory, variables).cpu
        for _ in range(rounds)
    )


if __name__ == "__main__":
    sys.exit(exit_code(main))
