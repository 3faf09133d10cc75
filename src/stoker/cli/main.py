"""The console script: finds the verb, runs it, and turns errors into sentences and exit codes."""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

import click

from stoker import __version__
from stoker.core.errors import StokerError, UsageError
from stoker.streams import open_missing_streams
from stoker.words import printable

VERBS = {
    "run": "Run a list of commands, or one command, on the GPUs of this machine.",
    "logs": "Show the output of a job.",
    "engine": "The engine in the background: start, stop and more.",
}


class Verbs(click.Group):
    """Finds a verb's module when it is needed, and a near one when it is mistyped."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in the order of a day's work."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb's command."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"stoker.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click, but with a suggestion."""
        if args[0] not in VERBS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], VERBS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(VERBS)}"
            raise click.UsageError(f"no such verb: {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verbs with their sentences, without loading any of them."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="stoker")
def stoker() -> None:
    """Keep the GPUs of this machine fed.

    \b
      stoker run jobs.txt                  every line on a GPU of its own, as they become free
      tail -f -n 0 queue | stoker run -    jobs start as lines arrive
      stoker run --demo                    see it work on four simulated GPUs
    """


def main() -> None:
    """The console script."""
    open_missing_streams()
    sys.exit(run_cli(sys.argv[1:]))


def run_cli(arguments: list[str]) -> int:
    """Exit code of a command line."""
    try:
        return _run_verb(arguments)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        _silence_output()
        return 141
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        _complain(StokerError(f"the system refuses: {error.strerror}{where}", "mend that and try again"))
        _silence_output()
        return StokerError.exit_code


def _run_verb(arguments: list[str]) -> int:
    as_json = _wants_json(arguments)
    words = [*arguments[1:2], "--help"] if arguments[:1] == ["help"] else arguments
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
    return "--json" in ours or os.environ.get("STOKER_OUTPUT") == "json"


def _report(error: StokerError, *, as_json: bool) -> int:
    if as_json:
        body = {"code": error.exit_code, "message": error.message, "hint": error.hint}
        print(json.dumps({"error": body}))
    else:
        _complain(error)
    return error.exit_code


def _complain(error: StokerError) -> None:
    print(f"stoker: {printable(error.message)}", file=sys.stderr)
    if error.hint:
        print(f"        {printable(error.hint)}", file=sys.stderr)


def _silence_output() -> None:
    """Nobody takes our output any more: what is still in the buffer must not fail a second time at the very end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
