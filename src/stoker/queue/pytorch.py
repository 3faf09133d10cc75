"""Find out which PyTorch a command would import, and whether it knows --cap."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from string import Template
from typing import NamedTuple

from stoker.core.spec import Command

_PYTHON = re.compile(r"(?:.*/)?python(?:\d+(?:\.\d+)*t?)?", re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)

_WRAPPERS = frozenset(
    (
        *("env", "exec", "command", "nohup", "nice", "ionice", "time", "timeout", "stdbuf", "taskset", "numactl"),
        *("setsid", "unbuffer", "if", "then", "else", "do", "while", "!", "{"),
    )
)
"""Words before a program that do not change its environment; assignments among them do."""

_SETTING_UP = frozenset(
    (".", "source", "eval", "alias", "module", "ml", "conda", "mamba", "micromamba", "pyenv", "pixi", "spack")
)
"""Commands after which `python` may be another one."""

_CHOOSES_PYTHON = re.compile(r"(?:PATH|PYTHON\w*|VIRTUAL_ENV|CONDA\w*|LD_LIBRARY_PATH)=")
"""Assignments after which `python` may be another one, or find other packages."""


def is_python(word: str) -> bool:
    return _PYTHON.fullmatch(word) is not None


def programs_of(command: Command) -> list[str]:
    """The Python that a command runs, else its programs, which may be Python scripts; none where it is unclear.

    A shell line that may choose another Python is unclear.
    """
    parts = list(_simple_commands(command.words[0])) if command.shell else [list(command.words)]
    if any(words[0] in _SETTING_UP or any(map(_CHOOSES_PYTHON.match, words)) for words in parts):
        return []
    programs = [program for words in parts if (program := _program(words))]
    if "cd" in programs:
        programs = [program for program in programs if "/" not in program or program.startswith(("/", "~", "$"))]
    return [program for program in programs if is_python(program)][:1] or programs


def _program(words: Sequence[str]) -> str:
    """The first word; after a wrapper, whose options are unknown, the first word that is a Python."""
    rest = [word for word in words if not _ASSIGNMENT.match(word)]
    if not rest or rest[0] not in _WRAPPERS:
        return rest[0] if rest else ""
    return next((word for word in rest if is_python(word)), "")


def _simple_commands(line: str) -> Iterator[list[str]]:
    """The words between operators of the shell."""
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


INTERPRETER_TIMEOUT = 5.0
"""Seconds that an interpreter may take; a cold network disk is slow."""
_SECONDS_TO_DIE = 1.0
_FIRST_LINE = 1024
_MARK = "stoker-torch"

_TORCH_QUESTION = f"""
import sys
sys.path = [place for place in sys.path if place]  # run no module of the current directory
from importlib.metadata import PackageNotFoundError, version
try:
    print("{_MARK}", version("torch"))
except PackageNotFoundError:
    print("{_MARK}")
"""


class Torch(NamedTuple):
    """The version is empty where the interpreter finds no PyTorch, None where it did not answer."""

    python: str
    version: str | None


def find_python(command: Command, environment: Mapping[str, str], cwd: str) -> str | None:
    """The path of the Python that a command runs, directly or through a script; None where it is unclear."""
    for program in programs_of(command):
        path = _find(program, environment, cwd)
        if path and not is_python(program):
            path = _of_script(path, environment, cwd)
        if path:
            return path
    return None


def ask_torch(python: str, environment: Mapping[str, str], cwd: str) -> Torch:
    """The version of PyTorch that a Python would import."""
    try:
        process = subprocess.Popen(
            [python, "-c", _TORCH_QUESTION],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=cwd if os.path.isdir(cwd) else "/",
            start_new_session=True,  # out of reach of the terminal's Ctrl-C
        )
    except (OSError, ValueError):
        return Torch(python, None)
    return Torch(python, _version(_answer(process)))


def _answer(process: subprocess.Popen[bytes]) -> str:
    """Its output, if it ended in time. One that hangs on a dead disk cannot be killed, so the wait is limited."""
    with suppress(subprocess.TimeoutExpired):
        return process.communicate(timeout=INTERPRETER_TIMEOUT)[0].decode(errors="replace")
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=_SECONDS_TO_DIE)
    return ""


def _version(answer: str) -> str | None:
    """The text behind the mark: start-up files may print something, too."""
    lines = [line for line in answer.splitlines() if line.startswith(_MARK)]
    return lines[-1].removeprefix(_MARK).strip() if lines else None


def _find(program: str, environment: Mapping[str, str], cwd: str) -> str | None:
    """A program as the shell would find it, with variables in its name substituted."""
    import shutil

    name = Template(program).safe_substitute(environment)
    if name.startswith("~/"):
        name = environment.get("HOME", "~") + name[1:]
    return shutil.which(os.path.join(cwd, name) if "/" in name else name, path=environment.get("PATH", os.defpath))


def _of_script(path: str, environment: Mapping[str, str], cwd: str) -> str | None:
    """The Python in the first line of a script, directly or through env."""
    with suppress(OSError), open(path, "rb") as file:
        first = file.readline(_FIRST_LINE)
        words = first.removeprefix(b"#!").decode(errors="replace").split() if first.startswith(b"#!") else []
        word = next((word for word in words if is_python(word)), None)
        return _find(word, environment, cwd) if word else None
    return None


SINCE = (2, 10)
"""The first PyTorch that reads the cap from its environment; pre-releases of 2.10.0 may not."""
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.\d+)*(.*)", re.DOTALL)
_EARLY = re.compile(r"[._-]?(?:a|b|c|rc|dev|alpha|beta|pre)", re.IGNORECASE)


def knows_cap(version: str) -> bool:
    found = _VERSION.match(version)
    if found is None:
        return False
    release = int(found[1]), int(found[2])
    return release > SINCE or (release == SINCE and not _EARLY.match(found[3]))
