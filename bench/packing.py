"""Replay slices of a real trace, and compare the mean completion time with that of simpler policies."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import mean

from bars import Bar, bars_shown, table
from machine import parser, say
from stoker.core.errors import UsageError
from stoker.core.units import device_sizes
from stoker.simulation.machine import replay, virtual_devices
from stoker.simulation.policies import BOUND, RULES, SENTENCES, best_possible, by_pairs
from stoker.simulation.replay import Figures, figures
from stoker.simulation.trace import read_models, read_trace
from stoker.simulation.workload import Models, Row, Work, capped, draw, extract, paced

TRACE, MODELS = "philly.csv", "gavel_throughputs.json"
SOURCES = (
    "jobs: Microsoft's Philly traces (msr-fiddle/philly-traces, CC-BY-4.0); models and speeds of pairs: Gavel "
    "(stanford-futuredata/gavel, MIT); peaks: CARMA; the rest as docs/simulate.md says"
)
LONGEST = 2 * 86400.0
RHOS = (0.9, 0.7)
BETTER_THAN_FIFO, BETTER_THAN_FIRST_FIT = 4.0, 1.4
OURS = ("stoker", "shortest")
BLOCKS = 40
Results = Mapping[str, Sequence[Figures]]


def main() -> int:
    """Measure and print; 1 where a job was lost."""
    options = _options()
    try:
        rows = [row for row in read_trace(options.traces / TRACE) if row.gpus <= len(device_sizes(options.gpus))]
        models = read_models(options.traces / MODELS)
    except UsageError as error:
        say(f"{error.message}: left out; --traces names the directory that has {TRACE} and {MODELS}")
        return 0
    print(f"{options.slices} slices of {options.jobs:,} jobs on {options.gpus}\n{SOURCES}")
    lost = 0
    for rho in options.rho or RHOS:
        results = _measure(rows, models, rho, options)
        _print(rho, results)
        lost += sum(one.lost for policy in OURS for one in results[policy])
    return 1 if lost else 0


def _options() -> argparse.Namespace:
    options = parser(__doc__ or "")
    beside = Path(__file__).parents[2] / "shared" / "traces"
    options.add_argument("--traces", type=Path, default=beside, help=f"directory with {TRACE} and {MODELS}")
    options.add_argument("--gpus", default="8x40G", help="the machine, default %(default)s")
    options.add_argument("--slices", type=int, default=5, help="default %(default)s")
    options.add_argument("--jobs", type=int, default=1000, help="jobs of each slice, default %(default)s")
    options.add_argument("--rho", type=float, action="append", help="offered load; default 0.9, then 0.7")
    options.add_argument("--seed", type=int, default=0, help="of the first slice, default %(default)s")
    return options.parse_args()


def _measure(rows: Sequence[Row], models: Models, rho: float, options: argparse.Namespace) -> Results:
    sizes = device_sizes(options.gpus)
    results: dict[str, list[Figures]] = {policy: [] for policy in (*RULES, BOUND)}
    for seed in range(options.seed, options.seed + options.slices):
        random = Random(seed)
        first = random.randrange(max(1, len(rows) - options.jobs))
        chosen = paced(capped(extract(rows, first, options.jobs), LONGEST), len(sizes), rho)
        works = draw(chosen, models, min(sizes), random)
        for policy, found in results.items():
            started = time.process_time()
            found.append(_replayed(policy, works, sizes, models))
            seconds = time.process_time() - started
            say(
                f"load {rho}, slice {seed}, {policy}: {found[-1].completion_mean / 3600:.1f} h ({seconds:.1f} s of CPU)"
            )
    return results


def _replayed(policy: str, works: Sequence[Work], sizes: Sequence[int], models: Models) -> Figures:
    if policy == BOUND:
        return figures(best_possible(works, len(sizes)))
    return figures(replay(works, virtual_devices(sizes), RULES[policy], by_pairs(models.pairs)))


def _print(rho: float, results: Results) -> None:
    means = {policy: mean(one.completion_mean for one in found) / 3600 for policy, found in results.items()}
    print(f"\noffered load {rho}: hours, means over the slices")
    head = ["policy", "mean", "x fifo", "95 %", "wait", "makespan", "util %", "packed %", "oom", "lost"]
    print(table(head, [[policy, *_cells(found, means["fifo"] / means[policy])] for policy, found in results.items()]))
    longest = max(means.values())
    for policy, hours in means.items():
        print(f"{policy:>10} {'█' * max(1, round(BLOCKS * hours / longest))} {hours:.1f}")
    print(f"\n{BOUND}: {SENTENCES[BOUND]}\n\nbars")
    print(bars_shown(_bars(results, means)))


def _cells(found: Sequence[Figures], ratio: float) -> list[str]:
    hours = [[one.completion_mean, one.completion_p95, one.wait_mean, one.makespan] for one in found]
    average, late, wait, makespan = (f"{mean(column) / 3600:.1f}" for column in zip(*hours, strict=True))
    shares = [
        f"{100 * mean(values):.0f}" for values in zip(*((one.utilisation, one.packed) for one in found), strict=True)
    ]
    counts = [f"{sum(one.out_of_memory for one in found)}", f"{sum(one.lost for one in found)}"]
    return [average, f"{ratio:.2f}", late, wait, makespan, *shares, *counts]


def _bars(results: Results, means: Mapping[str, float]) -> list[Bar]:
    """The bars show what Stoker can do; the text beside them, whether that is the default."""
    bars = []
    for ours in reversed(OURS):
        bars.append(Bar(f"{ours}: mean completion, fifo / ours", means["fifo"] / means[ours], BETTER_THAN_FIFO))
        ratio = means["first-fit"] / means[ours]
        bars.append(Bar(f"{ours}: mean completion, first-fit / ours", ratio, BETTER_THAN_FIRST_FIT))
        bars.append(Bar(f"{ours}: jobs lost", sum(one.lost for one in results[ours]), 0, at_most=True))
    return bars


if __name__ == "__main__":
    sys.exit(main())
