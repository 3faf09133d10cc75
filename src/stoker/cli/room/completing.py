"""Answers a shell that wants ids completed, without loading what the verb itself needs."""

from __future__ import annotations

import os
from typing import NamedTuple

from stoker.cli.room.complete_ids import ALL, OPEN_ONLY, Offer, offers

VARIABLE = "_STOKER_COMPLETE"
"""By which a shell says that it wants words, as click's scripts have it."""


class Line(NamedTuple):
    """A command line as far as it is typed."""

    shell: str
    words: list[str]
    """Those before the word that is being typed."""
    incomplete: str


def complete_at_once() -> bool:
    """Print what fits, where ids are wanted and nothing else can be; False leaves it to click."""
    line = _typed()
    if line is None or not _wants_ids(line):
        return False
    for offer in offers(line.incomplete, simulated="--sim" in line.words, ended=line.words[1] in ALL):
        print(_answer(line.shell, offer))
    return True


def _typed() -> Line | None:
    """The line, unless it has quotes, which only click reads."""
    shell, _, instruction = os.environ.get(VARIABLE, "").partition("_")
    text, place = os.environ.get("COMP_WORDS", ""), os.environ.get("COMP_CWORD", "")
    if instruction != "complete" or shell not in ("bash", "zsh", "fish") or set(text) & set("\\\"'$`"):
        return None
    words = text.split()
    if shell == "fish":  # it tells the word itself
        return Line(shell, words[:-1] if place else words, place)
    if not place.isdecimal():
        return None
    return Line(shell, words[: int(place)], words[int(place)] if int(place) < len(words) else "")


def _wants_ids(line: Line) -> bool:
    """Whether it is a verb with ids, and neither an option nor the value of one is being typed."""
    if len(line.words) < 2 or line.words[1] not in ALL | OPEN_ONLY:
        return False
    if line.shell == "fish" and "," in line.incomplete:  # click's script cuts words there
        return False
    return not line.incomplete.startswith("-") and (len(line.words) == 2 or not line.words[-1].startswith("-"))


def _answer(shell: str, offer: Offer) -> str:
    """As click's scripts read it."""
    match shell:
        case "bash":
            return f"plain,{offer.word}"
        case "zsh":
            return f"plain\n{offer.word}\n{offer.meaning or '_'}"
        case _:
            return f"plain,{offer.word}\t{offer.meaning}" if offer.meaning else f"plain,{offer.word}"
