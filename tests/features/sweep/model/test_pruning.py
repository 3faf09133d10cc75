"""Rules that stop trials early."""

from __future__ import annotations

from math import inf, isfinite, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.errors import UsageError
from stoker.features.sweep.model.objective import Goal
from stoker.features.sweep.model.pruning import (
    Asha,
    Auto,
    Hyperband,
    Median,
    Patience,
    Pruner,
    Threshold,
    TrialCurve,
    bracket_of,
    brackets_of,
    first_rung,
    parse_pruner,
    runs_through,
    stop_reason,
)

TYPED: dict[str, Pruner] = {
    "auto": Auto(),
    "auto:startup=12,eta=2": Auto(12, 2),
    "auto:1e1": Auto(10),
    "median": Median(),
    "median:startup=3,warmup=10": Median(3, 10),
    "asha": Asha(),
    "ASHA:min=2,eta=4": Asha(2, 4),
    "successive_halving:1": Asha(1),
    "hyperband:max=81": Hyperband(max=81),
    "patience": Patience(10),
    "patience:5,delta=1e-3": Patience(5, 0.001),
    "patience:1e1": Patience(10),
    "threshold:upper=10,lower=-1": Threshold(10, -1),
}
REFUSED = {
    "": "is not known",
    "medium": "did you mean median",
    "median:begin=3": "median has startup, warmup",
    "median:startup=x": "is not understood",
    "asha:eta=1": "eta more than 1",
    "auto:eta=1": "eta more than 1",
    "auto:startup=3": "4 or more",
    "auto:startup=8.5": "whole number",
    "asha:min=0": "min must be more than 0",
    "hyperband:min=9,max=3": "max must be more than min",
    "patience:0": "patience:10",
    "patience:1.5": "patience:10",
    "patience:1e999": "is not understood",
    "threshold": "needs upper or lower",
    "threshold:upper=1,lower=2": "lower is above upper",
}


def trial(number: int, *values: float, step: float = 1) -> TrialCurve:
    """A trial with values at step, 2 step, 3 step ..."""
    return TrialCurve(number, tuple((step * place, value) for place, value in enumerate(values, 1)))


def ended(number: int, *values: float) -> TrialCurve:
    """A trial that ran to its end."""
    return TrialCurve(number, trial(number, *values).curve, values[-1] if isfinite(values[-1]) else None)


@pytest.mark.parametrize("text", TYPED)
def test_what_is_understood(text: str) -> None:
    """Names and their numbers; each rule can judge a trial, whatever the form of its numbers."""
    assert parse_pruner(text) == TYPED[text]
    finished = [ended(number, *[float(number)] * 20) for number in range(12)]
    assert isinstance(stop_reason([parse_pruner(text)], "min", trial(20, *[9.0] * 20), finished), str)


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused(text: str) -> None:
    """With the names that there are."""
    with pytest.raises(UsageError) as error:
        parse_pruner(text)
    assert REFUSED[text] in f"{error.value.message}; {error.value.hint}"


def test_median() -> None:
    """Only behind the median, after enough others, after the warm-up; the best value so far counts."""
    others = [trial(number, number, number) for number in range(1, 6)]
    assert stop_reason([Median()], "min", trial(9, 5.0, 4.0), others)
    assert not stop_reason([Median()], "min", trial(9, 2.0, 9.0), others)
    assert not stop_reason([Median()], "max", trial(9, 3.0, 4.0), others)
    assert not stop_reason([Median()], "min", trial(9, 5.0, 4.0), others[:4])
    assert not stop_reason([Median(warmup=2)], "min", trial(9, 5.0, 4.0), others)
    assert not stop_reason([Median()], "min", trial(9, 5.0, 4.0, 4.0), others), "none of them came so far"


def test_asha() -> None:
    """At a rung only the best third goes on, and a trial that passed a rung is not judged there again."""
    others = [trial(number, *[float(number)] * 3) for number in range(1, 6)]
    assert stop_reason([Asha(3, 3)], "min", trial(9, 9.0, 9.0, 2.5), others)
    assert not stop_reason([Asha(3, 3)], "min", trial(9, 9.0, 9.0, 1.5), others)
    assert not stop_reason([Asha(3, 3)], "min", trial(9, 9.0, 9.0), others)
    assert not stop_reason([Asha(3, 3)], "min", trial(9, 9.0, 9.0, 2.5, 2.5), others, judged=3)
    assert not stop_reason([Asha(3, 3)], "min", trial(9, 9.0, 9.0, 2.5), []), "the first at a rung goes on"


