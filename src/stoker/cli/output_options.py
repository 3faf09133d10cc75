"""Output options that commands share, and the output they choose."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Literal, TypeVar

import click
import msgspec
from msgspec import Struct

from stoker.cli.console import json_is_default
from stoker.cli.sim_option import sim_option
from stoker.core.errors import UsageError

Decorator = Callable[[Callable[..., int]], Callable[..., int]]
Function = TypeVar("Function", bound=Callable[..., Any])


def controlling(function: Function) -> Function:
    """Add the options of all commands that change jobs."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Tell it as one JSON value.")
    return as_json(sim_option(function))


def wants_json(as_json: bool) -> bool:
    return as_json or json_is_default()


Form = Literal["screen", "plain", "json"]


class Screen(Struct, frozen=True):
    """How to print the result."""

    form: Form
    color: str
    sim: bool

    @property
    def typed(self) -> str:
        """The option that other commands need for the same queue."""
        return " --sim" if self.sim and not os.environ.get("STOKER_SIM") else ""


def screen_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options of a screen, passed to the command as one `Screen`."""
    return output_options(function, sim_option)


def output_options(function: Callable[..., int], *more: Decorator) -> Callable[..., int]:
    """The same for a command that has no queue."""

    @wraps(function)
    def wrapped(*arguments: Any, as_json: bool, plain: bool, color: str, sim: str | None = None, **values: Any) -> int:
        return function(*arguments, screen=Screen(_form(as_json=as_json, plain=plain), color, bool(sim)), **values)

    options: list[Decorator] = [
        click.option("--json", "as_json", is_flag=True, help="As one JSON value."),
        click.option("--plain", is_flag=True, help="TAB separated; the default where the output is no terminal."),
        click.option(
            "--color", type=click.Choice(["auto", "always", "never"]), default="auto", help="When to use colour."
        ),
        *more,
    ]
    decorated: Callable[..., int] = wrapped
    for option in reversed(options):
        decorated = option(decorated)
    return decorated


def write_json(value: Struct) -> None:
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def write_plain(lines: Iterable[str]) -> None:
    """Write lines to standard output; escape what its encoding lacks."""
    text = "".join(f"{line}\n" for line in lines)
    encoding = sys.stdout.encoding or "ascii"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _form(*, as_json: bool, plain: bool) -> Form:
    if as_json and plain:
        raise UsageError("--json and --plain are two forms of the same", "give one of them")
    if as_json or (not plain and json_is_default()):
        return "json"
    return "screen" if not plain and sys.stdout.isatty() else "plain"
