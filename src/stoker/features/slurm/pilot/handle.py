"""One pilot as the head sees it: what it asks Slurm for, its attempts, and its events by the head's clock."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from heapq import heapify, heappop, heapreplace
from itertools import takewhile
from math import ceil
from pathlib import Path

from msgspec.structs import replace

from stoker.core.job import Displaced, Event, Exited, Job, Lost, Returned, Started, Stayed, Waiting, started_at
from stoker.core.settings import ClusterSettings
from stoker.features.slurm.attempts import Bundle, end_by_our_clock, start_by_our_clock
from stoker.features.slurm.bundles import cap_names, settings_words
from stoker.features.slurm.commands import NodeSize
from stoker.features.slurm.judge import Answers
from stoker.features.slurm.orders import PILOT_MARK
from stoker.features.slurm.pilot.files import PilotEvent, PilotFolder, PilotPlan, PilotReady, RunJob
from stoker.store.paths import Paths

MIN_AHEAD_PER_GPU = 2
"""Attempts that wait in a pilot for each of its GPUs, however slowly it starts them."""
AHEAD_SECONDS = 0.5
"""Attempts wait in a pilot for this time of starts: until the head knows of the starts, and its orders arrive."""
MAX_AHEAD = 256
"""Attempts that wait in a pilot, however fast it starts them."""
RATE_SECONDS = 0.2
"""Shortest time of counting starts from which the rate of a pilot is taken."""
SPARE_SECONDS = 60.0
"""Seconds between the last possible end of a job in a pilot and the end of the pilot."""
HELD_UP_ANSWERS = 2
HELD_UP_SECONDS = 5.0
"""A pilot waits in Slurm for GPUs of others if this many answers say so, over this many seconds."""
SHORT_SECONDS = 600.0
"""Jobs with a limit below this are short."""


class DelegatedAttempt:
    """An attempt in a pilot."""

    def __init__(self, job: Job, since: float) -> None:
        self.job_id = job.id
        self.number = job.attempts
        self.gpus = job.spec.resources.gpus
        self.is_short = is_short(job.spec.limit)
        self.caps = cap_names(job)
        self.since = since
        self.assigned = False
        """Whether the pilot may have begun with it."""
        self.recalled = False
        self.began: float | None = None
        self.idle_since: float | None = None
        """Since when its GPUs have not been used, by the head's clock; None if they are, as far as is known."""


class PilotHandle(Bundle):
    """One pilot: a single task in Slurm, and the attempts that it was given."""

    def __init__(self, name: str, tag: str, folder: Path) -> None:
        super().__init__(name, tag, folder)
        self.files = PilotFolder(folder)
        self.folder = self.files
        self.delegated: dict[str, DelegatedAttempt] = {}
        self._waiting: dict[str, DelegatedAttempt] = {}
        """Those of them that have not started, in the order in which they were given."""
        self.short = 0
        """How many of them are short."""
        self.caps: Counter[str] = Counter()
        """How many of them count towards a cap."""
        self.idle_gpus = 0
        """GPUs less those that its attempts need: negative if some have to wait, or share."""
        self.answers = Answers()
        self.ready: PilotReady | None = None
        self.is_over = False
        """Whether its node has shown that no process of it is left."""
        self.leaving = False
        self.room = 0
        """How many more attempts it may be given now."""
        self.offered = 0
        """GPUs of the attempts that it is going to be given."""
        self.count = 0
        self.asked_gpus = 1
        """GPUs that Slurm was asked for."""
        self.least = 1
        """GPUs that it must have, for the largest of the jobs for which it is started."""
        self.until: float | None = None
        """When Slurm ends it."""
        self.pinged_at: float | None = None
        """When it was asked whether it lives; None if it answered, or was not asked."""
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
    def waiting(self) -> int:
        """How many of its attempts have not started."""
        return len(self._waiting)

    @property
    def load(self) -> float:
        """GPUs that its attempts need, as a share of its own; below 1 if some are idle."""
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
        if self.waiting == 0 and self.delegated:  # it starts them faster than was known
            self._ahead *= 2
        elif elapsed >= RATE_SECONDS:
            self._ahead = ceil(self._starts / elapsed * AHEAD_SECONDS)
        if elapsed >= RATE_SECONDS:
            self._starts, self._counted_at = 0, now
        self._ahead = min(max(self._ahead, MIN_AHEAD_PER_GPU * self.gpus), MAX_AHEAD)
        self.room, self.offered = self._ahead - self.waiting if self.is_usable else 0, 0

    def get_ready(self, ready: PilotReady) -> None:
        self.idle_gpus += ready.gpus - (self.ready.gpus if self.ready is not None else 0)
        self.ready = ready

    def give(self, key: str, delegated: DelegatedAttempt) -> None:
        self.delegated[key] = self._waiting[key] = delegated
        self.short += delegated.is_short
        self.caps.update(delegated.caps)
        self.idle_gpus -= delegated.gpus

    def note_start(self, key: str, at: float) -> None:
        """An attempt started, at this time by the clock of the node."""
        self._starts += self._waiting.pop(key, None) is not None
        self.delegated[key].began = at

    def forget(self, key: str) -> None:
        """Forget an attempt that is over or came back."""
        delegated = self.delegated.pop(key)
        self._waiting.pop(key, None)
        self.short -= delegated.is_short
        self.caps.subtract(delegated.caps)
        for name in [name for name in delegated.caps if not self.caps[name]]:
            del self.caps[name]
        self.idle_gpus += delegated.gpus

    def backlog(self, before: float) -> list[DelegatedAttempt]:
        """Attempts that wait since before that moment, because its GPUs are busy, and were not recalled."""
        old = takewhile(
            lambda delegated: delegated.since < before, self._waiting.values() if self.idle_gpus < 0 else ()
        )
        return [delegated for delegated in old if not delegated.recalled]

    def new_events(self) -> list[PilotEvent]:
        """Its events since the last look; none while its folder is out of sight."""
        with contextlib.suppress(OSError):
            events, self._offset = self.files.read_events(self._offset)
            return events
        return []

    def run_order(self, job: Job, environment: Callable[[str], dict[str, str]]) -> RunJob:
        """The order for a job; its environment is sent once."""
        digest = job.spec.environment
        new = digest not in self._environments
        self._environments.add(digest)
        spec = replace(job.spec, cluster="", after=(), begin=None, at_once=None, retries=0, requeue=False)
        alone = replace(job, spec=spec, state=Waiting(job.submitted), differences=None)  # they are in our store
        return RunJob(alone, environment(digest) if new else None)


