"""Measures a grid of a million points: printing its commands beside simple_hypersearch, and queueing it."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from bars import Bar, bars_shown
from cost import Cost, spend
from machine import exit_code, parser, say, workshop
from programs import COMPETITORS, OURS, SIMPLE_GPU_SCHEDULER, environment, install, program_named
from rounds import Incomplete

DIMENSIONS = 6
ORIGINAL = "simple_hypersearch 0.1.4"
OWN_TOOL = "stoker's simple_hypersearch"
DRY_RUN = "stoker sweep --dry-run"
QUEUED = "stoker sweep --yes (into the queue)"


def main() -> None:
    """Measure and print; raises Incomplete where a program did not do its work."""
    options = _options()
    with workshop(options.directory) as directory:
        variables = environment(directory)
        found: dict[tuple[str, str], list[Cost]] = {}
        for order in ("grid", "shuffled"):
            programs = _programs(order, options.values, alone=options.alone)
            _check_equal(programs, directory, variables)
            for place in range(options.rounds):
                for name, words in programs.items():
                    say(f"round {place + 1}, {order}: {name}")
                    found.setdefault((name, order), []).append(spend(words, directory, variables))
        if not options.no_queue:
            say("into the queue")
            found[QUEUED, "grid"] = [_queued(options.values, directory, variables)]
        _show(found, options.values**DIMENSIONS)


def _options() -> argparse.Namespace:
    options = parser(__doc__ or "")
    options.add_argument("--values", type=int, default=10, help="of each of six parameters, default %(default)s")
    options.add_argument("--rounds", type=int, default=3, help="of which the median counts, default %(default)s")
    options.add_argument("--alone", action="store_true", help="without the original simple_hypersearch")
    options.add_argument("--no-queue", action="store_true", help="print only, and queue nothing")
    return options.parse_args()


def _programs(order: str, count: int, *, alone: bool) -> dict[str, Sequence[str]]:
    """The command lines that print the same commands."""
    values = {f"p{place}": [str(value) for value in range(count)] for place in range(DIMENSIONS)}
    pattern = "train " + " ".join(f"--{name} {{{name}}}" for name in values)
    mode = ("--sampling-mode", "grid") if order == "grid" else ("--seed", "1")
    older = (pattern, *mode, *(word for name, given in values.items() for word in ("-p", name, *given)))
    ours = (*(f"{name}={','.join(given)}" for name, given in values.items()), "--method", order, "--seed", "1")
    found: dict[str, Sequence[str]] = {
        OWN_TOOL: (str(OURS / "simple_hypersearch"), *older),
        DRY_RUN: (str(OURS / "stoker"), "sweep", *ours, "--dry-run", "--", pattern),
    }
    if alone:
        return found
    install(program_named(SIMPLE_GPU_SCHEDULER))
    original = COMPETITORS / "bin" / "simple_hypersearch"
    if not shutil.which(original):
        say(f"{ORIGINAL} is left out: pip could not install it")
        return found
    return {ORIGINAL: (str(original), *older), **found}


def _check_equal(programs: Mapping[str, Sequence[str]], directory: Path, variables: Mapping[str, str]) -> None:
    """All programs print the same lines in the same order."""
    digests = {}
    for name, words in programs.items():
        digest = hashlib.sha256()
        with subprocess.Popen(words, cwd=directory, env=dict(variables), stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            while block := process.stdout.read(2**20):  # not all at once: a child begins with our memory
                digest.update(block)
        if process.returncode:
            raise Incomplete(f"{name} ended with {process.returncode}")
        digests[name] = digest.hexdigest()
    if len(set(digests.values())) > 1:
        raise Incomplete(f"they print different commands: {digests}")


def _queued(count: int, directory: Path, variables: Mapping[str, str]) -> Cost:
    specs = [f"p{place}={','.join(map(str, range(count)))}" for place in range(DIMENSIONS)]
    program = str(OURS / "stoker")
    cost = spend([program, "sweep", *specs, "--yes", "--hold", "-G", "0", "--", "train"], directory, variables)
    spend([program, "engine", "stop"], directory, variables)
    return cost


def _show(found: Mapping[tuple[str, str], Sequence[Cost]], points: int) -> None:
    print(f"\n{points:,} points\n\n| program | order | seconds | CPU s | memory MB |\n|---|---|---|---|---|")
    for (name, order), costs in found.items():
        cells = [median(getattr(cost, field) for cost in costs) for field in ("seconds", "cpu", "memory")]
        print(f"| {name} | {order} | {cells[0]:.2f} | {cells[1]:.2f} | {cells[2] / 2**20:.0f} |")
    bars = []
    for order in ("grid", "shuffled"):
        if (ORIGINAL, order) in found:
            pairs = list(zip(found[DRY_RUN, order], found[ORIGINAL, order], strict=True))
            times = median(ours.seconds / theirs.seconds for ours, theirs in pairs)
            memory = median(ours.memory / theirs.memory for ours, theirs in pairs)
            bars += [
                Bar(f"{DRY_RUN} / original, {order}: seconds", times, 1.0, at_most=True),
                Bar(f"{DRY_RUN} / original, {order}: memory", memory, 1.0, at_most=True),
            ]
    if bars:
        print(f"\n{bars_shown(bars)}")


if __name__ == "__main__":
    sys.exit(exit_code(main))
