"""`stoker sweep status`, `best` and `table`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan
from typing import Protocol

import click

from stoker.cli.options import Screen, StokerCommand, screen_options, write_json, write_plain
from stoker.cli.screens.text import Line, write_lines
from stoker.core.errors import StokerError, UsageError, did_you_mean
from stoker.features.sweep import screen as text
from stoker.features.sweep.model.objective import Objective, score
from stoker.features.sweep.model.summary import TrialRecord
from stoker.features.sweep.view import (
    SweepData,
    SweepNow,
    TrialView,
    first_trials,
    opened_sweep,
    read_best,
    read_overview,
    read_sweep,
    read_sweeps,
    sweep_data,
    trials_of,
)

WITHOUT_OBJECTIVE = "this sweep has no objective, so no trial is better than another"


@click.command(name="status", cls=StokerCommand)
@click.argument("sweep", required=False)
@click.option("-a", "--all", "everything", is_flag=True, help="All sweeps, a line each.")
@screen_options
def status(*, sweep: str | None, everything: bool, screen: Screen) -> int:
    """Show a sweep: its best trials, what runs, which parameters matter, and what early stopping saved.

    SWEEP is an id or a name; default is the newest.

    \b
      stoker sweep status
      stoker sweep status 12 --json
      stoker sweep status --all
    """
    paths = screen.paths
    if everything:
        listed = read_sweeps(paths)
        if screen.form == "json":
            write_json(listed)
        else:
            write_lines(text.render_list(listed.sweeps, screen.size[0]), screen.color)
        return 0
    if screen.form == "json":
        write_json(read_sweep(paths, sweep).view)
    else:
        data = read_overview(paths, sweep, text.SHOWN_BEST)
        write_lines(text.render_sweep(data, screen.size[0], screen.typed), screen.color)
    return 0


@click.command(name="best", cls=StokerCommand)
@click.argument("sweep", required=False)
@click.option("-n", "--top", type=click.IntRange(1), default=1, metavar="N", help="The best N points.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@screen_options
def best(*, sweep: str | None, top: int, as_csv: bool, screen: Screen) -> int:
    """Show the best trial so far, with its parameters. Exit code 1 if there is none yet.

    With several objectives: all trials that no other trial beats in every objective.

    \b
      stoker sweep best
      stoker sweep best 12 --top 5
      stoker sweep best 12 --json
    """
    data = read_best(screen.paths, sweep, top)
    view = data.view
    if not view.objectives:
        raise UsageError(WITHOUT_OBJECTIVE, "name one: stoker sweep --objective val_loss:min ...")
    if not view.best:
        raise NoneYet(
            f"no trial of sweep {view.id} has succeeded with a value yet", f"see stoker sweep status {view.id}"
        )
    _write(data, view.trials, screen, as_csv=as_csv, lines=lambda: text.render_best(view, view.best, screen.size[0]))
    return 0


class NoneYet(StokerError):
    """A sweep has no result."""

    exit_code = 1


@click.command(name="table", cls=StokerCommand)
@click.argument("sweep", required=False)
@click.option("--sort", metavar="COLUMN", help="trial (default), value, time, state, or a parameter or objective.")
@click.option("-r", "--reverse", is_flag=True, help="The other way round.")
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="The first N trials.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@screen_options
def table(
    *, sweep: str | None, sort: str | None, reverse: bool, limit: int | None, as_csv: bool, screen: Screen
) -> int:
    """Show all trials of a sweep: state, values, time and parameters.

    \b
      stoker sweep table --sort value -n 20      the best 20
      stoker sweep table 12 --csv > trials.csv
    """
    best = None if screen.form == "json" else 0
    with opened_sweep(screen.paths, sweep) as now:
        order, by_record = _order(now, sort or "trial")
        if limit is not None and by_record is not None:
            data = sweep_data(now, first_trials(now, by_record, limit, reverse=reverse), best)
        else:
            data = sweep_data(now, trials_of(now), best)
    trials = sorted(data.view.trials, key=order, reverse=reverse)[:limit]
    lines = lambda: text.render_table(data, trials, screen.size[0])  # noqa: E731
    _write(data, trials, screen, as_csv=as_csv, lines=lines)
    return 0


def _write(
    data: SweepData,
    trials: Sequence[TrialView],
    screen: Screen,
    *,
    as_csv: bool,
    lines: Callable[[], Sequence[Line]],
) -> None:
    if as_csv:
        write_plain(text.csv_rows(text.rows_of(data, trials)))
    elif screen.form == "json":
        from msgspec.structs import replace

        write_json(replace(data.view, trials=list(trials)))
    elif screen.form == "plain":
        write_plain("\t".join(cell or "-" for cell in row) for row in text.rows_of(data, trials))
    else:
        write_lines(lines(), screen.color)


class Listed(Protocol):
    """A trial as its record has it, or as it is shown."""

    @property
    def number(self) -> int: ...
    @property
    def state(self) -> str: ...


Key = tuple[object, ...]


def _order(sweep: SweepNow, column: str) -> tuple[Callable[[TrialView], Key], Callable[[TrialRecord], Key] | None]:
    """The sort keys of trials for a column, as shown and by their records; trials without a value come last.

    Records do not tell the parameters.
    """
    names = [objective.name for objective in sweep.objectives]
    column = names[0] if column == "value" and names else column
    if column in names:
        place = names.index(column)
        objective = sweep.objectives[place]
        return (
            lambda trial: _by_value(trial, trial.values.get(column), objective),
            lambda record: _by_value(record, record.values[place], objective),
        )
    if column == "trial":
        return _by_number, _by_number
    if column == "state":
        return _by_state, _by_state
    if column == "time":
        return (
            lambda trial: (trial.seconds or 0.0, trial.number),
            lambda record: (round(record.seconds(sweep.now) or 0.0, 3), record.number),
        )
    parameters = sweep.tracked.names(sweep.stored.sweep)
    if column not in parameters:
        columns = ("trial", "state", "time", "value", *names, *parameters)
        raise UsageError(
            f"there is no column {column}", did_you_mean(column, columns, f"columns: {', '.join(columns)}")
        )
    return lambda trial: _by_parameter(trial, column), None


def _by_number(trial: Listed) -> Key:
    return (trial.number,)


def _by_state(trial: Listed) -> Key:
    return trial.state, trial.number


def _by_value(trial: Listed, value: float | None, objective: Objective) -> Key:
    if value is None or isnan(value):
        return True, 0.0, trial.number
    return False, score(objective.goal, value), trial.number


def _by_parameter(trial: TrialView, name: str) -> Key:
    value = trial.params.get(name)
    is_number = isinstance(value, int | float)
    return (name not in trial.params, not is_number, value if is_number else str(value), trial.number)
