"""Options that commands share: `--sim`, the output and what it chooses, and filters of jobs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import click

from stoker.cli.console import json_is_default, say, watch_reads
from stoker.core.errors import UsageError
from stoker.core.units import LAST_GPUS, parse_sim
from stoker.features import elsewhere, job_views, load

if TYPE_CHECKING:  # help needs neither a queue nor its data
    from click.shell_completion import CompletionItem
    from msgspec import Struct

    from stoker.store.filters import Filter
    from stoker.store.paths import Paths

Function = TypeVar("Function", bound=Callable[..., Any])
SIM = "--sim"
SPEC = re.compile(r"\d+[a-z]", re.IGNORECASE)
"""How a value of `--sim` begins, right or mistyped; an id, a name or a command after it is not its value."""
MEANINGS: Mapping[str, str] = {"--no-freeze": "--freeze=no", "--no-warm": "--warm=no"}
"""Other words for an option with a value."""
ALONE: Mapping[str, str] = {
    SIM: LAST_GPUS,
    "--mps": "true",
    "--freeze": "code",
    "--preemptible": "save",
    "--warm": "auto",
}
"""Options whose value may be left out, and the value that they have then; else it follows `=`."""
MODULES = re.compile(r"(?!python[\d.]*\Z)(?!.*\.\w{1,4}\Z)[^\W\d][\w.]*(,[^\W\d][\w.]*)*\Z")
"""Names of modules; no program, and no file."""
NEXT: Mapping[str, re.Pattern[str]] = {
    SIM: SPEC,
    "--preemptible": re.compile(r"(save|restart|[\d.,%]+%)\Z"),
    "--warm": MODULES,
}
"""Those of them whose value may also be the next word, and how it begins."""


SERVER = ("-S", "--server")
"""The options that name another machine."""
TYPED_WORDS = "stoker.words"


class CommandElsewhere(NamedTuple):
    """A command as it was typed, for another machine."""

    command: str
    words: tuple[str, ...]
    ids: tuple[str, ...]
    """Those of the words that name jobs."""
    server: str
    """The other machine; empty if only an id may name it."""


class StokerCommand(click.Command):
    """A command in which an option of `ALONE` never takes the next word by accident, and that may run elsewhere."""

    def __init__(self, name: str | None, *arguments: Any, **settings: Any) -> None:
        super().__init__(name, *arguments, **settings)
        self._goes_elsewhere = name in elsewhere().commands
        if self._goes_elsewhere:
            more = "; any: the one where the job starts first" if name == "submit" else ""
            help_text = f"Do this on another server of `stoker servers`{more}."
            self.params.append(click.Option(SERVER, metavar="NAME", help=help_text))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[TYPED_WORDS] = tuple(args)
        return super().parse_args(ctx, list(_completed(self, ctx, args)))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command here, or there if its options or ids name another machine."""
        if not self._goes_elsewhere or self.name == "submit":  # submit takes files of this machine along
            return super().invoke(ctx)
        server = ctx.params.pop("server")
        arguments = [ctx.params.get(name) for name in _NAMES_OF_IDS]
        ids = tuple(word for given in arguments if given for word in ((given,) if isinstance(given, str) else given))
        if server is not None or any(":" in word for word in ids):
            line = CommandElsewhere(str(self.name), ctx.meta[TYPED_WORDS], ids, server or "")
            code = load(elsewhere().forward)(line)
            if code is not None:
                return code
        return super().invoke(ctx)


_NAMES_OF_IDS = ("ids", "jobs", "job", "other")
"""Arguments that name jobs."""


def sim_option(function: Function) -> Function:
    """Give the command the paths of the queue: that of the simulated GPUs after `--sim`."""
    return click.option(
        SIM,
        "paths",
        metavar="[SPEC]",
        envvar="STOKER_SIM",
        callback=_paths,
        help="Use simulated GPUs and their separate queue; SPEC, for example 4x24G, applies when an engine starts.",
    )(function)


