"""Write docs/reference.md from the code: commands with their options, variables, exit codes, and a glossary."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import click
from make_man import commands_below

from stoker.app.jobs.options import OPTIONS
from stoker.cli.main import ALIASES, stoker
from stoker.core.errors import EXIT_CODES

PAGE = Path(__file__).parent / "reference.md"
PROGRAM_VARIABLES = {
    "STOKER_STATE": "Directory of the queue. It must be on a local disk.",
    "STOKER_LEDGER": "Directory with the leases of all users of the machine. It must be sticky.",
    "STOKER_SIM": "Simulated GPUs, for example `4x24G`. They have a queue of their own.",
    "STOKER_OUTPUT": "`json` prints JSON without `--json`.",
    "STOKER_MPS_DIR": "Directory of the sockets of MPS daemons.",
}
JOB_VARIABLES = {
    "STOKER_JOB_ID": "Number of the job.",
    "STOKER_JOB_NAME": "Name of the job.",
    "STOKER_ATTEMPT": "1 for the first run, 2 for the first retry, and so on.",
    "STOKER_GPU_IDS": "Numbers of its GPUs, separated by commas. `CUDA_VISIBLE_DEVICES` is set, too.",
    "STOKER_VRAM": "Bytes reserved on each GPU, if the job shares GPUs.",
    "STOKER_GROUP": "Its group, if it has one.",
    "STOKER_ARRAY_ID": "Number of the array.",
    "STOKER_ARRAY_INDEX": "Index of the task.",
    "STOKER_WORK_DIR": "Working directory of the job.",
    "STOKER_SAVE_SIGNAL": "The signal that asks it to save and leave, if it is preemptible by `save`.",
    "STOKER_RESTART": "How often it gave way to other jobs, if it did.",
    "STOKER_PREEMPTED": "1 if it gave way before, so that it goes on from its saved state.",
    "STOKER_PARAMS": "Parameters of the trial as JSON, if the job belongs to a sweep.",
    "STOKER_SWEEP": "Id of the sweep.",
    "STOKER_TRIAL": "Number of the trial, from 0.",
    "STOKER_REPORT": "File for reports ([python.md](python.md)).",
    "STOKER_SCRIPT": "Path of a submitted script; the job runs a copy, or that of its snapshot.",
    "STOKER_ALLOCATION": "GPUs and memory of the job, for schedulers that run inside it.",
    "STOKER_BUNDLE": "On a cluster: the allocation of the job, by which Stoker finds processes that outlive it.",
    "STOKER_CODE": "The snapshot that the job runs the code of ([frozen-code.md](frozen-code.md)).",
    "STOKER_CODE_ROOT": "The directory that this snapshot was taken of.",
}


GLOSSARY = {
    "job": "A command with its options (GPUs, memory, time limit ...) in the queue. It has an id.",
    "attempt": "One run of a job. A retry is a new attempt of the same job.",
    "array": "Many tasks of one command that differ in an index. Task 3 of array 12 is `12.3`.",
    "sweep": "Many jobs from a parameter space. Each is a trial with a number and parameters of its own.",
    "batch": "Jobs that were submitted together: a list, or an array. `--notify` sends one message per batch.",
    "reserved": "GPU memory kept for a job for its whole run, used or not; or free GPUs kept for a waiting job.",
    "exclusive": "No other job shares the GPU. The default without `--vram`.",
    "co-tenant": "Another job on the same GPU.",
    "kind of work": "Runs of one command that differ only in seeds, rates, names and the like. Stoker learns per kind.",
    "engine": "The background process of a user that starts jobs. It starts automatically and exits when idle.",
    "worker": "A small process that starts one job after another, records exit codes, and outlives the engine.",
    "ledger": "Directory of lock files through which the engines of all users coordinate.",
    "lease": "Entry in the ledger: these GPUs, or this memory on them, are taken. It ends with its processes.",
    "fair share": "Users who used less GPU time lately go first.",
    "drained": "A GPU that finishes its jobs and gets no new ones (`stoker pause --gpu 2`).",
    "quarantined": "A GPU that gets no jobs: memory is still in use, although no process is visible.",
    "foreign process": "A process on a GPU that Stoker did not start.",
    "held": "A waiting job that a user paused (`stoker pause ID`).",
    "lost": "An attempt whose worker was killed, or whose machine went down.",
}


def reference() -> str:
    """The text of the page."""
    return "\n".join(
        [
            "# Reference",
            "",
            "This page is generated from the code (`make reference`). `stoker COMMAND --help` prints the same.",
            "",
            "## Commands",
            "",
            *(line for context in _commands() for line in _command(context)),
            "## Other names of commands",
            "",
            "| name | command |",
            "|---|---|",
            *(f"| `stoker {alias}` | `stoker {name}` |" for alias, name in sorted(ALIASES.items())),
            "",
            "## Job options",
            "",
            "They are the same for `run`, `submit`, job files, Python, and for `[defaults]` and `[group.NAME]` in the"
            " configuration.",
            "",
            "| option | variable | |",
            "|---|---|---|",
            *(
                _job_option(option.short, option.flag, option.metavar, option.variable, option.help)
                for option in OPTIONS
            ),
            "",
            *_variables("Variables that Stoker reads", PROGRAM_VARIABLES),
            "",
            "Settings are variables, too: `STOKER_MAX_USE=2` ([configuration.md](configuration.md)).",
            "",
            *_variables("Variables that jobs get", JOB_VARIABLES),
            "",
            "Some jobs also get variables of Slurm ([from-slurm.md](from-slurm.md)).",
            "",
            "## Exit codes",
            "",
            "| code | meaning |",
            "|---|---|",
            *(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()),
            "",
            "`stoker run -- COMMAND`, `stoker wait ID` and `stoker logs -f ID` exit with the code of the job.",
            "",
            "## Glossary",
            "",
            "| term | meaning |",
            "|---|---|",
            *(f"| {term} | {meaning} |" for term, meaning in GLOSSARY.items()),
            "",
        ]
    )


def _commands() -> Iterator[click.Context]:
    top = click.Context(stoker, info_name="stoker", **stoker.context_settings)
    for context in commands_below(top):
        yield context
        yield from commands_below(context)


def _command(context: click.Context) -> Iterator[str]:
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    text, *examples = inspect.cleandoc(command.help or "").split("\b\n")
    yield from (f"### `{context.command_path}`", "", " ".join(text.split()), "", "```text", usage)
    for example in examples:
        yield from ("", *(line.rstrip() for line in example.strip("\n").split("\n")))
    yield from ("```", "")
    if rows := list(_own_options(context)):
        yield from ("| option | |", "|---|---|", *rows, "")


def _own_options(context: click.Context) -> Iterator[str]:
    """The options of the command itself; job options have a table of their own."""
    flags = {option.flag for option in OPTIONS}
    is_job_command = context.info_name in ("run", "submit", "shell")
    for parameter in context.command.get_params(context):
        if isinstance(parameter, click.Argument) or "--help" in parameter.opts:
            continue
        if is_job_command and flags.intersection(parameter.opts):
            continue
        if (record := parameter.get_help_record(context)) is not None:
            yield f"| `{_cell(record[0])}` | {_cell(record[1])} |"


def _job_option(short: str, flag: str, metavar: str, variable: str | None, text: str) -> str:
    typed = ", ".join(filter(None, (short, flag))) + (metavar if metavar.startswith("[") else f" {metavar}").rstrip()
    return f"| `{_cell(typed)}` | {f'`{variable}`' if variable else ''} | {_cell(text)} |"


def _variables(title: str, variables: Mapping[str, str]) -> Iterable[str]:
    return [
        f"## {title}",
        "",
        "| variable | |",
        "|---|---|",
        *(f"| `{name}` | {text} |" for name, text in variables.items()),
    ]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
