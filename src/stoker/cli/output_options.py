"""Output options that commands share, and the output they choose."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Literal, TypeVar

import click
from msgspec import Struct

from stoker.cli.console import json_is_default, say, watch_reads
from stoker.cli.sim_option import sim_option
from stoker.core.errors import UsageError
from stoker.core.text import to_json
from stoker.store.paths import Paths

Decorator = Callable[[Callable[..., int]], Callable[..., int]]
Function = TypeVar("Function", bound=Callable[..., Any])


def controlling(function: Function) -> Function:
    """Add the options of all commands that change jobs."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    return as_json(sim_option(function))


def wants_json(as_json: bool) -> bool:
    return as_json or json_is_default()


Form = Literal["screen", "plain", "json"]
WATCH_TITLE = 2
"""Lines that watch(1) takes of the terminal; no prompt follows the output there."""


class Screen(Struct, frozen=True):
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
    sys.stdout.write(to_json(value).decode() + "\n")


def write_file(name: str, text: str) -> None:
    """Write a text that a user asked for into a file, or to standard output for `-`."""
    if name == "-":
        sys.stdout.write(text)
        return
    try:
        Path(name).write_text(text, encoding="utf-8")
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
