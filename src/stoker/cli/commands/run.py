"""`stoker run` and `stoker shell`: commands in the foreground, and a session in this terminal."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from stoker.app.jobs.config import Config, config_here
from stoker.app.jobs.context import find_program
from stoker.app.jobs.job_files import COMMAND_LINE, JobLines, ParsedJob, RejectedLine, command_of, read_list, spread
from stoker.app.jobs.options import JobOptions
from stoker.app.jobs.script import CommandLine, Script, completed_options, find_script
from stoker.cli.advice import misplaced_option
from stoker.cli.console import say
from stoker.cli.job_options import (
    DASHES,
    TYPED,
    TYPED_OPTIONS,
    TypedCommand,
    job_options,
    option,
    options_from,
    session_options,
)
from stoker.cli.options import sim_option, wants_json
from stoker.core.errors import UsageError
from stoker.core.settings import LOCAL, ClusterSettings
from stoker.core.spec import parse_array, shell_of
from stoker.core.units import parse_duration
from stoker.runner.forkserver_client import Forkserver

_devices = option("--devices", metavar="IDS", help="Use only these devices; without a driver, any names.")
_max_use = option(
    "--max-use", type=click.IntRange(1), metavar="N", help="Use at most N GPUs at once, including your other runs."
)
_min_free = option("--min-free", type=click.IntRange(0), metavar="N", help="Leave N free GPUs to others.")


@click.command(name="run", cls=TypedCommand, context_settings={"allow_interspersed_args": False})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[FILE | SCRIPT... | - | COMMAND...]")
@job_options
@click.option(
    "-f", "--file", metavar="FILE", help="Read FILE as a job list, even if it looks like a script; - is stdin."
)
@_devices
@sim_option
@option("-j", "--jobs", type=click.IntRange(1), metavar="N", help="Run at most N jobs at once.")
@_max_use
@_min_free
@option("--halt", metavar="WHEN", help="Stop early: soon,fail=1 lets running jobs end, now,fail=20% does not.")
@click.option(
    "--resume",
    is_flag=True,
    help="Skip commands that succeeded here before; continue an interrupted run.",
)
@option("--results", metavar="DIR", help="Directory for the logs, default ./stoker-runs/<time>.")
@option("--joblog", metavar="FILE", help="Append a line per job, in GNU parallel's columns.")
@click.option("--dry-run", is_flag=True, help="Show what would run where; run nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON at the end.")
@click.option("--no-bar", is_flag=True, help="No live display; one line per event.")
@click.option("--pty", is_flag=True, help="Give the command this terminal, as stoker shell does.")
@click.option("--demo", is_flag=True, help="Run a 20-second demonstration on four simulated GPUs.")
@click.pass_context
def run(
    context: click.Context, /, words: tuple[str, ...], file: str | None, demo: bool, pty: bool, **values: Any
) -> int:
    """Run a job list (one command per line), a script or a command on free GPUs.

    \b
      stoker run jobs.txt                        all lines of a file, as GPUs become free
      tail -f -n 0 queue | stoker run -          lines as they arrive
      stoker run -G 2 job.sh a b                 one script with its arguments, as one job
      stoker run -G 2 -t 1h -- python3 train.py  one command; exits with its exit code

    A file that is executable, starts with #! or has the suffix of a script (.sh, .py, ...) is never read as a job
    list, unless -f says so. A script runs from a copy made now; STOKER_SCRIPT is its original path. After -- the words
    are executed as they are, without a copy.

    A single command reads the standard input of stoker run; jobs of a list read nothing. A retry reads a file again
    from its start, and nothing from a pipe.

    Your shell runs each line; several words are executed without a shell. A list that ends in .jsonl,
    .toml or .csv also holds the options of each job. Ctrl-C lets running jobs finish, a second one stops them,
    a third kills them. If the reader of the output closes it, stoker stops reading a list from standard input: running
    jobs finish, and the exit code is 141.
    """
    if pty:
        _refuse_with_terminal({**values, "file": file, "demo": demo})
        return _run_session(values, words)
    options = options_from(values)
    values["as_json"] = wants_json(values["as_json"])
    values |= {"options": options, "demo": demo, "typed": context.meta[TYPED]}
    if demo:
        if words or file is not None or options != JobOptions():
            raise UsageError("--demo brings its own jobs", "leave out the list and the options of jobs")
        return _run_demo(values)
    kind, items, script = _parse_words(context, words, file)
    if kind == "help":
        click.echo(context.get_help())
        return 2
    if note := misplaced_option(CommandLine("run", context.meta[TYPED_OPTIONS], words), options):
        say(note)
    config = config_here(say)
    options, options_of, notes = completed_options(options, script, config)
    for note in notes:
        say(note)
    values |= {"options": options, "options_of": options_of}
    values["script"] = script
    values["settings"] = config.engine
    values["on_cluster"] = _cluster(config, options)
    if options.array and kind == "--":
        kind = "array"
    if isinstance(items, JobLines):
        items.tasks = () if options.array is None else parse_array(options.array).indices
        return _run(values, kind, items)
    return _run(values, kind, spread(items, options))


@click.command(name="shell", cls=TypedCommand, context_settings={"allow_interspersed_args": False})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND...]")
@session_options
@option("--idle", metavar="DUR", help="Warn, then end the session after this time without keyboard, GPU or CPU use.")
@_devices
@sim_option
@_max_use
@_min_free
def shell(words: tuple[str, ...], **values: Any) -> int:
    """Start an interactive session with GPUs in this terminal.

    \b
      stoker shell -G 1 -t 2h              your shell, with one GPU for two hours
      stoker shell -m 8G python            Python with 8G of a shared GPU
      stoker shell --idle 30m jupyter lab  shows the ssh command that forwards its port

    It waits until the GPUs are free, and shows why and about when; Ctrl-C stops waiting. The session is a job like any
    other: status shows it, cancel ends it, edit changes its time limit. When this terminal goes away (ssh), it ends,
    as a login shell does; use it inside tmux to keep it. Its exit code is that of the command.
    """
    return _run_session(values, words)


def _cluster(config: Config, options: JobOptions) -> ClusterSettings | None:
    return None if options.cluster in (None, LOCAL) else config.cluster(str(options.cluster))


def _run_demo(values: dict[str, Any]) -> int:
    """Run the demonstration in a queue of its own, which is removed afterwards."""
    import tempfile

    from stoker.app.control.engine_process import DEFAULT_SIM
    from stoker.cli.commands.demo import demo_jobs
    from stoker.store.paths import paths_for

    with tempfile.TemporaryDirectory(prefix="stoker-demo-", ignore_cleanup_errors=True) as state:
        os.environ["STOKER_STATE"] = state
        values["paths"] = paths_for(values["paths"].gpus or DEFAULT_SIM)
        return _run(values, "--demo", demo_jobs())


def _refuse_with_terminal(values: dict[str, Any]) -> None:
    """Refuse what has no meaning for one command in this terminal."""
    others = ("file", "demo", "dry_run", "as_json", "resume", "halt", "results", "joblog", "jobs")
    given = [name.removeprefix("as_").replace("_", "-") for name in others if values[name]]
    if given:
        raise UsageError(f"--{given[0]} cannot be used with --pty", "leave one of them out")


def _run_session(values: dict[str, Any], words: tuple[str, ...]) -> int:
    """Run a command, or the user's shell, in this terminal."""
    from stoker.cli.relay import Relay

    idle = values.pop("idle")
    options = options_from(values)
    values["idle"] = idle
    for name in ("array", "out", "err"):
        if getattr(options, name):
            raise UsageError(f"--{name} has no meaning for a session", "leave it out; script(1) keeps a log of one")
    if values["idle"] is not None:
        parse_duration(values["idle"])
    config = config_here(say)
    if _cluster(config, config.completed(options)):
        raise UsageError("a session is in this terminal, and nodes of a cluster are not", "add -M local")
    user_shell = shell_of(os.environ)
    # The relay is forked first, while this process is small and has no threads.
    with contextlib.closing(Relay(forward_ports=bool(words))) as relay:
        values |= {"options": config.completed(options), "settings": config.engine, "relay": relay, "dry_run": False}
        values["terminal"] = relay.terminal
        return _run(values, "--", [ParsedJob(command_of(words or (user_shell,), user_shell), COMMAND_LINE)])


