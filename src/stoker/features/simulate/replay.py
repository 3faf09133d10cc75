"""From a trace to a report: choose jobs, replay them by each policy, and collect the figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from random import Random

from msgspec import Struct, structs

from stoker.core.errors import UsageError
from stoker.core.units import count_text, device_sizes, size_text
from stoker.features.simulate.machine import replay, virtual_devices
from stoker.features.simulate.policies import REFERENCES, RULES, by_pairs, shortest_remaining_first
from stoker.features.simulate.trace import read_models
from stoker.features.simulate.workload import (
    BUILT_IN,
    Models,
    ReplayOutcome,
    TraceJob,
    Work,
    capped,
    draw,
    extract,
    offered_load,
    paced,
)

SCHEMA = "stoker.simulate/1"
POLICIES = (*RULES, *REFERENCES)
MOST_GPUS = 1024
DEFAULT_GPUS = "8x40G"
FEW_JOBS = 20
"""Fewer jobs than this say little about an order."""
NO_WAIT = 1.0
"""Seconds of waiting on average that nobody notices."""

SHORT = 600.0
"""Seconds; a job that runs for less counts as this when its slowdown is computed."""


class ReplayFigures(Struct, frozen=True):
    """The figures by which a replay is judged; times in seconds, shares between 0 and 1."""

    jobs: int
    completion_mean: float
    completion_p95: float
    completion_p99: float
    wait_mean: float
    wide_wait_mean: float
    """Of jobs on several GPUs that need at least half of the machine."""
    wide_wait_max: float
    slowdown_mean: float
    """Of the time from arrival to end, divided by the run time or ten minutes, whichever is more."""
    slowdown_p99: float
    slowdown_max: float
    makespan: float
    utilisation: float
    """Share of the GPU-time in which a GPU had a job."""
    packed: float
    """Share of that in which it had more than one."""
    out_of_memory: int
    """Attempts that ended so; each of them ran again."""
    lost: int
    """Jobs that never came to their end."""


def figures(outcome: ReplayOutcome) -> ReplayFigures:
    ended = [life for life in outcome.lives if life.end is not None]
    completions = completion_times(outcome)
    waits = [life.start - life.arrival for life in ended if life.start is not None]
    wide = [
        life.start - life.arrival
        for life in ended
        if life.start is not None and life.gpus > 1 and 2 * life.gpus >= outcome.gpus
    ]
    slowdowns = sorted((life.end - life.arrival) / max(SHORT, life.seconds) for life in ended if life.end is not None)
    makespan = max((life.end for life in ended if life.end is not None), default=0.0)
    return ReplayFigures(
        jobs=len(outcome.lives),
        completion_mean=_mean(completions),
        completion_p95=percentile(completions, 0.95),
        completion_p99=percentile(completions, 0.99),
        wait_mean=_mean(waits),
        wide_wait_mean=_mean(wide),
        wide_wait_max=max(wide, default=0.0),
        slowdown_mean=_mean(slowdowns),
        slowdown_p99=percentile(slowdowns, 0.99),
        slowdown_max=max(slowdowns, default=0.0),
        makespan=makespan,
        utilisation=outcome.busy / (outcome.gpus * makespan) if makespan else 0.0,
        packed=outcome.shared / outcome.busy if outcome.busy else 0.0,
        out_of_memory=sum(life.shared_failures for life in outcome.lives),
        lost=len(outcome.lives) - len(ended),
    )


def completion_times(outcome: ReplayOutcome) -> list[float]:
    """Seconds from arrival to end of each job, the shortest first."""
    return sorted(life.end - life.arrival for life in outcome.lives if life.end is not None)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which this share of the sorted values lies."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


class ReplayOptions(Struct, frozen=True):
    """The jobs to replay, and how."""

    source: str
    """Where the jobs come from, for the report."""
    gpus: str = ""
    """The machine; empty is the one that the jobs had, as far as they tell."""
    first: int = 0
    count: int | None = None
    longest: float | None = None
    """Seconds to which durations are capped."""
    rho: float | None = None
    """The offered load as a share of the machine; None leaves arrivals as they are."""
    seed: int = 0
    models: Path | None = None
    oracle: bool = False


class ReplaySetup(Struct, frozen=True):
    """A machine, and the jobs that arrive at it."""

    gpus: str
    """The machine as a user would write it."""
    sizes: Sequence[int]
    """The bytes of each GPU."""
    works: Sequence[Work]
    models: Models
    offered: float
    notes: Sequence[str]
    """Which jobs were left out and what is assumed, in words."""


class PolicyResult(Struct, frozen=True):
    """One replay in figures."""

    policy: str
    figures: ReplayFigures
    plans: int


class Simulation(Struct, frozen=True):
    """The report for programs; times in seconds, shares between 0 and 1."""

    schema: str
    trace: str
    gpus: str
    jobs: int
    offered_load: float | None
    """None if all jobs arrive at once."""
    seed: int
    oracle: bool
    notes: Sequence[str]
    policies: Sequence[PolicyResult]
    summary: str = ""
    """The gain over strict FIFO in one sentence; empty if that or Stoker's order was not replayed."""


class SimulationReport(Struct, frozen=True):
    """The figures of all replays, and what the plots show."""

    figures: Simulation
    completions: Mapping[str, Sequence[float]]
    """Seconds from arrival to end of each job by each policy, the shortest first."""


