"""Job options on the command line, generated from the table of options."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from stoker.app.jobs.options import OPTIONS, JobOptions, Option, read_tables
from stoker.cli.options import StokerCommand
from stoker.core.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])
DASHES = "stoker.dashes"
TYPED = "stoker.typed"
TYPED_OPTIONS = "stoker.options"
_SETTINGS: Mapping[str, dict[str, Any]] = {
    "text": {},
    "number": {"type": int},
    "flag": {"is_flag": True, "default": None},
    "switch": {"default": None},
    "table": {"multiple": True},
}
"""How click parses each kind of option."""


def option(*flags: str, **settings: Any) -> Callable[[Function], Function]:
    """A click option that can also be set by STOKER_<LONG NAME>."""
    long = next(flag for flag in flags if flag.startswith("--"))
    return click.option(*flags, envvar=f"STOKER_{long.removeprefix('--').replace('-', '_').upper()}", **settings)


class TypedCommand(StokerCommand):
    """Remembers what was typed: words after `--` are a command, never a script or a job list."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        typed = tuple(args)
        rest = super().parse_args(ctx, args)
        options = typed[: len(typed) - len(ctx.params.get("words") or ())]
        ctx.meta[DASHES] = options[-1:] == ("--",)
        ctx.meta[TYPED] = typed
        ctx.meta[TYPED_OPTIONS] = options
        return rest


def job_options(function: Function) -> Function:
    return _decorated(function, OPTIONS)


def member_options(function: Function) -> Function:
    """Those of a job in a batch whose jobs have numbers already."""
    return _decorated(function, [row for row in OPTIONS if row.name != "array"])


def session_options(function: Function) -> Function:
    """Those of a session, which has an --idle of its own."""
    return _decorated(function, [row for row in OPTIONS if row.name != "idle"])


def change_options(function: Function) -> Function:
    return _decorated(function, [row for row in OPTIONS if not row.at_submit])


def options_from(values: dict[str, Any]) -> JobOptions:
    """The job options among a command's values, which are taken out of it."""
    given = {row.name: values.pop(row.name, None) for row in OPTIONS}
    return JobOptions(**{**given, **read_tables(given)})


def _decorated(function: Function, options: Sequence[Option]) -> Function:
    function = click.option("--mem", hidden=True, callback=_refuse_mem, expose_value=False)(function)
    for row in reversed(options):
        function = _click_option(row)(function)
    return function


def _click_option(row: Option) -> Callable[[Function], Function]:
    flag = f"{row.flag}/--no-{row.name}" if row.kind == "switch" else row.flag
    return click.option(
        *filter(None, (row.short, flag)),
        metavar=row.metavar or None,
        envvar=row.variable_in(os.environ),
        help=row.help,
        **_SETTINGS[row.kind],
    )


def _refuse_mem(_context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        hint = f"did you mean --vram (GPU)? Host memory on a cluster: --slurm mem={value}"
        raise UsageError("--mem is host memory in Slurm and GPU memory elsewhere", hint)
