"""How long devices were busy with the jobs of a run, however many of them shared one."""

from __future__ import annotations

from typing import NamedTuple

from stoker.changes import Happening
from stoker.core.job import Exited, Lost, Started

KEPT = 500
"""Attempts in company of which enough is kept to tell how fast they were."""


class Companion(NamedTuple):
    """An attempt that did not have its devices to itself."""

    kind: str
    models: frozenset[str]
    seconds: float
    """Of all its devices."""
    log: str


class BusyTime:
    """Counts a moment of a device once, whoever was on it; attempts are told in the order in which they end."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Of all devices together, while anything of the run was on them."""
        self.companions: list[Companion] = []
        self.forgotten = 0
        """Attempts in company that are not among them."""
        self._since: dict[str, float] = {}
        self._jobs: dict[str, set[int]] = {}

    def note(self, happening: Happening) -> None:
        """Take in what happened."""
        match happening.event:
            case Started(at=at):
                self._begin(happening, at)
            case Exited(at=at) | Lost(at=at) if happening.started is not None:
                self._begin(happening, happening.started)  # unless it was told, as for one that was taken over
                self._end(happening, at)
                if isinstance(happening.event, Exited) and happening.event.company:
                    self._keep(happening, (at - happening.started) * len(happening.devices))

    def _begin(self, happening: Happening, at: float) -> None:
        for device in happening.devices:
            self._since[device.id] = min(at, self._since.get(device.id, at))
            self._jobs.setdefault(device.id, set()).add(happening.job.id)

    def _end(self, happening: Happening, at: float) -> None:
        for device in happening.devices:
            self._jobs[device.id].discard(happening.job.id)
            if not self._jobs[device.id]:
                self.seconds += max(0.0, at - self._since.pop(device.id))

    def _keep(self, happening: Happening, seconds: float) -> None:
        if len(self.companions) >= KEPT:
            self.forgotten += 1
            return
        models = frozenset(device.model for device in happening.devices)
        self.companions.append(Companion(happening.job.kind, models, seconds, happening.log))