def sim_words(words: Sequence[str]) -> int:
    """How many of the first words are `--sim` and its value."""
    if not words or (words[0] != SIM and not words[0].startswith(f"{SIM}=")):
        return 0
    return 2 if words[0] == SIM and len(words) > 1 and SPEC.match(words[1]) else 1


def _paths(context: click.Context, _parameter: click.Parameter, value: str | None) -> Paths | str | None:
    from stoker.store.paths import paths_for

    if value not in (None, LAST_GPUS):
        parse_sim(value)  # refuses what no engine can simulate
    return value if context.resilient_parsing else paths_for(value)  # a shell that completes a line needs no queue


def _completed(command: click.Command, context: click.Context, args: Sequence[str]) -> Iterator[str]:
    """The words, with a value for every option that stands alone."""
    options = [option for option in command.params if isinstance(option, click.Option)]
    flags = {flag: option.is_flag for option in options for flag in option.opts}
    rest = list(args)
    while rest:
        word = rest.pop(0)
        if word == "--" or (not word.startswith("-") and not context.allow_interspersed_args):
            yield word
            break
        if word in MEANINGS and MEANINGS[word].partition("=")[0] in flags:
            yield MEANINGS[word]
            continue
        if word in ALONE and word in flags:
            follows = rest and word in NEXT and NEXT[word].match(rest[0])
            yield f"{word}={rest.pop(0) if follows else ALONE[word]}"
            continue
        yield word
        if not flags.get(word, True) and rest:
            yield rest.pop(0)
    yield from rest


