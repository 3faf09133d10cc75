"""The number of the colour of each group, the same on every chart and in every load."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

COLOURS = 8
"""Colours that charts have for groups."""


def colours_of(names: Iterable[str]) -> dict[str, int]:
    """A colour for each name, given in the order of first use: later names do not change those of earlier ones.

    The name itself decides; if its colour is taken, the next free one. When all are taken, they are used again.
    """
    chosen: dict[str, int] = {}
    for name in dict.fromkeys(names):
        taken = set(list(chosen.values())[len(chosen) // COLOURS * COLOURS :])
        first = hashlib.sha256(name.encode(errors="surrogateescape")).digest()[0] % COLOURS
        chosen[name] = next(place % COLOURS for place in range(first, first + COLOURS) if place % COLOURS not in taken)
    return chosen
