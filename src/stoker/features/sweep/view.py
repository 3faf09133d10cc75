"""Build the data of `stoker sweep status`, `best`, `table` and `plot`."""

from __future__ import annotations

import contextlib
import heapq
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from itertools import chain
from math import isfinite, isnan
from typing import Any

from msgspec import Struct

from stoker.app.jobs.local_time import to_datetime, to_datetime_or_none
from stoker.app.views.failure import failure_text
from stoker.core.errors import NoSuchJob
from stoker.core.job import Ended, Job, state_word
from stoker.core.outcomes import ACTIVE, RESULTS
from stoker.features.sweep.model.objective import Curve, Objective
from stoker.features.sweep.model.result import decode_result
from stoker.features.sweep.model.space import Choices, Params, Range, Scalar, Space, parameter_text, value_text
from stoker.features.sweep.model.summary import TrialRecord, TrialSummary
from stoker.features.sweep.store import (
    StoredSweep,
    active_trials,
    all_sweeps,
    find_sweep,
    first_untouched,
    result_bodies,
    study_path,
    trial_params,
)
from stoker.features.sweep.summary import SweepSummaries, TrackedSweep, without_repeat
from stoker.store.paths import Paths, host_name
from stoker.store.reader import Reader
from stoker.store.writer import open_store

SCHEMA = "stoker.sweep-status/1"
LIST_SCHEMA = "stoker.sweeps/1"
MOST_CURVES = 200
MOST_POINTS = 2000
"""Trials with a value that charts of parameters show."""
_WORDS = {"waiting": "queued"}


class ObjectiveView(Struct, frozen=True):
    """A value that a sweep makes small or large."""

    name: str
    goal: str
    source: str


class TrialView(Struct, frozen=True):
    """One trial."""

    number: int
    job: int
    state: str
    """State of its job; `failed` also for a job that succeeded without a usable value."""
    params: dict[str, Scalar]
    values: dict[str, float | None]
    """Of each objective, as far as they have come; null for nan and inf."""
    step: float | None
    """The last step of the first objective."""
    started: datetime | None
    ended: datetime | None
    seconds: float | None
    gpu_hours: float
    message: str
    """Why it failed, or was stopped."""


class BestView(Struct, frozen=True):
    """One of the best points."""

    trials: list[int]
    """Numbers of its trials; several with --repeat."""
    jobs: list[int]
    params: dict[str, Scalar]
    values: dict[str, float]
    """Means over its trials."""


class SweepView(Struct, frozen=True):
    """A sweep with all its trials: `stoker sweep status --json`, and `table --json`."""

    schema: str
    at: datetime
    host: str
    simulated: bool
    id: int
    name: str
    state: str
    """queued, running, done, stopped (`stoker sweep stop`), or interrupted: its tuner failed or was cancelled."""
    method: str
    space: list[str]
    command: str
    objectives: list[ObjectiveView]
    pruners: list[str]
    created: datetime
    total: int
    """Trials that the sweep will have."""
    counts: dict[str, int]
    """Trials in the queue by state."""
    best: list[BestView]
    """The best point first; with several objectives, all that no other point beats."""
    importance: dict[str, float]
    importance_method: str
    gpu_hours: float
    gpu_hours_saved: float
    """By early stopping, against the median of the trials that ran in full."""
    gpu_hours_full_trial: float | None
    """That median."""
    tuner: int | None
    """The job that reads values, stops trials and chooses new repeats."""
    tuner_state: str
    tuner_message: str
    """Why it failed."""
    study: str | None
    """File of the Optuna study."""
    notices: list[str]
    trials: list[TrialView]


class SweepLine(Struct, frozen=True):
    """A sweep in a list."""

    id: int
    name: str
    state: str
    method: str
    total: int
    counts: dict[str, int]
    created: datetime
    objective: str
    """The first one; empty without one."""
    best: float | None
    """Its best value; null without one, and with several objectives."""
    params: dict[str, Scalar]
    """Of the best point."""


