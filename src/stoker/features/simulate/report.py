"""The report of `stoker simulate`: figures of each replay, their sum in one sentence, and both as text and SVG."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from html import escape
from math import inf, log
from pathlib import Path
from textwrap import wrap

from msgspec import Struct

from stoker.cli.screens.text import EMPTY, Column, Line, Span, clipped, table_lines
from stoker.core.text import printable
from stoker.core.units import count_text
from stoker.features.simulate.policies import REFERENCES, Variant
from stoker.features.simulate.replay import ReplayOptions, ReplaySetup
from stoker.features.simulate.workload import ReplayOutcome

SCHEMA = "stoker.simulate/1"
NO_WAIT_SECONDS = 1.0
"""Seconds of waiting on average that users do not notice."""
SHORT_SECONDS = 600.0
"""A job that runs for less counts as this when its slowdown is computed."""
BASELINE = "fifo"
PLAIN_COLUMNS = (
    "policy", "jobs", "completion_mean", "completion_p95", "wait_mean", "makespan", "utilisation", "packed",
    "out_of_memory", "lost", "short_wait_median", "switches",
    "session_wait_median",
)  # fmt: skip
_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "m"), (1.0, "s"))
_MARKS = (1.0, 10.0, 60.0, 600.0, 3600.0, 36000.0, 4 * 86400.0, 40 * 86400.0)
"""Seconds that the time axis labels."""
_LEVELS = " ▁▂▃▄▅▆▇█"
_LEAST_SENTENCE = 20
_WIDEST_PLOT = 72
_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 150, 40, 50
_COLOURS = ("#0b6e4f", "#1f77b4", "#9467bd", "#ff7f0e", "#c62828", "#777777")
_FONT = 'font-family="sans-serif" font-size="12"'
_POINTS = 200
"""Points of a line: more cannot be seen."""


class ReplayFigures(Struct, frozen=True):
    """The figures by which a replay is judged; times in seconds, shares between 0 and 1."""

    jobs: int
    completion_mean: float
    completion_p95: float
    completion_p99: float
    wait_mean: float
    wide_wait_mean: float
    """Of jobs on several GPUs that need at least half of the machine."""
    wide_wait_max: float
    slowdown_mean: float
    """Of the time from arrival to end, divided by the run time or ten minutes, whichever is more."""
    slowdown_p99: float
    slowdown_max: float
    makespan: float
    utilisation: float
    """Share of the GPU-time in which a GPU had a job."""
    packed: float
    """Share of that in which it had more than one."""
    out_of_memory: int
    """Attempts that ended so; each of them ran again."""
    lost: int
    """Jobs that never came to their end."""
    short_wait_median: float
    """Until the first start, of jobs that run for less than ten minutes."""
    short_wait_mean: float
    switches: float
    """How often a job gave way, on average."""
    most_switches: int
    """How often one job did at most."""
    session_wait_median: float = 0.0
    """Until the start, of the sessions that --sessions adds. All other figures are of jobs only."""
    session_wait_mean: float = 0.0


def figures(outcome: ReplayOutcome) -> ReplayFigures:
    jobs = [life for life in outcome.lives if not life.session]
    ended = [life for life in jobs if life.end is not None]
    sessions = sorted(life.start - life.arrival for life in outcome.lives if life.session and life.start is not None)
    completions = completion_times(outcome)
    waits = [life.start - life.arrival for life in ended if life.start is not None]
    wide = [
        life.start - life.arrival
        for life in ended
        if life.start is not None and life.gpus > 1 and 2 * life.gpus >= outcome.gpus
    ]
    slowdowns = sorted(
        (life.end - life.arrival) / max(SHORT_SECONDS, life.seconds) for life in ended if life.end is not None
    )
    short = sorted(
        life.start - life.arrival for life in ended if life.start is not None and life.seconds < SHORT_SECONDS
    )
    makespan = max((life.end for life in ended if life.end is not None), default=0.0)
    return ReplayFigures(
        jobs=len(jobs),
        completion_mean=_mean(completions),
        completion_p95=percentile(completions, 0.95),
        completion_p99=percentile(completions, 0.99),
        wait_mean=_mean(waits),
        wide_wait_mean=_mean(wide),
        wide_wait_max=max(wide, default=0.0),
        slowdown_mean=_mean(slowdowns),
        slowdown_p99=percentile(slowdowns, 0.99),
        slowdown_max=max(slowdowns, default=0.0),
        makespan=makespan,
        utilisation=outcome.busy / (outcome.gpus * makespan) if makespan else 0.0,
        packed=outcome.shared / outcome.busy if outcome.busy else 0.0,
        out_of_memory=sum(life.shared_failures for life in outcome.lives),
        lost=sum(life.end is None for life in outcome.lives),
        short_wait_median=percentile(short, 0.5),
        short_wait_mean=_mean(short),
        switches=_mean([life.preemptions for life in jobs]),
        most_switches=max((life.preemptions for life in jobs), default=0),
        session_wait_median=percentile(sessions, 0.5),
        session_wait_mean=_mean(sessions),
    )


def completion_times(outcome: ReplayOutcome) -> list[float]:
    """Seconds from arrival to end of each job, the shortest first."""
    return sorted(life.end - life.arrival for life in outcome.lives if life.end is not None and not life.session)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which this share of the sorted values lies."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


class PolicyResult(Struct, frozen=True):
    """One replay in figures."""

    policy: str
    """With the share of jobs that give way, if there are any: stoker+50%."""
    figures: ReplayFigures
    plans: int
    preemptible: float = 0.0
    """That share, between 0 and 1."""


class Simulation(Struct, frozen=True):
    """The report for programs; times in seconds, shares between 0 and 1."""

    schema: str
    trace: str
    gpus: str
    jobs: int
    offered_load: float | None
    """None if all jobs arrive at once."""
    seed: int
    oracle: bool
    notes: Sequence[str]
    policies: Sequence[PolicyResult]
    summary: str = ""
    """The gain over strict FIFO in one sentence; empty if that or Stoker's order was not replayed."""


