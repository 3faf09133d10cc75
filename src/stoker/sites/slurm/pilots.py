"""The head's side of pilots: which jobs they get, how many there are, and what becomes of attempts in them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from math import ceil
from pathlib import Path

from msgspec.structs import replace

from stoker.core.cluster import Answers, SlurmFact, heard, is_settled, loss_text, said
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
from stoker.core.launch import attempt_key
from stoker.core.planner.queue import Group
from stoker.core.planner.reasons import InCluster
from stoker.core.settings import ClusterSettings
from stoker.sites.slurm.attempts import Bundle, read_ref, ref_of
from stoker.sites.slurm.commands import NodeSize
from stoker.sites.slurm.context import ClusterContext
from stoker.sites.slurm.pace import Pace
from stoker.sites.slurm.pilot_files import (
    OWN_CLAIM,
    Hand,
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

FASTEST_LOOK = 0.02
SLOWEST_LOOK = 0.5
LOOK_SHARE = 100
"""Seconds between two looks at the news of pilots, and longer if one takes more than a part in so many of that."""
IDLE_SECONDS = 60.0
"""Seconds without work after which a pilot leaves."""
FIRST_AHEAD = 2
"""Attempts that wait in a pilot, for each of its GPUs: at least..."""
AHEAD_SECONDS = 0.5
"""... and as many as it starts in this time: until the head has heard that they started, and its orders arrive..."""
MOST_AHEAD = 256
"""... and at most so many in all."""
RATE_SECONDS = 0.2
"""Starts are counted for at least so long before the rate of a pilot is known."""
SETTLED_SECONDS = 1.0
"""An attempt that waits in a pilot for longer is recalled, where another pilot has a GPU free for it."""
SHORT_SECONDS = 600.0
MANY = 8
"""Jobs with a limit below this run in pilots, where more than so many of them wait."""
SPARE_SECONDS = 60.0
"""A pilot gets nothing that cannot end so long before the pilot's own end."""
MARK = "pilot"
"""Begins the name of a pilot, so that a new engine tells it from a bundle."""


class Handed:
    """An attempt in a pilot."""

    def __init__(self, job: Job, since: float) -> None:
        self.job_id = job.id
        self.number = job.attempts
        self.gpus = job.spec.resources.gpus
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
        self.idle_gpus = 0
        """GPUs less those that its attempts need: negative where some have to wait, or share."""
        self.answers = Answers()
        self.ready: Ready | None = None
        self.leaving = False
        self.room = 0
        """How many more attempts it may be given now..."""
        self.offered = 0
        """... and how many it is going to be given."""
        self.count = 0
        self.until: float | None = None
        """When Slurm ends it."""
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
        """Attempts for each GPU."""
        return (len(self.handed) + self.offered) / self.gpus

    @property
    def is_usable(self) -> bool:
        return self.ready is not None and not self.leaving

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


