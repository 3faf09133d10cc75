"""What the kernel takes when a program is started, so that a job that could never start is refused at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from stoker.core.errors import UsageError
from stoker.core.terms import Command
from stoker.core.units import size_text

ONE_STRING = 128 * 1024
"""Bytes of one word or one variable, with the zero at its end."""
_MOST = 6 * 2**20
"""Bytes of all of them together, however large a stack is allowed."""
_POINTER = 8
_OURS = 8 * 1024
"""Bytes set aside for the variables that a job is given."""


class Room:
    """How much of what a program can be given the environment leaves for its words and its own variables."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        _refuse_large_variables(environment)
        self._limit = min(_MOST, max(0, os.sysconf("SC_ARG_MAX")) or _MOST)
        self._environment = _size(_assignments(environment))
        self._usual = self._limit - self._environment - _OURS
        self._refuse_more_than(self._usual, 0)

    def check(self, command: Command, extra: Mapping[str, str]) -> None:
        """Refuse a command that no program could be started with in this environment."""
        if extra:
            _refuse_large_variables(extra)
        elif sum(map(len, command.words)) < ONE_STRING // 4 - len(command.words):  # four bytes a character at most
            return
        for word in command.words:
            if (size := _bytes(word) + 1) > ONE_STRING:
                raise UsageError(
                    f"a word of the command has {size_text(size)}; the kernel takes {size_text(ONE_STRING)}",
                    "put it into a script or a file",
                )
        self._refuse_more_than(self._usual, _size(command.words) + _size(_assignments(extra)))

    def _refuse_more_than(self, room: int, size: int) -> None:
        if size > room:
            together = size_text(size + self._environment)
            raise UsageError(
                f"command and environment have {together} together; the kernel takes {size_text(self._limit)}",
                "put what is large into files, or unset some variables",
            )


def _refuse_large_variables(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        if len(value) > ONE_STRING // 8 and (size := _bytes(name) + _bytes(value) + 2) > ONE_STRING:
            raise UsageError(
                f"the variable {name} has {size_text(size)}; the kernel takes {size_text(ONE_STRING)}",
                "put its value into a file, or unset it",
            )


def _assignments(variables: Mapping[str, str]) -> Iterable[str]:
    return (f"{name}={value}" for name, value in variables.items())


def _size(strings: Iterable[str]) -> int:
    return sum(_bytes(string) + 1 + _POINTER for string in strings)


def _bytes(text: str) -> int:
    return len(text.encode(errors="surrogateescape"))
