"""`stoker submit`: put jobs into the queue of the background."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from stoker.cli.options import JobCommand, job_options, option, options_from
from stoker.core.errors import UsageError
from stoker.core.terms import Command
from stoker.joblist import COMMAND_LINE, Lines, Listed, Unusable, command_of, read_list


@click.command(name="submit", cls=JobCommand, context_settings={"allow_interspersed_args": False})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND...]")
@job_options
@click.option("-f", "--file", metavar="FILE", help="All jobs of a file: lines, .jsonl, .toml or .csv; - is stdin.")
@click.option("-s", "--shell", is_flag=True, help="Give the words to your shell, as one line.")
@option("--sim", metavar="SPEC", help="Simulated GPUs, for example 4x24G.")
@click.option("--hold", is_flag=True, help="Keep the jobs from starting until they are released.")
@click.option("--parsable", is_flag=True, help="Print only the ids.")
@click.option("--dry-run", is_flag=True, help="Show what would be submitted and where it would run.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.pass_context
def command(context: click.Context, /, words: tuple[str, ...], file: str | None, shell: bool, **values: Any) -> int:
    """Put a command into the queue and print its id; the engine in the background starts by itself.

    \b
      stoker submit -- python train.py --lr 1e-3            one job on one GPU
      stoker submit -a 0-9%4 'python train.py --seed {i}'   ten tasks, four at once
      stoker submit -d 12 -G 0 -- python evaluate.py        when job 12 has succeeded

    Several words are executed as they are; one quoted word with blanks goes through your shell, and so do
    the lines of a file. {i}, {id}, {gpu} and {name} in the command stand for what they name. The job gets the
    environment and the directory that it was submitted from.
    """
    from stoker.cli.submission.handing_in import Request, hand_in

    options = options_from(values)
    values["as_json"] = values["as_json"] or os.environ.get("STOKER_OUTPUT") == "json"
    if not words and file is None and sys.stdin.isatty():
        click.echo(context.get_help())
        return 2
    items = _items(words, file, as_line=shell)
    return hand_in(Request(options=options, label=file or "submit", **values), items)


def _items(words: tuple[str, ...], file: str | None, *, as_line: bool) -> list[Listed]:
    """The jobs that the words or the file mean."""
    shell = os.environ.get("SHELL") or "/bin/sh"
    if file is not None:
        if words:
            raise UsageError("there is both a file and a command", "leave one of them out")
        return _usable(_from_stdin(shell) if file == "-" else read_list(Path(file), shell), file)
    if not words:
        raise UsageError("there is no command", "write it after --, or name a file of commands with -f")
    if len(words) == 1 and _looks_like_a_list(words[0]):
        raise UsageError(f"{words[0]} is a file that cannot be executed", f"did you mean -f {words[0]}?")
    line = Command((" ".join(words),), shell)
    return [Listed(line if as_line and words[0].strip() else command_of(words, shell), COMMAND_LINE)]


def _from_stdin(shell: str) -> list[Listed | Unusable]:
    lines = Lines("stdin", shell)
    return [*lines.feed(sys.stdin.buffer.read()), *lines.end()]


def _usable(items: list[Listed | Unusable], file: str) -> list[Listed]:
    """All of them, or an error: a part of a list is not what somebody wanted in the queue."""
    if not items:
        raise UsageError(f"there is no job in {'stdin' if file == '-' else file}", "write one command on each line")
    for item in items:
        if isinstance(item, Unusable):
            raise UsageError(f"{item.where}: {item.sentence}", "nothing was submitted; mend or remove that line")
    return [item for item in items if isinstance(item, Listed)]


def _looks_like_a_list(word: str) -> bool:
    if not os.path.isfile(word):
        return False
    import shutil

    return not os.access(word, os.X_OK) and shutil.which(word) is None
