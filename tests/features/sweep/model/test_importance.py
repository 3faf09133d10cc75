"""Importance of parameters, the best so far, what early stopping saved, and points that none beats."""

from __future__ import annotations

from math import nan
from random import Random

from stoker.features.sweep.model.importance import LEAST, importance_of, pareto
from stoker.features.sweep.model.space import Params


def points(count: int) -> list[tuple[Params, float]]:
    """The value depends much on lr, a little on act, and not on seed."""
    source = Random(0)
    found: list[tuple[Params, float]] = []
    for _ in range(count):
        lr, act = source.random(), source.choice(["relu", "gelu"])
        found.append(({"lr": lr, "act": act, "seed": source.random(), "same": 1}, lr + 0.2 * (act == "gelu")))
    return found


def test_what_matters_comes_first() -> None:
    """Noise gets about nothing, a constant is left out, and one diverged trial changes little."""
    shares = importance_of(points(200))
    assert list(shares)[:2] == ["lr", "act"]
    assert shares["lr"] > 0.8
    assert shares["seed"] < 0.1
    assert "same" not in shares
    params, _ = points(1)[0]
    with_outlier = importance_of([*points(200), (params, 1e30), (params, nan)])
    assert abs(with_outlier["lr"] - shares["lr"]) < 0.05


def test_nothing_is_said_of_few_trials() -> None:
    """Nor of trials that all have the same value."""
    assert importance_of(points(LEAST - 1)) == {}
    assert importance_of([(params, 1.0) for params, _ in points(20)]) == {}


def test_a_parameter_that_not_all_trials_have() -> None:
    """Its absence is a value like others."""
    adam: Params = {"opt": "adam"}
    sgd: Params = {"opt": "sgd", "m": 0.9}
    mixed = [*[(adam, 1.0)] * 6, *[(sgd, 2.0)] * 6]
    assert importance_of(mixed) == {"opt": 1.0, "m": 1.0}


def test_points_that_are_not_beaten() -> None:
    """In the order of their first value; equal ones do not beat each other."""
    assert pareto({1: (1.0, 5.0), 2: (2.0, 2.0), 3: (3.0, 3.0), 4: (1.0, 5.0)}) == [1, 4, 2]
