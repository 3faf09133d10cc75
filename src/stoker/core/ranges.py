"""Numbers as ranges: ids of jobs and indices of tasks, at a cost that follows the ranges and not the numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import overload


class Ranges(Sequence[int]):
    """Numbers in an order of their own, each at most once, held as ranges."""

    __slots__ = ("_ends", "_sorted", "parts")

    def __init__(self, parts: Iterable[range] = ()) -> None:
        self.parts: tuple[range, ...] = tuple(part for part in parts if part)
        self._ends = list(accumulate(map(len, self.parts)))
        self._sorted: list[range] | None = None

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self.parts)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> Ranges: ...
    def __getitem__(self, at: int | slice) -> int | Ranges:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            assert step == 1
            return Ranges(self._between(start, stop))
        place = at + len(self) if at < 0 else at
        if not 0 <= place < len(self):
            raise IndexError(at)
        which = bisect_right(self._ends, place)
        return self.parts[which][place - self._ends[which]]

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        parts = self._in_order()
        at = bisect_right(parts, number, key=_first) - 1
        return at >= 0 and number in parts[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(int.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Ranges({list(self.parts)})"

    def _between(self, start: int, stop: int) -> Iterator[range]:
        for part, end in zip(self.parts, self._ends, strict=True):
            begin = end - len(part)
            if end > start and begin < stop:
                yield part[max(0, start - begin) : stop - begin]

    def among(self, others: Ranges) -> Ranges:
        """Those that are among others, in the order of these. Both have ranges without steps."""
        theirs = others._in_order()
        return Ranges(common for part in self.parts for common in _common(part, theirs))

    def _in_order(self) -> list[range]:
        """Sorted once, however many look for something among these."""
        if self._sorted is None:
            self._sorted = sorted(self.parts, key=_first)
        return self._sorted


def _first(part: range) -> int:
    return part[0]


def _common(part: range, theirs: Sequence[range]) -> Iterator[range]:
    at = max(0, bisect_right(theirs, part[0], key=_first) - 1)
    while at < len(theirs) and theirs[at].start < part.stop:
        yield range(max(part.start, theirs[at].start), min(part.stop, theirs[at].stop))
        at += 1


def ranges_of(numbers: Iterable[int]) -> Ranges:
    """The numbers in their order, where consecutive ones share a range."""
    return numbers if isinstance(numbers, Ranges) else joined(range(number, number + 1) for number in numbers)


def joined(parts: Iterable[range]) -> Ranges:
    """The ranges in their order, where those that follow each other are one."""
    long: list[range] = []
    for part in parts:
        if long and part.step == long[-1].step == 1 and part.start == long[-1].stop:
            long[-1] = range(long[-1].start, part.stop)
        else:
            long.append(part)
    return Ranges(long)


def union(parts: Iterable[range]) -> Ranges:
    """The numbers of all ranges, each once and sorted."""
    long: list[range] = []
    for part in sorted(parts, key=lambda part: part.start):
        if long and part.start <= long[-1].stop:
            long[-1] = range(long[-1].start, max(part.stop, long[-1].stop))
        else:
            long.append(part)
    return Ranges(long)


def distinct(parts: Iterable[range]) -> Ranges:
    """The numbers of all ranges in their order, each where it stands first."""
    seen: list[range] = []
    new: list[range] = []
    for part in filter(None, parts):
        fresh = [piece for piece in _without(part, seen) if piece]
        new += fresh
        for piece in fresh:
            seen.insert(bisect_right(seen, piece.start, key=_first), piece)
    return joined(new)


def missing(whole: range, parts: Sequence[range]) -> Ranges:
    """The numbers of a range that are in none of others, which are sorted."""
    return Ranges(_without(whole, parts))


def _without(part: range, seen: Sequence[range]) -> Iterator[range]:
    start = part.start
    for common in _common(part, seen):
        if common:
            yield range(start, common.start)
            start = common.stop
    yield range(start, part.stop)


def runs(parts: Iterable[range]) -> Iterator[range]:
    """Sorted ranges joined to runs with equal distances. A run with gaps has four numbers or more."""
    left = deque(parts)
    while left:
        run = left.popleft()
        while left and (longer := _longer(run, left[0])) is not None:
            run = longer
            left.popleft()
        if len(run) > 1 and run.step > 1 and len(run) < 4:
            left.appendleft(run[1:])
            run = run[:1]
        yield run


def _longer(run: range, following: range) -> range | None:
    """Both as one run, if their distances are equal."""
    step = run.step if len(run) > 1 else following[0] - run[-1]
    if following[0] - run[-1] != step or (len(following) > 1 and following.step != step):
        return None
    return range(run[0], following[-1] + 1, step)


def run_text(run: range) -> str:
    """`3`, `3-59`, `0-95:5`."""
    if len(run) == 1:
        return str(run[0])
    return f"{run[0]}-{run[-1]}" + (f":{run.step}" if run.step > 1 else "")
