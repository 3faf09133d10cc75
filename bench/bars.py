"""The bars that Stoker must reach beside other programs, and tables of the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from gaps import percentile
from programs import HYPERQUEUE, PARALLEL, SIMPLE_GPU_SCHEDULER, STOKER, STOKER_DOOR, STOKER_QUEUE, XARGS

Series = Mapping[str, Sequence[float]]
"""Measurements by the name of the program: a rate per round, or the seconds of all gaps."""

_RATE_BARS = (
    *((ours, XARGS, 0.5) for ours in (STOKER, STOKER_QUEUE)),
    *((ours, PARALLEL, 2.5) for ours in (STOKER, STOKER_QUEUE)),
    *((ours, HYPERQUEUE, 1.3) for ours in (STOKER, STOKER_QUEUE)),
    *((ours, SIMPLE_GPU_SCHEDULER, 1.0) for ours in (STOKER, STOKER_DOOR, STOKER_QUEUE)),
)
GAP_RATIO = 0.5
GAP_OF_ORIGINAL = 1.1
GAP_P99_SECONDS = 0.015


@dataclass(frozen=True)
class Bar:
    """A value to reach, and whether it was."""

    what: str
    reached: float
    wanted: float
    at_most: bool = False

    @property
    def row(self) -> list[str]:
        """As a row of a table."""
        good = self.reached <= self.wanted if self.at_most else self.reached >= self.wanted
        sign = "<=" if self.at_most else ">="
        return [self.what, f"{self.reached:.2f}", f"{sign} {self.wanted:g}", "ok" if good else "MISSED"]


def ratio(rates: Series, ours: str, theirs: str) -> float:
    """How much faster, as the median over rounds: two runs of one round met the same machine."""
    pairs = zip(rates[ours], rates[theirs], strict=False)  # a program may have run in some rounds only
    return median(mine / other for mine, other in pairs)


def rate_table(rates: Series) -> str:
    """Each program's rate, the spread of its rounds, and its rate as a share of that of xargs."""
    rows = [
        [name, _rate(median(values)), f"{_rate(min(values))} to {_rate(max(values))}", _share(rates, name)]
        for name, values in rates.items()
    ]
    return table(["program", "commands/s", "rounds", "x xargs"], rows)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"


def _share(rates: Series, name: str) -> str:
    return f"{ratio(rates, name, XARGS):.2g}" if XARGS in rates else "-"


def gap_table(gaps: Series) -> str:
    """Each program's gap."""
    rows = [
        [name, f"{1000 * median(values):.1f}", f"{1000 * percentile(values, 0.99):.1f}", f"{len(values)}"]
        for name, values in gaps.items()
    ]
    return table(["program", "median ms", "p99 ms", "gaps"], rows)


def bar_table(rates: Series, gaps: Series) -> str:
    """Every bar with both sides measured."""
    bars = [
        Bar(f"rate, {ours} / {theirs}", ratio(rates, ours, theirs), wanted)
        for ours, theirs, wanted in _RATE_BARS
        if ours in rates and theirs in rates
    ]
    return bars_shown([*bars, *_gap_bars(gaps)])


def _gap_bars(gaps: Series) -> list[Bar]:
    bars = [bar for ours in (STOKER, STOKER_QUEUE) if ours in gaps for bar in _gap_bars_of(ours, gaps)]
    return [*bars, *_gap_ratio_bar(STOKER_DOOR, SIMPLE_GPU_SCHEDULER, GAP_OF_ORIGINAL, gaps)]


def _gap_bars_of(ours: str, gaps: Series) -> list[Bar]:
    milliseconds = 1000 * percentile(gaps[ours], 0.99)
    p99 = Bar(f"gap p99 in ms, {ours}, on a quiet machine", milliseconds, 1000 * GAP_P99_SECONDS, at_most=True)
    return [*_gap_ratio_bar(ours, HYPERQUEUE, GAP_RATIO, gaps), p99]


def _gap_ratio_bar(ours: str, theirs: str, most: float, gaps: Series) -> list[Bar]:
    if ours not in gaps or theirs not in gaps:
        return []
    share = median(gaps[ours]) / median(gaps[theirs])
    return [Bar(f"gap median, {ours} / {theirs}", share, most, at_most=True)]


def bars_shown(bars: Sequence[Bar]) -> str:
    """Bars as a table."""
    return table(["bar", "reached", "wanted", ""], [bar.row for bar in bars])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown that also reads well as it is."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(f"| {' | '.join(_aligned(line, widths))} |" for line in lines)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    first, *rest = zip(cells, widths, strict=True)
    return [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]
