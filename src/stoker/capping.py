"""Whether jobs that ask for PyTorch's cap get it: an older PyTorch would refuse to start with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from stoker.core.terms import Command, Terms

if TYPE_CHECKING:  # only who asks for a cap pays for loading what asks interpreters
    from stoker.interpreter import Torch

SINCE = (2, 10)
"""The first PyTorch that reads the cap from its environment; what came before 2.10.0 itself may not."""
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.\d+)*(.*)", re.DOTALL)
_EARLY = re.compile(r"[._-]?(?:a|b|c|rc|dev|alpha|beta|pre)", re.IGNORECASE)


class Caps:
    """Asks each interpreter once, and says once for each reason why a cap is left out."""

    def __init__(self, environment: Mapping[str, str], say: Callable[[str], None]) -> None:
        self.say = say
        self._environment = environment
        self._answers: dict[tuple[object, ...], Torch] = {}
        self._without: dict[Terms, Terms] = {}
        self._said: set[str] = set()

    def settled(self, command: Command, terms: Terms) -> Terms:
        """The terms of a job, without the cap where it would do harm or nothing."""
        if not terms.cap or not (reason := self._hindrance(command, terms)):
            return terms
        if reason not in self._said:
            self._said.add(reason)
            self.say(f"--cap is left out: {reason}")
        if terms not in self._without:
            self._without[terms] = replace(terms, cap=False)
        return self._without[terms]

    def _hindrance(self, command: Command, terms: Terms) -> str:
        if not terms.need.shares:
            return "without --vram a job has its GPUs to itself"
        from stoker.interpreter import PATIENCE, find_python

        environment = {**self._environment, **dict(terms.extra_env)}
        python = find_python(command, environment, terms.cwd)
        if python is None:
            return "the command does not tell which Python it runs, so the version of its PyTorch is not known"
        torch = self._asked(python, environment, terms)
        if torch.version is None:
            return f"{python} did not tell within {PATIENCE:g} s which PyTorch it has"
        if not torch.version:
            return f"there is no PyTorch for {python}"
        return (
            "" if knows_cap(torch.version) else f"PyTorch {torch.version} of {python} does not know it, but 2.10 does"
        )

    def _asked(self, python: str, environment: Mapping[str, str], terms: Terms) -> Torch:
        from stoker.interpreter import ask_torch

        # Other variables do not change what a Python imports, and may be different for each job. Where it is started
        # may: pyenv chooses by the directory.
        telling = tuple(item for item in terms.extra_env if item[0].startswith(("PYTHON", "PYENV", "LD_")))
        key = (python, telling, terms.cwd)
        if key not in self._answers:
            self._answers[key] = ask_torch(python, environment, terms.cwd)
        return self._answers[key]


def knows_cap(version: str) -> bool:
    """Whether a version of PyTorch reads the cap from its environment."""
    found = _VERSION.match(version)
    if found is None:
        return False
    release = int(found[1]), int(found[2])
    return release > SINCE or (release == SINCE and not _EARLY.match(found[3]))
