"""Which program a command runs in the end, as far as its words tell: asked where it matters which Python that is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from stoker.core.terms import Command

_PYTHON = re.compile(r"(?:.*/)?python(?:\d+(?:\.\d+)*t?)?", re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
_WRAPPERS = frozenset(
    (
        *("env", "exec", "command", "nohup", "nice", "ionice", "time", "timeout", "stdbuf", "taskset", "numactl"),
        *("setsid", "unbuffer", "if", "then", "else", "do", "while", "!", "{"),
    )
)
"""Words before a program that leave its environment as it is, but for the assignments among them."""
_SETTING_UP = frozenset(
    (".", "source", "eval", "alias", "module", "ml", "conda", "mamba", "micromamba", "pyenv", "pixi", "spack")
)
"""Commands after which another Python may be meant."""
_TELLING = re.compile(r"(?:PATH|PYTHON\w*|VIRTUAL_ENV|CONDA\w*|LD_LIBRARY_PATH)=")
"""Assignments after which another one may be meant, or finds other packages."""


def is_python(word: str) -> bool:
    """Whether a program is a Python, by its name."""
    return _PYTHON.fullmatch(word) is not None


def programs_of(command: Command) -> list[str]:
    """The Python that a command runs, else the programs of which one may be written in it; none where one cannot tell.

    A shell can be told anything, so a line in which another Python may be chosen tells nothing.
    """
    parts = list(_simple_commands(command.words[0])) if command.shell else [list(command.words)]
    if any(words[0] in _SETTING_UP or any(map(_TELLING.match, words)) for words in parts):
        return []
    programs = [program for words in parts if (program := _program(words))]
    if "cd" in programs:
        programs = [program for program in programs if not _depends_on_place(program)]
    return [program for program in programs if is_python(program)][:1] or programs


def _depends_on_place(program: str) -> bool:
    return "/" in program and not program.startswith(("/", "~", "$"))


def _program(words: Sequence[str]) -> str:
    """The first word that is none of those before a program; behind such words, which have options, the Python."""
    rest = [word for word in words if not _ASSIGNMENT.match(word)]
    if not rest or rest[0] not in _WRAPPERS:
        return rest[0] if rest else ""
    return next((word for word in rest if is_python(word)), "")


def _simple_commands(line: str) -> Iterator[list[str]]:
    """The words between the operators of a shell."""
    import shlex

    lexer = shlex.shlex(line.replace("\\\n", " ").replace("\n", ";"), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        for token in lexer:
            if not set(token) <= set("();|&"):
                words.append(token)
            elif words:
                yield words
                words = []
    except ValueError:  # quotes that only a shell understands
        return
    if words:
        yield words
