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
from stoker.core.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])


def controlling(function: Function) -> Function:
    """Decorates a verb with the options that all of them have."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Tell it as one JSON value.")
    simulated = click.option("--sim", is_flag=True, help="The queue of the simulated GPUs.")
    return as_json(simulated(function))


def wants_json(as_json: bool) -> bool:
    """Whether the answer is to be JSON, by the option or for all verbs."""
    return as_json or json_is_default()


Form = Literal["screen", "plain", "json"]


class Screen(Struct, frozen=True):
    """How somebody wants to see something."""

    form: Form
    color: str
    sim: bool

    @property
    def typed(self) -> str:
        """What other commands need to be about the same queue."""
        return " --sim" if self.sim and not os.environ.get("STOKER_SIM") else ""


def screen_options(function: Callable[..., int]) -> Callable[..., int]:
    """Decorates a command with the options of a screen, which it gets as one."""

    @wraps(function)
    def wrapped(*arguments: Any, as_json: bool, plain: bool, color: str, sim: bool, **values: Any) -> int:
        screen = Screen(_form(as_json=as_json, plain=plain), color, sim or bool(os.environ.get("STOKER_SIM")))
        return function(*arguments, screen=screen, **values)

    return _with_options(click.option("--sim", is_flag=True, help="The queue of simulated GPUs.")(wrapped))


def output_options(function: Callable[..., int]) -> Callable[..., int]:
    """Decorates a command that has nothing to do with a queue with the options of a screen, which it gets as one."""

    @wraps(function)
    def wrapped(*arguments: Any, as_json: bool, plain: bool, color: str, **values: Any) -> int:
        return function(*arguments, screen=Screen(_form(as_json=as_json, plain=plain), color, sim=False), **values)

    return _with_options(wrapped)


def _with_options(function: Callable[..., int]) -> Callable[..., int]:
    options = [
        click.option("--json", "as_json", is_flag=True, help="As one JSON value."),
        click.option("--plain", is_flag=True, help="TAB separated; the default where the output is no terminal."),
        click.option(
            "--color", type=click.Choice(["auto", "always", "never"]), default="auto", help="When to use colour."
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def write_json(value: Struct) -> None:
    """One value on standard output."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def write_plain(lines: Iterable[str]) -> None:
    """Lines on standard output, in bytes that every program understands."""
    text = "".join(f"{line}\n" for line in lines)
    encoding = sys.stdout.encoding or "ascii"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _form(*, as_json: bool, plain: bool) -> Form:
    if as_json and plain:
        raise UsageError("--json and --plain are two forms of the same", "give one of them")
    if as_json or (not plain and json_is_default()):
        return "json"
    return "screen" if not plain and sys.stdout.isatty() else "plain"
