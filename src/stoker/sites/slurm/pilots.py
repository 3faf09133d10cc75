"""The head's side of pilots: which jobs they get, how many there are, and what becomes of attempts in them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path

from msgspec.structs import replace

from stoker.core.cluster import Answers, SlurmFact, heard, is_settled, is_stalled, loss_text, said
from stoker.core.job import (
    Active,
    Assigned,
    Event,
    Exited,
    Job,
    Lost,
    Returned,
    Started,
    Stopping,
    Waiting,
    started_at,
)
from stoker.core.launch import attempt_key, output_paths
from stoker.core.settings import ClusterSettings
from stoker.sites.interface import EngineJobs
from stoker.sites.slurm.attempts import SILENT_SECONDS, UNSEEN_STATES, Bundle, ref_of
from stoker.sites.slurm.commands import NodeSize
from stoker.sites.slurm.pilot_files import (
    OWN_CLAIM,
    Ask,
    Hand,
    Here,
    Left,
    News,
    Order,
    PilotFolder,
    PilotPlan,
    Ready,
    Recall,
    Report,
    Stop,
)

IDLE_SECONDS = 60.0
"""Seconds without work after which a pilot leaves."""
FIRST_AHEAD = 8
MOST_AHEAD = 256
"""Attempts that wait in a pilot: at first, and at most where it starts them faster than the head looks."""
SHORT_SECONDS = 600.0
MANY = 8
"""Jobs with a limit below this run in pilots, where more than so many of them wait."""
SPARE_SECONDS = 60.0
"""A pilot gets nothing that cannot end so long before the pilot's own end."""
MARK = "pilot"
"""Begins the name of a pilot, so that a new engine tells it from a bundle."""


class Handed:
    """An attempt in a pilot."""

    def __init__(self, job: Job) -> None:
        self.job_id = job.id
        self.number = job.attempts
        self.assigned = False
        """Whether the pilot may have begun with it."""
        self.began: float | None = None


class Pilot(Bundle):
    """One pilot: a single task in Slurm, and the attempts that it was given."""

    def __init__(self, name: str, tag: str, folder: Path) -> None:
        super().__init__(name, tag, folder)
        self.files = PilotFolder(folder)
        self.folder = self.files
        self.handed: dict[str, Handed] = {}
        self.answers = Answers()
        self.ready: Ready | None = None
        self.leaving = False
        self.ahead = FIRST_AHEAD
        self.gpus = 1
        """GPUs that it must have, for the largest of the jobs for which it is started."""
        self.count = 0
        self.until: float | None = None
        """When Slurm ends it."""
        self.asked_at: float | None = None
        """When it was asked whether it lives (monotonic); None where it answered, or there was no need."""
        self._offset = 0
        self._environments: set[str] = set()

    @property
    def tasks(self) -> Collection[int]:
        return (0,)

    @property
    def waiting(self) -> int:
        return sum(each.began is None for each in self.handed.values())

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


