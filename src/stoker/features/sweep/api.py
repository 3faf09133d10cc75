"""Sweeps in the API of the page: a part of the table, and as many trials and curves as charts can show."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import ceil

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from stoker.app.views.pages import LINES
from stoker.core.chart import Axis
from stoker.core.errors import NoSuchJob
from stoker.features.sweep.charts import parallel
from stoker.features.sweep.store import active_trials, trials_without
from stoker.features.sweep.summary import SweepSummaries
from stoker.features.sweep.view import (
    MOST_POINTS,
    SweepData,
    SweepNow,
    SweepView,
    TrialView,
    opened_sweep,
    read_sweeps,
    shown_curves,
    sweep_data,
    trials_of,
)
from stoker.web.answers import QueueService, answer
from stoker.web.query import page_of

SCHEMA = "stoker.sweep-page/1"
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


def reads(service: QueueService) -> dict[str, Callable[[Request], Response]]:
    """Paths below /api/v1 and their endpoints."""
    summaries = SweepSummaries(service.paths)

    def sweeps(_request: Request) -> Response:
        return answer(read_sweeps(service.paths, summaries))

    def sweep(request: Request) -> Response:
        page = page_of(request.query_params)
        with opened_sweep(service.paths, _sweep_id(request), summaries) as now:
            shown = sweep_page(now, page)
        return answer(shown)

    return {"sweeps": sweeps, "sweeps/{sweep}": sweep}


def _sweep_id(request: Request) -> str:
    text = request.path_params["sweep"]
    if not re.fullmatch(r"(?a)\d{1,18}", text):
        raise NoSuchJob(f"{text[:40]!r} is not the id of a sweep", "list sweeps with /api/v1/sweeps")
    return str(text)


def sweep_page(sweep: SweepNow, page: int) -> SweepPage:
    summary, total = sweep.summary, sweep.tracked.total
    jobs = _jobs_of_page(sweep, page)
    places = summary.spread(MOST_POINTS)
    point_jobs = [summary.records[number].job for number in places]
    trials = {trial.job: trial for trial in trials_of(sweep, {*jobs, *point_jobs})}
    data = sweep_data(sweep, [trials[job] for job in jobs], MOST_BEST)
    axes, points = _points(sweep, data, [trials[job] for job in point_jobs], places) if places else ([], [])
    curves, curves_left_out = shown_curves(sweep)
    records = summary.records
    return SweepPage(
        SCHEMA,
        data.view,
        page=page,
        pages=max(1, ceil(total / LINES)),
        total=total,
        axes=axes,
        points=points,
        points_left_out=len(summary.by_end.numbers) - len(points),
        steps=summary.steps,
        curves=[
            SweepCurve(number, records[number].job, records[number].state, list(curve))
            for number, curve in curves.items()
        ],
        curves_left_out=curves_left_out,
    )


def _jobs_of_page(sweep: SweepNow, page: int) -> list[int]:
    """By value, the best first; then those without one, those that run first."""
    first, end = (page - 1) * LINES, page * LINES
    records = sweep.summary.records
    ordered = sweep.summary.in_table
    if end > len(ordered):
        valued = set(ordered)
        active = [trial.number for trial in active_trials(sweep.reader, sweep.stored.batch)]
        ordered += sorted(number for number in active if number not in valued)
    jobs = [records[number].job for number in ordered[first:end]]
    if missing := end - first - len(jobs):
        jobs += trials_without(sweep.reader, sweep.stored.batch, ordered, missing, offset=max(0, first - len(ordered)))
    return jobs


def _points(
    sweep: SweepNow, data: SweepData, trials: Sequence[TrialView], places: Mapping[int, int]
) -> tuple[list[SweepAxis], list[SweepPoint]]:
    """The chosen trials in the order in which they ended."""
    chart = parallel(data, trials)
    ranked = sweep.summary.ranked.numbers
    worst = max(1, len(ranked) - 1)
    goodness = {number: 1 - rank / worst for rank, number in enumerate(ranked) if number in places}
    points = [
        SweepPoint(trial, places[trial.number], list(line), round(goodness[trial.number], 4))
        for trial, line in zip(trials, chart.lines, strict=True)
    ]
    return [_axis(axis) for axis in chart.axes], points


def _axis(axis: Axis) -> SweepAxis:
    return SweepAxis(axis.title, axis.log, list(axis.names))
