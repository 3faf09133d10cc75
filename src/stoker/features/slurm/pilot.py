"""One pilot as the head sees it: its attempts, how many more it needs, and what its news mean."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from math import ceil
from pathlib import Path

from msgspec.structs import replace

from stoker.core.job import Active, Event, Exited, Job, Lost, Returned, Started, Waiting, started_at
from stoker.features.slurm.attempts import Bundle
from stoker.features.slurm.cluster import Answers
from stoker.features.slurm.pilot_files import Hand, News, PilotFolder, Ready

FIRST_AHEAD = 2
"""Attempts that wait in a pilot, for each of its GPUs: at least..."""
AHEAD_SECONDS = 0.5
"""... and as many as it starts in this time: until the head has heard that they started, and its orders arrive..."""
MOST_AHEAD = 256
"""... and at most so many in all."""
RATE_SECONDS = 0.2
"""Starts are counted for at least so long before the rate of a pilot is known."""
SPARE_SECONDS = 60.0
"""A pilot gets nothing that cannot end so long before the pilot's own end."""
HELD_UP_ANSWERS = 2
HELD_UP_SECONDS = 5.0
"""A pilot waits in Slurm for GPUs of others, if so many answers say so, and for so long."""
SHORT_SECONDS = 600.0
"""Jobs with a limit below this are short."""
MARK = "pilot"
"""Begins the name of a pilot, so that a new engine tells it from a bundle."""


class Handed:
    """An attempt in a pilot."""

    def __init__(self, job: Job, since: float) -> None:
        self.job_id = job.id
        self.number = job.attempts
        self.gpus = job.spec.resources.gpus
        self.is_short = is_short(job.spec.limit)
        self.since = since
        self.assigned = False
        """Whether the pilot may have begun with it."""
        self.recalled = False
        self.began: float | None = None


class Pilot(Bundle):
    """One pilot: a single task in Slurm, and the attempts that it was given."""

    def __init__(self, name: str, tag: str, folder: Path) -> None:
        super().__init__(name, tag, folder)
        self.files = PilotFolder(folder)
        self.folder = self.files
        self.handed: dict[str, Handed] = {}
        self.waiting = 0
        """How many of them have not started."""
        self.short = 0
        """How many of them are short."""
        self.idle_gpus = 0
        """GPUs less those that its attempts need: negative where some have to wait, or share."""
        self.answers = Answers()
        self.ready: Ready | None = None
        self.is_over = False
        """Whether its node has shown that no process of it is left."""
        self.leaving = False
        self.room = 0
        """How many more attempts it may be given now..."""
        self.offered = 0
        """... and the GPUs of those that it is going to be given."""
        self.count = 0
        self.asked_gpus = 1
        """GPUs that Slurm was asked for."""
        self.least = 1
        """GPUs that it must have, for the largest of the jobs for which it is started."""
        self.until: float | None = None
        """When Slurm ends it."""
        self.asked_at: float | None = None
        """When it was asked whether it lives; None where it answered, or there was no need."""
        self._offset = 0
        self._environments: set[str] = set()
        self._ahead = 0
        self._starts = 0
        self._counted_at = 0.0

    @property
    def tasks(self) -> Collection[int]:
        return (0,)

    @property
    def gpus(self) -> int:
        return max(1, self.ready.gpus) if self.ready is not None else 1

    @property
    def load(self) -> float:
        """GPUs that its attempts need, as a share of its own; below 1 where some are idle."""
        return (self.gpus - self.idle_gpus + self.offered) / self.gpus

    @property
    def is_usable(self) -> bool:
        return self.ready is not None and not self.leaving

    @property
    def is_held_up(self) -> bool:
        """Whether it waits in Slurm for GPUs of others, and has done so for a while."""
        fact, times, seconds = self.answers
        blocked = self.ready is None and fact is not None and fact.is_blocked
        return blocked and times >= HELD_UP_ANSWERS and seconds >= HELD_UP_SECONDS

    def fits(self, job: Job, now: float) -> bool:
        """Whether it has the GPUs for a job, and lasts as long as that may run."""
        in_time = self.until is None or now + (job.spec.limit or 0.0) + SPARE_SECONDS < self.until
        return self.ready is not None and job.spec.resources.gpus <= self.ready.gpus and in_time

    def has_idle(self, job: Job, now: float) -> bool:
        """Whether a job could start in it at once, beside those that it is going to be given."""
        free = self.idle_gpus - self.offered
        return self.is_usable and self.room > 0 and job.spec.resources.gpus <= free and self.fits(job, now)

    def measure_room(self, now: float) -> None:
        """Find out how many attempts it needs to have work until the next ones arrive."""
        elapsed = now - self._counted_at
        if self.waiting == 0 and self.handed:  # it starts them faster than was known
            self._ahead *= 2
        elif elapsed >= RATE_SECONDS:
            self._ahead = ceil(self._starts / elapsed * AHEAD_SECONDS)
        if elapsed >= RATE_SECONDS:
            self._starts, self._counted_at = 0, now
        self._ahead = min(max(self._ahead, FIRST_AHEAD * self.gpus), MOST_AHEAD)
        self.room, self.offered = self._ahead - self.waiting if self.is_usable else 0, 0

    def get_ready(self, news: Ready) -> None:
        self.idle_gpus += news.gpus - (self.ready.gpus if self.ready is not None else 0)
        self.ready = news

    def give(self, key: str, handed: Handed) -> None:
        self.handed[key] = handed
        self.waiting += 1
        self.short += handed.is_short
        self.idle_gpus -= handed.gpus

    def note_start(self, handed: Handed, at: float) -> None:
        """An attempt started, at this time by the clock of the node."""
        if handed.began is None:
            self.waiting -= 1
            self._starts += 1
        handed.began = at

    def forget(self, key: str) -> None:
        """Forget an attempt that is over or came back."""
        handed = self.handed.pop(key)
        self.waiting -= handed.began is None
        self.short -= handed.is_short
        self.idle_gpus += handed.gpus

    def news(self) -> list[News]:
        """What it wrote since the last look; nothing where its folder is out of sight."""
        with contextlib.suppress(OSError):
            found, self._offset = self.files.read_news(self._offset)
            return found
        return []

    def hand_of(self, job: Job, environment: Callable[[str], dict[str, str]]) -> Hand:
        """The order for a job; its environment is sent once."""
        digest = job.spec.environment
        new = digest not in self._environments
        self._environments.add(digest)
        spec = replace(job.spec, cluster="", after=(), begin=None, at_once=None, retries=0, requeue=False)
        return Hand(replace(job, spec=spec, state=Waiting(job.submitted)), environment(digest) if new else None)


def translated(job: Job, handed: Handed, event: Event, now: float) -> Event:
    """A pilot's event with the number of the head's attempt, and by the head's clock."""
    assert isinstance(job.state, Active)
    if isinstance(event, Started):
        return replace(event, attempt=handed.number, at=min(max(event.at, job.state.since), now))
    began = started_at(job)
    if isinstance(event, Exited):
        at = event.at if began is None or handed.began is None else began + max(0.0, event.at - handed.began)
        return replace(event, attempt=handed.number, at=at)
    assert isinstance(event, Returned | Lost)
    if isinstance(event, Lost):
        return replace(event, attempt=handed.number, at=now)
    if began is not None and not event.short:
        return Lost(handed.number, now, "its pilot gave it back")
    return Returned(handed.number, now, event.short)


def is_short(limit: float | None) -> bool:
    return limit is not None and limit < SHORT_SECONDS


def is_pilot(name: str) -> bool:
    return name.startswith(MARK)
