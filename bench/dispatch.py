"""Measure Stoker beside other programs: commands a second, and idle time of a slot between two commands."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import gaps
from bars import bar_table, gap_table, rate_table
from machine import parser, say, workshop
from programs import PROGRAMS, SLOTS, Program, install
from rounds import NO_OP, Incomplete, interleaved, take

WARM_UP = 20
"""Commands of the first run of each program, which only shows whether it works."""


def main() -> int:
    """Measure and print; returns 1 where a program failed."""
    options = _options()
    with workshop(options.directory) as directory:
        programs = [program for program in _chosen(options.only) if _works(program, directory / program.name)]
        board = Board(programs, options.rounds, directory)
        rates = board.fill("rate", lambda program, place: _rate(program, options.jobs, place))
        print(f"\n{options.jobs:,} no-op commands on {SLOTS} slots, median of {options.rounds} rounds")
        print(rate_table(rates))
        idle = _measure_gaps(board, options.gap_jobs, directory)
        print("\nbars")
        print(bar_table(rates, idle))
    return 1 if board.spoilt else 0


class Board:
    """Programs that have not failed; one that fails a run is reported and left out."""

    def __init__(self, programs: Sequence[Program], rounds: int, directory: Path) -> None:
        self.programs = list(programs)
        self.spoilt = False
        self._rounds = rounds
        self._directory = directory

    def fill(self, what: str, measure: Callable[[Program, Path], list[float]]) -> dict[str, list[float]]:
        """Measure every program in every round."""
        found: dict[str, list[float]] = defaultdict(list)
        for number, program in interleaved(self.programs, self._rounds):
            if program not in self.programs or (program.most and number):
                continue
            say(f"{what}: round {number + 1} of {self._rounds}, {program.name}")
            try:
                found[program.name] += measure(program, self._directory / f"{what} {number} {program.name}")
            except Incomplete as error:
                self._drop(program, error)
        return {program.name: found[program.name] for program in self.programs}

    def _drop(self, program: Program, error: Incomplete) -> None:
        say(f"{program.name} {error}: it is left out")
        self.programs.remove(program)
        self.spoilt = True


def _options() -> argparse.Namespace:
    options = parser(__doc__ or "")
    options.add_argument("--rounds", type=int, default=5, help="default %(default)s")
    options.add_argument("--jobs", type=int, default=2000, help="no-op commands in a run, default %(default)s")
    options.add_argument("--gap-jobs", type=int, default=100, help="commands of 0.2 s in a run, default %(default)s")
    options.add_argument("--only", action="append", metavar="NAME", help="measure only this program (repeatable)")
    return options.parse_args()


def _chosen(names: Sequence[str] | None) -> list[Program]:
    unknown = set(names or ()).difference(program.name for program in PROGRAMS)
    if unknown:
        raise SystemExit(f"no program {', '.join(unknown)}; there are {', '.join(one.name for one in PROGRAMS)}")
    return [program for program in PROGRAMS if not names or program.name in names]


def _works(program: Program, directory: Path) -> bool:
    install(program)
    if not program.installed:
        say(f"{program.name} is left out, it is not here: {program.hint}")
        return False
    try:
        take(program, [NO_OP] * (1 if program.most else WARM_UP), directory)
    except Incomplete as error:
        say(f"{program.name} is left out, it does not work here: {error}")
        return False
    return True


def _rate(program: Program, jobs: int, directory: Path) -> list[float]:
    wanted = _as_many(program, jobs)
    return [wanted / take(program, [NO_OP] * wanted, directory)]


def _as_many(program: Program, jobs: int) -> int:
    return min(jobs, program.most) if program.most else jobs


def _measure_gaps(board: Board, jobs: int, directory: Path) -> dict[str, list[float]]:
    compiler = gaps.compiler()
    if compiler is None or not jobs:
        say("gaps are left out" if compiler else "gaps are left out, there is no C compiler: install gcc")
        return {}
    stamp = gaps.build_stamp(compiler, directory)
    board.programs = [program for program in board.programs if program.slot]
    found = board.fill("gap", lambda program, place: gaps.measure(program, stamp, _as_many(program, jobs), place))
    print(f"\ngap between an end and the next start on a slot, commands of {gaps.SECONDS} s, {jobs} in a round")
    print(gap_table(found))
    return found


if __name__ == "__main__":
    sys.exit(main())
