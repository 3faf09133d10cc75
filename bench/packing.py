"""Replay slices of a real trace, and compare Stoker with simpler policies and with references that know all.

The first half of the trace, by time, is for tuning; the figures that count are those of the second half. Each slice is
replayed by every policy, and ratios are those of one slice. Intervals are bootstrapped over the slices.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import mean, median

from msgspec.structs import replace

from bars import Bar, bars_shown, table
from machine import parser, say
from stoker.core.errors import UsageError
from stoker.core.units import device_sizes
from stoker.features.simulate.policies import (
    GIVING_WAY,
    REFERENCES,
    RULES,
    Variant,
    by_pairs,
    shortest_remaining_first,
)
from stoker.features.simulate.replay import replay, virtual_devices
from stoker.features.simulate.report import ReplayFigures, figures
from stoker.features.simulate.trace import read_models, read_trace
from stoker.features.simulate.workload import (
    REPEATS,
    SPREAD,
    Models,
    TraceJob,
    Work,
    capped,
    draw,
    extract,
    paced,
    with_sessions,
)

TRACE, MODELS = "philly.csv", "gavel_throughputs.json"
SOURCES = (
    "jobs: Microsoft's Philly traces (msr-fiddle/philly-traces, CC-BY-4.0); models and speeds of pairs: Gavel "
    "(stanford-futuredata/gavel, MIT); peaks: CARMA; the rest as docs/simulate.md says"
)
LONGEST = 2 * 86400.0
HALVES = ("test", "tuning", "whole")
"""`whole` draws slices from all of the trace, as older versions of this benchmark did."""
WANTED = {
    ("test", "stoker"): (4.5, 1.5),
    ("test", "stoker-auto"): (7.0, 2.2),
    ("whole", "stoker"): (3.7, 1.6),
    ("whole", "stoker-auto"): (4.8, 2.0),
}
"""At load 0.9, by half and policy: how many times the mean completion of fifo and of first-fit."""
GIVING = {
    variant.name: replace(RULES[variant.policy], preemptible=variant.preemptible)
    for variant in (Variant(policy, share) for policy in GIVING_WAY for share in (0.25, 0.5, 1.0))
}
"""Stoker with a share of the jobs that save their state and give way, 60 s a side."""
PLAYED = {**RULES, **GIVING}
GAINS = {"stoker+50%": 1.2, "stoker+100%": 1.4}
"""On the test half at load 0.9: mean completion without jobs that give way, as a multiple of that with them."""
PLAIN = ("stoker", "stoker-auto", "age", "age-auto", "first-fit", "fifo")
"""Policies of the sensitivity table."""
DRAWS = 2000
Results = Mapping[str, Sequence[ReplayFigures]]


@dataclass(frozen=True)
class Setting:
    """How slices are drawn and replayed."""

    name: str
    rho: float = 0.9
    repeats: float = REPEATS
    spread: float = SPREAD
    wide: float = 1.0
    """How often wide jobs come beside narrow ones, as a multiple of the trace."""
    slicing: bool = False
    sessions: float = 0.0
    """Sessions per day that are added."""


SESSIONS = 4.0
SENSITIVITY = (
    *(Setting(f"load {rho}", rho=rho) for rho in (0.5, 0.7, 0.9, 1.0, 1.1)),
    *(Setting(f"{share:.0%} of the jobs repeat a kind", repeats=share) for share in (0.0, 0.5)),
    *(Setting(f"run times within a kind spread by e^{spread}", spread=spread) for spread in (0.5, 1.5)),
    *(Setting(f"{factor:g} times as many wide jobs", wide=factor) for factor in (0.0, 0.5, 2.0)),
    Setting("time slicing on shared GPUs", slicing=True),
)


def main() -> int:
    """Measure and print; 1 where a job was lost."""
    options = _options()
    try:
        rows = [row for row in read_trace(options.traces / TRACE) if row.gpus <= len(device_sizes(options.gpus))]
        models = read_models(options.traces / MODELS)
    except UsageError as error:
        say(f"{error.message}: left out; --traces names the directory that has {TRACE} and {MODELS}")
        return 0
    print(f"{options.slices} slices of {options.jobs:,} jobs of the {options.half} half, {options.gpus}\n{SOURCES}")
    slices = Slices(_half(rows, options.half), models, options)
    lost = 0
    for rho in options.rho or (0.9,):
        results = slices.replayed(Setting(f"load {rho}", rho=rho), (*PLAYED, *REFERENCES))
        _print(rho, results, options.half)
        lost += sum(one.lost for policy in PLAYED for one in results[policy])
    if 0.9 in (options.rho or (0.9,)):
        _print_sessions(slices)
    if options.sensitivity:
        _print_sensitivity(slices)
    return 1 if lost else 0


def _options() -> argparse.Namespace:
    options = parser(__doc__ or "")
    beside = Path(__file__).parents[2] / "shared" / "traces"
    options.add_argument("--traces", type=Path, default=beside, help=f"directory with {TRACE} and {MODELS}")
    options.add_argument("--gpus", default="8x40G", help="the machine, default %(default)s")
    options.add_argument("--half", choices=HALVES, default=HALVES[0], help="of the trace by time, default %(default)s")
    options.add_argument("--slices", type=int, default=15, help="default %(default)s")
    options.add_argument("--jobs", type=int, default=1000, help="jobs of each slice, default %(default)s")
    options.add_argument("--rho", type=float, action="append", help="offered load; default 0.9")
    options.add_argument("--seed", type=int, default=0, help="of the first slice, default %(default)s")
    options.add_argument(
        "--sensitivity", action="store_true", help="also vary loads, kinds, wide jobs and interference"
    )
    return options.parse_args()


def _half(rows: Sequence[TraceJob], half: str) -> Sequence[TraceJob]:
    rows = sorted(rows, key=lambda row: row.arrival)
    middle = len(rows) // 2
    return {"tuning": rows[:middle], "test": rows[middle:], "whole": rows}[half]


class Slices:
    """Draws slices of a trace and replays them."""

    def __init__(self, rows: Sequence[TraceJob], models: Models, options: argparse.Namespace) -> None:
        self._rows = rows
        self._models = models
        self._seeds = range(options.seed, options.seed + options.slices)
        self._jobs = options.jobs
        self._sizes = device_sizes(options.gpus)

    def replayed(self, setting: Setting, policies: Sequence[str]) -> Results:
        """The figures of each policy, slice by slice."""
        results: dict[str, list[ReplayFigures]] = {policy: [] for policy in policies}
        for seed in self._seeds:
            works = self._drawn(setting, seed)
            for policy, found in results.items():
                started = time.process_time()
                found.append(self._replay(policy, works, setting))
                hours, seconds = found[-1].completion_mean / 3600, time.process_time() - started
                say(f"{setting.name}, slice {seed}, {policy}: {hours:.1f} h ({seconds:.1f} s of CPU)")
        return results

    def _drawn(self, setting: Setting, seed: int) -> list[Work]:
        random = Random(seed)
        first = random.randrange(max(1, len(self._rows) - self._jobs))
        rows = capped(extract(self._rows, first, self._jobs), LONGEST)
        if setting.wide != 1.0:
            rows = extract([row for row in rows if random.random() < self._chance(row, setting.wide)])
        rows, largest = paced(rows, len(self._sizes), setting.rho), min(self._sizes)
        rows = with_sessions(rows, setting.sessions, random)
        return draw(rows, self._models, largest, random, repeats=setting.repeats, spread=setting.spread)

    def _chance(self, row: TraceJob, factor: float) -> float:
        """How likely a job stays where wide ones are to come `factor` times as often beside the others."""
        is_wide = row.gpus > 1 and 2 * row.gpus >= len(self._sizes)
        return factor if is_wide else 1 / max(1.0, factor)

    def _replay(self, policy: str, works: Sequence[Work], setting: Setting) -> ReplayFigures:
        if policy in REFERENCES:
            return figures(shortest_remaining_first(works, len(self._sizes), REFERENCES[policy]))
        speeds = time_sliced if setting.slicing else by_pairs(self._models.pairs)
        return figures(replay(works, virtual_devices(self._sizes), PLAYED[policy], speeds))


def time_sliced(work: Work, members: Sequence[Work]) -> float:
    """The speed where a GPU does no more than 95 % of what it does for one job, as without MPS at worst."""
    total = sum(member.load for member in members)
    return min(1.0, 95 / max(95, total))


def _print(rho: float, results: Results, half: str) -> None:
    means = {policy: mean(one.completion_mean for one in found) / 3600 for policy, found in results.items()}
    print(f"\noffered load {rho}: hours, means over the slices; slowdown and wait of wide jobs")
    head = ["policy", "mean", "p95", "p99", "slowdown", "p99", "max", "wide wait", "max", "util %", "packed %", "oom"]
    head += ["short wait, min", "switches", "most"]
    print(table([*head, "lost"], [[policy, *_cells(found)] for policy, found in results.items()]))
    print("\nmean completion of others / ours: of the means, median of the slices (95 % of the bootstrapped means)")
    ours = [policy for policy in results if policy.startswith(("stoker", "age", "shortest"))]
    others = ["fifo", "first-fit", "packing", "easy", "stoker"]
    rows = [[policy, *(_ratio_cell(results, other, policy) for other in others)] for policy in ours]
    print(table(["policy", *others], rows))
    if rho == 0.9:
        print("\nbars\n" + bars_shown(list(_bars(results, means, half))))


def _cells(found: Sequence[ReplayFigures]) -> list[str]:
    hours = [
        lambda one: one.completion_mean,
        lambda one: one.completion_p95,
        lambda one: one.completion_p99,
    ]
    wide: list[Callable[[ReplayFigures], float]] = [lambda one: one.wide_wait_mean, lambda one: one.wide_wait_max]
    slow: list[Callable[[ReplayFigures], float]] = [
        lambda one: one.slowdown_mean,
        lambda one: one.slowdown_p99,
        lambda one: one.slowdown_max,
    ]
    shares: list[Callable[[ReplayFigures], float]] = [lambda one: one.utilisation, lambda one: one.packed]
    return [
        *(f"{mean(map(get, found)) / 3600:.1f}" for get in hours),
        *(f"{mean(map(get, found)):.0f}" for get in slow),
        *(f"{mean(map(get, found)) / 3600:.0f}" for get in wide),
        *(f"{100 * mean(map(get, found)):.0f}" for get in shares),
        f"{sum(one.out_of_memory for one in found)}",
        f"{mean(one.short_wait_median for one in found) / 60:.1f}",
        f"{mean(one.switches for one in found):.2f}",
        f"{max(one.most_switches for one in found)}",
        f"{sum(one.lost for one in found)}",
    ]


def _ratio_cell(results: Results, other: str, ours: str) -> str:
    pairs = [
        (theirs.completion_mean, mine.completion_mean)
        for theirs, mine in zip(results[other], results[ours], strict=True)
    ]
    random = Random(0)
    drawn = sorted(_ratio(random.choices(pairs, k=len(pairs))) for _ in range(DRAWS))
    low, high = drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS)]
    return f"{_ratio(pairs):.2f}, {median(theirs / mine for theirs, mine in pairs):.2f} ({low:.2f} to {high:.2f})"


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(theirs for theirs, _ in pairs) / sum(mine for _, mine in pairs)


def _bars(results: Results, means: Mapping[str, float], half: str) -> Iterator[Bar]:
    for ours, by_age in (("stoker", "age"), ("stoker-auto", "age-auto")):
        fifo, first_fit = WANTED.get((half, ours), (0.0, 0.0))
        yield Bar(f"{ours}: mean completion, fifo / ours", means["fifo"] / means[ours], fifo)
        yield Bar(f"{ours}: mean completion, first-fit / ours", means["first-fit"] / means[ours], first_fit)
        slow = [mean(one.slowdown_p99 for one in results[policy]) for policy in (ours, by_age)]
        yield Bar(f"{ours}: p99 slowdown, ours / {by_age}", slow[0] / slow[1], 1.0, at_most=True)
        yield Bar(f"{ours}: jobs lost", sum(one.lost for one in results[ours]), 0, at_most=True)
    for giving, gain in GAINS.items() if half == "test" else ():
        yield Bar(f"{giving}: mean completion, stoker / ours", means["stoker"] / means[giving], gain)
        slow = [mean(one.slowdown_p99 for one in results[policy]) for policy in (giving, "stoker")]
        yield Bar(f"{giving}: p99 slowdown, ours / stoker", slow[0] / slow[1], 1.0, at_most=True)
        yield Bar(
            f"{giving}: most preemptions of one job", max(one.most_switches for one in results[giving]), 4, at_most=True
        )


def _print_sessions(slices: Slices) -> None:
    """How long sessions wait, and what they cost the jobs."""
    print(f"\n{SESSIONS:g} sessions of an hour a day, load 0.9: minutes that sessions wait, hours until jobs end")
    results = slices.replayed(Setting("with sessions", sessions=SESSIONS), ("stoker", *GAINS))
    rows = []
    for policy, found in results.items():
        waits = [one.session_wait_median / 60 for one in found]
        figures_of = f"{median(waits):.1f}", f"{mean(waits):.1f}", f"{sum(wait <= 2 for wait in waits)} of {len(waits)}"
        rows.append([policy, *figures_of, f"{mean(one.completion_mean for one in found) / 3600:.1f}"])
    print(table(["policy", "median of the medians", "their mean", "up to 2 min in", "mean of jobs, h"], rows))
    for giving in GAINS:
        wait = median(one.session_wait_median for one in results[giving]) / 60
        print(bars_shown([Bar(f"{giving}: median wait of sessions, min", wait, 2.0, at_most=True)]))


def _print_sensitivity(slices: Slices) -> None:
    print("\nsensitivity: mean completion in hours; fifo / ours and first-fit / ours; p99 slowdown, ours / age")
    rows = []
    for setting in SENSITIVITY:
        results = slices.replayed(setting, PLAIN)
        means = {policy: mean(one.completion_mean for one in found) / 3600 for policy, found in results.items()}
        slow = {policy: mean(one.slowdown_p99 for one in found) for policy, found in results.items()}
        cells = [setting.name, *(f"{means[policy]:.1f}" for policy in PLAIN)]
        for ours, by_age in (("stoker", "age"), ("stoker-auto", "age-auto")):
            ratios = f"{means['fifo'] / means[ours]:.1f}x {means['first-fit'] / means[ours]:.1f}x"
            cells += [ratios, f"{slow[ours] / slow[by_age]:.2f}"]
        rows.append(cells)
    print(table(["setting", *PLAIN, "stoker", "p99", "stoker-auto", "p99"], rows))


if __name__ == "__main__":
    sys.exit(main())
