"""Posts: a keeper at work on its devices, under its lease, with the attempts it was given."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from stoker.core.device import Device
from stoker.core.job import Job, Need, Running
from stoker.core.plan import Slot

SHORT = 0.5
"""Seconds; where attempts take less than this on average, the next ones are handed over ahead."""
AHEAD_SECONDS = 0.25
"""How much work is handed over ahead at most, by what attempts took so far..."""
AHEAD_LIMIT = 16
"""... and how many attempts."""
OVERDUE = 1.0
"""Seconds after which what waits behind a running attempt is asked back, since others may be free."""
_WEIGHT_OF_NEWS = 0.2


@dataclass
class Post:
    """One keeper, the devices it holds, and the jobs it has: the first runs, the others wait behind it."""

    keeper: str
    need: Need
    devices: tuple[Device, ...]
    lease: str = ""
    """Path of the lease, empty where nothing had to be claimed."""
    jobs: deque[int] = field(default_factory=deque)
    head_since: float = 0.0
    recalled: bool = False

    @property
    def device_ids(self) -> tuple[str, ...]:
        """Ids of the devices held."""
        return tuple(device.id for device in self.devices)

    def suits(self, need: Need, device_ids: tuple[str, ...]) -> bool:
        """Whether the lease held covers another job as it is."""
        return self.need.memory == need.memory and self.device_ids == device_ids

    def take(self, job: int, now: float) -> None:
        """Another attempt was handed over."""
        if not self.jobs:
            self.head_since = now
        self.jobs.append(job)

    def finish(self, job: int, now: float) -> None:
        """An attempt is over or came back."""
        self.jobs.remove(job)
        self.head_since = now
        if len(self.jobs) <= 1:
            self.recalled = False

    def overdue(self, now: float) -> bool:
        """Whether attempts wait behind one that turned out to be long."""
        return len(self.jobs) > 1 and not self.recalled and now - self.head_since > OVERDUE

    def slot(self, head: Job, pace: float | None, now: float) -> Slot:
        """The post as the plan sees it."""
        limit = head.terms.limit
        until = head.state.since + limit if limit is not None and isinstance(head.state, Running) else None
        return Slot(self.keeper, head.id, self.need, self.device_ids, until, self._room(pace, now))

    def _room(self, pace: float | None, now: float) -> int:
        """Only where no driver has to be asked in between whether the memory has really been given back."""
        measured = any(device.measured for device in self.devices)
        if pace is None or pace > SHORT or measured or now - self.head_since > OVERDUE:
            return 0
        depth = min(AHEAD_LIMIT, max(1, int(AHEAD_SECONDS / max(pace, 1e-6))))
        return max(0, depth - (len(self.jobs) - 1))


class Paces:
    """How long attempts took lately, by the shape of their need."""

    def __init__(self) -> None:
        self._seconds: dict[Need, float] = {}

    def of(self, need: Need) -> float | None:
        """Seconds an attempt takes, or None where none has ended yet."""
        return self._seconds.get(need)

    def observe(self, need: Need, seconds: float) -> None:
        """Learn from an attempt that ended."""
        before = self._seconds.get(need)
        change = 0.0 if before is None else _WEIGHT_OF_NEWS * (seconds - before)
        self._seconds[need] = seconds if before is None else before + change