class SimulationReport(Struct, frozen=True):
    """The figures of all replays, and what the plots show."""

    figures: Simulation
    completions: Mapping[str, Sequence[float]]
    """Seconds from arrival to end of each job by each policy, the shortest first."""
    sentences: Sequence[str] = ()
    """A description of each policy."""


def report_of(
    options: ReplayOptions, setup: ReplaySetup, outcomes: Mapping[Variant, ReplayOutcome]
) -> SimulationReport:
    """The report on the outcomes, by their policies."""
    results = [
        PolicyResult(variant.name, figures(outcome), outcome.plans, variant.preemptible)
        for variant, outcome in outcomes.items()
    ]
    simulation = Simulation(
        schema=SCHEMA,
        trace=options.source,
        gpus=setup.gpus,
        jobs=len(setup.works),
        offered_load=None if setup.offered == inf else setup.offered,
        seed=options.seed,
        oracle=options.oracle,
        notes=setup.notes,
        policies=results,
        summary=summary_of(f"{count_text(len(setup.works), 'job')} of {options.source} on {setup.gpus}", results),
    )
    completions = {variant.name: completion_times(outcome) for variant, outcome in outcomes.items()}
    return SimulationReport(simulation, completions, [variant.sentence for variant in outcomes])


def summary_of(jobs: str, results: Sequence[PolicyResult]) -> str:
    """The gain of Stoker's order over strict FIFO, in one sentence."""
    means = {result.policy: result.figures.completion_mean for result in results}
    if "fifo" not in means or "stoker" not in means:
        return ""
    if all(result.figures.wait_mean < NO_WAIT_SECONDS for result in results if result.policy in ("fifo", "stoker")):
        return f"With {jobs}, hardly any job would have waited: the order makes no difference."
    gain = _compared(means["fifo"], means["stoker"])
    sentence = f"With {jobs}, the default order would end jobs {gain} strict FIFO on average"
    if "stoker-auto" in means:
        sentence += f"; with --vram auto, {_compared(means['fifo'], means['stoker-auto'])} strict FIFO"
    return f"{sentence}.{_gain_of_giving_way(results)}"


