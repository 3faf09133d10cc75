"""Measures whether samples of GPUs slow down dispatch: with samples, with sixty times as many, and without."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bars import Bar, bars_shown, rate_table, ratio
from machine import exit_code, parser, workshop
from programs import Program
from rounds import NO_OP, interleaved, take

WITHOUT, WITH, MANY = "without samples", "with samples", "with a sample per second"
RATIO = 0.97
"""Least rate with samples, as a part of that without: what two equal programs differ by on a quiet machine."""
_CHANGES = {
    WITHOUT: "import stoker.engine.sampler as s; s.Sampler.note = lambda *_: []",
    WITH: "",
    MANY: "import stoker.engine.sampler as s; s.MINUTE = 1",
}
"""What is done to the engine before it runs."""
_RUN = "import sys; sys.argv[:] = ['stoker', 'run', '--sim', '8x24G', '--no-bar', '-j', '4', 'list']; import stoker.cli"


def main() -> None:
    """Measure and print; raises Incomplete where a run was incomplete."""
    options = _options()
    programs = [_program(name) for name in _CHANGES]
    rates: dict[str, list[float]] = {program.name: [] for program in programs}
    with workshop(options.directory) as directory:
        for number, program in interleaved(programs, options.rounds):
            rates[program.name].append(_rate(program, options.jobs, directory, number))
    print(f"\n{options.jobs:,} no-op commands in a round on simulated GPUs")
    print(rate_table(rates))
    print("\nbars")
    print(bars_shown([Bar(f"rate, {name} / {WITHOUT}", ratio(rates, name, WITHOUT), RATIO) for name in (WITH, MANY)]))


def _options() -> argparse.Namespace:
    options = parser(__doc__ or "")
    options.add_argument("--rounds", type=int, default=5, help="default %(default)s")
    options.add_argument("--jobs", type=int, default=2000, help="commands in a round, default %(default)s")
    return options.parse_args()


def _program(name: str) -> Program:
    program = "; ".join(filter(None, (_CHANGES[name], _RUN, "stoker.cli.main()")))
    return Program(name, (sys.executable, "-c", program))


def _rate(program: Program, jobs: int, directory: Path, number: int) -> float:
    return jobs / take(program, [NO_OP] * jobs, directory / f"{program.name.replace(' ', '-')}-{number}")


if __name__ == "__main__":
    sys.exit(exit_code(main))
