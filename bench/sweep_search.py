"""GPU time until a sweep has a result among the best 5 %, on simulated learning curves in virtual time.

The curves: four parameters (lr and wd logarithmic, depth, act). The final loss of a point is a smooth function of them
with interactions; a curve falls from 2.3 to it like a power of the epoch. A large lr falls faster and ends higher, so
curves cross; lr above 0.3 diverges to nan. Each epoch has noise, and its time grows with the depth. The target is the
5 % quantile of the noise-free final loss of 10,000 random points; a search is there when a trial that ran all 81 epochs
has a final loss at or below it.

Stoker's rows use the study, the sampler and the rules of the tuner, with one chosen trial always waiting. "by hand"
is Optuna's own loop with one worker per GPU, its own successive halving, and no sharing of GPUs. Two trials that share
a GPU run at 0.65 of their speed each. Starting a process, and the time to choose a point, count as nothing for all.
"""

from __future__ import annotations

import heapq
import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median, quantiles

import optuna

from machine import load, parser, say
from stoker.core.spec import Command
from stoker.features.sweep.model.grammar import parse_space
from stoker.features.sweep.model.objective import Objective
from stoker.features.sweep.model.points import visited
from stoker.features.sweep.model.pruning import Asha, Auto, Pruner, TrialCurve, stop_reason
from stoker.features.sweep.model.record import SweepSpec
from stoker.features.sweep.model.space import Params
from stoker.features.sweep.tuner.loop import AHEAD_SHARE
from stoker.features.sweep.tuner.study import Study, StudyRecord

EPOCHS = 81
GPUS = 4
SHARED_SPEED = 0.65
SPACE = parse_space(["lr=1e-5..1:log", "wd=1e-6..1e-1:log", "depth=2..10", "act=relu,gelu,silu"])
LOSS = Objective("loss")
MOST_TRIALS = 400


def final_loss(params: Params) -> float:
    """The noise-free loss after all epochs."""
    lr, wd = math.log10(_number(params["lr"])), math.log10(_number(params["wd"]))
    depth, act = _number(params["depth"]), {"relu": 0.06, "gelu": 0.0, "silu": 0.02}[str(params["act"])]
    best_lr = -2.3 - 0.08 * (depth - 6)  # deeper models want a smaller rate
    return (
        0.3
        + 0.12 * (lr - best_lr) ** 2
        + 0.03 * (wd + 3) ** 2
        + 0.012 * (depth - 7) ** 2
        + act
        + 0.02 * abs(lr - wd - 1)
    )


def curve(params: Params, seed: int) -> list[float]:
    """The loss after each epoch."""
    source, lr = Random(seed), _number(params["lr"])
    final, speed = final_loss(params), 0.35 + 0.12 * (math.log10(lr) + 5)
    values = [final + (2.3 - final) * (epoch + 1) ** -speed + source.gauss(0, 0.01) for epoch in range(EPOCHS)]
    last = EPOCHS if lr <= 0.3 else source.randrange(2, 20)
    return [value if epoch < last else math.nan for epoch, value in enumerate(values)]


def epoch_seconds(params: Params) -> float:
    return 2.0 + 0.5 * _number(params["depth"])


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


@dataclass
class Running:
    """A trial on a GPU."""

    number: int
    params: Params
    values: list[float]
    gpu: int
    seen: list[float] = field(default_factory=list)

    @property
    def curve(self) -> TrialCurve:
        value = self.seen[-1] if len(self.seen) == EPOCHS and math.isfinite(self.seen[-1]) else None
        return TrialCurve(self.number, tuple(enumerate(self.seen, 1)), value)


@dataclass
class Search:
    """How to choose points, to stop trials, and to use GPUs."""

    name: str
    ask: Callable[[], tuple[int, Params]]
    tell: Callable[[Running, bool], None]
    should_stop: Callable[[Running, list[TrialCurve]], bool]
    per_gpu: int = 1
    ahead: int = 1
    """Trials that are chosen before there is room for them."""


def gpu_seconds(search: Search, target: float, seed: int) -> float:
    """GPU time until a full trial reaches the target; infinite after too many trials."""
    clock, events, order = 0.0, list[tuple[float, int, Running]](), 0
    slots = [gpu for gpu in range(GPUS) for _ in range(search.per_gpu)]
    waiting: list[tuple[int, Params]] = []
    ended: list[TrialCurve] = []
    running: dict[int, Running] = {}
    chosen = 0
    while True:
        while slots and chosen < MOST_TRIALS:
            number, params = waiting.pop(0) if waiting else search.ask()
            chosen += 1
            trial = Running(number, params, curve(params, 1000 * seed + number), slots.pop(0))
            running[number] = trial
            order += 1
            heapq.heappush(events, (clock + _epoch(trial, running, search), order, trial))
        while len(waiting) < search.ahead and chosen < MOST_TRIALS:
            waiting.append(search.ask())
        if not events:
            return math.inf
        clock, _, trial = heapq.heappop(events)
        trial.seen.append(trial.values[len(trial.seen)])
        others = [*ended, *(one.curve for one in running.values() if one is not trial)]
        full, stopped = len(trial.seen) == EPOCHS, search.should_stop(trial, others)
        if not full and not stopped:
            order += 1
            heapq.heappush(events, (clock + _epoch(trial, running, search), order, trial))
            continue
        del running[trial.number]
        slots.append(trial.gpu)
        ended.append(trial.curve)
        if full and final_loss(trial.params) <= target:
            return clock * GPUS
        search.tell(trial, not full)