class Pilots:
    """All pilots of an engine."""

    def __init__(self, context: ClusterContext) -> None:
        self.all: dict[str, Pilot] = {}
        self.failures: list[str] = []
        """Why pilots ended before they worked, since the last one that did."""
        self.pace = Pace(FASTEST_LOOK, SLOWEST_LOOK, LOOK_SHARE)
        self._context = context
        self._jobs = context.jobs
        self._directory = context.directory
        self._orders = context.orders
        self._settings = context.settings
        self._count = 0
        self._new: list[Pilot] = []
        """Pilots without files yet."""
        self._over: list[Pilot] = []
        """Pilots whose last events are not recorded yet."""
        self._offered: list[tuple[Pilot, Job]] = []
        self._outgoing: dict[str, list[Order]] = {}
        self._many_short = False

    # -- which jobs -------------------------------------------------------------------------------

    def takes(self, job: Job) -> bool:
        """Whether a job runs in a pilot, as things were at the last survey."""
        spec = job.spec
        if self._settings.pilots == "never" or spec.nodes > 1 or not spec.resources.gpus:
            return False
        if self._settings.pilots == "always" or self._settings.private or spec.resources.shares:
            return True
        return self._many_short and _is_short(spec.limit)

    def survey(self, waiting: Iterable[Group], now: float) -> None:
        """See what waits, and which pilots have room."""
        short = [group for group in waiting if group.shape.resources.gpus and _is_short(group.shape.limit)]
        self._many_short = sum(len(group) for group in short if group.shape.nodes == 1) > MANY
        for pilot in self.all.values():
            pilot.measure_room(now)

    def offer(self, job: Job, now: float) -> bool:
        """Keep a place for a job in the pilot with the least to do, if one has room."""
        fitting = [pilot for pilot in self.all.values() if pilot.room > 0 and _fits(job, pilot, now)]
        if not fitting:
            return False
        pilot = min(fitting, key=lambda each: each.load)
        pilot.room -= 1
        pilot.offered += 1
        self._offered.append((pilot, job))
        return True

    def assign_offered(self, now: float) -> None:
        """Assign jobs to the places that were kept; the orders follow once that is recorded."""
        offered, self._offered = self._offered, []
        for pilot, job in offered:
            pilot.count += 1
            out, err = self._orders.outputs(job)
            hand = pilot.hand_of(job, self._orders.environment)
            ref = ref_of(pilot.name, pilot.count)
            after = self._jobs.apply(job, Assigned(ref, (), out, now, "" if err == out else err))
            pilot.give(attempt_key(after.id, after.attempts), Handed(after, now))
            self._order(pilot, hand)

    def _order(self, pilot: Pilot, order: Order) -> None:
        self._outgoing.setdefault(pilot.name, []).append(order)

    def send(self) -> None:
        """Send all orders, once the assignments are recorded."""
        orders, self._outgoing = self._outgoing, {}
        for name, some in orders.items():
            if name in self.all:
                try:
                    self.all[name].files.give(some)
                except OSError:
                    self._outgoing.setdefault(name, []).extend(some)

    # -- how many ---------------------------------------------------------------------------------

    def start(self, need: int, nodes: NodeSize, now: float) -> None:
        """Start pilots for jobs that need so many GPUs and have no place in one."""
        for _ in range(self._wanted(need, nodes)):
            self._count += 1
            pilot = self._add(f"{MARK}{self._context.instance}-{self._count}")
            pilot.options = ["--job-name=stoker-pilot", *pilot_words(self._settings, nodes, need)]
            pilot.since = now
            self._new.append(pilot)

    def _wanted(self, need: int, nodes: NodeSize) -> int:
        """How many more pilots to start."""
        if not need:
            return 0
        pending = sum(pilot.ready is None for pilot in self.all.values())
        alive = sum(not pilot.leaving for pilot in self.all.values())
        useful = max(1, ceil(need / (nodes.gpus or 1))) - pending
        return max(0, min(useful, self._settings.pilots_max - alive))

    def _add(self, name: str) -> Pilot:
        pilot = self.all[name] = Pilot(name, self._context.tag + name, self._directory.folder(name))
        return pilot

    def write_new(self) -> OSError | None:
        """Write the files of new pilots; the error where that was not possible, and the pilot was given up."""
        new, self._new = self._new, []
        plan = pilot_plan(self._context.name, self._settings, self._directory.files.reports, os.environ)
        for pilot in new:
            try:
                self._directory.make()
                pilot.files.make_pilot(plan)
                pilot.made = True
            except OSError as error:
                del self.all[pilot.name]
                return error
        return None

    def dispensable(self) -> list[Pilot]:
        """Pilots that have not begun and have nothing to do any more; from now on none of them will begin."""
        pending = [pilot for pilot in self.all.values() if pilot.ready is None and not pilot.handed and pilot.made]
        given_up = [pilot for pilot in pending if pilot.files.claim_as(OWN_CLAIM)]
        for pilot in given_up:
            self._leave(pilot)
        return given_up

    def _leave(self, pilot: Pilot) -> None:
        del self.all[pilot.name]
        self._over.append(pilot)

    def remove_over(self) -> None:
        """Remove the files of pilots whose last events are recorded."""
        over, self._over = self._over, []
        for pilot in over:
            pilot.folder.remove()

    # -- single jobs ------------------------------------------------------------------------------

    def _find(self, job: Job) -> Pilot | None:
        assert isinstance(job.state, Active)
        pilot = self.all.get(read_ref(job.state.ref)[0])
        return pilot if pilot and attempt_key(job.id, job.attempts) in pilot.handed else None

    def stop(self, job: Job, grace: float, number: int) -> None:
        if (pilot := self._find(job)) is not None:
            note = job.state.note if isinstance(job.state, Stopping) else ""
            self._order(pilot, Stop(job.id, note, grace, number))

    def recall(self, job: Job) -> None:
        """Ask for an attempt back that has not started."""
        if (pilot := self._find(job)) is not None:
            self._order(pilot, Recall(job.id))

    def adopt(self, job: Job) -> None:
        """Take over an attempt of a dead engine.

        It is ordered once more, since that engine may have died before it did; a pilot takes it once.
        """
        assert isinstance(job.state, Active)
        name, index = read_ref(job.state.ref)
        pilot = self.all.get(name)
        if pilot is None:
            pilot = self._add(name)
            pilot.made, pilot.submitted_at = True, 0.0  # it worked when it was given the job
        handed = Handed(job, job.state.since)
        pilot.give(attempt_key(job.id, job.attempts), handed)
        if (began := started_at(job)) is not None:
            pilot.note_start(handed, began)
        else:
            self._order(pilot, pilot.hand_of(replace(job, attempts=job.attempts - 1), self._orders.environment))
        if isinstance(job.state, Stopping):
            self.stop(job, job.spec.grace, 0)
        pilot.count = max(pilot.count, index)

    # -- what happens -----------------------------------------------------------------------------

    def look(self) -> None:
        """Apply the news of all pilots."""
        began = self._jobs.clock()
        news = [(pilot, one) for pilot in self.all.values() if pilot.made for one in pilot.news()]
        for pilot, one in news:
            self._hear(pilot, one)
        if news:
            self._jobs.plan_due = True
        now = self._jobs.clock()
        self._balance(now)
        self.pace.looked(now, now - began, news=bool(news))

    def _hear(self, pilot: Pilot, news: News) -> None:
        match news:
            case Ready():
                pilot.get_ready(news)
                self.failures.clear()
            case Left():
                pilot.leaving = True
            case Report():
                self._report(pilot, news)

    def _report(self, pilot: Pilot, report: Report) -> None:
        handed, job = pilot.handed.get(report.attempt), self._jobs.attempt(report.attempt)
        if handed is None:
            return
        if isinstance(report.event, Assigned):
            handed.assigned = True
            return
        if isinstance(report.event, Started):
            pilot.note_start(handed, report.event.at)
        else:
            pilot.forget(report.attempt)
        if job is None or (isinstance(report.event, Started) and started_at(job) is not None):
            return
        self._jobs.apply(job, _translated(job, handed, report.event, self._jobs.clock()))
        self._jobs.resume(job.id)  # what one node is short of says nothing about the next

    def _balance(self, now: float) -> None:
        """Recall attempts that wait in one pilot while another one has GPUs for them and nothing else waits."""
        idle = max((pilot.idle_gpus for pilot in self.all.values() if pilot.is_usable), default=0)
        if idle <= 0 or self._jobs.waiting:
            return
        crowded = [pilot for pilot in self.all.values() if pilot.waiting and pilot.idle_gpus < 0]
        for pilot, handed in [(each, handed) for each in crowded for handed in each.handed.values()]:
            settled = handed.began is None and not handed.recalled and now - handed.since > SETTLED_SECONDS
            if settled and handed.gpus <= idle:
                handed.recalled = True
                idle -= handed.gpus
                self._order(pilot, Recall(handed.job_id))

    def judge(self, facts: Mapping[tuple[str, int], SlurmFact], asked_at: float, seconds: float) -> None:
        """Note an answer of Slurm's, and give up pilots that it does no more for; their news were read after it."""
        for pilot in list(self.all.values()):
            if pilot.submitted_at is not None and asked_at > pilot.submitted_at:
                self._note(pilot, facts.get((pilot.tag, 0)), seconds)
                if is_settled(pilot.answers):
                    self._give_up(pilot)

    def _note(self, pilot: Pilot, fact: SlurmFact | None, seconds: float) -> None:
        pilot.answers = heard(pilot.answers, fact, seconds)
        if fact is not None and fact.state == "RUNNING" and fact.start is not None:
            pilot.until = fact.start + self._settings.pilot_time

    def _give_up(self, pilot: Pilot) -> None:
        fact = pilot.answers.fact
        never_began = pilot.files.claim_as(OWN_CLAIM)
        for key, handed in list(pilot.handed.items()):
            job = self._jobs.attempt(key)
            if job is not None:
                self._lose(pilot, job, key, handed, safe=never_began or (fact is not None and not handed.assigned))
            pilot.forget(key)
        if pilot.ready is None and fact is not None and fact.state in ("FAILED", "COMPLETED", "OUT_OF_MEMORY"):
            self.failures.append(pilot.files.error(0) or said(fact))
        self._leave(pilot)
        self._jobs.plan_due = True

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

    def situations(self) -> dict[str, InCluster]:
        """Why attempts have not started, by pilot."""
        return {name: InCluster(None, f"waits in a pilot{_node_text(pilot)}") for name, pilot in self.all.items()}