class Pilots:
    """All pilots of an engine."""

    def __init__(
        self, jobs: EngineJobs, settings: ClusterSettings, environment: Callable[[str], dict[str, str]]
    ) -> None:
        """`environment` finds the variables of a digest."""
        self.all: dict[str, Pilot] = {}
        self.over: list[Pilot] = []
        """Pilots whose last events are not recorded yet."""
        self.nodes: NodeSize | None = None
        """The largest node, once Slurm told."""
        self.failures: list[str] = []
        """Why pilots ended before they worked, since the last one that did."""
        self._jobs = jobs
        self._settings = settings
        self._environment = environment
        self._orders: dict[str, list[Order]] = {}

    # -- which jobs -------------------------------------------------------------------------------

    def choose(self, waiting: Sequence[Job]) -> list[Job]:
        """Those of the waiting jobs that run in pilots."""
        if self._settings.pilots == "never":
            return []
        able = [job for job in waiting if self._is_able(job)]
        if self._settings.pilots == "always" or self._settings.private:
            return able
        short = [job for job in able if job.spec.limit is not None and job.spec.limit < SHORT_SECONDS]
        many = {job.id for job in short} if len(short) > MANY else set()
        return [job for job in able if job.spec.resources.shares or job.id in many]

    def _is_able(self, job: Job) -> bool:
        """Whether a pilot can run it. Slurm itself keeps the limit of an array, and finds GPUs of a model."""
        spec, gpus = job.spec, job.spec.resources.gpus
        single = spec.nodes == 1 and spec.at_once is None and (self._settings.private or not spec.resources.model)
        fits = gpus > 0 and (self.nodes is None or gpus <= max(1, self.nodes.gpus))
        return single and fits and (spec.limit or 0.0) + 2 * SPARE_SECONDS < self._settings.pilot_time

    def wanted(self, waiting: Sequence[Job], nodes: NodeSize) -> int:
        """How many more pilots to start for jobs that wait, and for those in pilots that have not started."""
        if not waiting:
            return 0
        pending = [pilot for pilot in self.all.values() if pilot.ready is None]
        alive = [pilot for pilot in self.all.values() if not pilot.leaving]
        gpus = nodes.gpus or 1
        need = sum(job.spec.resources.gpus for job in waiting)
        useful = max(1, ceil(need / gpus)) - len(pending)
        return max(0, min(useful, self._settings.pilots_max - len(alive)))

    def dispensable(self) -> list[Pilot]:
        """Pilots that have not begun and have nothing to do any more; from now on none of them will begin."""
        pending = [pilot for pilot in self.all.values() if pilot.ready is None and not pilot.handed and pilot.made]
        given_up = [pilot for pilot in pending if pilot.files.claim_as(OWN_CLAIM)]
        for pilot in given_up:
            del self.all[pilot.name]
            self.over.append(pilot)
        return given_up

    def feed(self, waiting: Sequence[Job], now: float, user: str) -> None:
        """Assign waiting jobs to pilots that have room; the orders follow once that is recorded."""
        left = list(waiting)
        for pilot in self.all.values():
            if pilot.ready is None or pilot.leaving:
                continue
            if pilot.waiting == 0 and pilot.handed:
                pilot.ahead = min(2 * pilot.ahead, MOST_AHEAD)
            room = pilot.ahead - pilot.waiting
            fitting = [job for job in left if _fits(job, pilot, now)][: max(0, room)]
            for job in fitting:
                self._assign(pilot, job, now, user)
            chosen = {job.id for job in fitting}
            left = [job for job in left if job.id not in chosen]

    def _assign(self, pilot: Pilot, job: Job, now: float, user: str) -> None:
        pilot.count += 1
        out, err = output_paths(job, user)
        hand = pilot.hand_of(job, self._environment)
        after = self._jobs.apply(
            job, Assigned(ref_of(pilot.name, pilot.count), (), out, now, "" if err == out else err)
        )
        pilot.handed[attempt_key(after.id, after.attempts)] = Handed(after)
        self._orders.setdefault(pilot.name, []).append(hand)

    def send(self) -> bool:
        """Send all orders, once the assignments are recorded; whether there were any. What fails stays to be sent."""
        orders, self._orders, failure = self._orders, {}, None
        for name, some in orders.items():
            if name in self.all:
                try:
                    self.all[name].files.give(some)
                except OSError as error:
                    self._orders[name], failure = some, error
        if failure is not None:
            raise failure
        return bool(orders)

    # -- single jobs ------------------------------------------------------------------------------

    def find(self, job: Job) -> Pilot | None:
        assert isinstance(job.state, Active)
        pilot = self.all.get(job.state.ref.rpartition(".")[0])
        return pilot if pilot and attempt_key(job.id, job.attempts) in pilot.handed else None

    def stop(self, pilot: Pilot, job: Job, grace: float, number: int) -> None:
        note = job.state.note if isinstance(job.state, Stopping) else ""
        self._orders.setdefault(pilot.name, []).append(Stop(job.id, note, grace, number))

    def recall(self, pilot: Pilot, job: Job) -> None:
        self._orders.setdefault(pilot.name, []).append(Recall(job.id))

    def adopt(self, pilot: Pilot, job: Job) -> None:
        """Order the attempt once more, since the last engine may have died before it did; a pilot takes it once."""
        pilot.handed[attempt_key(job.id, job.attempts)] = Handed(job)
        if started_at(job) is None:
            hand = pilot.hand_of(replace(job, attempts=job.attempts - 1), self._environment)
            self._orders.setdefault(pilot.name, []).append(hand)
        if isinstance(job.state, Stopping):
            self.stop(pilot, job, job.spec.grace, 0)
        pilot.count = max(pilot.count, int(getattr(job.state, "ref", ".0").rpartition(".")[2]))

    # -- what happens -----------------------------------------------------------------------------

    def look(self) -> bool:
        """Apply the news of all pilots; whether there was any."""
        any_news = False
        for pilot in list(self.all.values()):
            if not pilot.made:
                continue
            for one in pilot.news():
                any_news = True
                match one:
                    case Ready():
                        pilot.ready = one
                        self.failures.clear()
                    case Here():
                        pilot.asked_at, pilot.answers = None, Answers()
                    case Left():
                        pilot.leaving = True
                    case Report():
                        self._report(pilot, one)
        if any_news:
            self._jobs.plan_due = True
        return any_news

    def _report(self, pilot: Pilot, report: Report) -> None:
        handed, job = pilot.handed.get(report.attempt), self._jobs.attempt(report.attempt)
        if handed is None:
            return
        if isinstance(report.event, Assigned):
            handed.assigned = True
            return
        if job is not None:
            event = _translated(job, handed, report.event, self._jobs.clock())
            if isinstance(event, Started):
                if started_at(job) is None:
                    self._jobs.apply(job, event)
                return
            self._jobs.apply(job, event)
            self._jobs.resume(job.id)  # what one node is short of says nothing about the next
        if not isinstance(report.event, Started):
            del pilot.handed[report.attempt]

    def note(self, pilot: Pilot, fact: SlurmFact | None, seconds: float) -> None:
        pilot.answers = heard(pilot.answers, fact, seconds)
        if fact is not None and fact.state == "RUNNING" and fact.start is not None:
            pilot.until = fact.start + self._settings.pilot_time

    def decide(self, pilot: Pilot) -> None:
        """Give up a pilot that Slurm does no more for; its news were read after that answer."""
        fact = pilot.answers.fact
        stalled = pilot.ready is None and is_stalled(pilot.answers)
        if not is_settled(pilot.answers) and not stalled:
            return
        never_began = pilot.files.claim_as(OWN_CLAIM)
        if not never_began and (stalled or not self._is_dead(pilot)):
            return
        for key, handed in list(pilot.handed.items()):
            job = self._jobs.attempt(key)
            if job is not None:
                self._lose(pilot, job, key, handed, safe=never_began or (fact is not None and not handed.assigned))
            del pilot.handed[key]
        if pilot.ready is None and fact is not None and fact.state in ("FAILED", "COMPLETED", "OUT_OF_MEMORY"):
            self.failures.append(pilot.files.error(0) or said(fact))
        del self.all[pilot.name]
        self.over.append(pilot)
        self._jobs.plan_due = True

    def _is_dead(self, pilot: Pilot) -> bool:
        """As for an attempt: a pilot that Slurm lost sight of is asked, and must be silent."""
        fact, now = pilot.answers.fact, time.monotonic()
        if fact is not None and fact.state not in UNSEEN_STATES:
            return True
        if pilot.asked_at is None:
            self._orders.setdefault(pilot.name, []).append(Ask())
            pilot.asked_at = now
        return now - pilot.asked_at >= SILENT_SECONDS

    def _lose(self, pilot: Pilot, job: Job, key: str, handed: Handed, *, safe: bool) -> None:
        """`safe`: the pilot is dead and had not begun with the attempt."""
        now = self._jobs.clock()
        if started_at(job) is None and (safe or pilot.files.claim_as(key)):
            self._jobs.apply(job, Returned(handed.number, now))
            return
        fact = pilot.answers.fact
        taken_away = fact is not None and fact.state in ("PREEMPTED", "TIMEOUT", "CANCELLED", "DEADLINE")
        note = f"its pilot ended (Slurm: {fact.state})" if fact is not None else loss_text(pilot.answers)
        self._jobs.apply(job, Lost(handed.number, now, note, preempted=taken_away))


