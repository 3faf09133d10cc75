"""Charts of a sweep as data: the best so far, parallel coordinates, one parameter, learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from stoker.core.chart import Axis, Chart, ChartSeries, Parallel, axis_over, wants_log
from stoker.core.errors import StokerError, UsageError, did_you_mean
from stoker.features.sweep.model.objective import Curve, Objective, score
from stoker.features.sweep.model.space import Scalar, value_text
from stoker.features.sweep.view import (
    MOST_POINTS,
    SweepData,
    SweepNow,
    TrialView,
    shown_curves,
    sweep_data,
    trials_of,
)

KINDS = ("best", "parallel", "parameter", "curves")


def chart_of(sweep: SweepNow, kind: str, parameter: str | None = None) -> Chart | Parallel:
    """The chart of a kind; refuses a sweep that has nothing to show yet."""
    if not sweep.objectives:
        raise UsageError("this sweep has no objective to plot", "name one: stoker sweep --objective val_loss:min ...")
    summary = sweep.summary
    if not summary.by_end.numbers and kind != "curves":
        raise StokerError(
            f"no trial of sweep {sweep.stored.id} has a value yet", f"see stoker sweep status {sweep.stored.id}"
        )
    if kind == "best":
        return best_over_trials(sweep)
    shown_by_number = shown_curves(sweep)[0] if kind == "curves" else {}
    numbers = shown_by_number if kind == "curves" else summary.spread(MOST_POINTS)
    data = sweep_data(sweep, trials_of(sweep, [summary.records[number].job for number in numbers]), 1)
    if kind == "curves":
        return curves(data, shown_by_number)
    chart = parallel(data, data.view.trials) if kind == "parallel" else one_parameter(data, data.view.trials, parameter)
    left_out = len(summary.by_end.numbers) - len(numbers)
    return replace(chart, title=f"{chart.title} ({len(numbers):,} of them)") if left_out else chart


def best_over_trials(sweep: SweepNow) -> Chart:
    """All trials in the order in which they ended, and the best so far."""
    objective, summary = sweep.objectives[0], sweep.summary
    records = [summary.records[number] for number in summary.by_end.numbers]
    values = [record.value for record in records]
    steps = [(float(place), value) for place, value in summary.steps]
    last = [(float(len(records)), steps[-1][1])] if steps and steps[-1][0] < len(records) else []
    shown = _by_state([(record.state, float(place), record.value) for place, record in enumerate(records, 1)])
    return Chart(
        f"sweep {sweep.stored.id}: {objective.name}, best so far",
        Axis("trials", 0.0, len(records) + 1.0),
        axis_over(objective.name, values, log=wants_log(values)),
        (*shown, ChartSeries("best so far", (*steps, *last), "steps", "good")),
    )


def one_parameter(data: SweepData, trials: Sequence[TrialView], name: str | None) -> Chart:
    """An objective against one parameter."""
    objective = data.objectives[0]
    names = data.tuned
    chosen = name or next(iter(data.view.importance), None) or next(iter(names), None)
    if chosen is None or (chosen not in names and not any(chosen in trial.params for trial in trials)):
        raise UsageError(
            f"there is no parameter {chosen}", did_you_mean(str(chosen), names, f"parameters: {', '.join(names)}")
        )
    having = [trial for trial in trials if chosen in trial.params]
    axis, places = _axis(data, chosen, [trial.params[chosen] for trial in having])
    values = [value_in(trial, objective) for trial in having]
    shown = _by_state([(trial.state, x, y) for trial, x, y in zip(having, places, values, strict=True)])
    title = f"sweep {data.view.id}: {objective.name} by {chosen}"
    log = wants_log(values)
    return Chart(title, axis, axis_over(objective.name, values, log=log), shown)


def _by_state(points: Sequence[tuple[str, float, float]]) -> tuple[ChartSeries, ...]:
    """Trials that ended by themselves, and those that were stopped early."""
    ended = tuple((x, y) for state, x, y in points if state == "done")
    stopped = tuple((x, y) for state, x, y in points if state == "stopped")
    series = ChartSeries("ended", ended), ChartSeries("stopped early", stopped, tone="bad")
    return tuple(line for line in series if line.points)


def parallel(data: SweepData, trials: Sequence[TrialView]) -> Parallel:
    """A line for each trial through all parameters that differ."""
    objective = data.objectives[0]
    axes, columns = [], []
    for name in data.tuned:
        having = [trial.params[name] for trial in trials if name in trial.params]
        axis, places = _axis(data, name, having)
        places_left = iter(places)
        axes.append(axis)
        columns.append([next(places_left) if name in trial.params else None for trial in trials])
    values = [value_in(trial, objective) for trial in trials]
    axes.append(axis_over(objective.name, values, log=wants_log(values), margin=0.0))
    columns.append(list(values))
    return Parallel(
        f"sweep {data.view.id}: parameters and {objective.name}",
        tuple(axes),
        tuple(zip(*columns, strict=True)),
        goodness(values, objective),
    )


def curves(data: SweepData, shown: Mapping[int, Curve]) -> Chart:
    """Values over steps of the shown trials; the best one stands out."""
    objective = data.objectives[0]
    if not shown:
        raise StokerError(
            f"no trial of sweep {data.view.id} has a value yet", f"see stoker sweep status {data.view.id}"
        )
    best = _best_trial(data)
    states = {trial.number: trial.state for trial in data.view.trials}
    series = [
        ChartSeries("", curve, "line", "bad" if states.get(number) == "stopped" else "faint")
        for number, curve in shown.items()
        if number != best
    ]
    if best is not None and best in shown:
        series.append(ChartSeries(f"trial {best}, the best", shown[best], "line", "good"))
    values = [value for curve in shown.values() for _, value in curve]
    steps = [step for curve in shown.values() for step, _ in curve]
    return Chart(
        f"sweep {data.view.id}: {objective.name} by step",
        axis_over("step", steps, margin=0.0),
        axis_over(objective.name, values, log=wants_log(values)),
        tuple(series),
    )


def _best_trial(data: SweepData) -> int | None:
    return data.view.best[0].trials[0] if data.view.best else None


def goodness(values: Sequence[float], objective: Objective) -> tuple[float, ...]:
    """The rank of each value from 0 (worst) to 1 (best)."""
    order = sorted(range(len(values)), key=lambda place: score(objective.goal, values[place]))
    ranks = {place: rank for rank, place in enumerate(order)}
    return tuple(1 - ranks[place] / max(1, len(values) - 1) for place in range(len(values)))


def value_in(trial: TrialView, objective: Objective) -> float:
    value = trial.values[objective.name]
    assert value is not None
    return value


def _axis(data: SweepData, name: str, values: Sequence[Scalar]) -> tuple[Axis, list[float]]:
    """An axis for a parameter, and where its values are on it; texts are in the order of the space."""
    numbers = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) == len(values) and len(set(numbers)) > 1:
        log = name in data.log_names or wants_log(numbers)
        return axis_over(name, numbers, log=log, margin=0.02), numbers
    shown = dict.fromkeys(value_text(value) for value in values)
    texts = [text for text in dict.fromkeys([*data.listed.get(name, ()), *shown]) if text in shown]
    places = {text: float(place) for place, text in enumerate(texts)}
    return Axis(name, -0.5, len(texts) - 0.5, names=tuple(texts)), [places[value_text(value)] for value in values]
