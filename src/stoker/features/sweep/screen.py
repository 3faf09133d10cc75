"""Render `stoker sweep status`, `best` and `table`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from stoker.cli.screens.text import EMPTY, Column, Line, Look, Span, clip, clipped, fitting, heading, table_lines
from stoker.core.outcomes import ACTIVE, FAILURES, GOOD_RESULTS, RESULTS
from stoker.core.text import printable
from stoker.core.units import count_text, duration_text
from stoker.features.sweep.view import BestView, SweepData, SweepLine, SweepView, TrialView

if TYPE_CHECKING:
    from stoker.features.sweep.model.space import Scalar

SHOWN_BEST = 5
SHOWN_RUNNING = 8
ORDER = (
    *GOOD_RESULTS,
    *FAILURES,
    *(result for result in RESULTS if result not in (*GOOD_RESULTS, *FAILURES)),
    "running",
    "starting",
    "stopping",
    "queued",
    "held",
)
LOOKS: dict[str, Look] = {
    **dict.fromkeys(GOOD_RESULTS, "faint"),
    "done": "good",
    **dict.fromkeys(FAILURES, "bad"),
}
LONGEST_VALUE = 24


def number_text(value: object) -> str:
    """A value of a parameter or an objective, with at most six digits."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6g}" if isinstance(value, float) else clip(printable(str(value)), LONGEST_VALUE)


def params_text(params: dict[str, Scalar], names: Sequence[str] | None = None) -> str:
    shown = params if names is None else {name: params[name] for name in names if name in params}
    return " ".join(f"{name}={number_text(value)}" for name, value in shown.items())


def counts_text(counts: dict[str, int]) -> str:
    return " · ".join(f"{counts[word]} {word}" for word in ORDER if counts.get(word))


def render_sweep(data: SweepData, width: int, option: str = "") -> list[Line]:
    """The state of a sweep, its best points, and what runs."""
    view = data.view
    parts = [
        f"sweep {view.id}",
        view.name,
        view.method,
        view.state,
        f"{_over(view)} of {count_text(view.total, 'trial')} over",
    ]
    lines = [heading(parts, width, simulated=view.simulated)]
    lines += [(Span(f"  {text}", "faint"),) for text in (*view.space, view.command)]
    lines += [(Span(f"  {text}"),) for text in _facts(view)]
    best = view.best[:SHOWN_BEST]
    if best:
        lines += [EMPTY, *best_lines(best, view, width)]
    running = [trial for trial in view.trials if trial.state in ACTIVE]
    if running:
        lines += [EMPTY, *trial_lines(running[:SHOWN_RUNNING], data, width)]
    more = [f"stoker sweep {word} {view.id}{option}" for word in ("best", "table", "plot")]
    lines += [EMPTY, (Span(fitting(more, width), "faint"),)]
    return [clipped(line, width) for line in lines]


def _over(view: SweepView) -> int:
    return sum(view.counts.get(result, 0) for result in RESULTS)


def _facts(view: SweepView) -> Iterator[str]:
    if view.counts:
        yield counts_text(view.counts)
    for objective in view.objectives:
        yield f"{objective.name} ({objective.goal}), from {objective.source}"
    if view.pruners:
        yield f"stops early: {', '.join(view.pruners)}"
    if view.importance:
        shares = " · ".join(f"{name} {share:.0%}" for name, share in view.importance.items())
        yield f"importance: {shares} ({view.importance_method})"
    if view.gpu_hours:
        yield _gpu_time(view)
    if view.tuner is not None and view.tuner_state not in ("done", "running"):
        why = f": {view.tuner_message}" if view.tuner_message else ""
        yield f"its tuner (job {view.tuner}): {view.tuner_state}{why}"
    if view.state in ("interrupted", "stopped"):
        yield f"to go on: stoker sweep extend {view.id} 10"
    yield from (f"note: {notice}" for notice in view.notices)


def _gpu_time(view: SweepView) -> str:
    text = f"GPU time {hours_text(view.gpu_hours)}"
    if not view.counts.get("stopped"):
        return text
    if view.gpu_hours_full_trial is None:
        return f"{text}; what early stopping saves is known after the first full trial"
    full = hours_text(view.gpu_hours_full_trial)
    return f"{text}; early stopping saved about {hours_text(view.gpu_hours_saved)} (a full trial takes {full}, median)"


