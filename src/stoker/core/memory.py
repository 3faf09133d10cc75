"""What was learnt of earlier runs: how long work of a kind takes."""

from __future__ import annotations

import re
import shlex

from msgspec import Struct

from stoker.core.terms import Command

KEPT = 9
"""Runs that count, the newest ones."""
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


class Learnt(Struct, frozen=True):
    """The newest runs of one kind of work that succeeded."""

    seconds: tuple[float, ...] = ()
    """How long each took, the newest last."""


def observe(learnt: Learnt, seconds: float) -> Learnt:
    """What is known after one more run."""
    return Learnt((*learnt.seconds, seconds)[-KEPT:])


def expected_seconds(learnt: Learnt) -> float | None:
    """How long the next run will take, by the middle one of the last; None where there was none."""
    from statistics import median  # only engines want to know; every door would pay for loading it

    return median(learnt.seconds) if learnt.seconds else None


def signature_of(command: Command, cwd: str) -> str:
    """The kind of work: the command and its place, but for the numbers in it, which tell its runs apart."""
    import hashlib

    words = _words(command.words[0]) if command.shell else list(command.words)
    masked = [words[0], *(_NUMBER.sub("#", word) for word in words[1:])] if words else []
    return hashlib.sha256("\0".join([cwd, *masked]).encode(errors="surrogateescape")).hexdigest()[:32]


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # quotes that only a shell understands
        return line.split()
