"""Measure how many epochs early stopping saves and how often it loses the best trials, on simulated curves.

A search is 150 random trials of 52 epochs, four at a time. It misses the best 5 % (1 %) if no trial that ran all its
epochs has a noise-free final accuracy among the best 5 % (1 %) of 4,500 trials of the same task. Epochs are counted
relative to a search without early stopping. The tasks; each has noise of 0.7 points per epoch, and a tenth of the
trials stays at chance:

easy      the better a trial is in the end, the faster it rises
slow      good trials start slowly, as with small learning rates
crossing  a trial rises at a speed that says nothing about its end
plateau   a trial stays at chance for some epochs, 6 on average, and then rises
schedule  a trial gains up to 12 points at once in the second half, as when the learning rate falls
overfit   worse trials lose up to 0.4 points per epoch after the tenth

The ranks of the first epoch say nothing about the last in all of them (correlation 0 to 0.3). The tuner's
rules and Optuna's pruners judge trials, each with its own defaults; both kinds of hyperband know the 52 epochs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from random import Random
from statistics import fmean
from typing import NamedTuple

import optuna

from machine import load, parser, say
from stoker.features.sweep.model.pruning import TrialCurve, parse_pruner, stop_reason

EPOCHS = 52
TRIALS = 150
AT_ONCE = 4
NOISE = 0.7
CHANCE = 10.0
POPULATION = 30
"""Searches whose trials say what the best 5 % are."""
BEST = (0.05, 0.01)
TASKS = ("easy", "slow", "crossing", "plateau", "schedule", "overfit")
RULES = ("", "median", "asha", "asha:min=5", f"hyperband:max={EPOCHS}", "auto")

Judge = Callable[[int, int], bool]
"""Whether to stop a trial after an epoch."""


class Trial(NamedTuple):
    """The accuracy of a trial after each epoch, in percent, and at the end without noise."""

    seen: tuple[float, ...]
    final: float


def trials_of(task: str, seed: int) -> list[Trial]:
    source = Random(f"{task} {seed}")
    return [_trial(task, source) for _ in range(TRIALS)]


def _trial(task: str, source: Random) -> Trial:
    curve = _curve(task, source)
    if source.random() < 0.1:
        curve = [CHANCE] * EPOCHS
    return Trial(tuple(value + source.gauss(0, NOISE) for value in curve), curve[-1])


def _curve(task: str, source: Random) -> list[float]:
    """The accuracy without noise; `rest` is 0 for the best trial and 1 for the worst."""
    rest = source.random()
    final = 95 - 35 * rest**0.7
    speed, start = _rise(task, rest, source)
    delay = source.expovariate(1 / 6) if task == "plateau" else 0.0
    drop, until = (12 * source.random(), source.randrange(26, 36)) if task == "schedule" else (0.0, 0)
    loss = 0.4 * rest * source.random() if task == "overfit" else 0.0
    return [
        final
        - (final - start) * max(1.0, epoch - delay) ** -speed
        - (drop if epoch < until else 0.0)
        - loss * max(0, epoch - 10)
        for epoch in range(1, EPOCHS + 1)
    ]


def _rise(task: str, rest: float, source: Random) -> tuple[float, float]:
    """How fast a curve rises, and from where."""
    match task:
        case "easy":
            return 1.1 - 0.5 * rest + source.uniform(0, 0.1), CHANCE
        case "slow":
            return 0.25 + 0.9 * rest**0.7 + source.uniform(0, 0.25), source.uniform(10, 20)
        case "crossing":
            return math.exp(source.gauss(-0.6, 0.6)), source.uniform(10, 30)
        case "schedule":
            return source.uniform(0.7, 1.1), source.uniform(20, 50)
        case "overfit":
            return source.uniform(0.4, 1.2), source.uniform(20, 30)
    return source.uniform(0.8, 1.2), source.uniform(10, 15)


class Outcome(NamedTuple):
    """Epochs of a search, and the best of its trials that ran to their end."""

    epochs: int
    best: float


def search(trials: list[Trial], judge: Judge, source: Random) -> Outcome:
    """Run all trials, each an epoch in turn; the order within a turn is random."""
    waiting, running = iter(range(TRIALS)), dict[int, int]()
    epochs, best = 0, -math.inf
    while True:
        while len(running) < AT_ONCE and (number := next(waiting, None)) is not None:
            running[number] = 0
        if not running:
            return Outcome(epochs, best)
        for number in source.sample(sorted(running), len(running)):
            running[number] += 1
            epochs += 1
            if running[number] == EPOCHS:
                best = max(best, trials[number].final)
            if judge(number, running[number]) or running[number] == EPOCHS:
                del running[number]


def by_rule(text: str, trials: list[Trial]) -> Judge:
    """A rule of the tuner. Curves are remembered as they grow."""
    rules = [parse_pruner(text)] if text else []
    curves: dict[int, TrialCurve] = {}

    def judge(number: int, epoch: int) -> bool:
        points = tuple(enumerate(trials[number].seen[:epoch], 1))
        own = TrialCurve(number, points, points[-1][1] if epoch == EPOCHS else None)
        curves[number] = own
        if epoch == EPOCHS:
            return False
        others = [curve for curve in curves.values() if curve is not own]
        return bool(stop_reason(rules, "max", own, others, epoch - 1))

    return judge


def by_optuna(pruner: optuna.pruners.BasePruner, trials: list[Trial]) -> Judge:
    study = optuna.create_study(direction="maximize", pruner=pruner)
    asked: dict[int, optuna.Trial] = {}

    def judge(number: int, epoch: int) -> bool:
        trial = asked.get(number) or asked.setdefault(number, study.ask())
        value = trials[number].seen[epoch - 1]
        if epoch == EPOCHS:
            study.tell(trial, value)
            return False
        trial.report(value, epoch)
        if stopped := trial.should_prune():
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        return stopped

    return judge


def judges(trials: list[Trial]) -> Iterator[tuple[str, Judge]]:
    for text in RULES:
        yield text or "none", by_rule(text, trials)
    yield "Optuna's median", by_optuna(optuna.pruners.MedianPruner(), trials)
    yield "Optuna's successive halving", by_optuna(optuna.pruners.SuccessiveHalvingPruner(), trials)
    yield "Optuna's hyperband", by_optuna(optuna.pruners.HyperbandPruner(max_resource=EPOCHS), trials)


def targets(task: str) -> list[float]:
    """The accuracies from which on a trial is among the best."""
    finals = sorted(
        (trial.final for seed in range(POPULATION) for trial in trials_of(task, 10_000 + seed)), reverse=True
    )
    return [finals[int(share * len(finals))] for share in BEST]


def main() -> int:
    """Search with several seeds, and print epochs and misses of each rule."""
    options = parser(__doc__ or "")
    options.add_argument("--seeds", type=int, default=12, help="searches of each rule and task, default %(default)s")
    chosen = options.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    found: dict[str, dict[str, list[tuple[float, ...]]]] = {}
    for task in TASKS:
        wanted = targets(task)
        for seed in range(chosen.seeds):
            say(f"{task}, seed {seed + 1} of {chosen.seeds}")
            trials = trials_of(task, seed)
            for name, judge in judges(trials):
                told = search(trials, judge, Random(seed))
                row = (told.epochs / (TRIALS * EPOCHS), *(float(told.best < target) for target in wanted))
                found.setdefault(name, {}).setdefault(task, []).append(row)
    print(f"{TRIALS} trials of {EPOCHS} epochs, {chosen.seeds} seeds, load {load()}")
    print("epochs / best 5 % never reached / best 1 % never reached, in percent\n")
    print(f"| rule | all | {' | '.join(TASKS)} |\n|---|---|{'---|' * len(TASKS)}")
    for name, tasks in found.items():
        cells = [_cell([row for rows in tasks.values() for row in rows]), *(_cell(tasks[task]) for task in TASKS)]
        print(f"| {name} | {' | '.join(cells)} |")
    return 0


def _cell(rows: list[tuple[float, ...]]) -> str:
    return " / ".join(f"{100 * fmean(column):.0f}" for column in zip(*rows, strict=True))


if __name__ == "__main__":
    sys.exit(main())
