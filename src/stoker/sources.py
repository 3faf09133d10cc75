"""Where the jobs of a run come from: a list that was read, or lines as they arrive."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from stoker.core.submission import NewJob
from stoker.joblist import Lines, Listed, Unusable

_READ_SIZE = 65_536

Make = Callable[[Listed], NewJob]
Refuse = Callable[[Unusable], None]


class ListSource:
    """Jobs that are all known from the start."""

    def __init__(self, items: Sequence[Listed | Unusable], make: Make, refuse: Refuse) -> None:
        self._items = iter(items)
        self._make = make
        self._refuse = refuse
        self.exhausted = not items

    def fileno(self) -> int:
        """The jobs are at hand."""
        return -1

    def take(self, limit: int) -> Sequence[NewJob]:
        """The next of them."""
        items = list(islice(self._items, limit))
        self.exhausted = len(items) < limit
        return made(items, self._make, self._refuse)


class StreamSource:
    """Jobs that arrive as lines on a descriptor."""

    def __init__(self, descriptor: int, lines: Lines, make: Make, refuse: Refuse) -> None:
        self._descriptor = descriptor
        self._lines = lines
        self._make = make
        self._refuse = refuse
        self.exhausted = False

    def fileno(self) -> int:
        """The descriptor the lines come from."""
        return self._descriptor

    def take(self, limit: int) -> Sequence[NewJob]:
        """What has arrived, however much one read gives."""
        data = os.read(self._descriptor, _READ_SIZE)
        self.exhausted = not data
        items = self._lines.feed(data) if data else self._lines.end()
        return made(items, self._make, self._refuse)


def made(items: Iterable[Listed | Unusable], make: Make, refuse: Refuse) -> list[NewJob]:
    """The jobs among the items; what cannot be one is told."""
    jobs = []
    for item in items:
        if isinstance(item, Unusable):
            refuse(item)
        else:
            jobs.append(make(item))
    return jobs