def _gain_of_giving_way(results: Sequence[PolicyResult]) -> str:
    """The gain if jobs give way, over the default order; empty if that was not replayed."""
    without = next(result.figures for result in results if result.policy == "stoker")
    given = [result for result in results if result.preemptible and result.policy.startswith("stoker+")]
    if not given:
        return ""
    best = max(given, key=lambda result: result.preemptible)
    share = "all of them" if best.preemptible == 1 else f"{best.preemptible:.0%} of them"
    gain = _compared(without.completion_mean, best.figures.completion_mean)
    waits = [_duration(figures.short_wait_mean) for figures in (without, best.figures)]
    words = f" If {share} gave way (--preemptible), they would end {gain} without"
    return f"{words}; jobs below 10 minutes would wait {waits[1]} on average, without {waits[0]}."


def _compared(theirs: float, ours: float) -> str:
    ratio = theirs / ours
    if 0.95 < ratio < 1.05:
        return "as soon as"
    return f"{ratio:.1f} times sooner than" if ratio > 1 else f"{1 / ratio:.1f} times later than"


# -- as text -----------------------------------------------------------------------------------------


def plain_lines(report: SimulationReport) -> list[str]:
    """TAB separated, seconds and shares as numbers."""
    policies = report.figures.policies
    values = [[getattr(result.figures, name) for name in PLAIN_COLUMNS[1:]] for result in policies]
    texts = [[str(value) if isinstance(value, int) else f"{value:.4f}" for value in row] for row in values]
    rows = [[result.policy, *row] for result, row in zip(policies, texts, strict=True)]
    return ["\t".join(row) for row in (PLAIN_COLUMNS, *rows)]


def text_lines(report: SimulationReport, width: int) -> list[Line]:
    """A heading, a table, and a plot."""
    figures = report.figures
    load = "all at once" if figures.offered_load is None else f"offered load {figures.offered_load:.2f}"
    heading = f"{count_text(figures.jobs, 'job')} of {Path(figures.trace).name} on {figures.gpus} · {load}"
    lines = [
        (Span(heading, "heading"),),
        *_table(figures.policies, report.sentences, width),
        EMPTY,
        *_plot(report, width),
    ]
    summary = (
        [EMPTY, *((Span(line),) for line in wrap(printable(figures.summary), width - 1))] if figures.summary else []
    )
    return [clipped(line, width) for line in [*lines, *summary]]


def _table(policies: Sequence[PolicyResult], sentences: Sequence[str], width: int) -> list[Line]:
    figures = [result.figures for result in policies]
    baseline = next((result.figures.completion_mean for result in policies if result.policy == BASELINE), 0.0)
    means = [figure.completion_mean for figure in figures]
    ratios = [f"{baseline / mean:.1f}" if baseline and mean else "-" for mean in means]
    columns = [
        Column("POLICY", [Span(result.policy, "id") for result in policies], 9),
        Column("MEAN", [Span(_duration(figure.completion_mean)) for figure in figures], 9, right=True, always=True),
        Column("× FIFO", list(map(Span, ratios)), 8, right=True),
        Column("95 %", [Span(_duration(figure.completion_p95)) for figure in figures], 7, right=True),
        Column("WAIT", [Span(_duration(figure.wait_mean)) for figure in figures], 6, right=True),
        Column("SHORT", [Span(_duration(figure.short_wait_mean)) for figure in figures], 6, right=True),
        Column("MAKESPAN", [Span(_duration(figure.makespan)) for figure in figures], 5, right=True),
        Column("UTIL", [Span(f"{100 * figure.utilisation:.0f}%") for figure in figures], 4, right=True),
        Column("PACKED", [Span(f"{100 * figure.packed:.0f}%") for figure in figures], 3, right=True),
        Column("OOM", [Span(f"{figure.out_of_memory}") for figure in figures], 2, right=True),
        Column("LOST", [Span(f"{figure.lost}", "bad" if figure.lost else "") for figure in figures], 1, right=True),
    ]
    if any(figure.switches for figure in figures):
        columns.append(Column("SWITCHES", [Span(f"{figure.switches:.2f}") for figure in figures], 6, right=True))
    if any(figure.session_wait_mean for figure in figures):
        columns.append(
            Column("SESSION", [Span(_duration(figure.session_wait_median)) for figure in figures], 6, right=True)
        )
    faint = [(Span(sentence, "faint"),) for sentence in sentences]
    return table_lines(columns, "", faint, width, _LEAST_SENTENCE)