def test_a_trial_that_skips_a_rung_is_judged_by_its_values_up_to_it() -> None:
    """Steps of 2 and a rung at 3: the value at 2 counts."""
    others = [trial(1, 1.0, 1.0, 1.0)]
    assert stop_reason([Asha(3, 3)], "min", trial(2, 2.0, 0.5, step=2), others, judged=2)
    assert not stop_reason([Asha(3, 3)], "min", trial(2, 0.5, 2.0, step=2), others, judged=2)


def test_a_trial_that_was_read_late_is_judged_at_a_rung_with_enough_others() -> None:
    """Its newest steps passed two rungs: where too few have reached the last one, the one before counts."""
    early = [trial(number, *[float(number)] * 2) for number in range(1, 6)]
    late = [trial(number, *[float(number)] * 6) for number in range(1, 4)]
    slow = trial(9, *[5.5] * 7)
    assert "at step 2" in stop_reason([Asha(2, 3)], "min", slow, early)
    assert "at step 6" in stop_reason([Asha(2, 3)], "min", slow, late)
    improved = trial(9, *[5.5] * 4, *[0.1] * 3)
    assert not stop_reason([Asha(2, 3)], "min", improved, late), "its newest comparable value is the best"


def crossing(number: int, meet: int = 6, length: int = 30, goal: Goal = "min") -> TrialCurve:
    """A finished trial of ten whose ranks are reversed up to a step: the smaller the number, the better in the end."""
    sign = 1 if goal == "min" else -1
    values = [sign * float(number if step >= meet else 50 - number) for step in range(1, length + 1)]
    return TrialCurve(number, trial(number, *values).curve, values[-1])


@pytest.mark.parametrize("goal", ["min", "max"])
@pytest.mark.parametrize("meet", [1, 6, 15])
def test_auto_begins_where_ranks_agree_with_the_end(goal: Goal, meet: int) -> None:
    """Its first rung is a step at which the curves have crossed, and the earliest of those that it looks at."""
    finished = [crossing(number, meet, goal=goal) for number in range(10)]
    first = first_rung(Auto(), goal, finished)
    assert first is not None
    assert meet <= first <= 1.5 * meet
    assert first_rung(Auto(), goal, finished[::-1]) == first
    assert first_rung(Auto(startup=11), goal, finished) is None, "too few have ended"
    running = [TrialCurve(one.number, one.curve) for one in finished]
    assert first_rung(Auto(), goal, running) is None, "their ends are not known"


def test_auto_stops_nothing_where_ranks_change_until_the_end() -> None:
    """Then no step says which trial is good, nor does one if all values are equal."""
    assert first_rung(Auto(), "min", [crossing(number, meet=30) for number in range(10)]) is None
    same = [TrialCurve(number, trial(number, *[1.0] * 30).curve, float(number)) for number in range(10)]
    assert first_rung(Auto(), "min", same) is None


def test_auto_lets_slow_starters_go_on_and_stops_bad_trials_later() -> None:
    """At a step before the ranks agree nothing is stopped; there, only the best third goes on, and says why."""
    finished = [crossing(number) for number in range(10)]
    first = first_rung(Auto(), "min", finished)
    assert first is not None
    whole = trial(20, *[30.0] * 30)
    assert not stop_reason([Auto()], "min", TrialCurve(20, whole.curve[: int(first) - 1]), finished)
    reason = stop_reason([Auto()], "min", TrialCurve(20, whole.curve[: int(first)]), finished)
    assert reason.endswith(f"of 11 trials at step {first:g} (ranks agree with the end from step {first:g} on)")
    assert not stop_reason([Auto()], "min", trial(20, *[1.0] * 7), finished)


def test_auto_checks_its_first_rung_with_trials_that_run_through() -> None:
    """About one of 16 is never stopped; when their ranks agree no longer, the first rung moves."""
    through = [number for number in range(10, 1000) if runs_through(number)]
    assert 40 <= len(through) <= 80
    assert not stop_reason([Auto()], "min", trial(through[0], *[99.0] * 30), [crossing(number) for number in range(10)])
    early = [crossing(number, meet=1) for number in range(8)]
    later = [
        TrialCurve(number, one.curve, one.value)
        for place, number in enumerate(through[:40])
        for one in [crossing(place % 10, meet=15)]
    ]
    judged = [TrialCurve(1000 + number, crossing(number % 10, 29).curve, 1.0) for number in range(40)]
    assert first_rung(Auto(), "min", early) == 1
    assert first_rung(Auto(), "min", [*early, *(one for one in judged if not runs_through(one.number))]) == 1
    moved = first_rung(Auto(), "min", [*early, *later])
    assert moved is not None
    assert moved >= 15


