"""simple_hypersearch: print one command for every combination of parameter values."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, product
from random import Random
from string import Formatter

from stoker.core.errors import UsageError
from stoker.core.grid import Grid, ParameterSet, drawn, ordered, shuffled
from stoker.features.compat.tool import STANDARD_OUTPUT, Parser, report_errors, say, whole_number, write_all

PROGRAM = "simple_hypersearch"

PIPE_CLOSED = 141
"""The exit code that a shell reports for a program that SIGPIPE ended."""

_NEGATIVE_NUMBER = re.compile(r"-(\.?\d|(inf|infinity|nan)$)", re.IGNORECASE)

_EXAMPLE = """\
example:
  simple_hypersearch "train --lr {lr} --size {size}" --sampling-mode grid -p lr 0.1 0.2 -p size 32 64
prints
  train --lr 0.1 --size 32
  train --lr 0.1 --size 64
  train --lr 0.2 --size 32
  train --lr 0.2 --size 64
"""

_HINTS = {
    "unrecognized arguments": "write -p NAME VALUE VALUE, "
    'and a value that looks like an option with a blank before: " --fast"',
    "command_pattern": "put it before the first -p, or after a --, since -p takes all words that follow it as values",
}

_say = partial(say, PROGRAM)


def generate_commands(arguments: Sequence[str] | None = None) -> int:
    """Print the commands, and return the exit code."""
    return report_errors(PROGRAM, lambda: _print_commands(_parser().parse_args(arguments)))


def _print_commands(options: argparse.Namespace) -> int:
    try:
        for command in _commands(options):
            write_all(STANDARD_OUTPUT, os.fsencode(command) + b"\n")
    except BrokenPipeError:
        return PIPE_CLOSED
    except OSError as error:
        _say(f"error: cannot write the commands: {error.strerror}")
        return 1
    return 0


def _parser() -> Parser:
    parser = Parser(PROGRAM, "Print one command for every combination of parameter values.", _EXAMPLE, _HINTS)
    # argparse takes -1 and -0.5 for values, but -1e-3 for an option; no option of ours looks like a number.
    parser._negative_number_matcher = _NEGATIVE_NUMBER
    parser.add_argument("command_pattern", help="the command, with {NAME} as the placeholder of a parameter")
    parser.add_argument(
        "--sampling-mode",
        choices=["shuffled_grid", "grid"],
        default="shuffled_grid",
        help="random order (shuffled_grid, the default), or as given, the last parameter fastest (grid)",
    )
    parser.add_argument(
        "--n-samples", type=whole_number, help="stop after this number of commands; no combination is repeated"
    )
    parser.add_argument("--seed", type=int, help="seed of the random order")
    parser.add_argument(
        "-p",
        "--parameter",
        nargs="+",
        action="append",
        default=[],
        metavar=("NAME", "VALUES"),
        help="a parameter and its values, as in: -p lr 0.01 0.001 0.0001",
    )
    return parser


def _commands(options: argparse.Namespace) -> Iterator[str]:
    pattern: str = options.command_pattern
    grid = _grid(options.parameter)
    _check_names(_placeholders(pattern), grid)
    _check_values(pattern, grid)
    chosen = islice(_parameter_sets(grid, options), options.n_samples)
    return (pattern.format_map(parameters) for parameters in chosen)


def _grid(given: list[list[str]]) -> Grid[str]:
    parameters: dict[str, list[str]] = {}
    for name, *values in given:
        if name in parameters:
            _say(f"warning: parameter {name} is given more than once; its last values count")
        parameters[name] = values
    return Grid(parameters)


def _parameter_sets(grid: Grid[str], options: argparse.Namespace) -> Iterator[ParameterSet]:
    if options.sampling_mode == "grid":
        return ordered(grid)
    source = Random(options.seed)  # noqa: S311 - a search order is no secret
    return drawn(grid, source) if options.seed is None else shuffled(grid, source)


def _placeholders(pattern: str) -> set[str]:
    """The names in a pattern, including those in a format, as in {a:{width}}."""
    names: set[str] = set()
    try:
        for _, field, layout, _ in Formatter().parse(pattern):
            if field is not None:
                names |= {_parameter_of(field), *_placeholders(layout or "")}
    except ValueError as error:
        raise UsageError(f"the pattern cannot be read: {error}", "write {{ and }} for plain braces") from None
    return names


def _check_names(asked: set[str], grid: Grid[str]) -> None:
    for name in sorted(asked):
        _check_placeholder(name, grid)
    for name, values in grid.parameters.items():
        if not values:
            _say(f"warning: parameter {name} has no values, so there are no commands")
        elif name not in asked:
            _say(f"warning: parameter {name} is not in the pattern, so its values make no difference")


def _check_placeholder(name: str, grid: Grid[str]) -> None:
    if not name or name.isdecimal():
        raise UsageError(
            f"the placeholder {{{name}}} has no name",
            "write {NAME} and -p NAME, or {{ and }} for plain braces",
        )
    if name not in grid.parameters:
        raise UsageError(
            f"the pattern has {{{name}}}, but there is no parameter {name}",
            f"add -p {name} and its values, or write {{{{ and }}}} for plain braces",
        )


def _check_values(pattern: str, grid: Grid[str]) -> None:
    """Refuse a pattern that some values cannot fill: a scheduler behind the pipe must not start half of the commands.

    Values are text, so each can be tried in a field by itself, and those in a format, as in {a:{b}}, without the rest.
    """
    for _, field, layout, conversion in Formatter().parse(pattern if grid.size else ""):
        if field is not None:
            name, inner = _parameter_of(field), sorted(_placeholders(layout or ""))
            converted = f"{field}!{conversion}" if conversion else field
            for value in grid.parameters[name]:
                _try(f"{{{converted}}}", {name: value})
            for values in product(*(grid.parameters[name] for name in inner)):
                sample = {name: grid.parameters[name][0], **dict(zip(inner, values, strict=True))}
                _try(f"{{{converted}:{layout}}}", sample)


def _parameter_of(field: str) -> str:
    """The name before an index or attribute."""
    return re.split(r"[.\[]", field, maxsplit=1)[0]


def _try(pattern: str, parameters: Mapping[str, str]) -> None:
    try:
        pattern.format_map(parameters)
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        values = ", ".join(f"{name}={value}" for name, value in parameters.items())
        raise UsageError(
            f"the pattern cannot be filled with {values}: {error}",
            "values are text, so number formats like {x:.3f} do not work; write values as they should appear",
        ) from None
