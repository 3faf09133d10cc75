"""How long a slot stands idle between the end of one command and the start of the next."""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from programs import Program
from rounds import MARKS, take

SECONDS = 0.2
"""Seconds of each command: long enough that no program is busy all the time, short enough for many of them."""


def compiler() -> str | None:
    """A C compiler; a shell or Python would cost more than the gap to measure."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build_stamp(compiler: str, directory: Path) -> Path:
    """The program that records its slot, its start and its end."""
    source = Path(__file__).with_name("stamp.c")
    program = directory / "stamp"
    subprocess.run([compiler, "-O2", "-static", "-o", program, source], check=True)
    return program


def measure(program: Program, stamp: Path, jobs: int, directory: Path) -> list[float]:
    """The seconds of every gap on every slot."""
    command = f"exec {stamp} {SECONDS} {MARKS} {program.slot}"
    take(program, [command] * jobs, directory)
    return gaps_of((directory / MARKS).read_text())


def gaps_of(stamps: str) -> list[float]:
    """The gaps between lines of slot, start and end."""
    times: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in stamps.splitlines():
        slot, start, end = line.split()
        times[slot].append((float(start), float(end)))
    return [after[0] - before[1] for slot in times.values() for before, after in pairwise(sorted(slot))]


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of them lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
