"""Build curves over time: of GPUs by their samples, of one job by its memory, progress and reported values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from math import ceil, isfinite
from typing import Any, TypeVar

from msgspec import Struct

from stoker.app.jobs.local_time import to_datetime
from stoker.app.views.facts import QueueFacts, read_facts
from stoker.app.views.job_details import AttemptLine, attempt_lines
from stoker.core.device import Reading
from stoker.core.job import Active, Job, id_text
from stoker.store.paths import Paths
from stoker.store.reports import ReportLine, read_reports
from stoker.store.samples import MINUTE, Sample, samples_between

SAMPLES_SCHEMA = "stoker.gpu-samples/1"
GPU_POINTS = 360
"""Points of one curve of a GPU."""


class Curves(Struct, frozen=True):
    """Measurements of a GPU: a value for each step of the period, null where nothing is known."""

    utilisation_percent: list[int | None]
    """Means."""
    used_bytes: list[int | None]
    """Largest values, of all processes."""
    reserved_bytes: list[int | None]
    """Largest values, for jobs of this queue."""
    temperature_celsius: list[int | None]
    """Largest values."""
    power_watts: list[float | None]
    """Means."""


class DeviceSamples(Struct, frozen=True):
    """The curves of one GPU."""

    id: str
    label: str
    model: str
    memory_bytes: int | None
    curves: Curves


class GpuSamples(Struct, frozen=True):
    """The curves of all GPUs, which have the same steps."""

    schema: str
    at: datetime
    simulated: bool
    start: datetime
    """When the first step begins."""
    step_seconds: int
    devices: list[DeviceSamples]


class Steps(Struct, frozen=True):
    """A period in equal steps of whole minutes."""

    first: int
    """Minutes since the epoch, a multiple of the step."""
    minutes: int
    count: int

    @property
    def start(self) -> datetime:
        return to_datetime(self.first * MINUTE)

    @property
    def seconds(self) -> int:
        return self.minutes * MINUTE


def steps_of(since: float, until: float, most: int = GPU_POINTS) -> Steps:
    """The shortest steps of which there are not too many."""
    first, last = int(since // MINUTE), int(until // MINUTE)
    minutes = max(1, ceil((last - first + 1) / most))
    first -= first % minutes
    return Steps(first, minutes, max(1, (last - first) // minutes + 1))


def read_samples(paths: Paths, since: float) -> GpuSamples:
    """The curves from a moment until now."""
    with read_facts(paths) as facts:
        steps = steps_of(since, facts.now)
        curves = curves_of(facts, steps)
        devices = [
            DeviceSamples(
                device.id,
                device.label,
                device.model,
                device.memory,
                curves.get(device.id) or curves_from((), steps),
            )
            for device in facts.devices.values()
        ]
        return GpuSamples(SAMPLES_SCHEMA, to_datetime(facts.now), facts.simulated, steps.start, steps.seconds, devices)


def curves_of(facts: QueueFacts, steps: Steps) -> dict[str, Curves]:
    """The curves of each GPU by its id; of the minute that is not over yet, the latest reading."""
    until = (steps.first + steps.count * steps.minutes) * MINUTE - 1
    by_device: dict[str, list[Sample]] = {}
    for sample in samples_between(facts.store, steps.first * MINUTE, until, steps.minutes):
        by_device.setdefault(sample.device, []).append(sample)
    for sample in _latest(facts, steps) if facts.now <= until else ():
        by_device.setdefault(sample.device, []).append(sample)
    return {device: curves_from(samples, steps) for device, samples in by_device.items()}


def _latest(facts: QueueFacts, steps: Steps) -> Iterable[Sample]:
    """The readings in the status file of a living engine, as samples."""
    from stoker.app.views.status import device_lines

    if not facts.statuses.lives and not facts.statuses.runs:
        return
    minute = int(facts.now // MINUTE) // steps.minutes * steps.minutes
    reserved = {line.id: line.reserved_bytes for line in device_lines(facts)}
    readings: Mapping[str, Reading] = facts.readings
    for device, one in readings.items():
        if one.used is not None or one.utilisation is not None:
            size = reserved.get(device, 0)
            yield Sample(minute, device, one.utilisation, one.used, size, one.temperature, one.power)


def curves_from(samples: Iterable[Sample], steps: Steps) -> Curves:
    """Values by step, where the last sample of a step counts."""
    by_step = {(sample.minute - steps.first) // steps.minutes: sample for sample in samples}
    every = [by_step.get(place) for place in range(steps.count)]
    return Curves(
        [one and one.utilisation for one in every],
        [one and one.used for one in every],
        [one and one.reserved for one in every],
        [one and one.temperature for one in every],
        [one and one.power for one in every],
    )


# -- of one job --------------------------------------------------------------------------------

SERIES_SCHEMA = "stoker.series/1"
JOB_POINTS = 1000
"""Points of one curve of a job; of more, every second, third... is left out."""
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
        SERIES_SCHEMA,
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
    stride = -(-len(points) // JOB_POINTS)
    if stride <= 1:
        return points
    return [*points[:-1:stride], points[-1]]
