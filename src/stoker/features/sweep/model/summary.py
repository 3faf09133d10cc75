"""The trials of a sweep as screens show them: counts, orders and sums that follow each change of a trial."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from math import ceil, isnan, nan
from statistics import fmean
from typing import Any

from msgspec import Struct

from stoker.core.outcomes import ACTIVE, GOOD_RESULTS
from stoker.features.sweep.model.importance import pareto
from stoker.features.sweep.model.objective import Objective, is_better, score

MANY = 1000
"""Changes above which a list is sorted again as a whole."""
MICRO = 1_000_000


class TrialRecord(Struct, frozen=True, array_like=True, gc=False):
    """A trial without its parameters and its curve. There is none of a trial that nothing has happened to yet."""

    number: int
    job: int
    state: str
    """State of its job; `failed` also for a job that succeeded without a usable value."""
    attempt: int
    started: float | None
    """Of its last attempt, as the next two."""
    finished: float | None
    devices: int
    ended: float | None
    gpu_time: int
    """Of all attempts that have ended, in millionths of a GPU-hour."""
    values: tuple[float | None, ...]
    """Of each objective: None if it never appeared, nan if it is nan or infinite."""
    step: float | None
    message: str
    notice: str
    has_curve: bool
    is_settled: bool
    """Whether its result is written for good, until its job is retried."""

    @property
    def is_running(self) -> bool:
        return self.started is not None and self.finished is None and self.ended is None

    @property
    def value(self) -> float:
        """Of the first objective; nan without one."""
        value = self.values[0] if self.values else None
        return nan if value is None else value

    def seconds(self, now: float) -> float | None:
        """How long its last attempt took so far."""
        return None if self.started is None else max(0.0, (self.finished or now) - self.started)

    def gpu_hours(self, now: float) -> float:
        """Of all attempts so far."""
        lately = (self.seconds(now) or 0.0) * self.devices if self.is_running else 0.0
        return round(self.gpu_time / MICRO + lately / 3600, 6)


class SavedSummary(Struct, frozen=True, array_like=True):
    """A summary as a file keeps it."""

    records: list[TrialRecord]
    orders: list[list[int]]
    counts: dict[str, int]
    notices: dict[str, int]
    running: set[int]
    unsettled: set[int]
    front: list[int]
    gpu_time: int
    steps: list[tuple[int, float]]
    stepped: int


Key = Callable[[int], Any]


class SortedNumbers:
    """Numbers sorted by a key, which is unique. Take a number out before its key changes."""

    def __init__(self, key: Key, numbers: Iterable[int] = ()) -> None:
        """Numbers whose key is None are left out."""
        self._key = key
        self.numbers = list(numbers)

    def discard(self, numbers: Sequence[int]) -> int:
        """Take numbers out; returns the first place that has changed."""
        if len(numbers) > MANY:
            gone = set(numbers)
            self.numbers = [number for number in self.numbers if number not in gone]
            return 0
        first = len(self.numbers)
        for number in numbers:
            if (key := self._key(number)) is not None:
                place = bisect_left(self.numbers, key, key=self._key)
                del self.numbers[place]
                first = min(first, place)
        return first

    def add(self, numbers: Sequence[int]) -> int:
        """Put numbers in that are not there; returns the first place that has changed."""
        keys = {number: key for number in numbers if (key := self._key(number)) is not None}
        if len(keys) > MANY:
            all_keys = {number: self._key(number) for number in self.numbers} | keys
            self.numbers = sorted(all_keys, key=all_keys.__getitem__)
            return 0
        first = len(self.numbers)
        for number, key in keys.items():
            place = bisect_left(self.numbers, key, key=self._key)
            self.numbers.insert(place, number)
            first = min(first, place)
        return first


class TrialSummary:
    """The trials of a sweep that something has happened to. A change costs what the changed trials cost."""

    def __init__(self, objectives: Sequence[Objective], repeat: int) -> None:
        self._objectives = objectives
        self._repeat = repeat
        self._is_simple = repeat == 1 and len(objectives) < 2
        """Whether each trial is a point of its own, and the best points are the best trials."""
        self.records: dict[int, TrialRecord] = {}
        self.counts: Counter[str] = Counter()
        self.notices: Counter[str] = Counter()
        self.ranked = SortedNumbers(self._rank)
        """Trials with a value that succeeded or were stopped early, the best first."""
        self.others = SortedNumbers(self._rank_of_others)
        """Other trials with a value that did not fail, the best first."""
        self.by_end = SortedNumbers(self._end)
        """Those of `ranked` in the order in which they ended."""
        self.full = SortedNumbers(self._full)
        """Trials that succeeded and had GPUs, by GPU-hours."""
        self.stopped = SortedNumbers(self._stopped)
        self.with_curve = SortedNumbers(self._curve)
        self._points = SortedNumbers(self._score)
        """Points with a trial that succeeded, by the means of those, the best first; empty if `ranked` tells it."""
        self.running: set[int] = set()
        self.unsettled: set[int] = set()
        """Trials whose results may still change."""
        self._front: list[int] = []
        self._gpu_time = 0
        self._steps: list[tuple[int, float]] = []
        self._stepped = 0
        """How many trials the steps are about."""

    # -- the file -------------------------------------------------------------------------------------

    @property
    def _orders(self) -> tuple[SortedNumbers, ...]:
        return self.ranked, self.others, self.full, self.stopped, self.with_curve, self.by_end, self._points

    def saved(self) -> SavedSummary:
        return SavedSummary(
            list(self.records.values()),
            [order.numbers for order in self._orders],
            dict(self.counts),
            dict(self.notices),
            self.running,
            self.unsettled,
            self._front,
            self._gpu_time,
            self._steps,
            self._stepped,
        )

    def restore(self, saved: SavedSummary) -> None:
        """Go on where another process was."""
        self.records = {record.number: record for record in saved.records}
        for order, numbers in zip(self._orders, saved.orders, strict=True):
            order.numbers = numbers
        self.counts, self.notices = Counter(saved.counts), Counter(saved.notices)
        self.running, self.unsettled, self._front = saved.running, saved.unsettled, saved.front
        self._gpu_time, self._steps, self._stepped = saved.gpu_time, saved.steps, saved.stepped

    # -- changes --------------------------------------------------------------------------------------

    def put(self, news: Mapping[int, TrialRecord | None]) -> None:
        """Replace the records of some trials; None removes one."""
        there = [number for number in news if number in self.records]
        points = [] if self._is_simple else list(dict.fromkeys(number // self._repeat for number in news))
        orders = (self.ranked, self.others, self.full, self.stopped, self.with_curve)
        for order in orders:
            order.discard(there)
        first = self.by_end.discard(there)
        self._points.discard(points)
        self._count(there, -1)
        for number, record in news.items():
            if record is None:
                self.records.pop(number, None)
            else:
                self.records[number] = record
        present = [number for number, record in news.items() if record is not None]
        self._count(present, 1)
        for order in orders:
            order.add(present)
        self._restart_steps(min(first, self.by_end.add(present)))
        self._points.add(points)
        self._renew_front(points)

    def _count(self, numbers: Sequence[int], sign: int) -> None:
        add, update = (set.add, self.counts.update) if sign > 0 else (set.discard, self.counts.subtract)
        records = [self.records[number] for number in numbers]
        update([record.state for record in records])
        for record in records:
            self._gpu_time += sign * record.gpu_time
            if record.notice:
                self.notices[record.notice] += sign
            if record.is_running:
                add(self.running, record.number)
            if not record.is_settled and (record.attempt or record.ended is not None):
                add(self.unsettled, record.number)

    def _restart_steps(self, first: int) -> None:
        if first < self._stepped:
            self._steps = [step for step in self._steps if step[0] <= first]
            self._stepped = first

    def _renew_front(self, changed: Sequence[int]) -> None:
        """The points that no other one beats. A point that was beaten, and is changed, is compared with those alone."""
        if len(self._objectives) < 2:
            return
        among = {*self._front, *changed} if set(changed).isdisjoint(self._front) else self._points.numbers
        scores = {point: key for point in sorted(among) if (key := self._score(point)) is not None}
        self._front = pareto({point: key[:-1] for point, key in scores.items()})

    # -- keys of the orders -----------------------------------------------------------------------------

    def _rank(self, number: int) -> tuple[float, bool, int] | None:
        record = self.records[number]
        value = record.value
        if isnan(value) or record.state not in GOOD_RESULTS:
            return None
        return score(self._objectives[0].goal, value), True, number

    def _rank_of_others(self, number: int) -> tuple[float, bool, int] | None:
        record = self.records[number]
        value = record.value
        if isnan(value) or record.state in GOOD_RESULTS or record.state == "failed":
            return None
        return score(self._objectives[0].goal, value), record.state not in ACTIVE, number

    def _end(self, number: int) -> tuple[float, int] | None:
        record = self.records[number]
        if isnan(record.value) or record.state not in GOOD_RESULTS:
            return None
        return record.ended or 0.0, number

    def _full(self, number: int) -> tuple[int, int] | None:
        record = self.records[number]
        return (record.gpu_time, number) if record.state == "done" and record.gpu_time else None

    def _stopped(self, number: int) -> int | None:
        return number if self.records[number].state == "stopped" else None

    def _curve(self, number: int) -> int | None:
        return number if self.records[number].has_curve else None

    def _score(self, point: int) -> tuple[float, ...] | None:
        """The scores of a point by its means, and the point; None if none of its trials succeeded with all values."""
        repeats = self.repeats(point)
        if not repeats:
            return None
        means = self.means(repeats)
        return *(score(objective.goal, means[objective.name]) for objective in self._objectives), point

    # -- answers --------------------------------------------------------------------------------------

    def repeats(self, point: int) -> list[TrialRecord]:
        """The trials of a point that succeeded with all values."""
        numbers = range(point * self._repeat, (point + 1) * self._repeat)
        return [record for number in numbers if (record := self.records.get(number)) and self._is_usable(record)]

    def _is_usable(self, record: TrialRecord) -> bool:
        return (
            record.state == "done"
            and bool(self._objectives)
            and all(value is not None and not isnan(value) for value in record.values)
        )

    def means(self, repeats: Sequence[TrialRecord]) -> dict[str, float]:
        """The mean of each objective over trials of a point."""
        if len(repeats) == 1:
            return {
                objective.name: value
                for objective, value in zip(self._objectives, repeats[0].values, strict=True)
                if value is not None
            }
        columns = zip(*(record.values for record in repeats), strict=True)
        return {
            objective.name: fmean(nan if value is None else value for value in column)
            for objective, column in zip(self._objectives, columns, strict=True)
        }

    def best(self, most: int | None = None) -> list[int]:
        """Points, the best first; with several objectives, those that no other one beats."""
        if self._is_simple:
            return list(
                islice((number for number in self.ranked.numbers if self._is_usable(self.records[number])), most)
            )
        return (self._front if len(self._objectives) > 1 else self._points.numbers)[:most]

    @property
    def in_table(self) -> list[int]:
        """All trials with a value that did not fail, the best first."""
        records, goal = self.records, self._objectives[0].goal if self._objectives else "min"

        def key(number: int) -> tuple[float, bool, int]:
            return score(goal, records[number].value), records[number].state not in ACTIVE, number

        merged = SortedNumbers(key, self.ranked.numbers)
        merged.add(self.others.numbers)
        return merged.numbers

    def spread(self, most: int) -> dict[int, int]:
        """At most so many trials with a value, each with its place in the order of ends.

        The best tenth as far as it fits in half of them, and every n-th of the rest.
        """
        ended, ranked = self.by_end.numbers, self.ranked.numbers
        if len(ended) <= most:
            return {number: place for place, number in enumerate(ended, 1)}
        best = set(ranked[: min(most // 2, ceil(len(ended) / 10))])
        rest = [place for place, number in enumerate(ended) if number not in best]
        room = most - len(best)
        evenly = {ended[rest[index * len(rest) // room]] for index in range(room)}
        return {number: place for place, number in enumerate(ended, 1) if number in best or number in evenly}

    def gpu_hours(self, now: float) -> float:
        """Of all trials."""
        lately = sum(
            self.records[number].gpu_hours(now) - self.records[number].gpu_time / MICRO for number in self.running
        )
        return round(self._gpu_time / MICRO + lately, 6)

    @property
    def full_hours(self) -> float | None:
        """The median GPU-hours of the trials that succeeded and had GPUs."""
        numbers = self.full.numbers
        middle = numbers[(len(numbers) - 1) // 2 : len(numbers) // 2 + 1]
        return fmean(self.records[number].gpu_time / MICRO for number in middle) if middle else None

    @property
    def saved_hours(self) -> float:
        """GPU-hours that early stopping saved, against that median; 0 if no trial ran in full."""
        full = self.full_hours or 0.0
        return sum(max(0.0, full - self.records[number].gpu_time / MICRO) for number in self.stopped.numbers)

    @property
    def steps(self) -> list[tuple[int, float]]:
        """Where the best value so far changed: how many trials had ended, and the value."""
        steps = self._steps
        for place, number in enumerate(self.by_end.numbers[self._stepped :], self._stepped + 1):
            record = self.records[number]
            if record.state == "done" and (
                not steps or is_better(self._objectives[0].goal, record.value, steps[-1][1])
            ):
                steps.append((place, record.value))
        self._stepped = len(self.by_end.numbers)
        return steps.copy()
