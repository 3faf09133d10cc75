"""Build the curves of one job: memory, progress, and the values that it reported."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from math import isfinite
from typing import Any, TypeVar

from msgspec import Struct

from stoker.app.jobs.local_time import to_datetime
from stoker.app.views.facts import QueueFacts
from stoker.app.views.job_details import AttemptLine, attempt_lines
from stoker.core.job import Active, Job, id_text
from stoker.store.paths import Paths
from stoker.store.reports import ReportLine, read_reports

SCHEMA = "stoker.series/1"
MOST_POINTS = 1000
"""Points of one curve; of more, every second, third... is left out."""
MOST_CURVES = 50
Point = TypeVar("Point")


class AttemptMemory(Struct, frozen=True):
    """GPU memory of one attempt."""

    attempt: int
    reserved_bytes: int | None
    """On each GPU; null is all of it."""
    memory: list[tuple[float, int]]
    """Unix time, and bytes on the GPU of which it held most."""


class Series(Struct, frozen=True):
    """The curves of a job: `/api/v1/jobs/ID/series`."""

    schema: str
    at: datetime
    label: str
    limit_bytes: int | None
    """Memory of its smallest GPU, if it has or had one."""
    attempts: list[AttemptMemory]
    progress: list[tuple[float, float]]
    """Unix time, and the part that is done, from 0 to 1, of the last attempt."""
    metrics: dict[str, list[tuple[float, float]]]
    """By name: the step, or the unix time of a report without one, and the value, of the last attempt."""
    steps: bool
    """Whether the first number of a metric's points is a step."""


def series_of(job: Job, facts: QueueFacts, paths: Paths) -> Series:
    attempts = attempt_lines(job, facts.store.events(job.id), facts)
    reports = read_reports(paths.on(job.spec.cluster).report(job.id))
    last = [report for report in reports if report.attempt == reports[-1].attempt]
    steps = all("step" in report.values for report in last if report.values)
    return Series(
        SCHEMA,
        to_datetime(facts.now),
        label=id_text(job),
        limit_bytes=_limit(job, facts),
        attempts=[_memory(line) for line in attempts if line.started is not None],
        progress=thinned([(report.at, round(part, 4)) for report in last if (part := _part(report)) is not None]),
        metrics=_metrics(last, steps=steps),
        steps=steps,
    )


def _memory(line: AttemptLine) -> AttemptMemory:
    assert line.started is not None
    began = line.started.timestamp()
    curve = [(round(began + seconds, 3), size) for seconds, size in line.vram_curve]
    return AttemptMemory(line.number, line.reserved_bytes, curve)


def _limit(job: Job, facts: QueueFacts) -> int | None:
    attempts = facts.store.attempts(job.id)
    ids = job.state.devices if isinstance(job.state, Active) else attempts[-1].devices if attempts else ()
    return min((device.memory for device in facts.devices_of(ids) if device.memory), default=None)


def _part(report: ReportLine) -> float | None:
    if report.done is None or not report.total:
        return None
    return min(1.0, max(0.0, report.done / report.total))


def _metrics(reports: Sequence[ReportLine], *, steps: bool) -> dict[str, list[tuple[float, float]]]:
    """Numbers only: other values have no curve."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for report in reports:
        place: Any = report.values.get("step") if steps else report.at
        if not _is_number(place):
            continue
        for name, value in report.values.items():
            if name != "step" and _is_number(value) and (name in curves or len(curves) < MOST_CURVES):
                curves.setdefault(name, []).append((place, value))
    return {name: thinned(points) for name, points in curves.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def thinned(points: list[Point]) -> list[Point]:
    """Few enough points, with the first and the last one."""
    stride = -(-len(points) // MOST_POINTS)
    if stride <= 1:
        return points
    return [*points[:-1:stride], points[-1]]
