"""Sum up what GPUs do in each minute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from stoker.core.device import Device, Reading, Snapshot
from stoker.core.job import Job, Running, Stopping, resources_of
from stoker.core.spec import amount_on
from stoker.store.samples import MINUTE, Sample


class _Sums(Struct):
    """The readings of one device in the current minute."""

    loads: list[int] = field(default_factory=list)
    powers: list[float] = field(default_factory=list)
    used: int | None = None
    reserved: int = 0
    temperature: int | None = None

    def add(self, reading: Reading, reserved: int) -> None:
        self.loads += [] if reading.utilisation is None else [reading.utilisation]
        self.powers += [] if reading.power is None else [reading.power]
        self.used = _larger(self.used, reading.used)
        self.temperature = _larger(self.temperature, reading.temperature)
        self.reserved = max(self.reserved, reserved)

    def sample(self, minute: int, device: str) -> Sample:
        load = round(sum(self.loads) / len(self.loads)) if self.loads else None
        power = round(sum(self.powers) / len(self.powers), 1) if self.powers else None
        return Sample(minute, device, load, self.used, self.reserved, self.temperature, power)


class Sampler:
    """Collects the readings of measured devices and returns one sample per device when a minute is over."""

    def __init__(self) -> None:
        self._minute = 0
        self._sums: dict[str, _Sums] = {}

    def note(self, snapshot: Snapshot, jobs: Iterable[Job], now: float) -> list[Sample]:
        """Add a snapshot; return the samples of the minute that ended, if one did.

        `jobs` are the active ones. A nested engine sees only a part of its GPUs, so it takes no samples.
        """
        minute = int(now // MINUTE)
        ended = self._end_minute() if minute != self._minute else []
        self._minute = minute
        devices = [device for device in snapshot.devices if device.whole is None and device.id in snapshot.readings]
        reserved = _reserved(jobs, {device.id: device for device in devices})
        for device in devices:
            self._sums.setdefault(device.id, _Sums()).add(snapshot.readings[device.id], reserved[device.id])
        return ended

    def _end_minute(self) -> list[Sample]:
        sums, self._sums = self._sums, {}
        return [sum_of_device.sample(self._minute, device) for device, sum_of_device in sums.items()]


def _reserved(jobs: Iterable[Job], devices: Mapping[str, Device]) -> Counter[str]:
    """Bytes that are reserved on each device for jobs that have started."""
    reserved: Counter[str] = Counter()
    for job in jobs:
        for device_id in job.state.devices if isinstance(job.state, Running | Stopping) else ():
            if (device := devices.get(device_id)) is not None:
                amount = amount_on(resources_of(job), device)
                reserved[device_id] += (device.memory or 0) if amount is None else amount
    return reserved


def _larger(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)
