"""Jobs whose commands, names and parameters follow from their numbers, as at the points of a grid."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

LONGEST_NAME = 200


class Turns(Struct, frozen=True, array_like=True):
    """Texts that take turns as the number of the job grows."""

    period: int
    """How many jobs in a row have the same text."""
    texts: tuple[str, ...] = ()
    """Empty if they are the integers of a range."""
    first: int = 0
    distance: int = 1
    size: int = 0

    def text(self, number: int) -> str:
        place = number // self.period
        return (
            self.texts[place % len(self.texts)] if self.texts else str(self.first + place % self.size * self.distance)
        )


class Gaps(Struct, frozen=True, array_like=True):
    """A text with gaps, which columns fill."""

    text: str
    """As `%` formats it."""
    columns: tuple[int, ...] = ()


class Filled(NamedTuple):
    """The words of a command with NULs between them, a name, and parameters as JSON."""

    words: str
    name: str
    params: str


class Pattern(Struct, frozen=True):
    """The jobs of a batch from a number on, up to the next pattern."""

    start: int
    """The number of its first job."""
    columns: tuple[Turns, ...]
    words: Gaps
    name: Gaps
    params: Gaps

    def at(self, number: int) -> Filled:
        """The job with this number."""
        texts = [column.text(number - self.start) for column in self.columns]
        words, name, params = (
            gaps.text % tuple([texts[column] for column in gaps.columns])
            for gaps in (self.words, self.name, self.params)
        )
        return Filled(words, short_name(name), params)


def short_name(name: str) -> str:
    """A name as screens show it."""
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
