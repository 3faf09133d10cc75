"""Live ids and names for a shell that completes the arguments of verbs: `shell_complete` of every argument with ids."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from stoker.core.errors import StokerError
from stoker.places import Places, find_places
from stoker.store.hints import hints, names
from stoker.words import printable

if TYPE_CHECKING:  # whoever completes ids alone does without all of click
    import click
    from click.shell_completion import CompletionItem

OPEN_ONLY = frozenset("cancel kill pause hold resume release edit".split())  # noqa: SIM905
"""Verbs that are about jobs which are not over."""
ALL = frozenset("status st ls logs follow wait retry".split())  # noqa: SIM905
"""Verbs that are about any job."""
_WORDS = ("last", "all")
_PLAIN = re.compile(r"[\w.@%+/=-]+")
"""Names that a shell takes as they are; others need quotes, and are typed."""


class Offer(NamedTuple):
    """A word to complete to, and what it stands for."""

    word: str
    meaning: str


def complete_jobs(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What click offers for an argument of ids."""
    from click.shell_completion import CompletionItem

    offered = offers(incomplete, simulated=bool(context.params.get("sim")), ended=context.info_name not in OPEN_ONLY)
    return [CompletionItem(offer.word, help=offer.meaning) for offer in offered]


def offers(incomplete: str, *, simulated: bool, ended: bool) -> list[Offer]:
    """Ids, names and words that begin so; of a list with commas, for its last part."""
    places = _places(simulated=simulated)
    if places is None:
        return []
    before, comma, part = incomplete.rpartition(",")
    return [Offer(before + comma + word, meaning) for word, meaning in _found(places, part, ended=ended)]


def _found(places: Places, part: str, *, ended: bool) -> Iterator[Offer]:
    for hint in hints(places.database, part, ended=ended):
        yield Offer(hint.word, printable(hint.meaning))
    if part:  # with nothing typed, ids are enough
        for name in names(places.database, part, ended=ended):
            if _PLAIN.fullmatch(name):
                yield Offer(name, "")
        yield from (Offer(word, "") for word in _WORDS if word.startswith(part))


def _places(*, simulated: bool) -> Places | None:
    try:
        is_simulated = simulated or bool(os.environ.get("STOKER_SIM"))
        return find_places(os.environ, os.uname().nodename, simulated=is_simulated)
    except (StokerError, OSError):
        return None