class SweepList(Struct, frozen=True):
    """All sweeps, the newest first: `stoker sweep list --json`."""

    schema: str
    sweeps: list[SweepLine]


class SweepData(Struct, frozen=True):
    """A view, and what tables and charts need besides."""

    view: SweepView
    objectives: tuple[Objective, ...]
    names: list[str]
    """All parameters, in the order of the space."""
    tuned: list[str]
    """Those that differ between trials."""
    log_names: frozenset[str] = frozenset()
    """Those whose range is logarithmic."""
    listed: dict[str, list[str]] = {}
    """The values of those that have a list of them, in its order."""


class SweepNow(Struct, frozen=True):
    """A sweep within a read transaction: its parts are read when they are asked for."""

    reader: Reader
    paths: Paths
    stored: StoredSweep
    tracked: TrackedSweep
    tuner: Job | None
    now: float

    @property
    def summary(self) -> TrialSummary:
        return self.tracked.summary

    @property
    def objectives(self) -> tuple[Objective, ...]:
        return self.tracked.objectives


def chosen_sweep(reader: Reader, word: str | None) -> StoredSweep:
    """The sweep with this id or name; without a word, the newest."""
    sweeps = all_sweeps(reader)
    if not sweeps:
        raise NoSuchJob("there is no sweep in this queue", "start one: stoker sweep lr=1e-3,1e-4 -- python3 train.py")
    if word in (None, "last"):
        return sweeps[0]
    named = [stored for stored in sweeps if stored.sweep.name and stored.sweep.name == word]
    chosen = find_sweep(reader, int(word)) if word and word.isdecimal() else next(iter(named), None)
    if chosen is None:
        ids = ", ".join(str(stored.id) for stored in sweeps[:8])
        raise NoSuchJob(f"there is no sweep {word}", f"sweeps: {ids}", word or "")
    return chosen


@contextlib.contextmanager
def opened_sweep(paths: Paths, word: str | None, summaries: SweepSummaries | None = None) -> Iterator[SweepNow]:
    """A sweep as it is now; a process that shows it again passes the same summaries."""
    summaries = summaries or SweepSummaries(paths)
    with summaries.locked(), contextlib.closing(open_store(paths)) as store, store.reading():
        yield _sweep_now(store, paths, chosen_sweep(store, word), summaries)


def _sweep_now(reader: Reader, paths: Paths, stored: StoredSweep, summaries: SweepSummaries) -> SweepNow:
    tuner = reader.job(stored.tuner) if stored.tuner is not None else None
    return SweepNow(reader, paths, stored, summaries.look(reader, stored, tuner), tuner, time.time())


def read_sweep(paths: Paths, word: str | None, best: int | None = None) -> SweepData:
    """A sweep and all its trials as they are now, with at most so many of the best points."""
    with opened_sweep(paths, word) as sweep:
        return sweep_data(sweep, trials_of(sweep), best)


def read_overview(paths: Paths, word: str | None, best: int) -> SweepData:
    """A sweep with the trials that run, and at most so many of the best points."""
    with opened_sweep(paths, word) as sweep:
        running = [trial.job for trial in active_trials(sweep.reader, sweep.stored.batch)]
        return sweep_data(sweep, trials_of(sweep, running), best)


def read_best(paths: Paths, word: str | None, best: int) -> SweepData:
    """A sweep with at most so many of the best points, and their trials; of several objectives, with all."""
    with opened_sweep(paths, word) as sweep:
        points = best_points(sweep, best if len(sweep.objectives) == 1 else None)
        trials = trials_of(sweep, [job for point in points for job in point.jobs])
        by_job = {trial.job: trial for trial in trials}
        return sweep_data(sweep, [by_job[job] for point in points for job in point.jobs], len(points))


