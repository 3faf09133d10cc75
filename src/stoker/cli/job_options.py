"""Job options as the command line takes them: the same for every verb that makes jobs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from stoker.core.errors import UsageError
from stoker.queue.options import TOLD_TO_JOBS, JobOptions, parse_assignment

Function = TypeVar("Function", bound=Callable[..., Any])

NAMES = (
    "gpus",
    "vram",
    "on",
    "prefer",
    "priority",
    "time",
    "grace",
    "retries",
    "chdir",
    "env",
    "out",
    "err",
    "name",
    "gpu_type",
    "group",
    "begin",
    "after",
    "array",
    "tag",
    "retry_on",
    "no_requeue",
    "cap",
    "mps",
    "mps_optional",
)

DASHES = "stoker.dashes"
TYPED = "stoker.typed"
OPTIONS = "stoker.options"
ALONE = "--mps"
"""The option whose value, where it has one, is behind an equals sign."""


def option(*flags: str, **settings: Any) -> Callable[[Function], Function]:
    """A click option that can also be set by STOKER_<LONG NAME>."""
    long = next(flag for flag in flags if flag.startswith("--"))
    name = long.removeprefix("--").replace("-", "_")
    told = name in TOLD_TO_JOBS and "STOKER_JOB_ID" in os.environ
    return click.option(*flags, envvar=None if told else f"STOKER_{name.upper()}", **settings)


class JobCommand(click.Command):
    """A command with job options, one of which may stand alone: the word behind it is never taken for its value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click."""
        return super().parse_args(ctx, self._completed(args))

    def _completed(self, args: list[str]) -> list[str]:
        options = [one for one in self.params if isinstance(one, click.Option) and not one.is_flag]
        with_value = {flag for one in options for flag in one.opts} - {ALONE}
        rest = iter(args)
        read = []
        for word in rest:
            read.append(f"{ALONE}=true" if word == ALONE else word)
            if word == "--" or not word.startswith("-"):
                break
            if word in with_value:
                read += [value for value in (next(rest, None),) if value is not None]
        return [*read, *rest]


class TypedCommand(JobCommand):
    """Remembers what was typed: words that were set apart with `--` are a command, never a script or a job list."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click, with a note of the dashes and of what was typed."""
        typed = tuple(args)
        rest = super().parse_args(ctx, args)
        options = typed[: len(typed) - len(ctx.params.get("words") or ())]
        ctx.meta[DASHES] = options[-1:] == ("--",)
        ctx.meta[TYPED] = typed
        ctx.meta[OPTIONS] = options
        return rest


def _refuse_mem(_context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise UsageError("--mem is host memory in Slurm and GPU memory elsewhere", "did you mean --vram (GPU)?")


_WHERE_AND_WHEN = [
    option("-G", "--gpus", type=int, metavar="N", help="GPUs per job, default 1; 0 is a job without GPU."),
    option(
        "-m",
        "--vram",
        metavar="SIZE|auto|all",
        help="GPU memory per GPU; with a SIZE jobs share GPUs, auto learns it. Default: all of it.",
    ),
    click.option(
        "--cap/--no-cap",
        default=None,
        envvar="STOKER_CAP",
        help="Let PyTorch (2.10 or newer) take no more than --vram sets aside.",
    ),
    option("--on", metavar="IDS", help="Only these devices, for example 0,2."),
    option("--prefer", metavar="IDS", help="These devices first."),
    option("--gpu-type", metavar="NAME", help="Only GPUs with this in their name, for example a100."),
    option("--priority", type=int, metavar="N", help="Higher starts first, default 0."),
    option("--group", metavar="NAME", help="Group whose jobs share a limit, where one is configured."),
    option("-t", "--time", metavar="DUR", help="Time limit: 90s, 1h30m, HH:MM:SS; a plain number is minutes."),
    option("--grace", metavar="DUR", help="Time between TERM and KILL, default 30s; like -t."),
    option("-b", "--begin", metavar="WHEN", help="Not before: now+1hour, 22:00, tomorrow, 2026-11-15T22:00."),
    option(
        "-d", "--after", metavar="IDS", help="After these jobs succeeded; any:ID after any end, notok:ID a failure."
    ),
]
_MPS = [
    option(
        ALONE,
        metavar="[=PCT]",
        help="Run as a client of NVIDIA MPS beside others, with PCT percent of the GPU's threads; needs --vram.",
    ),
    option("--mps-optional", is_flag=True, default=None, help="Run without MPS where there is none."),
]
_ARRAY = option("-a", "--array", metavar="SPEC", help="Many tasks of one command: 0-9, 0-15:4; 0-99%8 runs 8 at once.")
_HOW = [
    option("--retries", type=int, metavar="N", help="Run a failed job again up to N times."),
    option("--retry-on", metavar="WHAT", help="Only after these ends: oom, timeout, failed, exit codes."),
    option("--no-requeue", is_flag=True, default=None, help="Do not run it again when its worker or the machine dies."),
    option("-D", "--chdir", metavar="DIR", help="Working directory of the jobs."),
    click.option("--env", multiple=True, metavar="K=V", help="Set a variable for the jobs (repeatable)."),
    option(
        "-o",
        "--out",
        metavar="PAT",
        help="File for the output; %j is the id, %x the name. - is this terminal.",
    ),
    option("-e", "--err", metavar="PAT", help="File for the errors, where they should be apart from the output."),
    option("-J", "--name", metavar="NAME", help="Name of the jobs."),
    click.option("--tag", multiple=True, metavar="K=V", help="Note something about the jobs (repeatable)."),
    click.option("--mem", hidden=True, callback=_refuse_mem, expose_value=False),
]


def job_options(function: Function) -> Function:
    """Decorates a command with all job options."""
    for decorate in reversed([*_WHERE_AND_WHEN, *_MPS, _ARRAY, *_HOW]):
        function = decorate(function)
    return function


def change_options(function: Function) -> Function:
    """Decorates a command with the options that a job can get later, too: it cannot become an array."""
    for decorate in reversed([*_WHERE_AND_WHEN, *_HOW]):
        function = decorate(function)
    return function


def options_from(values: dict[str, Any]) -> JobOptions:
    """The job options among a command's values, which are taken out of it."""
    given = {name: values.pop(name, None) for name in NAMES}
    for table in ("env", "tag"):
        given[table] = dict(parse_assignment(text, f"--{table}") for text in given[table])
    return JobOptions(**given)
