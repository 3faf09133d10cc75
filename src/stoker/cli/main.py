"""The console script: finds the verb, runs it, and turns errors into sentences and exit codes."""

from __future__ import annotations

import sys
from typing import Any

import click

from stoker import __version__
from stoker.cli.console import json_is_default, leave, open_missing_streams, silence_output
from stoker.cli.lazy import LazyGroup
from stoker.core.errors import StokerError, UsageError

VERBS = {
    "run": "Run a list of commands, or one command, on the GPUs of this machine.",
    "submit": "Put a command, or a list of them, into the queue.",
    "status": "Show the GPUs, what runs on them, what waits and why; so does stoker alone.",
    "history": "Show jobs that are over, with the GPU-hours of all.",
    "logs": "Show the output of a job, or follow it.",
    "wait": "Wait until jobs are over; the exit code tells how they ended.",
    "cancel": "Take jobs out of the queue, and stop those that run.",
    "retry": "Run jobs again that are over.",
    "edit": "Change jobs that wait.",
    "pause": "Hold jobs, pause the queue, or drain GPUs.",
    "resume": "Let them go on.",
    "gpus": "Show the devices, their memory, and who is on them.",
    "simulate": "Replay a trace of jobs on a machine that you may not have, by this or other rules.",
    "engine": "The engine in the background: start, stop and more.",
}
ALIASES = {
    "add": "submit",
    "st": "status",
    "ls": "status",
    "follow": "logs",
    "kill": "cancel",
    "hold": "pause",
    "release": "resume",
}
"""Words of other tools; `follow` also means -f."""


@click.group(
    cls=LazyGroup,
    sentences=VERBS,
    modules="stoker.cli.commands.",
    aliases=ALIASES,
    files={"pause": "pause", "resume": "pause"},
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, "-V", "--version", prog_name="stoker")
def stoker() -> None:
    """Keep the GPUs of this machine fed.

    \b
      stoker submit -- python train.py     into the queue, which outlives your login; prints the id
      stoker status                        the GPUs, what runs on them, what waits and why
      stoker logs -f last                  follow its output

    \b
      stoker run jobs.txt                  every line on a GPU of its own, as they become free
      tail -f -n 0 queue | stoker run -    jobs start as lines arrive
      stoker run --demo                    see it work on four simulated GPUs
    """


def main() -> None:
    open_missing_streams()
    leave(run_cli(sys.argv[1:]))


def run_cli(arguments: list[str]) -> int:
    """Exit code of a command line."""
    try:
        return _run_verb(arguments)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        silence_output()
        return 141
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        _complain(StokerError(f"the system refuses: {error.strerror}{where}", "mend that and try again"))
        silence_output()
        return StokerError.exit_code


def _run_verb(arguments: list[str]) -> int:
    as_json = _wants_json(arguments)
    words = [*arguments[1:], "--help"] if arguments[:1] == ["help"] else arguments or ["status"]
    if words[:1] == ["follow"]:
        words = ["follow", "-f", *words[1:]]
    outcome: Any = 0
    try:
        outcome = stoker.main(words, prog_name="stoker", standalone_mode=False)
    except StokerError as error:
        outcome = _report(error, as_json=as_json)
    except click.ClickException as error:
        if as_json:
            outcome = _report(UsageError(error.format_message(), "see --help"), as_json=True)
        else:
            error.show(sys.stderr)
            outcome = UsageError.exit_code
    sys.stdout.flush()
    return outcome if isinstance(outcome, int) else 0


def _wants_json(arguments: list[str]) -> bool:
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in ours or json_is_default()


def _report(error: StokerError, *, as_json: bool) -> int:
    if as_json:
        body = {"code": error.exit_code, "message": error.message, "hint": error.hint}
        import json

        print(json.dumps({"error": body}))
    else:
        _complain(error)
    return error.exit_code


def _complain(error: StokerError) -> None:
    from stoker.core.text import printable  # imported here, since help does not need it

    print(f"stoker: {printable(error.message)}", file=sys.stderr)
    if error.hint:
        print(f"        {printable(error.hint)}", file=sys.stderr)
