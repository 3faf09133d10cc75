"""`stoker sweep status`, `best` and `table`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from stoker.cli.options import Screen, StokerCommand, screen_options, write_json, write_plain
from stoker.cli.screens.text import Line, write_lines
from stoker.core.errors import StokerError, UsageError, did_you_mean
from stoker.features.sweep import screen as text
from stoker.features.sweep.model.objective import Objective, score
from stoker.features.sweep.view import SweepData, TrialView, read_best, read_overview, read_sweep, read_sweeps

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
    data = read_sweep(screen.paths, sweep, None if screen.form == "json" else 0)
    trials = sorted(data.view.trials, key=_order(data, sort or "trial"), reverse=reverse)[:limit]
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


def _order(data: SweepData, column: str) -> Callable[[TrialView], tuple[object, ...]]:
    """The sort key of trials for a column; trials without a value come last."""
    objectives = {objective.name: objective for objective in data.objectives}
    if column == "value" and data.objectives:
        column = data.objectives[0].name
    if column in objectives:
        return lambda trial: _by_value(trial, objectives[column])
    plain: dict[str, Callable[[TrialView], object]] = {
        "trial": lambda trial: trial.number,
        "state": lambda trial: trial.state,
        "time": lambda trial: trial.seconds or 0.0,
    }
    if column in plain:
        return lambda trial: (plain[column](trial), trial.number)
    if column not in data.names:
        columns = (*plain, "value", *objectives, *data.names)
        raise UsageError(
            f"there is no column {column}", did_you_mean(column, columns, f"columns: {', '.join(columns)}")
        )
    return lambda trial: _by_parameter(trial, column)


def _by_value(trial: TrialView, objective: Objective) -> tuple[object, ...]:
    value = trial.values.get(objective.name)
    return (value is None, score(objective.goal, value) if value is not None else 0.0, trial.number)


def _by_parameter(trial: TrialView, name: str) -> tuple[object, ...]:
    value = trial.params.get(name)
    is_number = isinstance(value, int | float)
    return (name not in trial.params, not is_number, value if is_number else str(value), trial.number)