def _fits(job: Job, pilot: Pilot, now: float) -> bool:
    assert pilot.ready is not None
    lasts = job.spec.limit or 0.0
    in_time = pilot.until is None or now + lasts + SPARE_SECONDS < pilot.until
    return job.spec.resources.gpus <= pilot.ready.gpus and in_time


def _translated(job: Job, handed: Handed, event: Event, now: float) -> Event:
    """A pilot's event with the number of the head's attempt, and by the head's clock."""
    assert isinstance(job.state, Active)
    if isinstance(event, Started):
        handed.began = event.at
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


def pilot_plan(cluster: str, settings: ClusterSettings, reports: Path, own: Mapping[str, str], gpus: int) -> PilotPlan:
    """The plan of a pilot; simulated GPUs and a ledger of one's own come from the head's environment."""
    return PilotPlan(
        cluster,
        str(reports),
        IDLE_SECONDS,
        own.get("STOKER_SIM", ""),
        own.get("STOKER_LEDGER", ""),
        whole_node=settings.private,
        gpus=gpus,
    )


def pilot_words(settings: ClusterSettings, nodes: NodeSize, need: int, least: int) -> Iterator[str]:
    """Options for sbatch: GPUs of one node, with their share of its memory and cores, for the time of a pilot.

    `need` are the GPUs of all jobs that wait, `least` those of the largest.
    """
    for name, value in (("partition", settings.partition), ("account", settings.account), ("qos", settings.qos)):
        if value:
            yield f"--{name}={value}"
    gpus = min(nodes.gpus, max(1, need)) if nodes.gpus else 1
    yield "--nodes=1"
    if settings.private:  # the ledger of the node shares its GPUs with other users
        yield "--exclusive"
        yield f"--gres=gpu:{least}"
    else:
        yield f"--gres=gpu:{gpus}"
        yield f"--mem={nodes.memory * gpus // max(1, nodes.gpus) * 9 // 10}"
        yield f"--cpus-per-task={max(1, nodes.cpus * gpus // max(1, nodes.gpus))}"
    yield f"--time={ceil(settings.pilot_time / 60)}"
    yield "--signal=B:USR1@60"
    yield from settings.options


def is_pilot(name: str) -> bool:
    return name.startswith(MARK)