def _plot(report: SimulationReport, width: int) -> list[Line]:
    """A row of blocks for each policy: the higher, the more jobs are over after that time from their arrival."""
    longest = _longest(report)
    label = max(map(len, report.completions)) + 2
    columns = max(10, min(_WIDEST_PLOT, width - label - 1))
    edges = [longest ** ((number + 1) / columns) for number in range(columns)]
    rows = [
        (Span(f" {policy:<{label}}"), Span("".join(_level(completions, edge) for edge in edges)))
        for policy, completions in report.completions.items()
    ]
    title = (Span(" share of jobs finished within this time after their arrival", "faint"),)
    return [title, *rows, (Span(" " * (label + 1)), Span(_axis(longest, columns), "faint"))]


def _longest(report: SimulationReport) -> float:
    return max([2.0, *(completions[-1] for completions in report.completions.values() if completions)])


def _level(completions: Sequence[float], edge: float) -> str:
    share = bisect_right(completions, edge) / max(1, len(completions))
    return _LEVELS[min(len(_LEVELS) - 1, int(share * (len(_LEVELS) - 1) + 0.5))]


def _axis(longest: float, columns: int) -> str:
    words = [" "] * columns
    for mark in _MARKS:
        text = f"{mark / 86400:.0f}d" if mark >= 86400 else _label(mark)
        place = round(columns * log(mark) / log(longest)) if mark > 1 else 0
        if place + len(text) <= columns and all(word == " " for word in words[max(0, place - 1) : place + len(text)]):
            words[place : place + len(text)] = text
    return "".join(words)


def _duration(seconds: float) -> str:
    """Seconds in their largest unit: `5.2d`, `12.3h`, `41m`, `9s`."""
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), _UNITS[-1])
    return f"{seconds / size:.1f}{unit}" if unit in "dh" else f"{seconds / size:.0f}{unit}"


def _label(mark: float) -> str:
    return _duration(mark).replace(".0", "")


# -- as a picture ------------------------------------------------------------------------------------


def drawing(report: SimulationReport) -> str:
    """The plot as SVG, with a line for each policy."""
    longest = _longest(report)
    title = f"{count_text(report.figures.jobs, 'job')} on {report.figures.gpus}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="14">{escape(title)}</text>',
        *_grid(longest),
    ]
    for number, result in enumerate(report.figures.policies):
        parts += _curve(result, report.completions[result.policy], number, longest)
    axis = "time from arrival to end (logarithmic); share of jobs upwards"
    return "\n".join([*parts, f'<text x="{_LEFT}" y="{_HEIGHT - 10}">{axis}</text>', "</svg>"]) + "\n"


def _across(seconds: float, longest: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * log(max(1.0, seconds)) / log(longest)


def _up(share: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share


def _grid(longest: float) -> list[str]:
    lines = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _up(share)
        lines.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    for mark in (mark for mark in _MARKS if mark <= longest):
        x = _across(mark, longest)
        lines.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_HEIGHT - _BOTTOM}" stroke="#eee"/>')
        lines.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{_label(mark)}</text>')
    return lines


def _curve(result: PolicyResult, completions: Sequence[float], number: int, longest: float) -> list[str]:
    across, y = _WIDTH - _RIGHT + 12, _TOP + 12 + 18 * number
    dashes = ' stroke-dasharray="5 4"' if result.policy in REFERENCES else ""
    stroke = f'fill="none" stroke="{_COLOURS[number % len(_COLOURS)]}" stroke-width="2"{dashes}'
    count = len(completions)
    picked = sorted({round(step * (count - 1) / _POINTS) for step in range(_POINTS + 1)}) if count else []
    points = " ".join(f"{_across(completions[place], longest):.1f},{_up((place + 1) / count):.1f}" for place in picked)
    words = f"{escape(result.policy)} {_duration(result.figures.completion_mean)}"
    return [
        f'<polyline {stroke} points="{points}"/>',
        f'<line {stroke} x1="{across}" y1="{y - 4}" x2="{across + 18}" y2="{y - 4}"/>',
        f'<text x="{across + 24}" y="{y}">{words}</text>',
    ]