def read_sweeps(paths: Paths, summaries: SweepSummaries | None = None) -> SweepList:
    """All sweeps in a line each."""
    summaries = summaries or SweepSummaries(paths)
    with summaries.locked(), contextlib.closing(open_store(paths)) as store, store.reading():
        return SweepList(
            LIST_SCHEMA, [_line(_sweep_now(store, paths, stored, summaries)) for stored in all_sweeps(store)]
        )


def sweep_data(sweep: SweepNow, trials: list[TrialView], best: int | None = None) -> SweepData:
    """The data of a screen that shows these trials, and at most so many of the best points."""
    stored, tracked, summary = sweep.stored, sweep.tracked, sweep.summary
    spec = stored.sweep
    full = summary.full_hours
    tuner = sweep.tuner
    view = SweepView(
        schema=SCHEMA,
        at=to_datetime(sweep.now),
        host=host_name(),
        simulated=sweep.paths.is_simulated,
        id=stored.id,
        name=spec.name,
        state=_state(sweep),
        method=spec.method,
        space=[parameter_text(parameter) for parameter in spec.space.parameters],
        command=spec.command.text,
        objectives=[
            ObjectiveView(objective.name, objective.goal, objective.source_text) for objective in sweep.objectives
        ],
        pruners=list(spec.pruners),
        created=to_datetime(stored.created),
        total=spec.trials,
        counts=_counts(tracked),
        best=best_points(sweep, best, trials),
        importance={name: round(share, 4) for name, share in tracked.importance(sweep.reader).items()},
        importance_method=tracked.importance_method,
        gpu_hours=summary.gpu_hours(sweep.now),
        gpu_hours_saved=round(summary.saved_hours, 6),
        gpu_hours_full_trial=None if full is None else round(full, 6),
        tuner=stored.tuner,
        tuner_state="" if tuner is None else _WORDS.get(state_word(tuner), state_word(tuner)),
        tuner_message="" if tuner is None else failure_text(sweep.reader, tuner),
        study=str(path) if (path := study_path(sweep.paths, stored.id)).exists() else None,
        notices=sorted(notice for notice, count in summary.notices.items() if count),
        trials=trials,
    )
    return SweepData(
        view,
        sweep.objectives,
        tracked.names(spec),
        tracked.tuned(spec),
        _log_names(spec.space),
        _listed_values(spec.space),
    )


def best_points(sweep: SweepNow, most: int | None = None, read: Sequence[TrialView] = ()) -> list[BestView]:
    """The best points, by the means of their trials that have a usable value; some trials may have been read."""
    summary = sweep.summary
    points = [summary.repeats(point) for point in summary.best(most)]
    params = {trial.job: without_repeat(trial.params) for trial in read}
    jobs = [repeats[0].job for repeats in points if repeats[0].job not in params]
    missing = trial_params(sweep.reader, sweep.stored.batch, jobs) if jobs else []
    params |= {job: without_repeat(point) for _, job, point in missing}
    return [
        BestView(
            [record.number for record in repeats],
            [record.job for record in repeats],
            params[repeats[0].job],
            summary.means(repeats),
        )
        for repeats in points
    ]


def first_trials(sweep: SweepNow, key: Callable[[TrialRecord], Any], limit: int, *, reverse: bool) -> list[TrialView]:
    """The first trials in an order that their records tell; nothing is read of the others."""
    queued = first_untouched(sweep.reader, sweep.stored.batch, limit, last=reverse)
    nothing = tuple(None for _ in sweep.objectives)
    untouched = (
        TrialRecord(number, job, "queued", 0, None, None, 0, None, 0, nothing, None, "", "", False, False)
        for number, job in queued
    )
    few = heapq.nlargest if reverse else heapq.nsmallest
    chosen = few(limit, chain(sweep.summary.records.values(), untouched), key=key)
    trials = {trial.number: trial for trial in trials_of(sweep, [record.job for record in chosen])}
    return [trials[record.number] for record in chosen]


