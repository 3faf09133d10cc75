"""Attempts on their devices according to the database: for how long each had them, and how much of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from support.storm.record import Record

OVER = ("exited", "returned", "lost")
_UNITS = {"M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class DeviceUse:
    """One attempt, from its assignment until nothing of it was left."""

    job: int
    number: int
    parts: Mapping[str, int | None]
    """By device, the bytes that were set aside; None is all of it."""
    since: float
    until: float = inf
    end: Mapping[str, Any] | None = None
    """The event that ended it."""

    @property
    def key(self) -> tuple[int, int]:
        """Job and attempt."""
        return self.job, self.number

    @property
    def whole(self) -> bool:
        """Whether no other attempt may use its devices."""
        return None in self.parts.values()


def sizes_of(sim: str) -> dict[str, int]:
    """Bytes of each simulated device, by its number."""
    groups = [part.partition("x") for part in sim.split(",") if part]
    sizes = [int(size[:-1]) * _UNITS[size[-1]] for count, _, size in groups for _ in range(int(count))]
    return {str(index): size for index, size in enumerate(sizes)}


def device_uses(record: Record, sizes: Mapping[str, int]) -> list[DeviceUse]:
    """All attempts that had devices."""
    uses = [use for job in record.events for use in _device_uses(record, job, sizes)]
    return [use for use in uses if use.parts]


def by_device(uses: list[DeviceUse]) -> dict[str, list[DeviceUse]]:
    """The attempts on each device, in the order in which they began."""
    by_id: dict[str, list[DeviceUse]] = defaultdict(list)
    for use in sorted(uses, key=lambda use: use.since):
        for device in use.parts:
            by_id[device].append(use)
    return by_id


def _device_uses(record: Record, job: int, sizes: Mapping[str, int]) -> Iterator[DeviceUse]:
    number, given = 0, None
    asked = record.jobs[job].resources if job in record.jobs else {}
    for event in record.events[job]:
        if event["type"] == "assigned":
            number, given = number + 1, event
        elif event["type"] in OVER and given is not None:
            yield DeviceUse(job, number, _parts(given, asked, sizes), given["at"], event["at"], event)
            given = None
    if given is not None:
        yield DeviceUse(job, number, _parts(given, asked, sizes), given["at"])


def _parts(given: Mapping[str, Any], asked: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, int | None]:
    resources = given.get("resources") or asked
    devices = [device.removeprefix("SIM-") for device in given.get("devices", ())]
    return {device: _part(resources, sizes[device]) if device in sizes else None for device in devices}


def _part(resources: Mapping[str, Any], size: int) -> int | None:
    amount = (
        dict(resources.get("predicted", ())).get(f"SIM {size // 2**30}G")
        if resources.get("auto")
        else resources.get("memory")
    )
    if amount is None:
        return None
    amount = max(amount, resources.get("floor", 0))
    return None if amount > size else amount