def complete_jobs(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completions of an argument of ids."""
    from click.shell_completion import CompletionItem

    from stoker.cli.completion import OPEN_ONLY, offers

    offered = offers(incomplete, context.params.get("paths"), ended=context.info_name not in OPEN_ONLY)
    return [CompletionItem(offer.word, help=offer.meaning) for offer in offered]


# -- output ------------------------------------------------------------------------------------

Decorator = Callable[[Callable[..., int]], Callable[..., int]]


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def controlling(function: Function) -> Function:
    """Add the options of all commands that change jobs."""
    return json_option(sim_option(function))


def wants_json(as_json: bool) -> bool:
    return as_json or json_is_default()


Form = Literal["screen", "plain", "json"]
WATCH_TITLE = 2
"""Lines that watch(1) takes of the terminal; no prompt follows the output there."""


class Screen(NamedTuple):
    """How to print the result."""

    form: Form
    color: str
    queue: Paths | None = None
    watched: bool = False
    """Whether watch(1) shows the output, below its title."""

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines for the output and a prompt after it."""
        from stoker.cli.screens.text import terminal_size  # other forms do not need it

        width, height = terminal_size(os.environ)
        return width, max(1, height - (WATCH_TITLE - 1 if self.watched else 0))

    @property
    def typed(self) -> str:
        """The option that other commands need for the same queue."""
        return " --sim" if self.paths.is_simulated and not os.environ.get("STOKER_SIM") else ""

    @property
    def paths(self) -> Paths:
        assert self.queue is not None, "a command with screen_options has a queue"
        return self.queue


def screen_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options of a screen, passed to the command as one `Screen`."""
    return output_options(function, sim_option)


def output_options(function: Callable[..., int], *more: Decorator) -> Callable[..., int]:
    """The same for a command that has no queue."""

    @wraps(function)
    def wrapped(*arguments: Any, color: str, paths: Paths | None = None, **values: Any) -> int:
        watched = not sys.stdout.isatty() and watch_reads()
        chosen = {form: values.pop(form) for form in ("json", "plain", "table")}
        form = _form(chosen, terminal=color == "always" or watched or sys.stdout.isatty())
        return function(*arguments, screen=Screen(form, color, paths, watched), **values)

    options: list[Decorator] = [
        click.option("--json", is_flag=True, help="Print JSON."),
        click.option("--plain", is_flag=True, help="TAB separated; the default when output is not a terminal."),
        click.option("--table", is_flag=True, help="The table of a terminal, also when output is not one."),
        click.option(
            "--color",
            type=click.Choice(["auto", "always", "never"]),
            default="auto",
            help="When to use colour; always implies --table.",
        ),
        *more,
    ]
    decorated: Callable[..., int] = wrapped
    for option in reversed(options):
        decorated = option(decorated)
    return decorated


def write_json(value: Struct) -> None:
    from stoker.core.text import to_json

    sys.stdout.write(to_json(value).decode() + "\n")


def write_file(name: str, text: str) -> None:
    """Write a text that a user asked for into a file, or to standard output for `-`."""
    if name == "-":
        sys.stdout.write(text)
        return
    try:
        with open(name, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"cannot write {name}: {error.strerror}", "name another file, or - for standard output"
        ) from error
    say(f"wrote {name}")


def write_plain(lines: Iterable[str]) -> None:
    """Write lines to standard output; escape what its encoding lacks."""
    text = "".join(f"{line}\n" for line in lines)
    encoding = sys.stdout.encoding or "ascii"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _form(chosen: Mapping[str, bool], *, terminal: bool) -> Form:
    given = [form for form, wanted in chosen.items() if wanted]
    if len(given) > 1:
        raise UsageError(f"--{given[0]} and --{given[1]} cannot be combined", "give one of them")
    if chosen["json"] or (not given and json_is_default()):
        return "json"
    return "screen" if chosen["table"] or (terminal and not chosen["plain"]) else "plain"


# -- views of features -------------------------------------------------------------------------


def view_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add an option for each view that a feature offers; it replaces the table or the details of jobs."""
    for name, view in reversed(job_views().items()):
        function = click.option(f"--{name}", "view", flag_value=name, help=view.sentence)(function)
    return function


def refuse_view(view: str, ids: Sequence[str], *, others: bool) -> None:
    """Refuse a view of jobs without ids, and one that is not about jobs with ids or `others` of the options."""
    if job_views()[view].of_ids:
        if not ids:
            raise UsageError(f"--{view} is about jobs", f"name them: stoker status last --{view}")
    elif ids or others:
        raise UsageError(f"--{view} chooses no jobs", f"type it alone: stoker status --{view}")


def show_view(view: str, ids: Sequence[int], screen: Screen, *, everything: bool) -> int:
    """Show a view; the exit code."""
    return load(job_views()[view].show)(screen.paths, ids, screen, everything=everything) or 0


# -- filters -----------------------------------------------------------------------------------


def filter_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options that choose jobs, passed to the command as one `Filter` named `chosen`."""

    @wraps(function)
    def wrapped(*arguments: Any, **values: Any) -> int:
        from stoker.store.filters import NO_FILTER

        parts = [values.pop(part) for part in ("names", "tags", "groups", "states")]
        chosen = NO_FILTER
        if any(parts):
            from stoker.app.jobs.select import parse_filter  # it reads words, of which most lists have none

            chosen = parse_filter(*parts)
        return function(*arguments, chosen=chosen, **values)

    decorated: Callable[..., int] = wrapped
    for option in (
        click.option("--state", "states", multiple=True, metavar="STATES", help="Only these states: queued,failed,R"),
        click.option("--group", "groups", multiple=True, metavar="GLOB", help="Only jobs of this group."),
        click.option(
            "--tag",
            "tags",
            multiple=True,
            metavar="K[=GLOB]",
            help="Only jobs with this tag (repeatable; all must match).",
        ),
        click.option("--name", "names", multiple=True, metavar="GLOB", help="Only jobs whose name matches: 'vit-*'"),
    ):
        decorated = option(decorated)
    return decorated


def refuse_states(chosen: Filter, shown: Sequence[str], other: str) -> None:
    """Refuse states that a command never shows; `other` is the command that does."""
    for word in chosen.states:
        if word not in shown:
            raise UsageError(f"this command does not list {word} jobs", f"list such jobs with: {other} --state {word}")
