"""The head's side of pilots: which jobs they get, how many there are, and what becomes of attempts in them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import ceil

from msgspec.structs import replace

from stoker.core.job import (
    Active,
    Assigned,
    Displaced,
    Event,
    Job,
    Lost,
    Returned,
    Running,
    Started,
    Stayed,
    Stopping,
    started_at,
)
from stoker.core.launch import attempt_key
from stoker.core.planner.queue import WaitingGroup
from stoker.core.planner.reasons import InCluster
from stoker.features.slurm.attempts import SILENT_SECONDS, read_ref, ref_of
from stoker.features.slurm.commands import NodeSize
from stoker.features.slurm.guard import OWN_CLAIM
from stoker.features.slurm.judge import (
    UNSEEN_STATES,
    Answers,
    SlurmFact,
    count_answer,
    is_ghost,
    is_settled,
    is_stalled,
    loss_text,
    reason_text,
    slurm_text,
)
from stoker.features.slurm.node_checks import NodeChecks, pilot_check
from stoker.features.slurm.orders import PILOT_MARK, ClusterContext
from stoker.features.slurm.pilot.files import (
    Alive,
    AttemptReport,
    CheckOrder,
    GiveWay,
    IdleReport,
    Leave,
    Leaving,
    Over,
    PilotEvent,
    PilotOrder,
    PilotReady,
    Ping,
    Recall,
    Stop,
)
from stoker.features.slurm.pilot.handle import (
    SPARE_SECONDS,
    DelegatedAttempt,
    FreePlaces,
    PilotHandle,
    is_short,
    pilot_gpus,
    pilot_plan,
    pilot_words,
    translated,
)
from stoker.store.waiting import PollPace

FASTEST_LOOK = 0.02
SLOWEST_LOOK = 0.5
LOOK_SHARE = 100
LONGEST_PAUSE = 5.0
"""Seconds between two looks at the events of pilots. Looking takes at most 1/LOOK_SHARE of the time, unless there are
so many pilots on so slow a shared directory that news would wait for longer than LONGEST_PAUSE."""
SETTLED_SECONDS = 1.0
"""Seconds that an attempt waits in a pilot before another pilot with a free GPU may get it."""
MANY_SHORT = 8
"""Short jobs run in pilots if there are more of them than this, or a pilot has idle GPUs."""


class Pilots:
    """All pilots of an engine."""

    def __init__(self, context: ClusterContext) -> None:
        self.all: dict[str, PilotHandle] = {}
        self.nodes: NodeSize | None = None
        """The largest node, once Slurm has told."""
        self.failures: list[str] = []
        """Why pilots ended before they worked, since the last one that did."""
        self.pace = PollPace(FASTEST_LOOK, SLOWEST_LOOK, LOOK_SHARE)
        self._context = context
        self._jobs = context.jobs
        self._directory = context.directory
        self._orders = context.orders
        self._settings = context.settings
        self._new: list[PilotHandle] = []
        """Pilots without files yet."""
        self._places = FreePlaces((), 0.0)
        self._offered: list[tuple[PilotHandle, Job]] = []
        self._outgoing: dict[str, list[PilotOrder]] = {}
        self._many_short = False
        self._moving: set[int] = set()
        """Jobs that were recalled from one pilot for another, and have no place yet."""
        self._most: int | None = None
        """GPUs that a new pilot may ask for after larger ones had to wait; None is a whole node."""
        self.checks = NodeChecks(context, self.check)

    # -- which jobs -------------------------------------------------------------------------------

    def takes(self, job: Job) -> bool:
        """Whether a job runs in a pilot, as things were at the last survey."""
        spec = job.spec
        if self._settings.pilots == "never" or not self._is_able(job):
            return False
        if self._settings.pilots == "always" or self._settings.private or spec.resources.shares:
            return True
        return is_short(spec.limit) and (self._many_short or self._have_idle(job) or self._is_moving(job))

    def _is_moving(self, job: Job) -> bool:
        """Whether a job was recalled for a pilot with idle GPUs, which others may have taken meanwhile."""
        return job.id in self._moving and any(pilot.is_usable for pilot in self.all.values())

    def _have_idle(self, job: Job) -> bool:
        now = self._jobs.clock()
        return any(pilot.has_idle(job, now) for pilot in self.all.values())

    def _is_able(self, job: Job) -> bool:
        """Whether a pilot can run it: in one node, in its time; Slurm itself finds models and reads its own options."""
        spec, gpus = job.spec, job.spec.resources.gpus
        single = spec.nodes == 1 and not spec.slurm and (self._settings.private or not spec.resources.model)
        fits = gpus > 0 and (self.nodes is None or gpus <= max(1, self.nodes.gpus))
        return single and fits and (spec.limit or 0.0) + 2 * SPARE_SECONDS < self._settings.pilot_time

    def survey(self, waiting: Iterable[WaitingGroup], now: float) -> None:
        """See how many short jobs there are, waiting or in pilots, and which pilots have room."""
        short = [group for group in waiting if group.job_kind.resources.gpus and is_short(group.job_kind.limit)]
        waiting_count = sum(len(group) for group in short if group.job_kind.nodes == 1)
        self._many_short = waiting_count + sum(pilot.short for pilot in self.all.values()) > MANY_SHORT
        for pilot in self.all.values():
            pilot.measure_room(now)
        self._places = FreePlaces(self.all.values(), now)

    def offer(self, job: Job) -> bool:
        """Keep a place for a job in the pilot with the least to do, if one has room."""
        pilot = self._places.take(job)
        if pilot is not None:
            self._offered.append((pilot, job))
        return pilot is not None

    def assign_offered(self, now: float) -> None:
        """Assign jobs to the places that were kept; the orders follow once that is recorded."""
        offered, self._offered = self._offered, []
        for pilot, job in offered:
            self._moving.discard(job.id)
            pilot.count += 1
            order = pilot.run_order(job, self._orders.environment)
            after = self._jobs.apply(job, self._orders.assigned(job, ref_of(pilot.name, pilot.count), now))
            pilot.give(attempt_key(after.id, after.attempts), DelegatedAttempt(after, now))
            self._order(pilot, order)

    def balance(self, now: float) -> None:
        """Recall what waits in one pilot while another one has GPUs for it that no other job takes."""
        usable = (pilot for pilot in self.all.values() if pilot.is_usable)
        free = max(usable, key=lambda pilot: pilot.idle_gpus, default=None)
        if free is None:
            return
        idle = free.idle_gpus
        for pilot, delegated in self._backlog(now):
            if idle <= 0:
                return
            job = self._jobs.active(delegated.job_id)
            if job is not None and delegated.gpus <= idle and free.fits(job, now):
                delegated.recalled = True
                self._moving.add(delegated.job_id)
                idle -= delegated.gpus
                self._order(pilot, Recall(delegated.job_id))

    def _backlog(self, now: float) -> Iterator[tuple[PilotHandle, DelegatedAttempt]]:
        """Attempts that wait in pilots for so long that another pilot would be better."""
        for pilot in self.all.values():
            yield from ((pilot, delegated) for delegated in pilot.backlog(now - SETTLED_SECONDS))

    def _order(self, pilot: PilotHandle, order: PilotOrder) -> None:
        self._outgoing.setdefault(pilot.name, []).append(order)

    def send(self) -> OSError | None:
        """Send all orders, once the assignments are recorded; the error if some could not be sent, which stay."""
        orders, self._outgoing, failure = self._outgoing, {}, None
        for name, own_orders in orders.items():
            if name in self.all:
                try:
                    self.all[name].files.give(own_orders)
                except OSError as error:
                    self._outgoing[name], failure = own_orders, error
        if orders and failure is None:
            self._directory.trouble = ""
        return failure

    # -- how many ---------------------------------------------------------------------------------

    def start(self, need: int, least: int, nodes: NodeSize, now: float) -> None:
        """Start pilots for jobs without a place, which need `need` GPUs in all and `least` for the largest of them."""
        need += sum(delegated.gpus for _, delegated in self._backlog(now))
        if not need:
            self._most = None
        gpus = pilot_gpus(nodes, need, least, self._most)
        gpus_each = gpus if self._most is not None else nodes.gpus or 1
        for _ in range(self._wanted(need, gpus_each)):
            pilot = self._add(self._context.new_name(PILOT_MARK))
            pilot.options = ["--job-name=stoker-pilot", *pilot_words(self._settings, nodes, gpus, least)]
            pilot.since, pilot.least, pilot.asked_gpus = now, least, gpus
            self._new.append(pilot)

    def _wanted(self, need: int, gpus: int) -> int:
        """How many more pilots to start."""
        if not need:
            return 0
        pending = sum(pilot.ready is None for pilot in self.all.values())
        useful = max(1, ceil(need / gpus)) - pending
        return max(0, min(useful, self.may_start))

    @property
    def may_start(self) -> int:
        """How many more pilots there may be."""
        return max(0, self._settings.pilots_max - sum(not pilot.leaving for pilot in self.all.values()))

    def _add(self, name: str) -> PilotHandle:
        pilot = self.all[name] = PilotHandle(name, self._context.tag + name, self._directory.folder(name))
        return pilot

    def write_new(self) -> OSError | None:
        """Write the files of new pilots; the error if that was not possible, and the pilot was given up."""
        new, self._new = self._new, []
        files = self._directory.files
        for pilot in new:
            try:
                plan = pilot_plan(self._context.name, self._settings, files, os.environ, pilot.least)
                pilot.files.make_pilot(plan)
                pilot.made = True
            except OSError as error:
                del self.all[pilot.name]
                return error
        return None

    def dispensable(self) -> list[PilotHandle]:
        """Pilots that have not begun and have nothing to do any more; from now on none of them will begin."""
        if any(pilot.waiting for pilot in self.all.values()):
            return []
        return self._give_back(pilot for pilot in self.all.values() if not pilot.delegated)

    def too_large(self) -> list[PilotHandle]:
        """Pilots that wait in Slurm for more GPUs of a node than are free; the next ones ask for half as many."""
        if self._settings.private:  # they take whole nodes, and the ledger shares these
            return []
        large = [pilot for pilot in self.all.values() if pilot.asked_gpus > pilot.least and pilot.is_held_up]
        others = sum(not pilot.leaving for pilot in self.all.values()) - len(large)
        if others + 2 * len(large) > self._settings.pilots_max:  # smaller ones would have fewer GPUs in all
            return []
        given_up = self._give_back(large)
        if given_up:
            self._most = max(1, min(pilot.asked_gpus for pilot in given_up) // 2)
            self._jobs.plan_due = True
        return given_up

    def _give_back(self, pilots: Iterable[PilotHandle]) -> list[PilotHandle]:
        """Give up those of the pilots that have not begun."""
        pending = [pilot for pilot in pilots if pilot.ready is None and pilot.made]
        given_up = [pilot for pilot in pending if pilot.files.claim(OWN_CLAIM)]
        for pilot in given_up:
            self._leave(pilot)
        return given_up

    @property
    def are_held_up(self) -> bool:
        """Whether a pilot waits for GPUs of others."""
        return any(pilot.is_held_up for pilot in self.all.values())

    def release_idle(self) -> None:
        """Let pilots leave that have nothing to do: other jobs of this user wait in Slurm for GPUs."""
        for pilot in self.all.values():
            if not pilot.delegated:
                self._release(pilot)

    def release_nodes(self, drained: Collection[str]) -> None:
        """Let pilots leave whose nodes are drained; what runs there comes to its end."""
        for pilot in self.all.values():
            if pilot.ready is not None and pilot.ready.node in drained:
                self._release(pilot)

    def _release(self, pilot: PilotHandle) -> None:
        if pilot.is_usable:
            self._order(pilot, Leave())
            pilot.leaving = True
            self._jobs.plan_due = True

    def _leave(self, pilot: PilotHandle) -> None:
        del self.all[pilot.name]
        self._directory.discard(pilot.folder)

    # -- single jobs ------------------------------------------------------------------------------

    def _find(self, job: Job) -> PilotHandle | None:
        assert isinstance(job.state, Active)
        pilot = self.all.get(read_ref(job.state.ref)[0])
        return pilot if pilot and attempt_key(job.id, job.attempts) in pilot.delegated else None

    def stop(self, job: Job, grace: float, signal_number: int) -> None:
        if (pilot := self._find(job)) is not None:
            note = job.state.note if isinstance(job.state, Stopping) else ""
            self._order(pilot, Stop(job.id, note, grace, signal_number))

    def has(self, job: Job) -> bool:
        """Whether a running job is in a pilot that can be given orders."""
        return self._find(job) is not None

    def give_way(self, job: Job) -> None:
        """Let a running attempt save its state and leave; a pilot that has asked it already does nothing."""
        assert isinstance(job.state, Running)
        assert job.state.giving_way is not None
        if (pilot := self._find(job)) is not None:
            self._order(pilot, GiveWay(job.id, job.state.giving_way.to, job.state.giving_way.note))

    def idle_since(self) -> dict[int, float | None]:
        """Since when the GPUs of jobs have not been used, as the pilots say; None for those that are used."""
        attempts = [attempt for pilot in self.all.values() for attempt in pilot.delegated.values()]
        return {attempt.job_id: attempt.idle_since for attempt in attempts if attempt.began is not None}

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
        key = attempt_key(job.id, job.attempts)
        pilot.give(key, DelegatedAttempt(job, job.state.since))
        if (began := started_at(job)) is not None:
            pilot.note_start(key, began)
        else:
            self._order(pilot, pilot.run_order(replace(job, attempts=job.attempts - 1), self._orders.environment))
        if isinstance(job.state, Stopping):
            self.stop(job, job.spec.grace, 0)
        pilot.count = max(pilot.count, index)

    # -- what happens -----------------------------------------------------------------------------

    def look(self) -> None:
        """Apply the events of all pilots."""
        began = self._jobs.clock()
        events = [(pilot, event) for pilot in self.all.values() if pilot.made for event in pilot.new_events()]
        for pilot, event in events:
            self._apply(pilot, event)
        now = self._jobs.clock()
        if events or self._may_relieve(now):
            self._jobs.plan_due = True
        self.pace.looked(now, min(now - began, LONGEST_PAUSE / LOOK_SHARE), news=bool(events))

    def _may_relieve(self, now: float) -> bool:
        """Whether attempts wait for long, and idle GPUs of another pilot or a new pilot may help."""
        idle = any(pilot.is_usable and pilot.idle_gpus > 0 for pilot in self.all.values())
        return bool(idle or self.may_start) and any(True for _ in self._backlog(now))

    def _apply(self, pilot: PilotHandle, event: PilotEvent) -> None:
        match event:
            case PilotReady():
                pilot.get_ready(event)
                self.failures.clear()
            case Alive():
                pilot.pinged_at, pilot.answers = None, Answers()
            case Leaving():
                pilot.leaving = True
            case Over():
                pilot.leaving = pilot.is_over = True
                pilot.answers = Answers()  # from now on Slurm should say that it is over
            case IdleReport(attempt, seconds):
                if (delegated := pilot.delegated.get(attempt)) is not None:
                    delegated.idle_since = None if seconds is None else self._jobs.clock() - seconds
            case AttemptReport():
                self._apply_report(pilot, event)

    def _apply_report(self, pilot: PilotHandle, report: AttemptReport) -> None:
        delegated, job = pilot.delegated.get(report.attempt), self._jobs.attempt(report.attempt)
        if delegated is None:
            return
        if isinstance(report.event, Assigned):
            delegated.assigned = True
            return
        if isinstance(report.event, Started):
            pilot.note_start(report.attempt, report.event.at)
        elif not isinstance(report.event, Displaced | Stayed):
            pilot.forget(report.attempt)
        if job is None or _is_known(job, report.event):
            return
        self._jobs.apply(job, translated(job, delegated, report.event, self._jobs.clock()))
        self._jobs.resume(job.id)  # what one node is short of says nothing about the next

    def judge(self, facts: Mapping[tuple[str, int], SlurmFact], asked_at: float, seconds: float) -> None:
        """Note an answer of Slurm's, and give up pilots that it does no more for; their events were read after it."""
        for pilot in list(self.all.values()):
            if pilot.submitted_at is not None and asked_at > pilot.submitted_at:
                self._note(pilot, facts.get((pilot.tag, 0)), seconds)
                stalled = pilot.ready is None and is_stalled(pilot.answers)
                if is_settled(pilot.answers) or stalled or (pilot.is_over and is_ghost(pilot.answers)):
                    self._give_up(pilot, stalled=stalled)

    def _note(self, pilot: PilotHandle, fact: SlurmFact | None, seconds: float) -> None:
        pilot.answers = count_answer(pilot.answers, fact, seconds)
        if fact is not None and fact.state == "RUNNING" and fact.start is not None:
            pilot.until = fact.start + self._settings.pilot_time

    def _is_dead(self, pilot: PilotHandle) -> bool:
        """Whether no process of a pilot can be left: its node has shown it, or the pilot is pinged and stays silent."""
        fact, now = pilot.answers.fact, self._jobs.clock()
        if pilot.is_over:
            return True
        if fact is not None and fact.state not in UNSEEN_STATES:
            return not pilot.delegated or self._is_clear(pilot, fact)
        if pilot.pinged_at is None:
            self._order(pilot, Ping())
            pilot.pinged_at = now
        return now - pilot.pinged_at >= SILENT_SECONDS

    def check(self, node: str, check: CheckOrder) -> bool:
        """Let a pilot on a node check it; whether there is one."""
        there = (pilot for pilot in self.all.values() if pilot.ready is not None and pilot.ready.node == node)
        working = (pilot for pilot in there if pilot.is_usable or pilot.delegated)  # also on a node that is drained
        pilot = next((pilot for pilot in working if not is_settled(pilot.answers)), None)
        if pilot is not None:
            self._order(pilot, check)
        return pilot is not None

    def _is_clear(self, pilot: PilotHandle, fact: SlurmFact) -> bool:
        node = pilot.ready.node if pilot.ready is not None else fact.node
        return self.checks.is_clear(pilot_check(pilot.files), node, pilot.files)

    def _give_up(self, pilot: PilotHandle, *, stalled: bool) -> None:
        fact = pilot.answers.fact
        never_began = pilot.files.claim(OWN_CLAIM)
        if stalled and not never_began:
            return
        is_dead = never_began or self._is_dead(pilot)
        for key, delegated in list(pilot.delegated.items()):
            job = self._jobs.attempt(key)
            if job is not None and not is_dead and not isinstance(job.state, Stopping):
                continue  # it may run again, and must wait for the check; one that is cancelled does not
            if job is not None:
                self._lose(
                    pilot, job, key, delegated, safe=never_began or (fact is not None and not delegated.assigned)
                )
            pilot.forget(key)
        if not is_dead:
            return
        if pilot.ready is None and fact is not None and fact.state in ("FAILED", "COMPLETED", "OUT_OF_MEMORY"):
            self.failures.append(pilot.files.error(0) or slurm_text(fact))
        self._leave(pilot)
        self._jobs.plan_due = True

    def _lose(self, pilot: PilotHandle, job: Job, key: str, delegated: DelegatedAttempt, *, safe: bool) -> None:
        """`safe`: the pilot is dead and had not begun with the attempt."""
        now = self._jobs.clock()
        if started_at(job) is None and (safe or pilot.files.claim_as(key)):
            self._jobs.apply(job, Returned(delegated.number, now))
            return
        fact = pilot.answers.fact
        taken_away = fact is not None and fact.state in ("PREEMPTED", "TIMEOUT", "CANCELLED", "DEADLINE")
        note = f"its pilot ended (Slurm: {fact.state})" if fact is not None else loss_text(pilot.answers)
        self._jobs.apply(job, Lost(delegated.number, now, note, preempted=taken_away))

    def reason(self) -> InCluster:
        """Why a job waits that no pilot has taken: what Slurm says of the first pilot that has not begun."""
        facts = (pilot.answers.fact for pilot in self.all.values() if pilot.ready is None)
        fact = next((fact for fact in facts if fact is not None and not fact.is_over), None)
        if fact is None:
            return InCluster(None, "waits for a pilot with room for it")
        return InCluster(None, f"waits for a pilot, and that in Slurm: {reason_text(fact.reason)}", fact.start)

    def situations(self) -> dict[str, InCluster]:
        """Why attempts have not started, by pilot."""
        return {name: InCluster(None, f"waits in a pilot{_node_text(pilot)}") for name, pilot in self.all.items()}


def _is_known(job: Job, event: Event) -> bool:
    """Whether an event of a pilot tells nothing new: it may be read twice, or follow an order."""
    if isinstance(event, Displaced | Stayed):
        asked = isinstance(job.state, Running) and job.state.giving_way is not None
        return not isinstance(job.state, Running) or asked == isinstance(event, Displaced)
    return isinstance(event, Started) and started_at(job) is not None


def _node_text(pilot: PilotHandle) -> str:
    return f" on {pilot.ready.node}" if pilot.ready is not None else ""
