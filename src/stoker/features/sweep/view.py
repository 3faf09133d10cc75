"""Build the data of `stoker sweep status`, `best`, `table` and `plot`."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import nan
from statistics import fmean, median

from msgspec import Struct

from stoker.app.jobs.local_time import to_datetime, to_datetime_or_none
from stoker.app.views.failure import failure_text
from stoker.core.errors import NoSuchJob
from stoker.core.job import Ended, Job, state_word
from stoker.core.outcomes import GOOD_RESULTS
from stoker.features.sweep.model.importance import METHOD, importance_of, pareto, saved_seconds
from stoker.features.sweep.model.objective import Curve, Objective, parse_objectives, score
from stoker.features.sweep.model.record import REPEAT
from stoker.features.sweep.model.result import TrialResult, read_result
from stoker.features.sweep.model.space import Params, Range, Scalar, Space, parameter_text
from stoker.features.sweep.store import (
    StoredSweep,
    TrialJob,
    TrialTime,
    all_sweeps,
    all_trials,
    find_sweep,
    study_path,
    trial_results,
    trial_times,
)
from stoker.store.paths import Paths, host_name
from stoker.store.reader import Reader
from stoker.store.writer import open_store

SCHEMA = "stoker.sweep-status/1"
LIST_SCHEMA = "stoker.sweeps/1"
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
    """A view, and what charts need besides."""

    view: SweepView
    objectives: tuple[Objective, ...]
    curves: dict[int, Curve]
    """Of the first objective, by trial."""
    log_names: frozenset[str] = frozenset()
    """Parameters whose range is logarithmic."""


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


def read_sweep(paths: Paths, word: str | None) -> SweepData:
    """A sweep and its trials as they are now."""
    with contextlib.closing(open_store(paths)) as store, store.reading():
        return sweep_data(store, paths, chosen_sweep(store, word))


def read_sweeps(paths: Paths) -> SweepList:
    """All sweeps in a line each."""
    with contextlib.closing(open_store(paths)) as store, store.reading():
        return SweepList(LIST_SCHEMA, [_line(store, stored) for stored in all_sweeps(store)])


def sweep_data(reader: Reader, paths: Paths, stored: StoredSweep) -> SweepData:
    sweep = stored.sweep
    objectives = parse_objectives(sweep.objectives, sweep.goal or None)
    results = {number: read_result(body) for number, body in trial_results(reader, stored.batch).items()}
    times = trial_times(reader, stored.batch)
    now = time.time()
    trials = [
        _trial(row, results.get(row.number), times.get(row.number), objectives, now)
        for row in all_trials(reader, stored.batch)
    ]
    tuner = reader.job(stored.tuner) if stored.tuner is not None else None
    full = [trial.gpu_hours for trial in trials if trial.state == "done" and trial.gpu_hours]
    stopped = [trial.gpu_hours for trial in trials if trial.state == "stopped"]
    studied = [
        (_tuned(trial.params), _number(trial.values.get(objectives[0].name)))
        for trial in trials
        if _counts(trial, objectives)
    ]
    view = SweepView(
        schema=SCHEMA,
        at=to_datetime(now),
        host=host_name(),
        simulated=paths.is_simulated,
        id=stored.id,
        name=sweep.name,
        state=_state(stored, trials, tuner),
        method=sweep.method,
        space=[parameter_text(parameter) for parameter in sweep.space.parameters],
        command=sweep.command.text,
        objectives=[ObjectiveView(objective.name, objective.goal, objective.source_text) for objective in objectives],
        pruners=list(sweep.pruners),
        created=to_datetime(stored.created),
        total=sweep.trials,
        counts=dict(Counter(trial.state for trial in trials)),
        best=best_points(trials, objectives, sweep.repeat),
        importance={name: round(share, 4) for name, share in importance_of(studied).items()},
        importance_method=METHOD,
        gpu_hours=round(sum(trial.gpu_hours for trial in trials), 6),
        gpu_hours_saved=round(saved_seconds(full, stopped), 6),
        gpu_hours_full_trial=round(median(full), 6) if full else None,
        tuner=stored.tuner,
        tuner_state="" if tuner is None else _WORDS.get(state_word(tuner), state_word(tuner)),
        tuner_message="" if tuner is None else failure_text(reader, tuner),
        study=str(path) if (path := study_path(paths, stored.id)).exists() else None,
        notices=sorted({result.notice for result in results.values() if result.notice}),
        trials=trials,
    )
    name = objectives[0].name if objectives else ""
    curves = {number: result.curve(name) for number, result in results.items()}
    return SweepData(view, objectives, curves, _log_names(sweep.space))


def best_points(trials: Sequence[TrialView], objectives: Sequence[Objective], repeat: int) -> list[BestView]:
    """The best points, by the means of their trials that have a usable value."""
    points: dict[int, list[TrialView]] = {}
    for trial in trials:
        if (
            trial.state == "done"
            and all(trial.values.get(objective.name) is not None for objective in objectives)
            and objectives
        ):
            points.setdefault(trial.number // repeat, []).append(trial)
    means = {
        point: {
            objective.name: fmean(_number(trial.values[objective.name]) for trial in repeats)
            for objective in objectives
        }
        for point, repeats in points.items()
    }
    scores = {
        point: [score(objective.goal, mean[objective.name]) for objective in objectives]
        for point, mean in means.items()
    }
    order = sorted(scores, key=lambda point: scores[point]) if len(objectives) == 1 else pareto(scores)
    return [
        BestView(
            [trial.number for trial in points[point]],
            [trial.job for trial in points[point]],
            _tuned(points[point][0].params),
            means[point],
        )
        for point in order
    ]


def _log_names(space: Space) -> frozenset[str]:
    return frozenset(
        parameter.name for parameter in space.parameters if isinstance(parameter.domain, Range) and parameter.domain.log
    )


def tuned_names(view: SweepView) -> list[str]:
    """Parameters that differ between trials, in the order of the space."""
    names = dict.fromkeys(name for trial in view.trials for name in trial.params)
    return [name for name in names if len({repr(trial.params.get(name)) for trial in view.trials}) > 1]


def _tuned(params: Mapping[str, Scalar]) -> Params:
    return {name: value for name, value in params.items() if name != REPEAT}


def _trial(
    row: TrialJob,
    result: TrialResult | None,
    spent: TrialTime | None,
    objectives: Sequence[Objective],
    now: float,
) -> TrialView:
    current = result if result is not None and result.attempt == row.attempt else None
    state = _WORDS.get(row.state, row.state)
    if state == "done" and current is not None and current.message:
        state = "failed"
    running = spent is not None and spent.ended is None and spent.started is not None and row.ended is None
    seconds = None if spent is None or spent.started is None else max(0.0, (spent.ended or now) - spent.started)
    lately = (seconds or 0.0) * spent.devices if running and spent is not None else 0.0
    steps = current.curves.get(objectives[0].name, ()) if current and objectives else ()
    return TrialView(
        number=row.number,
        job=row.job,
        state=state,
        params=row.params,
        values=dict(current.values) if current else {},
        step=steps[-1][0] if steps else None,
        started=to_datetime_or_none(spent.started) if spent else None,
        ended=to_datetime_or_none(row.ended),
        seconds=None if seconds is None else round(seconds, 3),
        gpu_hours=round(((spent.gpu_seconds if spent else 0.0) + lately) / 3600, 6),
        message=current.message if current else "",
    )


def _counts(trial: TrialView, objectives: Sequence[Objective]) -> bool:
    """Whether a trial says something about its parameters."""
    return bool(objectives) and trial.state in GOOD_RESULTS and trial.values.get(objectives[0].name) is not None


def _number(value: float | None) -> float:
    return nan if value is None else value


def _state(stored: StoredSweep, trials: Sequence[TrialView], tuner: Job | None) -> str:
    open_trials = [trial for trial in trials if trial.ended is None]
    if not open_trials and (tuner is None or isinstance(tuner.state, Ended)):
        if stored.stopped is not None:
            return "stopped"
        return "done" if tuner is None or state_word(tuner) == "done" else "interrupted"
    active = any(trial.state not in ("queued", "held") for trial in open_trials)
    return "running" if active or len(open_trials) < len(trials) else "queued"


def _line(reader: Reader, stored: StoredSweep) -> SweepLine:
    rows = all_trials(reader, stored.batch)
    counts = Counter(_WORDS.get(row.state, row.state) for row in rows)
    over = all(row.ended is not None for row in rows)
    state = ("stopped" if stored.stopped else "done") if over and rows else "running"
    sweep = stored.sweep
    objectives = parse_objectives(sweep.objectives, sweep.goal or None)
    best = _best(reader, stored, rows, objectives) if len(objectives) == 1 else None
    return SweepLine(
        id=stored.id,
        name=sweep.name,
        state=state,
        method=sweep.method,
        total=sweep.trials,
        counts=dict(counts),
        created=to_datetime(stored.created),
        objective=objectives[0].name if objectives else "",
        best=best.values[objectives[0].name] if best else None,
        params=best.params if best else {},
    )


def _best(
    reader: Reader, stored: StoredSweep, rows: Sequence[TrialJob], objectives: Sequence[Objective]
) -> BestView | None:
    results = {number: read_result(body) for number, body in trial_results(reader, stored.batch).items()}
    trials = [_trial(row, results.get(row.number), None, objectives, 0.0) for row in rows if row.state == "done"]
    return next(iter(best_points(trials, objectives, stored.sweep.repeat)), None)
