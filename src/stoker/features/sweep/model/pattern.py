"""The trials of a grid as patterns: what follows from the number of a trial is stored once for all of them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from math import prod

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from stoker.core.learning import kind_of
from stoker.core.pattern import Gaps, Pattern, Turns
from stoker.core.ranges import Ranges
from stoker.core.spec import JobSpec, NewJob
from stoker.features.sweep.model.record import REPEAT, SweepSpec, TrialMaker
from stoker.features.sweep.model.space import Choices, Product, Scalar, Texts, values_of
from stoker.features.sweep.model.template import OWN, Template, gaps_before, placeholders

LEAST = 64
"""Trials that share a row, at least: a short sweep is not worth it."""
MOST_VALUES = 2_000
"""Listed values of all parameters; there may be more integers of a range."""
MOST_KINDS = 1_000
"""Kinds of work among the integers of a range."""
LAST = 10**18
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_encode = msgspec.json.Encoder().encode


class GridAxis(Struct, frozen=True):
    """A parameter, and how its value follows from the number of a trial."""

    name: str
    values: Sequence[Scalar]
    """As many as the trials reach."""
    period: int
    """How many trials in a row have the same value."""


class GridPart(Struct, frozen=True):
    """The trials of one product of a space."""

    numbers: range
    axes: tuple[GridAxis, ...]
    """The last one varies fastest."""


def shared_trials(sweep: SweepSpec, spec: JobSpec, numbers: Ranges) -> tuple[Sequence[NewJob], list[Pattern]] | None:
    """These trials, where one stands for all of one kind of work in a row, and their patterns.

    None if they are few, or if each needs a row of its own.
    """
    parts = _parts(sweep) if len(numbers) >= LEAST else []
    hidden = set(placeholders([*sweep.command.words, *sweep.env.values()])).difference(sweep.space.names)
    if not parts or hidden.intersection(("name", "results")):  # a shell may quote these as a whole
        return None
    maker = TrialMaker(sweep, spec)
    runs: list[range] = []
    for part in parts:
        if (of_kinds := _Kinds(maker, spec, part).runs()) is None:
            return None
        runs += [run for kind in of_kinds for run in Ranges([kind]).among(numbers).parts]
    return list(_rows(maker, runs)), [_pattern(sweep, part) for part in parts]


def _rows(maker: TrialMaker, runs: Sequence[range]) -> Iterator[NewJob]:
    for run in runs:
        if len(run) < LEAST:
            yield from maker.jobs(run.start, run.stop)
        else:
            (first,) = maker.jobs(run.start, run.start + 1)
            yield replace(first, count=len(run))


# -- axes ----------------------------------------------------------------------------------------


def _parts(sweep: SweepSpec) -> list[GridPart]:
    """The trials by product; none if their parameters do not follow from their numbers alone."""
    if sweep.method != "grid" or any(parameter.when for parameter in sweep.space.parameters):
        return []
    parts: list[GridPart] = []
    start, end = 0, sweep.trials
    for product in sweep.space.products:
        size = prod(len(values_of(parameter.domain) or ()) for parameter in product.parameters) * sweep.repeat
        if size and start < end:
            numbers = range(start, min(end, start + size))
            parts.append(GridPart(numbers, _axes(product, sweep.repeat, len(numbers))))
        start += size
    lists = (axis.values for part in parts for axis in part.axes if not isinstance(axis.values, range))
    return parts if sum(map(len, lists)) <= MOST_VALUES else []


def _axes(product: Product, repeat: int, trials: int) -> tuple[GridAxis, ...]:
    axes = [GridAxis(REPEAT, range(repeat), 1)] if repeat > 1 else []
    period = repeat
    for parameter in reversed(product.parameters):
        values = values_of(parameter.domain) or ()
        axes.insert(0, GridAxis(parameter.name, values[: -(-trials // period)], period))
        period *= len(values)
    return tuple(axes)


# -- patterns ------------------------------------------------------------------------------------


def _pattern(sweep: SweepSpec, part: GridPart) -> Pattern:
    columns = _Columns(sweep, part)
    names = [axis.name for axis in part.axes]
    filled = [*names, *(name for name in OWN if name not in names)]
    before, slots_before = gaps_before(sweep.command, sweep.starter, sweep.env, filled)
    text, slots = Template(sweep.command).gaps(filled)
    title = " ".join([*([_escaped(sweep.name)] if sweep.name else []), *(f"{_escaped(name)}=%s" for name in names)])
    params = ",".join(f"{_escaped(_encode(name).decode())}:%s" for name in names)
    return Pattern(
        part.numbers.start,
        words=Gaps("\0".join([*before, text]), tuple(columns.add(*slot) for slot in (*slots_before, *slots))),
        name=Gaps(title, tuple(columns.add(name) for name in names)),
        params=Gaps(f"{{{params}}}", tuple(columns.add_json(name) for name in names)),
        columns=tuple(columns.columns),
    )


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


class _Columns:
    """The columns of a pattern; equal ones are one."""

    def __init__(self, sweep: SweepSpec, part: GridPart) -> None:
        self.columns: list[Turns] = []
        self._axes = {axis.name: axis for axis in part.axes}
        self._first = part.numbers.start
        self._texts = Texts(sweep.space)
        self._typed = {parameter.name for parameter in sweep.space.parameters if isinstance(parameter.domain, Choices)}
        """Parameters with texts as the user typed them."""

    def add(self, name: str, quoted: Mapping[str, str] | None = None) -> int:
        """A column for the text of a value, or for one of the placeholders of every sweep."""

        def write(value: Scalar) -> str:
            text = self._texts.of({name: value})[name]
            return text if quoted is None else quoted[text]

        if name in self._axes:
            return self._place(self._column(name, write))
        return self._place(Turns(1, ("0",)) if name == REPEAT else Turns(1, first=self._first, size=LAST))

    def add_json(self, name: str) -> int:
        """A column for a value in JSON."""
        return self._place(self._column(name, lambda value: _encode(value).decode()))

    def _column(self, name: str, write: Callable[[Scalar], str]) -> Turns:
        axis = self._axes[name]
        values = axis.values
        if isinstance(values, range) and name not in self._typed:
            return Turns(axis.period, (), values.start, values.step, len(values))
        return Turns(axis.period, tuple(map(write, values)))

    def _place(self, column: Turns) -> int:
        if column not in self.columns:
            self.columns.append(column)
        return self.columns.index(column)


# -- kinds of work -------------------------------------------------------------------------------


class _Kinds:
    """The kinds of work of the trials of a part, which the planner may not mix.

    One parameter is varied at a time, from a point whose numbers are none of the command: such a number would hide that
    another parameter has it, too.
    """

    def __init__(self, maker: TrialMaker, spec: JobSpec, part: GridPart) -> None:
        self._maker = maker
        self._spec = spec
        self._part = part
        (first,) = maker.jobs(part.numbers.start, part.numbers.start + 1)
        self._literals = {float(number) for word in first.command.words for number in _NUMBER.findall(word)}
        self._base = {axis.name: self._plain_place(axis) for axis in part.axes}
        self._number = part.numbers.start + sum(self._base[axis.name] * axis.period for axis in part.axes)

    def runs(self) -> list[range] | None:
        """The numbers of trials in a row that are of one kind; None if most kinds have few trials in a row."""
        varied: list[tuple[GridAxis, list[int]]] = []
        for axis in self._part.axes if self._spec.resources.gpus else ():
            changes = self._changes(axis)
            if changes is None or len(axis.values) * axis.period < LEAST * len(changes):
                return None
            varied += [(axis, [0, *changes])] if changes else []
        if not varied:
            return [self._part.numbers]
        return list(self._of_one_kind(varied))

    def _plain_place(self, axis: GridAxis) -> int:
        return next((place for place, value in enumerate(axis.values) if not self._is_literal(value)), 0)

    def _is_literal(self, value: Scalar) -> bool:
        return isinstance(value, int | float) and float(value) in self._literals

    def _changes(self, axis: GridAxis) -> list[int] | None:
        """The places of values whose work is not of the kind of the one before; None if there are very many."""
        if not isinstance(axis.values, range):
            kinds = [self._kind(axis, place) for place in range(len(axis.values))]
            return [place for place, (before, kind) in enumerate(pairwise(kinds), 1) if kind != before]
        values = axis.values
        ends = [self._kind(axis, place) for place in range(max(0, len(values) - 3), len(values))]
        if len(values) > MOST_KINDS and len(set(ends)) == len(ends):  # each value is a part of its kind
            return None
        # Between these, a kind covers all values between two that are of it.
        single = [0, *(int(number) for number in self._literals if number.is_integer())]
        places = {place for value in single if value in values for place in _around(values.index(value), len(values))}
        anchors = sorted({0, len(values) - 1, *places})
        return [change for low, high in pairwise(anchors) for change in self._between(axis, low, high)]

    def _between(self, axis: GridAxis, low: int, high: int) -> Iterator[int]:
        kinds = self._kind(axis, low), self._kind(axis, high)
        if high - low == 1:
            if kinds[0] != kinds[1]:
                yield high
            return
        middle = (low + high) // 2
        if kinds[0] != kinds[1] or self._kind(axis, middle) != kinds[0]:
            yield from self._between(axis, low, middle)
            yield from self._between(axis, middle, high)

    def _kind(self, axis: GridAxis, place: int) -> str:
        number = self._number + (place - self._base[axis.name]) * axis.period
        (job,) = self._maker.jobs(number, number + 1)
        return kind_of(job.command, self._spec, job.member)

    def _of_one_kind(self, varied: Sequence[tuple[GridAxis, list[int]]]) -> Iterator[range]:
        """The numbers between those where the kind of a parameter changes."""
        numbers, period = self._part.numbers, min(axis.period for axis, _ in varied)
        kinds = {axis.name: [self._kind(axis, place) for place in places] for axis, places in varied}

        def kind(block: int) -> list[str]:
            at = [(axis, places, block * period // axis.period % len(axis.values)) for axis, places in varied]
            return [kinds[axis.name][bisect_right(places, place) - 1] for axis, places, place in at]

        for _, blocks in groupby(range(-(-len(numbers) // period)), kind):
            first, *rest = blocks
            last = rest[-1] if rest else first
            yield numbers[first * period : (last + 1) * period]


def _around(place: int, size: int) -> range:
    return range(max(0, place - 1), min(size, place + 2))