class FreePlaces:
    """The room of pilots during one plan. Loads only grow meanwhile, so an old load in a heap is a lower bound."""

    def __init__(self, pilots: Iterable[PilotHandle], now: float) -> None:
        self._pilots = [pilot for pilot in pilots if pilot.room > 0]
        self._now = now
        self._heaps: dict[tuple[int, float | None], list[tuple[float, int, PilotHandle]]] = {}
        """Pilots that fit, by what jobs ask for; the one with the least load first, of two the older."""

    def take(self, job: Job) -> PilotHandle | None:
        """Take a place for a job in the pilot with the least to do, if one has room."""
        key = job.spec.resources.gpus, job.spec.limit
        heap = self._heaps.get(key)
        if heap is None:
            fitting = ((place, pilot) for place, pilot in enumerate(self._pilots) if pilot.fits(job, self._now))
            heap = self._heaps[key] = [(pilot.load, place, pilot) for place, pilot in fitting]
            heapify(heap)
        while heap:
            load, place, pilot = heap[0]
            if pilot.room <= 0:
                heappop(heap)
            elif load != pilot.load:
                heapreplace(heap, (pilot.load, place, pilot))
            else:
                pilot.room -= 1
                pilot.offered += job.spec.resources.gpus
                return pilot
        return None


def translated(job: Job, delegated: DelegatedAttempt, event: Event, now: float) -> Event:
    """A pilot's event with the number of the head's attempt, and by the head's clock."""
    if isinstance(event, Started):
        return replace(event, attempt=delegated.number, at=start_by_our_clock(job, event.at, now))
    if isinstance(event, Exited):
        return replace(event, attempt=delegated.number, at=end_by_our_clock(job, delegated.began, event.at))
    if isinstance(event, Displaced | Stayed):
        return replace(event, at=now)
    assert isinstance(event, Returned | Lost)
    if isinstance(event, Lost):
        return replace(event, attempt=delegated.number, at=now)
    if started_at(job) is not None and not event.shortage:
        return Lost(delegated.number, now, "its pilot gave it back")
    return Returned(delegated.number, now, event.shortage)


def is_short(limit: float | None) -> bool:
    return limit is not None and limit < SHORT_SECONDS


def is_pilot(name: str) -> bool:
    return name.startswith(PILOT_MARK)


# -- what a new pilot asks for ---------------------------------------------------------------------


def pilot_plan(cluster: str, settings: ClusterSettings, files: Paths, own: Mapping[str, str], gpus: int) -> PilotPlan:
    """The plan of a pilot; simulated GPUs and a ledger of one's own come from the head's environment."""
    return PilotPlan(
        cluster,
        str(files.reports),
        settings.pilot_idle,
        own.get("STOKER_SIM", ""),
        own.get("STOKER_LEDGER", ""),
        whole_node=settings.private,
        gpus=gpus,
        files=str(files.state),
    )


def pilot_gpus(nodes: NodeSize, need: int, least: int, most: int | None) -> int:
    """GPUs for one pilot: those of a node, but no more than all waiting jobs need, nor than `most`.

    `least` are the GPUs of the largest job, which it must have in any case.
    """
    wanted = min(nodes.gpus or 1, max(1, need))
    return wanted if most is None else max(least, min(wanted, most))


def pilot_words(settings: ClusterSettings, nodes: NodeSize, gpus: int, least: int) -> list[str]:
    """Options for sbatch: GPUs of one node, with their share of its memory and cores, for the time of a pilot."""
    if settings.private:  # the ledger of the node shares its GPUs with other users
        size = ["--exclusive", f"--gres=gpu:{least}"]
    else:
        size = [
            f"--gres=gpu:{gpus}",
            f"--mem={nodes.memory * gpus // max(1, nodes.gpus) * 9 // 10}",
            f"--cpus-per-task={max(1, nodes.cpus * gpus // max(1, nodes.gpus))}",
        ]
    time = [f"--time={ceil(settings.pilot_time / 60)}", "--signal=B:USR1@60"]
    return [*settings_words(settings), "--nodes=1", *size, *time, *settings.options]