def _epoch(trial: Running, running: dict[int, Running], search: Search) -> float:
    """Seconds of the next epoch; the number of trials on the GPU at its beginning counts."""
    company = sum(one.gpu == trial.gpu for one in running.values())
    return epoch_seconds(trial.params) / (SHARED_SPEED if company > 1 and search.per_gpu > 1 else 1.0)


# -- Stoker -------------------------------------------------------------------------------------------


def with_tuner(method: str, rules: list[Pruner], per_gpu: int, seed: int, folder: Path) -> Search:
    """The study and the rules of the tuner."""
    sweep = SweepSpec(space=SPACE, command=Command(("true",)), method=method, seed=seed)
    name = _name(method, rules, per_gpu)
    study = Study(folder / f"{name}{seed}", "bench", sweep, [LOSS])

    def tell(trial: Running, stopped: bool) -> None:
        usable = math.isfinite(trial.seen[-1])
        values = (trial.seen[-1],) if usable else ()
        study.tell(StudyRecord(trial.number, trial.params, values, trial.curve.curve, stopped and usable))

    return Search(name, study.ask, tell, _judge(rules), per_gpu, 1 + GPUS * per_gpu // AHEAD_SHARE)


def at_random(rules: list[Pruner], per_gpu: int, seed: int) -> Search:
    points = enumerate(visited(SPACE, "random", seed, 0, 10**6))
    return Search(_name("random", rules, per_gpu), lambda: next(points), lambda *_: None, _judge(rules), per_gpu)


def _judge(rules: list[Pruner]) -> Callable[[Running, list[TrialCurve]], bool]:
    def should_stop(trial: Running, others: list[TrialCurve]) -> bool:
        own = trial.curve
        return bool(stop_reason(rules, "min", own, others, own.curve[-1][0] - 1))

    return should_stop


def _name(method: str, rules: list[Pruner], per_gpu: int) -> str:
    parts = [method, *(type(rule).__name__.lower() for rule in rules)]
    return " + ".join(parts) + (", two per GPU" if per_gpu > 1 else "")


# -- Optuna by hand -----------------------------------------------------------------------------------


def by_hand(*, halving: bool, seed: int) -> Search:
    """Optuna's own loop: a worker per GPU asks when it is free."""
    pruner = (
        optuna.pruners.SuccessiveHalvingPruner(min_resource=3, reduction_factor=3)
        if halving
        else optuna.pruners.NopPruner()
    )
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed), pruner=pruner)
    trials: dict[int, optuna.Trial] = {}

    def ask() -> tuple[int, Params]:
        trial = study.ask()
        trials[trial.number] = trial
        return trial.number, {
            "lr": trial.suggest_float("lr", 1e-5, 1, log=True),
            "wd": trial.suggest_float("wd", 1e-6, 1e-1, log=True),
            "depth": trial.suggest_int("depth", 2, 10),
            "act": trial.suggest_categorical("act", ["relu", "gelu", "silu"]),
        }

    def should_stop(trial: Running, _: list[TrialCurve]) -> bool:
        own = trials[trial.number]
        own.report(trial.seen[-1], len(trial.seen))
        return own.should_prune()

    def tell(trial: Running, stopped: bool) -> None:
        if stopped:
            study.tell(trials[trial.number], state=optuna.trial.TrialState.PRUNED)
        elif math.isfinite(trial.seen[-1]):
            study.tell(trials[trial.number], trial.seen[-1])
        else:
            study.tell(trials[trial.number], state=optuna.trial.TrialState.FAIL)

    name = f"Optuna by hand, tpe{' + successive halving' if halving else ''}"
    return Search(name, ask, tell, should_stop, ahead=0)


def searches(seed: int, folder: Path) -> list[Search]:
    asha: list[Pruner] = [Asha(3, 3)]
    auto: list[Pruner] = [Auto()]
    return [
        by_hand(halving=False, seed=seed),
        by_hand(halving=True, seed=seed),
        *(at_random(rules, per_gpu, seed) for per_gpu in (1, 2) for rules in ([], asha, auto)),
        *(with_tuner("tpe", rules, per_gpu, seed, folder) for per_gpu in (1, 2) for rules in ([], asha, auto)),
    ]


def main() -> int:
    """Search with several seeds, and print."""
    options = parser(__doc__ or "")
    options.add_argument("--seeds", type=int, default=20, help="searches of each kind, default %(default)s")
    options.add_argument("--best", type=float, default=5.0, help="percent of points that are good enough, default 5")
    chosen = options.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    losses = sorted(final_loss(params) for params in visited(SPACE, "random", 4711, 0, 10_000))
    target = losses[int(len(losses) * chosen.best / 100)]
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-", dir=chosen.directory) as folder:
        for seed in range(chosen.seeds):
            say(f"seed {seed + 1} of {chosen.seeds}")
            for search in searches(seed, Path(folder)):
                found.setdefault(search.name, []).append(gpu_seconds(search, target, seed) / 3600)
    print(f"target {target:.4f}, {GPUS} GPUs, {chosen.seeds} seeds, load {load()}\n")
    goal = f"GPU-hours to the best {chosen.best:g} %, median"
    print(f"| search | {goal} | quartiles | ratio to Optuna by hand, tpe |\n|---|---|---|---|")
    reference = median(found["Optuna by hand, tpe"])
    for name, hours in found.items():
        low, middle, high = quantiles(hours, n=4, method="inclusive")
        print(f"| {name} | {middle:.2f} | {low:.2f} to {high:.2f} | {middle / reference:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
