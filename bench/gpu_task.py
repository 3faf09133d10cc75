"""Measures GPUTaskScheduler, ours and the original, with a task that does nothing, beside bare Python processes."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bars import Bar, bars_shown, ratio, table
from machine import parser, say, workshop
from programs import COMPETITORS, LIST, SLOTS, Program, install
from rounds import MARKS, Incomplete, interleaved, take

FLOOR = "xargs python"
ORIGINAL = "GPUTaskScheduler"
OURS = "stoker's GPUTaskScheduler"
BAR = 1.0
"""Ours must be at least as fast as the original."""
WARM_UP = 8

_MARK = f'with open({MARKS!r}, "a") as marks:\n{{indent}}    marks.write("\\n")\n'
_TASK = f"""\
from gpu_task_scheduler.gpu_task import GPUTask

class NoOp(GPUTask):
    def main(self):
        {_MARK.format(indent="        ")}"""
_SCRIPT = f"""\
import sys
from no_op import NoOp
from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler
with open({LIST!r}) as listed:
    instances = range(len(listed.readlines()))
gpus = [str(slot) for slot in range({SLOTS})]
config = {{"scheduler_config": {{"gpu": gpus}}, "test_config": [{{"instance": instances}}]}}
GPUTaskScheduler(config=config, gpu_task_class=NoOp).start()
"""


def main() -> int:
    """Measure and print; returns 1 where ours failed."""
    options = _options()
    with workshop(options.directory) as directory:
        files = _write(directory / "files")
        programs = [_floor(files), *_original(files, options.original), _ours(files)]
        rates = _measured(programs, options.rounds, options.jobs, directory)
    print(f"\n{options.jobs} instances of a task that does nothing, on {SLOTS} GPU entries\n")
    print(_table(rates))
    if ORIGINAL in rates and OURS in rates:
        print("\n" + bars_shown([Bar(f"rate, ours / {ORIGINAL}", ratio(rates, OURS, ORIGINAL), BAR)]))
    return 0 if rates[OURS] else 1


def _options() -> argparse.Namespace:
    options = parser(__doc__ or "")
    options.add_argument("--jobs", type=int, default=480, help="instances in a run, default %(default)s")
    options.add_argument("--rounds", type=int, default=3, help="runs of each, default %(default)s")
    options.add_argument("--original", metavar="DIR", help="a checkout of the original, which is not on PyPI")
    return options.parse_args()


def _write(directory: Path) -> Path:
    directory.mkdir()
    (directory / "no_op.py").write_text(_TASK)
    (directory / "script.py").write_text(_SCRIPT)
    (directory / "mark.py").write_text(_MARK.format(indent=""))
    return directory


def _floor(files: Path) -> Program:
    """The same number of bare Python processes."""
    return Program(FLOOR, ("xargs", "-n1", f"-P{SLOTS}", sys.executable, "-P", str(files / "mark.py")))


def _ours(files: Path) -> Program:
    return Program(OURS, (sys.executable, str(files / "script.py")))


def _original(files: Path, checkout: str | None) -> list[Program]:
    """The original from a checkout, in the competitors' environment; it needs a Python that still has `imp`."""
    if checkout is None:
        say(f"{ORIGINAL} is left out: it is not on PyPI; name a checkout of it with --original DIR")
        return []
    if sys.version_info >= (3, 12):
        say(f"{ORIGINAL} is left out: its tasks cannot start on Python 3.12 or later")
        return []
    for package in ("setuptools==80.9.0", "pathos==0.3.5"):
        install(Program(ORIGINAL, (), package=package))
    python = str(COMPETITORS / "bin" / "python")
    words = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", checkout]
    if subprocess.run(words, check=False).returncode:
        say(f"{ORIGINAL} is left out: pip could not install it, see above")
        return []
    path = f"{COMPETITORS / 'bin'}:{os.environ.get('PATH', os.defpath)}"  # its tasks are started by a name
    return [Program(ORIGINAL, ("env", f"PATH={path}", python, str(files / "script.py")))]


def _measured(programs: Sequence[Program], rounds: int, jobs: int, directory: Path) -> dict[str, list[float]]:
    """Instances a second by the name of the program; one that fails is left out."""
    rates: dict[str, list[float]] = defaultdict(list)
    able = [program for program in programs if _works(program, directory / f"warm up {program.name}")]
    for number, program in interleaved(able, rounds):
        seconds = take(program, ["no-op"] * jobs, directory / f"{number} {program.name}")
        say(f"round {number + 1}, {program.name}: {seconds:.2f} s")
        rates[program.name].append(jobs / seconds)
    return rates


def _works(program: Program, directory: Path) -> bool:
    try:
        take(program, ["no-op"] * WARM_UP, directory)
    except Incomplete as error:
        say(f"{program.name} is left out: it {error}")
        return False
    return True


def _table(rates: dict[str, list[float]]) -> str:
    rows = [
        [
            name,
            f"{median(values):,.1f}",
            f"{min(values):,.1f} to {max(values):,.1f}",
            f"{ratio(rates, name, FLOOR):.2f}",
        ]
        for name, values in rates.items()
    ]
    return table(["program", "instances/s", "rounds", f"x {FLOOR}"], rows)


if __name__ == "__main__":
    sys.exit(main())