def _run(values: dict[str, Any], label: str, items: Sequence[ParsedJob | RejectedLine] | JobLines) -> int:
    """Start the forkserver, and meanwhile load the modules of a run, which takes as long."""
    with contextlib.ExitStack() as closing:
        forkserver = None if values["dry_run"] else closing.enter_context(contextlib.closing(Forkserver()))
        from stoker.cli import foreground

        return foreground.run(foreground.RunOptions(**values), label, items, forkserver)


def _parse_words(
    context: click.Context, words: tuple[str, ...], file: str | None
) -> tuple[str, list[ParsedJob | RejectedLine] | JobLines, Script | None]:
    """The label, the jobs and the script that the words mean; jobs of a stream are read later."""
    shell, dashes = shell_of(os.environ), context.meta[DASHES]
    if file is not None:
        if words:
            raise UsageError("both a file and a command are given", "leave one of them out")
        return file, JobLines("stdin", shell) if file == "-" else read_list(Path(file), shell), None
    if words and not dashes and (submitted := find_script(CommandLine("run", context.meta[TYPED_OPTIONS], words))):
        return "--", [ParsedJob(submitted.command, COMMAND_LINE)], submitted.script
    return *_jobs(words, shell, dashes=dashes), None


def _jobs(words: tuple[str, ...], shell: str, *, dashes: bool) -> tuple[str, list[ParsedJob | RejectedLine] | JobLines]:
    if dashes and not words:
        raise UsageError("no command given after --", "put the command after --, or give a file or - before it")
    if not words and sys.stdin.isatty():
        return "help", []
    if not words or (words == ("-",) and not dashes):
        return "-", JobLines("stdin", shell)
    first = words[0]
    if not dashes and len(words) > 1 and os.path.isfile(first) and find_program(first) is None:
        raise UsageError(f"{first} is a job list, but more words follow it", "write the options before it")
    is_line = not os.path.exists(first) and any(blank in first for blank in " \t\n")
    if dashes or len(words) > 1 or is_line:
        return "--", [ParsedJob(command_of(words, shell), COMMAND_LINE)]
    if not first:
        raise UsageError("the name of the job list is empty", "give a file, or - for stdin")
    return first, read_list(Path(first), shell)
