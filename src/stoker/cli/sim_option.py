"""The option `--sim`, whose value may be left out, and the commands that parse such options."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stoker.core.units import LAST_GPUS, parse_sim

if TYPE_CHECKING:
    from stoker.store.paths import Paths

Function = TypeVar("Function", bound=Callable[..., Any])
SIM = "--sim"
SPEC = re.compile(r"\d+[a-z]", re.IGNORECASE)
"""How a value of `--sim` begins, right or mistyped; an id, a name or a command after it is not its value."""
ALONE: Mapping[str, str] = {SIM: LAST_GPUS, "--mps": "true"}
"""Options whose value may be left out, and the value that they have then; `--mps` takes one only after `=`."""


class StokerCommand(click.Command):
    """A command in which an option of `ALONE` never takes the next word by accident."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(_completed(self, ctx, args)))


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
        if word in ALONE and word in flags:
            follows = word == SIM and rest and SPEC.match(rest[0])
            yield f"{word}={rest.pop(0) if follows else ALONE[word]}"
            continue
        yield word
        if not flags.get(word, True) and rest:
            yield rest.pop(0)
    yield from rest
