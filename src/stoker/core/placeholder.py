"""Placeholders in the words of a command: `{i}`, `{id}`, `{gpu}`, `{name}`, and nothing else in braces."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache


def fill(words: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """The words with every `{name}` among the values replaced; what a value brings in is not looked at again.

    A shell's `${name}` and all other braces stay, so JSON and scripts pass as they are.
    """
    if not values:
        return tuple(words)
    known = _known(tuple(values))
    return tuple(known.sub(lambda match: values[match[1]], word) if "{" in word else word for word in words)


@lru_cache(maxsize=16)
def _known(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(r"(?<!\$)\{(" + "|".join(map(re.escape, names)) + r")\}")
