"""Build the curves of GPUs: samples of the past, and the latest reading."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from math import ceil

from msgspec import Struct

from stoker.app.jobs.local_time import to_datetime
from stoker.app.views.facts import QueueFacts, read_facts
from stoker.core.device import Reading
from stoker.store.paths import Paths
from stoker.store.samples import MINUTE, Sample, samples_between

SCHEMA = "stoker.gpu-samples/1"
MOST_POINTS = 360
"""Points of one curve."""


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


def steps_of(since: float, until: float, most: int = MOST_POINTS) -> Steps:
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
        return GpuSamples(SCHEMA, to_datetime(facts.now), facts.simulated, steps.start, steps.seconds, devices)


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
