"""Warm starts: which Python a command runs, and the template from which it can be forked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from stoker.core.spec import Command

AUTO = "auto"
"""In place of modules: those that the script imports itself."""
_PYTHON = re.compile(r"(?s:.*/)?python(?:\d+(?:\.\d+)?)?")
_PLAIN_LINE = re.compile(r"(?a)[\w@%+=:,./ -]+")
"""A line that every shell splits at its spaces, and changes in no other way."""
_VALUED = "WX"
_COLD_FLAGS: Mapping[str, str] = {
    "c": "it runs code from its command line (-c)",
    "i": "it is interactive (-i)",
    **dict.fromkeys("hV?", "it only prints a text"),
    "x": "it skips the first line of its script (-x)",
}


class PythonCommand(NamedTuple):
    """A command that runs a file or a module with a Python."""

    program: str
    options: tuple[str, ...]
    """Those of the interpreter."""
    kind: Literal["file", "module"]
    target: str
    arguments: tuple[str, ...]


class WarmRun(Struct, frozen=True):
    """The program of a process that was forked from a template."""

    template: str
    """The key of the template."""
    kind: Literal["file", "module"]
    target: str
    arguments: tuple[str, ...]


class Template(Struct, frozen=True):
    """A Python with imported modules; equal ones are one process."""

    start: tuple[str, ...]
    """The program and the options of the interpreter."""
    modules: tuple[str, ...]
    directory: str
    search_path: str
    """The first directory in which modules are looked for."""
    environment: tuple[tuple[str, str], ...]
    script: str = ""
    """A file that is compiled once for all jobs; templates that differ only in it are equal."""

    @property
    def key(self) -> str:
        """A text that differs for different templates."""
        import hashlib

        parts = [*self.start, "", *self.modules, "", self.directory, self.search_path]
        parts += [f"{name}={value}" for name, value in self.environment]
        return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:16]


def read_python(command: Command) -> PythonCommand | str:
    """The Python command, or why it cannot be forked from a template."""
    words: Sequence[str] = command.words
    if command.shell:
        if _PLAIN_LINE.fullmatch(words[0]) is None or not words[0].split():
            return "it is a line for a shell"
        words = words[0].split()
    if _PYTHON.fullmatch(words[0]) is None:
        return f"{words[0].rpartition('/')[2]} is not python"
    options: list[str] = []
    rest = list(words[1:])
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        options.append(word)
        if word == "--":
            break
        kind, value = _read_option(word, rest)
        if kind == "module":
            options.pop()
            return PythonCommand(words[0], tuple(options), "module", value, tuple(rest))
        if kind == "value":
            options += [value] if value else []
        elif kind:
            return kind
    if not rest:
        return "it reads its program from the input"
    return PythonCommand(words[0], tuple(options), "file", rest[0], tuple(rest[1:]))


def _read_option(word: str, rest: list[str]) -> tuple[str, str]:
    """The kind of a word of options, "module" or "value", with the name or the next word; or a reason."""
    if word == "-":
        return "it reads its program from the input", ""
    if word.startswith("--"):
        is_known = word == "--check-hash-based-pycs" and rest
        return ("value", rest.pop(0)) if is_known else (f"templates do not know its option {word}", "")
    for position, letter in enumerate(word[1:], 2):
        if letter == "m":
            flags_before = word[1 : position - 1]
            if flags_before or not (rest or word[position:]):
                return f"templates do not know its option {word}", ""
            return "module", word[position:] or rest.pop(0)
        if letter in _VALUED:
            return "value", "" if word[position:] or not rest else rest.pop(0)
        if letter in _COLD_FLAGS:
            return _COLD_FLAGS[letter], ""
    return "", ""


def template_of(
    python: PythonCommand, modules: Sequence[str], directory: str, environment: Mapping[str, str]
) -> Template:
    """The template for a command that runs in a directory with an environment."""
    is_whole = python.target.startswith("/")
    script = "" if python.kind == "module" else python.target if is_whole else f"{directory}/{python.target}"
    return Template(
        (python.program, *python.options),
        tuple(modules),
        directory,
        script.rpartition("/")[0] or directory,
        tuple(sorted(environment.items())),
        script,
    )
