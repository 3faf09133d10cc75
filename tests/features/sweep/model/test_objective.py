"""Objectives as users type them, and the values of trials."""

from __future__ import annotations

from math import inf, nan

import pytest

from stoker.core.errors import UsageError
from stoker.features.sweep.model.objective import (
    STORED_POINTS,
    Objective,
    ValueSeries,
    parse_objective,
    parse_objectives,
    problem_of,
    thinned,
    value_of,
)

TYPED = {
    "val_loss": Objective("val_loss"),
    "acc:max": Objective("acc", "max"),
    "loss:min:best": Objective("loss", take="best"),
    "regex:val_loss[=: ]+([-+0-9.eE]+)": Objective("val_loss", "min", "regex", "val_loss[=: ]+([-+0-9.eE]+)"),
    "regex:^(?:top1) ([0-9.]+):max": Objective("top1", "max", "regex", "^(?:top1) ([0-9.]+)"),
    "err=regex:([0-9]+)%": Objective("err", "min", "regex", "([0-9]+)%"),
    "eval.loss=jsonl:out/{lr}/m.jsonl": Objective("eval.loss", "min", "jsonl", "out/{lr}/m.jsonl"),
    "acc=csv:m.csv:max": Objective("acc", "max", "csv", "m.csv"),
    "val/loss=tensorboard:runs": Objective("val/loss", "min", "tensorboard", "runs"),
}

NAMES = {
    r"epoch (?P<step>\d+).*acc=(?P<value>\S+)": "acc",
    r"step (?P<step>\d+): train loss [0-9.]+, val loss (?P<value>[0-9.]+)": "val_loss",
    r"Test set: Average loss: ([0-9.]+)": "Average_loss",
    r"Test set:.*Accuracy: \d+/\d+ \((\d+)%\)": "Accuracy",
    r"val\s+loss[=: ]+([-+0-9.eE]+)": "val_loss",
    r"(?i)\bval\.loss\b = (\S+)": "val.loss",
    r"(?:train|val)_loss=(\S+)": "loss",
    r"([0-9.]+)% accuracy": "accuracy",
    r"eval/top-1: (?P<v>[0-9.]+)": "eval/top-1",
    r"[(]x[)] err (\d+)": "err",
    r"loss=[0-9.]+": "loss",
    r"([0-9.]+)": "objective",
}


@pytest.mark.parametrize("pattern", NAMES)
def test_the_name_of_a_pattern(pattern: str) -> None:
    """Is that of the words before its value, never that of a step."""
    assert parse_objective(f"regex:{pattern}:min").name == NAMES[pattern]


REFUSED = {
    r"regex:epoch (?P<step>\d+).*acc=(?P<value>\S+)": "whether a larger acc is better",
    r"regex:test set: .* Accuracy: (\d+)": "whether a larger Accuracy is better",
    r"regex:Epoch (\d+) acc ([0-9.]+)": "takes the Epoch for the value",
    r"regex:([0-9.]+) top1 accuracy": "whether a larger top1_accuracy is better",
    "": "is not understood",
    "loss value": "is not understood",
    "regexp:x": "did you mean regex",
    "regex:([0-9": "is not a regular expression",
    "csv:m.csv": "write it as val_loss=csv:m.csv",
    "test_acc": "whether a larger test_acc is better; add :max",
    "val acc=wandb": "whether a larger val acc is better; add :max or :min to it, or --goal max",
    "F1": "whether a larger F1 is better",
}


@pytest.mark.parametrize("text", TYPED)
def test_what_is_understood(text: str) -> None:
    """Name, source, goal and which value counts."""
    assert parse_objective(text) == TYPED[text]


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused(text: str) -> None:
    """With a hint; a value that users want to be large needs a goal."""
    with pytest.raises(UsageError) as error:
        parse_objective(text)
    assert REFUSED[text] in f"{error.value.message}; {error.value.hint}"


def test_the_goal_of_all() -> None:
    """`--goal` is for objectives without one of their own; W&B's words count, too."""
    assert [one.goal for one in parse_objectives(["acc", "loss:min"], "max")] == ["max", "min"]
    assert parse_objective("acc", "maximize").goal == "max"
    with pytest.raises(UsageError, match="not a goal"):
        parse_objective("loss", "up")
    with pytest.raises(UsageError, match="two objectives are called loss"):
        parse_objectives(["loss", "regex:loss (.*)"])


def test_a_series_takes_the_newest_value_of_a_step() -> None:
    """Values without a step are counted, and steps may come in any order."""
    series = ValueSeries()
    for value, step in [(3.0, None), (2.0, None), (9.0, 5), (1.5, 2), (1.0, nan)]:
        series.add(value, step)
    assert series.curve == ((1.0, 3.0), (2.0, 1.5), (5.0, 1.0))


def test_the_value_of_a_trial() -> None:
    """The last one, or the best; nan and inf are problems, and so is a value that never came."""
    curve = ((1.0, 0.4), (2.0, nan), (3.0, 0.6))
    assert value_of(Objective("loss"), curve) == 0.6
    assert value_of(Objective("loss", take="best"), curve) == 0.4
    assert value_of(Objective("acc", "max", take="best"), curve) == 0.6
    assert value_of(Objective("loss"), ()) is None
    assert problem_of(Objective("loss"), 0.6) == ""
    assert problem_of(Objective("loss"), nan) == "the value of loss is nan or infinite"
    assert problem_of(Objective("loss"), -inf) == "the value of loss is nan or infinite"
    never = problem_of(Objective("loss", "min", "regex", "loss=(.*)"), None)
    assert never == "it wrote no value of loss: nothing came from the pattern 'loss=(.*)' in the log"


def test_a_long_curve_is_thinned() -> None:
    """First and last point stay."""
    curve = tuple((float(step), float(step)) for step in range(10_000))
    kept = thinned(curve)
    assert (len(kept), kept[0], kept[-1]) == (STORED_POINTS, curve[0], curve[-1])
    assert len(set(kept)) == STORED_POINTS
