"""Rules that stop trials early. Each sees the values of all trials by step, and has no memory of its own.

A rule judges a trial when it has new points, and only those: a trial that passed a step is not judged there again.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import ceil, floor, inf, isfinite, log
from statistics import StatisticsError, correlation, median
from typing import Any, get_args

from msgspec import Struct

from stoker.core.errors import UsageError, did_you_mean
from stoker.features.sweep.model.importance import ranks_of
from stoker.features.sweep.model.objective import Curve, Goal, score

AGREEMENT = 0.7
"""Least rank correlation between the values at a step and those at the end at which `auto` trusts the step."""
THROUGH = 16
"""`auto` lets one of so many trials run to its end whatever its values are, to check its first step again."""
LEAST_STARTUP = 4
"""Trials below which ranks say nothing."""
STEP_RATIO = 1.25
"""Ratio between the steps of which `auto` chooses the first."""


class TrialCurve(Struct, frozen=True):
    """The facts about a trial that a rule uses."""

    number: int
    curve: Curve
    value: float | None = None
    """Its value at its end; None while it runs, and if it failed or was stopped."""


class Auto(Struct, frozen=True, tag="auto"):
    """Successive halving that begins where the ranks of trials begin to agree with those at their end."""

    startup: int = 8
    """Trials that run to their end before any is stopped."""
    eta: float = 3


class Median(Struct, frozen=True, tag="median"):
    """Stop a trial whose best value so far is worse than the median of the others at the same step."""

    startup: int = 5
    """Trials that must have reached the step before."""
    warmup: float = 0
    """The step up to which no trial is stopped."""


class Asha(Struct, frozen=True, tag="asha"):
    """Successive halving without waiting: at the steps min, min·eta, min·eta² ... only the best 1/eta go on."""

    min: float = 1
    eta: float = 3


class Hyperband(Struct, frozen=True, tag="hyperband"):
    """Successive halving with several first steps, so that slow starters have a chance; without `max` it is asha."""

    min: float = 1
    max: float = 0
    eta: float = 3


class Patience(Struct, frozen=True, tag="patience"):
    """Stop a trial whose best value has not improved by more than `delta` for this number of values."""

    values: int
    delta: float = 0
    warmup: float = 0


class Threshold(Struct, frozen=True, tag="threshold"):
    """Stop a trial with a value above `upper` or below `lower`."""

    upper: float = inf
    lower: float = -inf
    warmup: float = 0


Pruner = Auto | Median | Asha | Hyperband | Patience | Threshold


def stop_reason(
    rules: Sequence[Pruner], goal: Goal, own: TrialCurve, others: Sequence[TrialCurve], judged: float = -inf
) -> str:
    """Why a trial should end now; empty if it should go on. Steps up to `judged` were judged before."""
    if not own.curve or own.curve[-1][0] <= judged:
        return ""
    step, value = own.curve[-1]
    if rules and not isfinite(value):
        return f"its value at step {step:g} is {value}"
    return next((reason for rule in rules if (reason := _reason(rule, goal, own, others, judged))), "")


def _reason(rule: Pruner, goal: Goal, own: TrialCurve, others: Sequence[TrialCurve], judged: float) -> str:
    match rule:
        case Auto():
            return _behind_where_ranks_agree(rule, goal, own, others, judged)
        case Median():
            return _behind_median(rule, goal, own, others)
        case Asha():
            return _behind_at_rung(rule, goal, own, others, judged)
        case Hyperband():
            return _behind_in_bracket(rule, goal, own, others, judged)
        case Patience():
            return _without_progress(rule, goal, own)
        case Threshold():
            return _beyond(rule, own, judged)


def best_until(goal: Goal, curve: Curve, step: float) -> float | None:
    """The best score up to a step; None if the trial has not reached it."""
    if not curve or curve[-1][0] < step:
        return None
    end = max(1, bisect_right(curve, (step, inf)))
    return min(score(goal, value) for _, value in curve[:end])


def _behind_median(rule: Median, goal: Goal, own: TrialCurve, others: Sequence[TrialCurve]) -> str:
    step = own.curve[-1][0]
    bests = [best for trial in others if (best := best_until(goal, trial.curve, step)) is not None]
    mine = best_until(goal, own.curve, step)
    if step <= rule.warmup or mine is None or len(bests) < max(1, rule.startup):
        return ""
    middle = median(bests)
    return f"worse than the median of {len(bests)} trials at step {step:g}" if mine > middle else ""


def _behind_at_rung(rule: Asha, goal: Goal, own: TrialCurve, others: Sequence[TrialCurve], judged: float) -> str:
    rungs = _new_rungs(rule, judged, own.curve[-1][0])
    if not rungs:
        return ""
    bests = {
        rung: [best for trial in others if (best := best_until(goal, trial.curve, rung)) is not None] for rung in rungs
    }
    # A trial that was read late has passed several: the last with enough others to compare with counts.
    rung = next((rung for rung in reversed(rungs) if len(bests[rung]) + 1 >= rule.eta), rungs[0])
    mine = best_until(goal, own.curve, rung)
    better, total = sum(mine is not None and best < mine for best in bests[rung]), len(bests[rung]) + 1
    if better < max(1, int(total / rule.eta)):
        return ""
    return f"not among the best 1/{rule.eta:g} of {total} trials at step {rung:g}"


def _new_rungs(rule: Asha, judged: float, last: float) -> list[float]:
    """The rungs that the trial reached with its new steps."""
    rungs, rung = [], rule.min
    while rung <= last:
        rungs.append(rung)
        rung *= rule.eta
    return [rung for rung in rungs if rung > judged]


def _behind_where_ranks_agree(
    rule: Auto, goal: Goal, own: TrialCurve, others: Sequence[TrialCurve], judged: float
) -> str:
    first = None if runs_through(own.number) else first_rung(rule, goal, others)
    if first is None:
        return ""
    reason = _behind_at_rung(Asha(first, rule.eta), goal, own, others, judged)
    return f"{reason} (ranks agree with the end from step {first:g} on)" if reason else ""


def runs_through(number: int) -> bool:
    """Whether `auto` never stops a trial, by its number alone; scattered, since the points of a grid repeat."""
    return (number * 2654435761 >> 16) % THROUGH == THROUGH - 1


def first_rung(rule: Auto, goal: Goal, trials: Sequence[TrialCurve]) -> float | None:
    """The step from which on the ranks of trials agree with those at the end.

    None if too few trials have ended by themselves, or if the ranks change until the end. Trials that were
    judged and went on are no fair sample: only the first ones count, and those that were never judged.
    """
    ended = sorted(
        (trial for trial in trials if trial.value is not None and trial.curve), key=lambda trial: trial.number
    )
    if len(ended) < rule.startup:
        return None
    sample = ended[: rule.startup] + [trial for trial in ended[rule.startup :] if runs_through(trial.number)]
    final = ranks_of([score(goal, trial.value) for trial in sample if trial.value is not None])
    bests = [_Bests(goal, trial.curve) for trial in sample]
    first = None
    for step in _steps_back(sample):
        if _agreement([best.until(step) for best in bests], final) < AGREEMENT:
            break
        first = step
    return first


class _Bests:
    """The best score of a trial up to each step; that of its end for later steps."""

    def __init__(self, goal: Goal, curve: Curve) -> None:
        self._steps = [step for step, _ in curve]
        self._scores = list(accumulate((score(goal, value) for _, value in curve), min))

    def until(self, step: float) -> float:
        return self._scores[max(0, bisect_right(self._steps, step) - 1)]


def _steps_back(trials: Sequence[TrialCurve]) -> Iterator[float]:
    """Steps of a trial of usual length, from its end to its beginning."""
    usual = sorted(trials, key=lambda trial: trial.curve[-1][0])[len(trials) // 2]
    steps = [step for step, _ in usual.curve if step > 0]
    while steps:
        del steps[bisect_right(steps, steps[-1] / STEP_RATIO) :]
        yield from steps[-1:]


def _agreement(values: Sequence[float], final: Sequence[float]) -> float:
    """The rank correlation; 0 if all values are equal."""
    try:
        return correlation(ranks_of(values), final)
    except StatisticsError:
        return 0.0


def brackets_of(rule: Hyperband) -> list[tuple[Asha, int]]:
    """The rule of each bracket, and how many of a round of trials are in it."""
    count = max(1, floor(log(rule.max / rule.min, rule.eta) + 1e-9) + 1) if rule.max > rule.min else 1
    shares = [ceil(count * rule.eta ** (count - 1 - place) / (count - place)) for place in range(count)]
    return [(Asha(rule.min * rule.eta**place, rule.eta), share) for place, share in enumerate(shares)]


def bracket_of(rule: Hyperband, number: int) -> int:
    """The bracket of a trial, by its number alone."""
    shares = [share for _, share in brackets_of(rule)]
    place = number % sum(shares)
    for bracket, share in enumerate(shares):
        if place < share:
            return bracket
        place -= share
    raise AssertionError("the place is below the sum of the shares")


def _behind_in_bracket(
    rule: Hyperband, goal: Goal, own: TrialCurve, others: Sequence[TrialCurve], judged: float
) -> str:
    bracket = bracket_of(rule, own.number)
    same = [trial for trial in others if bracket_of(rule, trial.number) == bracket]
    return _behind_at_rung(brackets_of(rule)[bracket][0], goal, own, same, judged)


def _without_progress(rule: Patience, goal: Goal, own: TrialCurve) -> str:
    scores = [score(goal, value) for _, value in own.curve]
    if own.curve[-1][0] <= rule.warmup or len(scores) <= rule.values:
        return ""
    before, lately = min(scores[: -rule.values]), min(scores[-rule.values :])
    return "" if lately < before - rule.delta else f"no progress for {rule.values} values"


def _beyond(rule: Threshold, own: TrialCurve, judged: float) -> str:
    for step, value in own.curve:
        if step > max(rule.warmup, judged) and not rule.lower <= value <= rule.upper:
            limit = f"above {rule.upper:g}" if value > rule.upper else f"below {rule.lower:g}"
            return f"its value {value:g} at step {step:g} is {limit}"
    return ""


# -- as typed ---------------------------------------------------------------------------------------

_KINDS: dict[str, type[Any]] = {str(rule.__struct_config__.tag): rule for rule in get_args(Pruner)}
_ALIASES = {"successive_halving": "asha", "successive-halving": "asha", "halving": "asha"}
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"


def parse_pruner(text: str) -> Pruner:
    """`auto`, `median:startup=5,warmup=10`, `asha:min=1`, `hyperband:max=81`, `patience:10`, `threshold:upper=9`."""
    word, colon, rest = text.strip().partition(":")
    name = _ALIASES.get(word.lower(), word.lower())
    if name not in _KINDS:
        rules = f"the rules are {', '.join(_KINDS)}"
        raise UsageError(f"--pruner {text!r} is not known", did_you_mean(word, _KINDS, rules))
    return _checked(_KINDS[name](**_arguments(name, rest, text)), text) if colon or name != "patience" else Patience(10)


def _arguments(name: str, rest: str, text: str) -> dict[str, float]:
    fields = _KINDS[name].__struct_fields__
    arguments: dict[str, float] = {}
    for item in filter(None, (part.strip() for part in rest.split(","))):
        key, sign, value = item.rpartition("=")
        key = key.strip() if sign else fields[0]
        number = float(value) if re.fullmatch(_NUMBER, value.strip()) else inf
        if key not in fields or key in arguments or not isfinite(number):
            raise UsageError(f"--pruner {text!r}: {item!r} is not understood", f"{name} has {', '.join(fields)}")
        arguments[key] = int(number) if number.is_integer() else number
    return arguments


def _checked(rule: Pruner, text: str) -> Pruner:
    def refuse(what: str) -> UsageError:
        return UsageError(f"--pruner {text!r}: {what}", "see stoker sweep --help")

    match rule:
        case Asha(least, eta) | Hyperband(least, _, eta) if not (least > 0 and eta > 1):
            raise refuse("min must be more than 0, and eta more than 1")
        case Hyperband(least, most, _) if most and most <= least:
            raise refuse("max must be more than min")
        case Patience(values=values) if not isinstance(values, int) or values < 1:
            raise refuse("it needs a number of values, as in patience:10")
        case Threshold(upper, lower, _) if upper == inf and lower == -inf:
            raise refuse("it needs upper or lower")
        case Threshold(upper, lower, _) if lower > upper:
            raise refuse("lower is above upper")
        case Median(startup=startup) if startup < 1:
            raise refuse("startup must be 1 or more")
        case Auto(startup, eta) if not (isinstance(startup, int) and startup >= LEAST_STARTUP and eta > 1):
            raise refuse(f"startup must be a whole number, {LEAST_STARTUP} or more, and eta more than 1")
    return rule