def trials_of(sweep: SweepNow, jobs: Collection[int] | None = None) -> list[TrialView]:
    """Trials by number: those of some jobs, or all."""
    records = sweep.summary.records
    names = [objective.name for objective in sweep.objectives]
    return [
        TrialView(number, job, "queued", params, {}, None, None, None, None, 0.0, "")
        if (record := records.get(number)) is None
        else _trial(record, params, names, sweep.now)
        for number, job, params in trial_params(sweep.reader, sweep.stored.batch, jobs)
    ]


def _trial(record: TrialRecord, params: Params, names: Sequence[str], now: float) -> TrialView:
    seconds = record.seconds(now)
    values = zip(names, record.values, strict=True)
    return TrialView(
        number=record.number,
        job=record.job,
        state=record.state,
        params=params,
        values={name: None if isnan(value) else value for name, value in values if value is not None},
        step=record.step,
        started=to_datetime_or_none(record.started),
        ended=to_datetime_or_none(record.ended),
        seconds=None if seconds is None else round(seconds, 3),
        gpu_hours=record.gpu_hours(now),
        message=record.message,
    )


def shown_curves(sweep: SweepNow) -> tuple[dict[int, Curve], int]:
    """The finite values by step of the newest trials and of the best one, by number, and how many are left out."""
    if not sweep.objectives:
        return {}, 0
    summary = sweep.summary
    newest = summary.with_curve.numbers[-MOST_CURVES:]
    best = [summary.repeats(point)[0] for point in summary.best(1)]
    if best and best[0].has_curve and best[0].number not in newest:
        newest = [best[0].number, *newest[1:]]
    bodies = result_bodies(sweep.reader, sweep.stored.batch, newest)
    name = sweep.objectives[0].name
    curves = {number: _finite(decode_result(bodies[number]).curve(name)) for number in newest}
    shown = {number: curve for number, curve in curves.items() if curve}
    return shown, len(summary.with_curve.numbers) - len(shown)


def _finite(curve: Curve) -> Curve:
    return tuple((step, value) for step, value in curve if isfinite(value))


def _log_names(space: Space) -> frozenset[str]:
    return frozenset(
        parameter.name for parameter in space.parameters if isinstance(parameter.domain, Range) and parameter.domain.log
    )


def _listed_values(space: Space) -> dict[str, list[str]]:
    listed: dict[str, list[str]] = {}
    for parameter in space.parameters:
        if isinstance(parameter.domain, Choices):
            listed.setdefault(parameter.name, []).extend(map(value_text, parameter.domain.values))
    return listed


def _counts(tracked: TrackedSweep) -> dict[str, int]:
    """Trials in the queue by state."""
    counts = tracked.summary.counts.copy()
    counts["queued"] += tracked.total - len(tracked)
    return {state: count for state, count in counts.items() if count}


def _state(sweep: SweepNow) -> str:
    counts, stored, tuner = _counts(sweep.tracked), sweep.stored, sweep.tuner
    over = sum(counts.get(word, 0) for word in RESULTS)
    if over == sweep.tracked.total and (tuner is None or isinstance(tuner.state, Ended)):
        if stored.stopped is not None:
            return "stopped"
        return "done" if tuner is None or state_word(tuner) == "done" else "interrupted"
    return "running" if over or any(counts.get(word) for word in ACTIVE) else "queued"


def _line(sweep: SweepNow) -> SweepLine:
    stored, spec = sweep.stored, sweep.stored.sweep
    counts = _counts(sweep.tracked)
    is_over = counts and all(word in RESULTS for word in counts)
    objectives = sweep.objectives
    best = next(iter(best_points(sweep, 1)), None) if len(objectives) == 1 else None
    return SweepLine(
        id=stored.id,
        name=spec.name,
        state=("stopped" if stored.stopped else "done") if is_over else "running",
        method=spec.method,
        total=spec.trials,
        counts=counts,
        created=to_datetime(stored.created),
        objective=objectives[0].name if objectives else "",
        best=best.values[objectives[0].name] if best else None,
        params=best.params if best else {},
    )
