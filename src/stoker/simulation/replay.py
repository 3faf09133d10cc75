"""From a trace and some wishes to replays: the slice, what is left out of it, and one report for each policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from msgspec import Struct

from stoker.core.errors import UsageError
from stoker.core.units import count_text, device_sizes, size_text
from stoker.simulation.bound import best_possible
from stoker.simulation.machine import replay, virtual_devices
from stoker.simulation.policies import BOUND, CONDUCTS, by_pairs
from stoker.simulation.report import Figures, Outcome, completion_times, figures
from stoker.simulation.trace import read_models, read_trace
from stoker.simulation.workload import BUILT_IN, Models, Row, Work, capped, draw, extract, offered_load, paced

SCHEMA = "stoker.simulate/1"
POLICIES = (*CONDUCTS, BOUND)
MOST_GPUS = 1024


class Wishes(Struct, frozen=True):
    """What is to be replayed, and how."""

    trace: Path
    gpus: str
    first: int = 0
    count: int | None = None
    longest: float | None = None
    """Seconds to which durations are capped."""
    rho: float | None = None
    """The offered load as a share of the machine; None leaves arrivals as they are."""
    seed: int = 0
    models: Path | None = None
    oracle: bool = False


class Scene(Struct, frozen=True):
    """A machine, and the jobs that come to it."""

    sizes: Sequence[int]
    works: Sequence[Work]
    models: Models
    offered: float
    notes: Sequence[str]
    """What was left out, in words."""


class Told(Struct, frozen=True):
    """One replay in figures."""

    policy: str
    figures: Figures
    plans: int


class Simulation(Struct, frozen=True):
    """What programs are told; times in seconds, shares between 0 and 1."""

    schema: str
    trace: str
    gpus: str
    jobs: int
    offered_load: float | None
    """None where all jobs arrive at once."""
    seed: int
    oracle: bool
    notes: Sequence[str]
    policies: Sequence[Told]


class Replayed(Struct, frozen=True):
    """One replay, with what is drawn of it."""

    told: Told
    completions: Sequence[float]
    """Seconds from arrival to end of each job, the shortest first."""


def prepare(wishes: Wishes) -> Scene:
    """Read the trace and draw what it does not tell; wishes that cannot be met are refused."""
    sizes = device_sizes(wishes.gpus)
    if len(sizes) > MOST_GPUS:
        raise UsageError(f"--gpus {wishes.gpus} are {len(sizes):,} GPUs", f"{MOST_GPUS} are the most")
    if wishes.rho is not None and not wishes.rho > 0:  # nor nan, which no range keeps out
        raise UsageError(f"--rho {wishes.rho} is no share of a machine", "write it as --rho 0.9")
    rows, notes = _runnable(_slice(read_trace(wishes.trace), wishes), sizes, wishes)
    if wishes.rho is not None:
        rows = paced(rows, len(sizes), wishes.rho)
    models = read_models(wishes.models) if wishes.models else BUILT_IN
    works = draw(rows, models, min(sizes), Random(wishes.seed))  # noqa: S311 - not a secret
    return Scene(sizes, works, models, offered_load(rows, len(sizes)), notes)


def _slice(rows: Sequence[Row], wishes: Wishes) -> list[Row]:
    chosen = extract(rows, wishes.first, wishes.count)
    if not chosen:
        message = f"no job of {wishes.trace} is left: it has {count_text(len(rows), 'job')}"
        raise UsageError(message, f"--from counts from 0; it was {wishes.first}")
    return capped(chosen, wishes.longest) if wishes.longest else chosen


def _runnable(rows: Sequence[Row], sizes: Sequence[int], wishes: Wishes) -> tuple[list[Row], list[str]]:
    """The jobs that the machine can run, and a sentence on the others."""
    obstacles: dict[str, Callable[[Row], bool]] = {
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
        message = f"none of {count_text(len(rows), 'job')} can run on {wishes.gpus} ({'; '.join(notes)})"
        raise UsageError(message, "name a larger machine with --gpus, or other jobs with --from")
    return extract(left), notes


def replay_by(policy: str, scene: Scene, *, oracle: bool) -> Replayed:
    """The jobs of a scene by one policy."""
    outcome = _outcome(policy, scene, oracle=oracle)
    return Replayed(Told(policy, figures(outcome), outcome.plans), completion_times(outcome))


def _outcome(policy: str, scene: Scene, *, oracle: bool) -> Outcome:
    if policy == BOUND:
        return best_possible(scene.works, len(scene.sizes))
    from msgspec.structs import replace

    conduct = replace(CONDUCTS[policy], exact=oracle)
    return replay(scene.works, virtual_devices(scene.sizes), conduct, by_pairs(scene.models.pairs))


def simulation(wishes: Wishes, scene: Scene, replays: Sequence[Replayed]) -> Simulation:
    """The report of all replays of a scene."""
    return Simulation(
        schema=SCHEMA,
        trace=str(wishes.trace),
        gpus=wishes.gpus,
        jobs=len(scene.works),
        offered_load=None if scene.offered == float("inf") else scene.offered,
        seed=wishes.seed,
        oracle=wishes.oracle,
        notes=scene.notes,
        policies=[one.told for one in replays],
    )
