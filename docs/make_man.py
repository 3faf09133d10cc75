"""Writes the manual pages from the help texts of the commands: `python docs/make_man.py DIRECTORY`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from stoker import __version__
from stoker.cli.main import stoker
from stoker.core.errors import EXIT_CODES

_AS_IT_IS = "\b"
"""With which click marks paragraphs whose lines are left alone."""
_FILES = """\
.SH FILES
.TP
.I ~/.config/stoker/config.toml
Your settings; also stoker.toml or [tool.stoker] in pyproject.toml, and /etc/stoker/config.toml.
.TP
.I ~/.local/state/stoker/HOST/
The queue (queue.db), the logs of jobs (logs/) and that of the engine (engine.log).
.SH EXIT STATUS
"""


def write_pages(directory: Path) -> list[Path]:
    """Write a page for the program and each of its commands; returns them."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in pages():
        path = directory / f"{name}.1"
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def pages() -> Iterator[tuple[str, str]]:
    """Name and text of every page."""
    top = click.Context(stoker, info_name="stoker", **stoker.context_settings)
    yield "stoker", _page(top) + _FILES + _exit_status() + _see_also(top)
    yield from _pages_below(top)


def _pages_below(context: click.Context) -> Iterator[tuple[str, str]]:
    for inner in commands_below(context):
        yield inner.command_path.replace(" ", "-"), _page(inner) + _see_also(inner)
        yield from _pages_below(inner)


def _exit_status() -> str:
    meanings = "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
    return f"{escaped(meanings)}. For one job in the foreground it is the exit code of the job.\n"


def commands_below(context: click.Context) -> Iterator[click.Context]:
    group = context.command
    if not isinstance(group, click.Group):
        return
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None:
            raise LookupError(f"{context.command_path} {name} has no command")
        if not command.hidden:
            yield click.Context(command, parent=context, info_name=name)


def _page(context: click.Context) -> str:
    command, name = context.command, context.command_path.replace(" ", "-")
    synopsis = " ".join(command.collect_usage_pieces(context))
    return "".join(
        [
            f'.TH "{escaped(name.upper())}" 1 "" "Stoker {escaped(__version__)}" "Stoker"\n',
            f".SH NAME\n{escaped(name)} \\- {escaped(_sentence(command).rstrip('.'))}\n",
            f".SH SYNOPSIS\n.B {escaped(context.command_path)}\n{escaped(synopsis)}\n",
            f".SH DESCRIPTION\n{''.join(_paragraphs(command.help or ''))}",
            _list("OPTIONS", list(_options(context))),
            _list("COMMANDS", [(inner.info_name or "", _sentence(inner.command)) for inner in commands_below(context)]),
        ]
    )


def _sentence(command: click.Command) -> str:
    return command.get_short_help_str(limit=200)


def _options(context: click.Context) -> Iterator[tuple[str, str]]:
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            yield record


def _list(title: str, entries: list[tuple[str, str]]) -> str:
    if not entries:
        return ""
    return f".SH {title}\n" + "".join(f".TP\n.B {escaped(word)}\n{escaped(text)}\n" for word, text in entries)


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if paragraph.startswith(_AS_IT_IS):
            lines = paragraph.removeprefix(_AS_IT_IS).strip("\n").split("\n")
            yield ".PP\n.nf\n" + "".join(f"{escaped(line)}\n" for line in lines) + ".fi\n"
        elif paragraph.strip():
            yield f".PP\n{escaped(' '.join(paragraph.split()))}\n"


def _see_also(context: click.Context) -> str:
    around = [*commands_below(context), *([context.parent] if context.parent else [])]
    names = sorted(each.command_path.replace(" ", "-") for each in around)
    return ".SH SEE ALSO\n" + ",\n".join(f".BR {escaped(name)} (1)" for name in names) + "\n"


def escaped(text: str) -> str:
    """Text as roff shows it back: no line of it is taken for a request, and hyphens can be copied into a shell."""
    plain = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", plain, flags=re.MULTILINE)


if __name__ == "__main__":
    for page in write_pages(Path(sys.argv[1])):
        print(page)