def test_hyperband_has_brackets() -> None:
    """Each has another first rung, and trials are compared within their bracket only."""
    rule = Hyperband(1, 9, 3)
    assert [one for one, _ in brackets_of(rule)] == [Asha(1, 3), Asha(3, 3), Asha(9, 3)]
    numbers = range(sum(share for _, share in brackets_of(rule)))
    assert [bracket_of(rule, number) for number in numbers].count(0) == brackets_of(rule)[0][1]
    late = next(number for number in numbers if bracket_of(rule, number) == 2)
    better = [trial(number, *[0.1] * 8) for number in numbers if number != late]
    assert not stop_reason([rule], "min", trial(late, *[9.0] * 8), better), "its first rung is 9"
    assert brackets_of(Hyperband()) == [(Asha(1, 3), 1)], "without a maximum it is asha"


def test_patience_and_threshold() -> None:
    """They see one trial alone."""
    assert stop_reason([Patience(2)], "min", trial(1, 3.0, 1.0, 1.0, 1.0), [])
    assert not stop_reason([Patience(2)], "min", trial(1, 3.0, 2.0, 2.0, 1.9), [])
    assert stop_reason([Patience(2, delta=0.5)], "min", trial(1, 3.0, 2.0, 2.0, 1.9), [])
    assert stop_reason([Threshold(upper=5)], "min", trial(1, 1.0, 6.0, 1.0), [])
    assert not stop_reason([Threshold(upper=5)], "min", trial(1, 1.0, 6.0, 1.0), [], judged=2)
    assert not stop_reason([Threshold(lower=0, warmup=2)], "max", trial(1, -1.0, -1.0, 1.0), [])


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_a_trial_that_diverged_is_stopped(value: float) -> None:
    """By any rule; without a rule nothing is stopped."""
    assert "step 2" in stop_reason([Asha(100)], "min", trial(1, 1.0, value), [])
    assert not stop_reason([], "min", trial(1, 1.0, value), [])


VALUES = st.floats(allow_nan=True, allow_infinity=True, width=32)
CURVES = st.lists(VALUES, min_size=1, max_size=12)
RULES = st.one_of(
    st.builds(Median, st.integers(1, 4), st.integers(0, 5)),
    st.builds(Asha, st.integers(1, 4), st.sampled_from([1.5, 2, 3, 4])),
    st.builds(Hyperband, st.integers(1, 3), st.integers(4, 30), st.sampled_from([2, 3])),
    st.builds(Auto, st.integers(4, 5), st.sampled_from([2, 3])),
)
GOALS: st.SearchStrategy[Goal] = st.sampled_from(["min", "max"])
QUIET = settings(max_examples=150, derandomize=True)


@QUIET
@given(RULES, GOALS, st.lists(CURVES, max_size=8), st.integers(1, 12))
def test_the_best_trial_is_never_stopped(rule: Pruner, goal: Goal, curves: list[list[float]], length: int) -> None:
    """Whatever the others did, and whenever it is judged."""
    best = -1e39 if goal == "min" else 1e39
    others = [ended(number, *curve) for number, curve in enumerate(curves)]
    finite = [one for one in others if all(isfinite(value) for _, value in one.curve)]
    for judged in range(length):
        own = trial(99, *[best] * length)
        assert stop_reason([rule], goal, own, finite, judged) == ""


@QUIET
@given(RULES, st.lists(CURVES, min_size=1, max_size=8))
def test_neither_the_order_of_trials_nor_the_sign_matters(rule: Pruner, curves: list[list[float]]) -> None:
    """A rule is a function of the values: the same for any order, and for max of the negated values."""
    own, *others = [ended(number, *curve) for number, curve in enumerate(curves)]
    reason = stop_reason([rule], "min", own, others)
    assert stop_reason([rule], "min", own, others[::-1]) == reason
    mirrored = [ended(one.number, *(-value for _, value in one.curve)) for one in (own, *others)]
    assert bool(stop_reason([rule], "max", mirrored[0], mirrored[1:])) == bool(reason)


@QUIET
@given(st.lists(st.floats(-1e6, 1e6), min_size=9, max_size=40, unique=True), st.sampled_from([2, 3]))
def test_asha_lets_about_one_of_eta_go_on(values: list[float], eta: int) -> None:
    """Of trials that reach a rung one after another, those in the best 1/eta at that moment go on, at least one."""
    arrived: list[TrialCurve] = []
    for number, value in enumerate(values):
        own = trial(number, value)
        rank = sum(one.curve[0][1] < value for one in arrived)
        stopped = bool(stop_reason([Asha(1, eta)], "min", own, arrived))
        assert stopped == (rank >= max(1, (len(arrived) + 1) // eta))
        arrived.append(own)