def _is_short(limit: float | None) -> bool:
    return limit is not None and limit < SHORT_SECONDS


def _node_text(pilot: Pilot) -> str:
    return f" on {pilot.ready.node}" if pilot.ready is not None else ""


def _fits(job: Job, pilot: Pilot, now: float) -> bool:
    assert pilot.ready is not None
    lasts = job.spec.limit or 0.0
    in_time = pilot.until is None or now + lasts + SPARE_SECONDS < pilot.until
    return job.spec.resources.gpus <= pilot.ready.gpus and in_time


def _translated(job: Job, handed: Handed, event: Event, now: float) -> Event:
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


def pilot_plan(cluster: str, settings: ClusterSettings, reports: Path, own: Mapping[str, str]) -> PilotPlan:
    """The plan of a pilot; simulated GPUs and a ledger of one's own come from the head's environment."""
    return PilotPlan(
        cluster,
        str(reports),
        IDLE_SECONDS,
        own.get("STOKER_SIM", ""),
        own.get("STOKER_LEDGER", ""),
        whole_node=settings.private,
    )


def pilot_words(settings: ClusterSettings, nodes: NodeSize, need: int) -> Iterator[str]:
    """Options for sbatch: GPUs of one node, with their share of its memory and cores, for the time of a pilot."""
    for name, value in (("partition", settings.partition), ("account", settings.account), ("qos", settings.qos)):
        if value:
            yield f"--{name}={value}"
    gpus = min(nodes.gpus, max(1, need)) if nodes.gpus else 1
    yield "--nodes=1"
    if settings.private:  # the ledger of the node shares its GPUs with other users
        yield "--exclusive"
    else:
        yield f"--gres=gpu:{gpus}"
        yield f"--mem={nodes.memory * gpus // max(1, nodes.gpus) * 9 // 10}"
        yield f"--cpus-per-task={max(1, nodes.cpus * gpus // max(1, nodes.gpus))}"
    yield f"--time={ceil(settings.pilot_time / 60)}"
    yield "--signal=B:USR1@60"
    yield from settings.options


def is_pilot(name: str) -> bool:
    return name.startswith(MARK)
