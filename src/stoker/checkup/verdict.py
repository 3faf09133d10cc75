"""What a look at one matter of the machine says, and what it is given to look at."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from stoker.places import Places

COMMAND_SECONDS = 5.0
"""How long a program of the system may take to answer."""


class Verdict(Struct, frozen=True):
    """One matter: well, worth knowing, or to be mended."""

    topic: str
    level: Literal["ok", "note", "problem"]
    text: str
    advice: str = ""
    """What to type, or to do, where something is not well."""


class Subject(Struct, frozen=True):
    """The machine, user and queue that are looked at."""

    places: Places
    environment: Mapping[str, str]
    simulated: bool
    now: float
    known_variables: frozenset[str] = frozenset()
    """Names of STOKER_* variables that mean something to some verb."""


def ok(topic: str, text: str) -> Verdict:
    """All is well."""
    return Verdict(topic, "ok", text)


def note(topic: str, text: str, advice: str = "") -> Verdict:
    """Worth knowing, and no harm by itself."""
    return Verdict(topic, "note", text, advice)


def problem(topic: str, text: str, advice: str) -> Verdict:
    """Keeps Stoker from working as it should, or will."""
    return Verdict(topic, "problem", text, advice)


def output_of(command: Sequence[str], seconds: float = COMMAND_SECONDS) -> str | None:
    """What a program of the system prints; None where it is not there, fails, or takes too long."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout if done.returncode == 0 else None
