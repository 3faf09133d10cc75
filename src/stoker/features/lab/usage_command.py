"""`stoker usage`: GPU-hours of all users of this machine."""

from __future__ import annotations

import click

from stoker.cli.console import say
from stoker.cli.options import Screen, StokerCommand, screen_options, write_json, write_plain
from stoker.cli.screens.plain import Columns, csv_lines, plain_lines
from stoker.cli.screens.text import EMPTY, Column, Line, Span, clipped, heading, table_lines, write_lines
from stoker.core.errors import UsageError
from stoker.features.lab.usage import MONTH_DAYS, WEEK_DAYS, By, LabUsage, UsageTotal, read_usage

HOURS = {
    "GPU_HOURS": lambda total: _figure(total.gpu_hours),
    "WAITING_HOURS": lambda total: _figure(total.waiting_hours),
    "IDLE_GPU_HOURS": lambda total: _figure(total.idle_gpu_hours),
    "ENERGY_KWH": lambda total: _figure(total.energy_kwh),
}
PLAIN: Columns = {"DAY": "day", "USER": "user", "GPU": "gpu", "GROUP": "group", **HOURS}


@click.command(name="usage", cls=StokerCommand)
@click.option("--week", "days", flag_value=WEEK_DAYS, type=int, default=WEEK_DAYS, help="The last 7 days, the default.")
@click.option("--month", "days", flag_value=MONTH_DAYS, type=int, help="The last 30 days.")
@click.option("--by", type=click.Choice(["user", "gpu", "group", "day"]), default="user", help="What a line is about.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, for a spreadsheet.")
@screen_options
def command(*, days: int, by: By, as_csv: bool, screen: Screen) -> int:
    """Show GPU-hours, waiting, idle GPU-hours and energy of all users of this machine.

    Each engine publishes the usage of its own queue. Energy is that of GPUs while jobs had them; hours are idle if a
    job had a GPU and almost did not use it.

    \b
      stoker usage                      all users, the last 7 days
      stoker usage --month --by gpu
      stoker usage --month --by day --csv > usage.csv
    """
    if as_csv and screen.form == "json":
        raise UsageError("--csv and --json cannot be combined", "give one of them")
    usage = read_usage(screen.paths, days, by)
    if as_csv:
        write_plain(csv_lines(usage.totals, PLAIN))
    elif screen.form == "json":
        write_json(usage)
    elif screen.form == "plain":
        write_plain(plain_lines(usage.totals, PLAIN))
    else:
        write_lines(render_usage(usage, screen.size[0]), screen.color)
        return 0
    for note in usage.notes if screen.form != "json" else ():
        say(note)
    return 0


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def render_usage(usage: LabUsage, width: int) -> list[Line]:
    title = heading([f"{usage.host} · {usage.first_day} to {usage.last_day}"], width, simulated=usage.simulated)
    lines = [title, *((Span(note, "odd"),) for note in usage.notes), EMPTY]
    if not usage.totals:
        return [*lines, (Span("No usage in this time. Engines publish theirs once a minute."),)]
    titles = {"user": "USER", "gpu": "GPU", "group": "USER: GROUP", "day": "DAY: USER"}
    figures: dict[str, list[float | None]] = {
        "GPU-HOURS": [total.gpu_hours for total in usage.totals],
        "WAITING": [total.waiting_hours for total in usage.totals],
        "IDLE": [total.idle_gpu_hours for total in usage.totals],
        "KWH": [total.energy_kwh for total in usage.totals],
    }
    columns = [
        Column(title, [_cell(value) for value in values], 9, right=True)
        for title, values in figures.items()
        if any(value is not None for value in values)
    ]
    names = [(Span(_name(total, usage.by)),) for total in usage.totals]
    lines += table_lines(columns, titles[usage.by], names, width, 8)
    return [clipped(line, width) for line in lines]


def _cell(value: float | None) -> Span:
    return Span("-", "faint") if value is None else Span(f"{value:.1f}" if value >= 10 else f"{value:.2f}")


def _name(total: UsageTotal, by: By) -> str:
    user = f"{total.user} (you)" if total.you else total.user
    if by == "gpu":
        return total.gpu
    if by == "group":
        return f"{user}: {total.group or '-'}"
    return f"{total.day}: {user}" if by == "day" else user