def hours_text(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else duration_text(3600 * hours)


def best_lines(best: Sequence[BestView], view: SweepView, width: int) -> list[Line]:
    """A line for each of the best points."""
    columns = [
        Column(
            "BEST" if len(view.objectives) == 1 else "NOT BEATEN", [Span(_trials(point), "id") for point in best], 9
        ),
        Column("JOB", [Span(",".join(map(str, point.jobs))) for point in best], 5),
        *(
            Column(
                objective.name.upper(),
                [Span(number_text(point.values[objective.name])) for point in best],
                8,
                right=True,
            )
            for objective in view.objectives
        ),
    ]
    return table_lines(columns, "PARAMETERS", [(Span(params_text(point.params)),) for point in best], width, 20)


def _trials(best: BestView) -> str:
    first, last = best.trials[0], best.trials[-1]
    return f"trial {first}" if first == last else f"trials {first}-{last}"


def trial_lines(trials: Sequence[TrialView], data: SweepData, width: int) -> list[Line]:
    """A line for each trial."""

    def column(title: str, text: Callable[[TrialView], str], weight: int, *, right: bool = True) -> Column:
        return Column(title, [Span(text(trial)) for trial in trials], weight, right=right)

    columns = [
        column("TRIAL", lambda trial: str(trial.number), 9),
        column("JOB", lambda trial: str(trial.job), 5),
        Column("STATE", [Span(trial.state, LOOKS.get(trial.state, "")) for trial in trials], 9),
        *(
            column(
                objective.name.upper(),
                lambda trial, name=objective.name: number_text(trial.values.get(name)),  # type: ignore[misc]
                8,
            )
            for objective in data.objectives
        ),
        column("STEP", lambda trial: number_text(trial.step), 3),
        column("TIME", lambda trial: "-" if trial.seconds is None else duration_text(trial.seconds), 4),
    ]
    last = [(Span(params_text(trial.params, data.tuned)), *_message(trial)) for trial in trials]
    return table_lines(columns, "PARAMETERS", last, width, 20)


def _message(trial: TrialView) -> Line:
    look = LOOKS.get(trial.state, "")
    return (Span(f"  {trial.message}", look),) if trial.message else ()


def render_table(data: SweepData, trials: Sequence[TrialView], width: int) -> list[Line]:
    return [clipped(line, width) for line in trial_lines(trials, data, width)] if trials else [(Span("no trials yet"),)]


def render_best(view: SweepView, best: Sequence[BestView], width: int) -> list[Line]:
    return [clipped(line, width) for line in best_lines(best, view, width)]


def render_list(sweeps: Sequence[SweepLine], width: int) -> list[Line]:
    """A line for each sweep."""
    columns = [
        Column("SWEEP", [Span(str(sweep.id), "id") for sweep in sweeps], 9, right=True),
        Column("STATE", [Span(sweep.state) for sweep in sweeps], 8),
        Column("METHOD", [Span(sweep.method) for sweep in sweeps], 5),
        Column("TRIALS", [Span(str(sweep.total)) for sweep in sweeps], 7, right=True),
        Column("NAME", [Span(sweep.name) for sweep in sweeps], 4),
    ]
    lines = table_lines(columns, "", [(Span(counts_text(sweep.counts)),) for sweep in sweeps], width, 20)
    return [clipped(line, width) for line in lines]


# -- for programs -----------------------------------------------------------------------------------


def rows_of(data: SweepData, trials: Sequence[TrialView]) -> Iterator[list[str]]:
    """A header and a row for each trial, with a column for each parameter and each objective."""
    names = data.names
    goals = [objective.name for objective in data.objectives]
    yield ["trial", "job", "state", *names, *goals, "step", "seconds", "gpu_hours", "message"]
    for trial in trials:
        values = [trial.params.get(name) for name in names] + [trial.values.get(name) for name in goals]
        row = [trial.number, trial.job, trial.state, *values, trial.step, trial.seconds, trial.gpu_hours, trial.message]
        yield [_cell(value) for value in row]


def _cell(value: object) -> str:
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else printable(str(value))


def csv_rows(rows: Iterator[list[str]]) -> Iterator[str]:
    """For spreadsheets: a text that they would execute gets a quote before it."""
    for row in rows:
        safe = [f"'{cell}" if cell[:1] in "=+-@" and cell and not _is_number(cell) else cell for cell in row]
        quoted = [cell.replace('"', '""') for cell in safe]
        yield ",".join(f'"{cell}"' if '"' in cell or "," in cell else cell for cell in quoted)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
