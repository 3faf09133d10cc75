"""Sweeps in the API of the page: a part of the table, and as many trials and curves as charts can show."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import ceil, inf
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from stoker.app.views.pages import LINES
from stoker.core.chart import Axis
from stoker.core.errors import NoSuchJob
from stoker.core.outcomes import ACTIVE
from stoker.features.sweep.charts import in_order, parallel, shown_curves, value_in, with_value
from stoker.features.sweep.model.importance import best_so_far
from stoker.features.sweep.model.objective import score
from stoker.features.sweep.view import SweepData, SweepView, TrialView, read_sweep, read_sweeps
from stoker.store.paths import Paths
from stoker.web.answers import answer
from stoker.web.query import page_of

SCHEMA = "stoker.sweep-page/1"
MOST_POINTS = 2000
"""Trials that charts show."""
MOST_BEST = 20
"""Best points that are named; with several objectives, each of them beats all others in something."""


class SweepAxis(Struct, frozen=True):
    """An axis of the charts: a parameter that differs between trials, or the value."""

    name: str
    log: bool
    names: list[str]
    """Texts that stand for 0, 1, 2 ...; empty for numbers."""


class SweepPoint(Struct, frozen=True):
    """A trial in the charts."""

    trial: TrialView
    place: int
    """How many trials had ended when it ended, itself included."""
    line: list[float | None]
    """Its place on each axis; null if it does not have the parameter."""
    goodness: float
    """From 0 (the worst) to 1 (the best) among all trials."""


class SweepCurve(Struct, frozen=True):
    """Values by step of one trial."""

    trial: int
    job: int
    state: str
    points: list[tuple[float, float]]


class SweepPage(Struct, frozen=True):
    """A sweep, a part of its trials, and its charts: `/api/v1/sweeps/ID`."""

    schema: str
    sweep: SweepView
    """As `stoker sweep status --json`, with the trials of this page: the best first, then those without a value."""
    page: int
    pages: int
    total: int
    """Trials on all pages."""
    axes: list[SweepAxis]
    """The last one is the value of the first objective. Empty as long as no trial has a value."""
    points: list[SweepPoint]
    """Trials with a value; of more than the charts can show, the best tenth as far as it fits, and some of the rest."""
    points_left_out: int
    steps: list[tuple[int, float]]
    """Where the best value so far changed: place and value."""
    curves: list[SweepCurve]
    curves_left_out: int


class QueueService(Protocol):
    """The queue that a server shows."""

    @property
    def paths(self) -> Paths:
        """Its state directory."""


def reads(service: QueueService) -> dict[str, Callable[[Request], Response]]:
    """Paths below /api/v1 and their endpoints."""

    def sweeps(_request: Request) -> Response:
        return answer(read_sweeps(service.paths))

    def sweep(request: Request) -> Response:
        page = page_of(request.query_params)
        return answer(sweep_page(read_sweep(service.paths, _sweep_id(request)), page))

    return {"sweeps": sweeps, "sweeps/{sweep}": sweep}


def _sweep_id(request: Request) -> str:
    text = request.path_params["sweep"]
    if not re.fullmatch(r"(?a)\d{1,18}", text):
        raise NoSuchJob(f"{text[:40]!r} is not the id of a sweep", "list sweeps with /api/v1/sweeps")
    return str(text)


def sweep_page(data: SweepData, page: int) -> SweepPage:
    view = data.view
    ordered = _ordered(data)
    trials = with_value(data) if data.objectives else []
    axes, points = _points(data, trials) if trials else ([], [])
    shown = _chosen(points, MOST_POINTS)
    curves = _curves(data)
    return SweepPage(
        SCHEMA,
        replace(view, best=view.best[:MOST_BEST], trials=ordered[(page - 1) * LINES : page * LINES]),
        page=page,
        pages=max(1, ceil(len(ordered) / LINES)),
        total=len(ordered),
        axes=axes,
        points=shown,
        points_left_out=len(points) - len(shown),
        steps=_steps(data, trials),
        curves=curves,
        curves_left_out=sum(1 for curve in data.curves.values() if curve) - len(curves),
    )


def _ordered(data: SweepData) -> list[TrialView]:
    """By value, the best first; then those without one, those that run first."""

    def key(trial: TrialView) -> tuple[float, bool, int]:
        value = trial.values.get(data.objectives[0].name) if data.objectives else None
        by_value = inf if value is None or trial.state == "failed" else score(data.objectives[0].goal, value)
        return by_value, trial.state not in ACTIVE, trial.number

    return sorted(data.view.trials, key=key)


def _points(data: SweepData, trials: Sequence[TrialView]) -> tuple[list[SweepAxis], list[SweepPoint]]:
    """All trials in the order in which they ended."""
    chart = parallel(data, trials)
    places = {trial.number: place for place, trial in enumerate(in_order(data, trials), 1)}
    points = [
        SweepPoint(trial, places[trial.number], list(line), round(goodness, 4))
        for trial, line, goodness in zip(trials, chart.lines, chart.goodness, strict=True)
    ]
    return [_axis(axis) for axis in chart.axes], sorted(points, key=lambda point: point.place)


def _axis(axis: Axis) -> SweepAxis:
    return SweepAxis(axis.title, axis.log, list(axis.names))


def _chosen(points: list[SweepPoint], most: int) -> list[SweepPoint]:
    """At most so many, with the best tenth as far as it fits in half of them, and every n-th of the rest."""
    if len(points) <= most:
        return points
    ranked = sorted(points, key=lambda point: -point.goodness)
    best = ranked[: min(most // 2, ceil(len(points) / 10))]
    taken = {point.place for point in best}
    rest = [point for point in points if point.place not in taken]
    room = most - len(best)
    spread = [rest[index * len(rest) // room] for index in range(room)]
    return sorted([*best, *spread], key=lambda point: point.place)


def _steps(data: SweepData, trials: Sequence[TrialView]) -> list[tuple[int, float]]:
    if not trials:
        return []
    objective = data.objectives[0]
    values = [value_in(trial, objective) if trial.state == "done" else None for trial in in_order(data, trials)]
    steps: list[tuple[int, float]] = []
    for place, value in enumerate(best_so_far(values, smallest=objective.goal == "min"), 1):
        if value is not None and (not steps or value != steps[-1][1]):
            steps.append((place, value))
    return steps


def _curves(data: SweepData) -> list[SweepCurve]:
    trials = {trial.number: trial for trial in data.view.trials}
    return [
        SweepCurve(number, trials[number].job, trials[number].state, list(curve))
        for number, curve in shown_curves(data).items()
        if number in trials
    ]
