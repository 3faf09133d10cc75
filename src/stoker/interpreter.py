"""The Python that a job will run, and the PyTorch that it finds: asked of that Python, in the job's environment."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from string import Template
from typing import NamedTuple

from stoker.core.interpreter import is_python, programs_of
from stoker.core.terms import Command

PATIENCE = 5.0
"""Seconds that an interpreter may take to answer; from a cold network disk it is slow."""
_SECONDS_TO_DIE = 1.0
_FIRST_LINE = 1024
_MARK = "stoker-torch"
_QUESTION = f"""
import sys
sys.path = [place for place in sys.path if place]  # nothing of the directory that we are in shall run now
from importlib.metadata import PackageNotFoundError, version
try:
    print("{_MARK}", version("torch"))
except PackageNotFoundError:
    print("{_MARK}")
"""


class Torch(NamedTuple):
    """What an interpreter said; the version is empty where it finds no PyTorch, and None where it gave no answer."""

    python: str
    version: str | None


def find_python(command: Command, environment: Mapping[str, str], cwd: str) -> str | None:
    """The path of the Python that a command runs, also as one of its scripts; None where one cannot tell."""
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
            [python, "-c", _QUESTION],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=cwd if os.path.isdir(cwd) else "/",
            start_new_session=True,  # out of reach of the terminal's Ctrl-C
        )
    except (OSError, ValueError):
        return Torch(python, None)
    return Torch(python, _told(_answer(process)))


def _answer(process: subprocess.Popen[bytes]) -> str:
    """What it wrote, if it ended in time; one that hangs on a dead disk may not even die, and nobody waits for that."""
    with suppress(subprocess.TimeoutExpired):
        return process.communicate(timeout=PATIENCE)[0].decode(errors="replace")
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=_SECONDS_TO_DIE)
    return ""


def _told(answer: str) -> str | None:
    """What stands behind the mark: start-up files may print something, too."""
    lines = [line for line in answer.splitlines() if line.startswith(_MARK)]
    return lines[-1].removeprefix(_MARK).strip() if lines else None


def _find(program: str, environment: Mapping[str, str], cwd: str) -> str | None:
    """A program as the shell would find it, with variables in its name replaced."""
    import shutil

    name = Template(program).safe_substitute(environment)
    if name.startswith("~/"):
        name = environment.get("HOME", "~") + name[1:]
    return shutil.which(os.path.join(cwd, name) if "/" in name else name, path=environment.get("PATH", os.defpath))


def _of_script(path: str, environment: Mapping[str, str], cwd: str) -> str | None:
    """The Python that a script names in its first line, directly or through env."""
    with suppress(OSError), open(path, "rb") as file:
        first = file.readline(_FIRST_LINE)
        words = first.removeprefix(b"#!").decode(errors="replace").split() if first.startswith(b"#!") else []
        word = next((word for word in words if is_python(word)), None)
        return _find(word, environment, cwd) if word else None
    return None
