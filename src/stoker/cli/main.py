"""The console script: finds the verb, runs it, and turns errors into sentences and exit codes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from stoker import __version__
from stoker.cli.console import json_is_default, leave, open_missing_streams, say, silence_output, tell
from stoker.cli.messages import QUIET, show_messages
from stoker.cli.options import StokerCommand, sim_words
from stoker.core.errors import EXIT_CODES, NoSuchJob, StokerError, UsageError, did_you_mean
from stoker.features import feature_commands

if TYPE_CHECKING:  # only a shell that completes needs it
    from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """Knows its commands by a sentence each; suggests a near one for a mistyped command."""

    command_class = StokerCommand

    def __init__(
        self,
        *arguments: Any,
        sentences: Mapping[str, str],
        modules: str = "",
        aliases: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        features: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        """`modules` is the prefix of the modules of commands that are not added to the group.

        `files` names the module of commands that share one: there each has its own name, elsewhere it is `command`.
        `features` has the whole names of modules elsewhere.
        """
        super().__init__(*arguments, **settings)
        self.sentences = sentences
        self.aliases = aliases or {}
        self._files = files or {}
        self._features = features or {}
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.sentences)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command itself, or the one in the module of that name."""
        name = self.aliases.get(cmd_name, cmd_name)
        if name in self.commands or name not in self.sentences:
            return self.commands.get(name)
        usual = f"{self._modules}{self._files.get(name, name)}"
        module = importlib.import_module(self._features.get(name, usual))
        command: click.Command = getattr(module, name if name in self._files else "command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Add a suggestion to click's error."""
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            from stoker.cli.advice import meant_command

            meant = meant_command(args) if ctx.parent is None else ""
            names = [*self.sentences, *self.aliases]
            hint = meant or did_you_mean(args[0], names, f"commands: {', '.join(self.sentences)}")
            raise UsageError(f"no such command: {args[0]!r}", hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.sentences.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands that begin so, and then the options."""
        from click.shell_completion import CompletionItem

        named = [(name, sentence) for name, sentence in self.sentences.items() if name.startswith(incomplete)]
        completions = [CompletionItem(name, help=sentence) for name, sentence in named]
        return completions + click.Command.shell_complete(self, ctx, incomplete)


_OWN_COMMANDS = {
    "run": "Run a job list, a script or a command on free GPUs.",
    "shell": "Start an interactive session with GPUs in this terminal.",
    "submit": "Submit a command or script to the queue.",
    "status": "Show GPUs, running and waiting jobs (default command).",
    "top": "Follow GPUs and jobs live in the terminal.",
    "history": "Show finished jobs and their GPU-hours.",
    "logs": "Show or follow the output of jobs.",
    "wait": "Wait until jobs have finished; exit with their result.",
    "cancel": "Cancel waiting jobs and stop running ones.",
    "retry": "Run finished jobs again.",
    "edit": "Change waiting jobs, and limits of running ones.",
    "preempt": "Let running jobs give way to others.",
    "pause": "Hold jobs, pause the queue, or drain GPUs.",
    "resume": "Release jobs, resume the queue, or use drained GPUs again.",
    "gpus": "Show GPUs, their memory, and who uses them.",
    "web": "Serve a live page of the queue for browsers.",
    "engine": "Manage the background engine: start, stop, check and more.",
}


def _all_commands() -> dict[str, str]:
    """The commands with those of features, each at its place in the list."""
    commands = list(_OWN_COMMANDS.items())
    for name, command in reversed(feature_commands().items()):
        place = next(place for place, (other, _) in enumerate(commands) if other == command.after)
        commands.insert(place + 1, (name, command.sentence))
    return dict(commands)


COMMANDS = _all_commands()
ALIASES = {
    "add": "submit",
    "st": "status",
    "ls": "status",
    "follow": "logs",
    "kill": "cancel",
    "rm": "cancel",
    "log": "logs",
    "queue": "status",
    "watch": "top",
    "show": "status",
    "hold": "pause",
    "release": "resume",
}
"""Words of other tools; `follow` also means -f."""
_OF_THE_GROUP = ("-h", "--help", "-V", "--version", "--")


@click.group(
    cls=LazyGroup,
    sentences=COMMANDS,
    modules="stoker.cli.commands.",
    aliases=ALIASES,
    files={"run": "run", "shell": "run", "pause": "pause", "resume": "pause"},
    features={name: command.module for name, command in feature_commands().items()},
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExit codes:\n" + "\n".join(f"  {code:9}{meaning}" for code, meaning in EXIT_CODES.items()),
)
@click.version_option(__version__, "-V", "--version", prog_name="stoker")
def stoker() -> None:
    """Queue and run jobs on this machine's GPUs.

    \b
      stoker submit -- python3 train.py    queue a job and print its id; it survives your logout
      stoker status                        show GPUs, running and waiting jobs
      stoker logs -f last                  follow its output

    \b
      stoker run jobs.txt                  run each line on a free GPU
      tail -f -n 0 queue | stoker run -    jobs start as lines arrive
      stoker run --demo                    see it work on four simulated GPUs
    """


def main() -> None:
    open_missing_streams()
    leave(run_cli(sys.argv[1:]))


def run_cli(arguments: list[str]) -> int:
    """Exit code of a command line."""
    try:
        return _run_command(arguments)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        silence_output()
        return 141
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        _complain(StokerError(f"{error.strerror}{where}", "fix this and try again"))
        silence_output()
        return StokerError.exit_code


def _run_command(arguments: list[str]) -> int:
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if not QUIET.intersection(ours) and ours[:2] != ["engine", "run"] and not json_is_default():
        show_messages()
    as_json = "--json" in ours or json_is_default()
    words = _with_command(arguments)
    outcome: Any = 0
    try:
        outcome = stoker.main(words, prog_name="stoker", standalone_mode=False)
    except NoSuchJob as error:
        from stoker.cli.advice import other_queue

        outcome = _report(other_queue(error, words), as_json=as_json)
    except StokerError as error:
        outcome = _report(error, as_json=as_json)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        outcome = UsageError.exit_code
    except click.ClickException as error:
        from stoker.cli.advice import usage_error

        outcome = _report(usage_error(error, words), as_json=as_json)
    sys.stdout.flush()
    return outcome if isinstance(outcome, int) else 0


def _with_command(words: list[str]) -> list[str]:
    """The words with a command first: without one it is `status`, and `--sim` may precede it."""
    if words[:1] == ["help"]:
        return [*words[1:], "--help"]
    if words[:1] == ["follow"]:
        return ["follow", "-f", *words[1:]]
    if words and (not words[0].startswith("-") or words[0] in _OF_THE_GROUP):
        return words
    count = sim_words(words)
    sim, rest = words[:count], words[count:]
    if sim and rest and (rest[0] in COMMANDS or rest[0] in ALIASES):
        place = 2 if rest[0] == "engine" else 1
        return [*rest[:place], *sim, *rest[place:]]
    return ["status", *words]


def _report(error: StokerError, *, as_json: bool) -> int:
    if as_json:
        body = {"code": error.exit_code, "message": error.message, "hint": error.hint}
        from stoker.core.text import to_json

        print(to_json({"error": body}).decode())
    else:
        _complain(error)
    return error.exit_code


def _complain(error: StokerError) -> None:
    say(error.message)
    if error.hint:
        tell(f"        {error.hint}")