def prepare(rows: Sequence[TraceJob], options: ReplayOptions) -> ReplaySetup:
    """Choose the jobs and draw what the trace does not say; refuse options that cannot be met."""
    if options.rho is not None and not options.rho > 0:  # nor nan, which no range keeps out
        raise UsageError(f"--rho {options.rho} is not a load", "write it as --rho 0.9")
    gpus = options.gpus or machine_of(rows)
    sizes = device_sizes(gpus)
    if len(sizes) > MOST_GPUS:
        raise UsageError(f"--gpus {gpus} are {len(sizes):,} GPUs", f"the limit is {MOST_GPUS}")
    chosen, notes = _runnable(_slice(rows, options), gpus, sizes)
    if options.rho is not None:
        chosen = paced(chosen, len(sizes), options.rho)
    models = read_models(options.models) if options.models else BUILT_IN
    works = draw(chosen, models, min(sizes), Random(options.seed))  # noqa: S311 - not a secret
    return ReplaySetup(gpus, sizes, works, models, offered_load(chosen, len(sizes)), [*notes, *_doubts(chosen)])


def machine_of(rows: Sequence[TraceJob]) -> str:
    """As many GPUs as the jobs had, if the trace tells; their memory is assumed."""
    names = {name for row in rows for name in row.devices}
    if not names:
        return DEFAULT_GPUS
    return f"{min(MOST_GPUS, max(len(names), *(row.gpus for row in rows)))}x40G"


def _doubts(rows: Sequence[TraceJob]) -> list[str]:
    """The notes that make the figures of a history less certain."""
    doubts = []
    if len(rows) < FEW_JOBS:
        doubts.append(f"only {count_text(len(rows), 'job')}: the results are not significant")
    unknown = sum(row.memory is None for row in rows)
    if unknown and any(row.devices for row in rows):
        doubts.append(f"the memory of {count_text(unknown, 'job')} was not measured and is assumed")
    return doubts


def _slice(rows: Sequence[TraceJob], options: ReplayOptions) -> list[TraceJob]:
    chosen = extract(rows, options.first, options.count)
    if not chosen:
        message = f"no job of {options.source} is selected: it has {count_text(len(rows), 'job')}"
        raise UsageError(message, f"--from counts from 0; it was {options.first}")
    return capped(chosen, options.longest) if options.longest else chosen


def _runnable(rows: Sequence[TraceJob], gpus: str, sizes: Sequence[int]) -> tuple[list[TraceJob], list[str]]:
    """The jobs that the machine can run, and a sentence on the others."""
    obstacles: dict[str, Callable[[TraceJob], bool]] = {
        "no GPU needed": lambda row: row.gpus == 0,
        "no time taken": lambda row: row.seconds == 0,
        f"more than {count_text(len(sizes), 'GPU')} needed": lambda row: row.gpus > len(sizes),
        f"more than {size_text(min(sizes))} on a GPU needed": lambda row: (row.memory or 0) > min(sizes),
    }
    left, notes = list(rows), []
    for words, is_met in obstacles.items():
        kept = [row for row in left if not is_met(row)]
        if len(kept) < len(left):
            notes.append(f"{count_text(len(left) - len(kept), 'job')} left out: {words}")
        left = kept
    if not left:
        message = f"none of {count_text(len(rows), 'job')} can run on {gpus} ({'; '.join(notes)})"
        raise UsageError(message, "give a larger machine with --gpus, or other jobs with --from")
    return extract(left), notes


def outcome_of(policy: str, setup: ReplaySetup, *, oracle: bool) -> ReplayOutcome:
    """Replay the jobs by one policy."""
    if policy in REFERENCES:
        return shortest_remaining_first(setup.works, len(setup.sizes), REFERENCES[policy])
    rules = structs.replace(RULES[policy], exact=oracle or RULES[policy].exact)
    return replay(setup.works, virtual_devices(setup.sizes), rules, by_pairs(setup.models.pairs))


def report_of(options: ReplayOptions, setup: ReplaySetup, outcomes: Mapping[str, ReplayOutcome]) -> SimulationReport:
    """The report on the outcomes, by their policies."""
    results = [PolicyResult(policy, figures(outcome), outcome.plans) for policy, outcome in outcomes.items()]
    simulation = Simulation(
        schema=SCHEMA,
        trace=options.source,
        gpus=setup.gpus,
        jobs=len(setup.works),
        offered_load=None if setup.offered == inf else setup.offered,
        seed=options.seed,
        oracle=options.oracle,
        notes=setup.notes,
        policies=results,
        summary=summary_of(f"{count_text(len(setup.works), 'job')} of {options.source} on {setup.gpus}", results),
    )
    return SimulationReport(simulation, {policy: completion_times(outcome) for policy, outcome in outcomes.items()})


def summary_of(jobs: str, results: Sequence[PolicyResult]) -> str:
    """The gain of Stoker's order over strict FIFO, in one sentence."""
    means = {result.policy: result.figures.completion_mean for result in results}
    if "fifo" not in means or "stoker" not in means:
        return ""
    if all(result.figures.wait_mean < NO_WAIT for result in results if result.policy in ("fifo", "stoker")):
        return f"With {jobs}, hardly any job would have waited: the order makes no difference."
    gain = _compared(means["fifo"], means["stoker"])
    sentence = f"With {jobs}, the default order would end jobs {gain} strict FIFO on average"
    if "stoker-auto" in means:
        sentence += f"; with --vram auto, {_compared(means['fifo'], means['stoker-auto'])} strict FIFO"
    return f"{sentence}."


def _compared(theirs: float, ours: float) -> str:
    ratio = theirs / ours
    if 0.95 < ratio < 1.05:
        return "as soon as"
    return f"{ratio:.1f} times sooner than" if ratio > 1 else f"{1 / ratio:.1f} times later than"
