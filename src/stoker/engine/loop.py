"""The loop: see, plan, act, record. The only place that knows every adapter."""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Callable
from typing import Any

from stoker.core.device import Snapshot
from stoker.core.errors import StokerError
from stoker.core.job import Active, Cancelled, Happening, Job, Queued, Stopping, need_of
from stoker.core.launch import attempt_key
from stoker.core.learning import Live
from stoker.core.planner.forecast import Forecast, Now, forecast
from stoker.core.planner.plan import Plan, Start, plan
from stoker.core.planner.policy import Policy
from stoker.core.planner.queue import Shape
from stoker.core.planner.reasons import Reason
from stoker.core.spec import Need
from stoker.engine.job_table import Book
from stoker.engine.recorder import Sequel
from stoker.engine.requests import Mail, answer
from stoker.runner import journal
from stoker.runner.local import Gone
from stoker.sites.machine.allocations import Post, Posts, Tenure
from stoker.sites.machine.dispatch import Dispatch
from stoker.sites.machine.fairshare import Sharing, Usage
from stoker.sites.machine.learning import Lessons
from stoker.sites.machine.mps import POLL_INTERVAL
from stoker.sites.machine.observation import LOOK_INTERVAL, Sight
from stoker.sites.machine.resources import Equipment
from stoker.sites.machine.telemetry import Measuring
from stoker.sites.machine.worker_events import Hearing
from stoker.store.history import Experience

RETRY_INTERVAL = 1.0
"""Seconds after which a write that failed is tried again."""
SOON = 0.01
ACCEPT_LIMIT = 2000
"""Jobs read from the store in one turn, so that running ones are not left waiting."""


class Engine:
    """Runs the jobs it owns until told otherwise."""

    def __init__(
        self,
        name: str,
        equipment: Equipment,
        policy: Policy,
        tell: Callable[[Happening], None],
        *,
        label: str = "stoker",
        heartbeat: float | None = None,
        sequel: Sequel | None = None,
    ) -> None:
        """`heartbeat` is how many idle seconds pass before it looks for itself whether there is work."""
        self.name = name
        self.label = label
        self.policy = policy
        self._trouble = ""
        self.draining = False
        self._stopping: tuple[float | None, str] | None = None
        """Once everything has to stop: the grace and the reason."""
        self.sight = Sight(equipment.devices, equipment.ledger, equipment.clock())
        self.last_plan: Plan | None = None
        self._equipment = equipment
        self._book = Book(equipment.store, self.sight, equipment.clock, tell, sequel)
        self._roster = self._book.roster
        self._changes = self._book.changes
        self._experience = Experience(equipment.store)
        self._posts = Posts(equipment.backend, equipment.ledger, label, self._experience.expected)
        self._tenure = Tenure(self._posts, equipment.backend, equipment.ledger, label)
        self._usage = Usage(equipment.store, name)
        self._sharing = Sharing(equipment.ledger, self._usage, label)
        self._measuring = Measuring(self._posts, equipment.backend, self._roster, equipment.store)
        self._lessons = Lessons(self._measuring, self._experience, self._changes)
        self._hearing = Hearing(
            self._book,
            self._posts,
            self.sight,
            usage=self._usage,
            experience=self._experience,
            measuring=self._measuring,
        )
        self._mail = Mail(equipment.store, name)
        self._heartbeat = heartbeat
        self._dispatch = Dispatch(self._book, self._posts, self.sight, self._hearing, equipment)
        self._buried: list[str] = []
        self._last_accepted = 0
        self._accept_due = True
        self._retry_at: float | None = None
        self._plan_after = 0.0
        self._selector = selectors.DefaultSelector()
        self._selector.register(equipment.backend, selectors.EVENT_READ, self._nothing)
        if equipment.devices.fileno() >= 0:
            self._selector.register(equipment.devices, selectors.EVENT_READ, self.sight.expire)

    # -- what doors use --------------------------------------------------------------------------

    def watch(self, source: Any, callback: Callable[[], None]) -> None:
        """Call back from a turn whenever the source is readable."""
        self._selector.register(source, selectors.EVENT_READ, callback)

    def unwatch(self, source: Any) -> None:
        """Stop watching a source."""
        self._selector.unregister(source)

    def poke(self) -> None:
        """There may be new jobs or requests in the store."""
        self._accept_due = True
        self._mail.due = True

    def govern(self, policy: Policy, sequel: Sequel | None) -> None:
        """Go by something else from now on; what users have paused or drained stays so."""
        self.policy = self._mail.overlaid(policy)
        self._changes.sequel = sequel
        self._book.plan_due = True

    @property
    def trouble(self) -> str:
        """What keeps the engine from working, in words; empty when nothing does."""
        return self._trouble or self._dispatch.trouble

    @trouble.setter
    def trouble(self, words: str) -> None:
        self._trouble = words

    @property
    def now(self) -> float:
        """The moment by the engine's own clock."""
        return self._now()

    @property
    def waiting(self) -> int:
        """How many jobs wait for a device."""
        return len(self._roster.waiting)

    @property
    def parked(self) -> int:
        """How many jobs wait for something else."""
        return len(self._roster.parked)

    @property
    def held(self) -> list[Job]:
        """Our jobs that have devices."""
        return self._roster.ours

    @property
    def next_waiting(self) -> Job | None:
        """The job that has waited longest among the most important ones."""
        return self._roster.next_waiting

    @property
    def at_rest(self) -> bool:
        """Whether nothing of ours runs and all that happened is recorded."""
        return not self._roster.at_our_work and not self._changes

    @property
    def idle(self) -> bool:
        """Whether everything that was given to the engine is over and recorded."""
        return self.at_rest and not self.waiting and not self.parked and not self._accept_due

    @property
    def snapshot(self) -> Snapshot:
        """The devices as they were seen last."""
        return self.sight.snapshot

    def reason(self, job: Job) -> Reason | None:
        """Why a job waits, as the plan said."""
        if why := self._roster.parked.reason(job.id):
            return why
        return self.last_plan.reason(job) if self.last_plan else None

    def forecast(self) -> Forecast:
        """When jobs are expected to start and end."""
        now, sight = self._now(), self.sight
        slots = self._posts.slots(self._roster.active, 0.0, now)
        present = Now(self._roster.waiting, slots, sight.snapshot, sight.leases, self.policy, now, self._foresee)
        return forecast(present, self._experience.expected)

    @property
    def uses(self) -> dict[int, Live]:
        """What the running attempts hold of their GPUs, by job."""
        return self._measuring.live()

    def drain(self) -> None:
        """Start nothing more; what runs may finish, what was handed over ahead comes back."""
        self.draining = True
        for post in self._posts:
            self._posts.recall(post)

    def stop(self, grace: float | None, note: str) -> None:
        """Stop all that runs: TERM, and KILL after each job's grace or the one given. What did not start waits on."""
        self.drain()
        self._stopping = (grace, note)
        for job_id in [post.jobs[0] for post in self._posts if post.jobs]:
            if not self._roster.is_guest(job_id):
                self.cancel(job_id, grace, note)

    def cancel(self, job_id: int, grace: float | None, note: str, number: int = 0) -> None:
        """End one job, whatever it is doing; a signal's number is sent in place of TERM."""
        job = self._roster.active(job_id)
        if job is None:
            waiting = self._roster.withdraw(job_id)
            if waiting is not None:
                self._book.happen(waiting, Cancelled(self._now(), note))
            return
        assert isinstance(job.state, Active)
        if not isinstance(job.state, Stopping):
            self._book.happen(job, Cancelled(self._now(), note))
        self._stop_attempt(job, grace, number)

    def keeper_is_dead(self, job: Job) -> bool:
        """Whether nobody runs the job any more, so that its end can be told."""
        return isinstance(job.state, Active) and self._equipment.backend.is_dead(job.state.keeper)

    def promote(self, job_id: int, batch: int) -> bool:
        """Make a guest one of ours; False where it is over by now."""
        return self._roster.promote(job_id, batch)

    def adopt(self, job: Job, *, guest: bool) -> None:
        """Take over a job of a dead engine; if it had been given to a keeper, that one's journal tells the rest."""
        self._book.settle(job)
        if not isinstance(job.state, Active):
            return
        if guest:
            self._roster.welcome(job)
        keeper = job.state.keeper
        if keeper not in self._posts:
            devices = self.sight.devices(job.state.devices)
            lease = str(self._equipment.ledger.path / job.state.lease) if job.state.lease else ""
            self._posts.occupy(Post(keeper, need_of(job), devices, lease, adopted=True))
            if not self._equipment.backend.adopt(keeper):
                self._posts[keeper].take(job.id, self._now())
                self._keeper_gone(keeper)
                return
        self._posts[keeper].take(job.id, self._now())
        self._posts[keeper].recognise(self.sight.devices(job.state.devices))
        if isinstance(job.state, Stopping):  # whoever wanted that may have died before he said so
            self._stop_attempt(job, None)
        # An engine that died between the record and the order left an attempt that no keeper has heard of.
        self._equipment.backend.account(keeper, attempt_key(job.id, job.attempts))

    def close(self) -> None:
        """Leave: idle keepers are sent away, busy ones go on without us."""
        self._lessons.finish()
        with contextlib.suppress(StokerError):
            self._changes.write()
        self._sharing.withdraw()
        self._dispatch.close()
        self._see_off(self._posts.dismiss_all())
        self._selector.close()

    # -- the turn --------------------------------------------------------------------------------

    def turn(self, timeout: float | None = None) -> None:
        """One round of the loop."""
        self._listen(timeout)
        self._accept()
        self._obey()
        self._hear()
        self._look()
        self._decide()
        self._record()
        self._book.release()
        self._hand_over()
        self._tidy()

    def _listen(self, timeout: float | None) -> None:
        patience = self._patience()
        if timeout is not None:
            patience = timeout if patience is None else min(timeout, patience)
        for key, _ in self._selector.select(patience):
            key.data()

    def _patience(self) -> float | None:
        """Seconds to wait for something to happen, None for ever."""
        now = self._now()
        if self._accept_due or (self._changes and self._retry_at is None):
            return 0.0
        moments = [self._retry_at - now] if self._retry_at is not None else []
        if self._book.plan_due and self.waiting and not self.draining and self._retry_at is None:
            moments.append(self._plan_after - now)
        if self._posts.ahead:
            moments.append(0.25)
        if self._dispatch.waits:
            moments.append(POLL_INTERVAL)
        if (burial := self._equipment.backend.next_burial) is not None:
            moments.append(burial)
        if (begin := self._roster.parked.next_begin) is not None:
            moments.append(begin - now)
        if self.waiting or self._roster.at_work or self._measuring.waits:
            moments.append(self.sight.due_in(now, self._look_interval))
        elif self._heartbeat is not None:
            moments.append(self._heartbeat)
        return max(0.0, min(moments)) if moments else None

    def _accept(self) -> None:
        """Take new jobs that doors have put into the store for us."""
        if self._mail.has_come(self._now()):
            self._accept_due = True
        if not self._accept_due:
            return
        jobs = self._equipment.store.open_jobs(self.name, self._last_accepted, ACCEPT_LIMIT)
        for job in jobs:
            if isinstance(job.state, Queued):
                self._book.settle(job)
            self._last_accepted = job.id
        self._accept_due = len(jobs) == ACCEPT_LIMIT

    def _obey(self) -> None:
        """Do what doors have asked for; what is asked of a job that was not yet accepted comes after that."""
        if self._accept_due or not self._mail.due:
            return
        self.policy = self._mail.overlaid(self.policy)
        for number, request in self._mail.requests():
            answer(request, self, self._book)
            self._changes.answer(number)
        self._book.plan_due = True

    def _hear(self) -> None:
        """Read what keepers wrote into their journals."""
        for keeper, record in self._equipment.backend.poll():
            match record:
                case Gone():
                    self._keeper_gone(keeper)
                case journal.Began():
                    self._stop_latecomer(self._hearing.began(keeper, record))
                case journal.Over():
                    self._hearing.over(keeper, record)
                case journal.Back():
                    self._hearing.back(keeper, record)

    def _look(self) -> None:
        """See what devices and ledger look like, when it matters or when it is time."""
        now = self._now()
        interval = self._look_interval
        due = self.sight.due_in(now, interval) <= 0
        if self._book.plan_due or due:
            young = now - interval if interval < LOOK_INTERVAL else 0.0
            self.sight.look(now, self._posts.leases, waiting=bool(self.waiting), interval=interval, young=young)
            self._recognise_devices()
            self._book.plan_due = True
        self._book.free_those_due(now)
        if due:
            self._book.free_those_behind_others()
            self._posts.note_company(self.sight.leases)
        self._measuring.look(self.sight.snapshot, now)
        self._lessons.draw(self.sight.snapshot, now)
        if self._tenure.check(now):
            self.trouble = self._tenure.trouble

    def _recognise_devices(self) -> None:
        """An engine may come up before the driver does: then it hears only later on what adopted attempts run."""
        for post in self._posts.adopted:
            job = self._roster.active(post.jobs[0]) if post.jobs else None
            if job is not None and isinstance(job.state, Active) and len(post.devices) < len(job.state.devices):
                post.recognise(self.sight.devices(job.state.devices))

    def _decide(self) -> None:
        """Plan, and assign what the plan starts."""
        now = self._now()
        if not self._book.plan_due or self.draining or self._retry_at is not None or now < self._plan_after:
            return
        if not self._mail.opened:  # an earlier engine may have died before it heard of a cancel or a pause
            return
        self._book.plan_due = False
        if not self.waiting:
            return
        self.trouble = self._tenure.trouble
        self.last_plan = self._planned(now)
        try:
            for start in self.last_plan.starts:
                self._assign(start)
            self._sharing.tell(self.last_plan.longing, self._posts, now)
        except StokerError as error:  # the ledger or the disk, not the job: it waits until they are well again
            self.trouble = f"{error.message}; {error.hint}"
            self._plan_after = now + RETRY_INTERVAL

    def _planned(self, now: float) -> Plan:
        waiting, sight = self._roster.waiting, self.sight
        courtesy = self._sharing.consider(sight, self._posts, lambda: self._roster.waiting_since, now)
        slots = self._posts.slots(self._roster.active, self.policy.ahead, now, self._sharing.is_promised)
        known = self._experience.expected, self._foresee
        return plan(waiting, slots, sight.snapshot, sight.leases, self.policy, now, sight.freed, courtesy, *known)

    def _foresee(self, shape: Shape) -> Need:
        return self._experience.foresee(shape, self.policy.margin)

    def _record(self) -> None:
        """Write what happened, all in one transaction; where that fails, keep it and try again later."""
        if self._retry_at is not None and self._now() < self._retry_at:
            return
        try:
            self._changes.write()
        except StokerError as error:
            self.trouble = f"{error.message}; {error.hint}"
            self._retry_at = self._now() + RETRY_INTERVAL
            return
        self._retry_at = None
        if self._changes.sequels_written:
            self._accept_due, self._changes.sequels_written = True, False
        for keeper in self._buried:
            self._equipment.backend.forget(keeper)
        self._buried.clear()

    def _hand_over(self) -> None:
        """Give recorded assignments to their keepers, never before they are recorded."""
        if self._retry_at is None:
            self._dispatch.hand_over(draining=self.draining, exclusive=self.policy.mps_exclusive)

    def _tidy(self) -> None:
        """Give back what is not used: leases of idle posts, attempts stuck behind a long one."""
        now = self._now()
        self._posts.spread(now, self._sharing.is_promised)
        self._posts.close_idle()
        if self.draining or not self.waiting:
            self._sharing.withdraw()

    # -- inside ----------------------------------------------------------------------------------

    def _assign(self, start: Start) -> None:
        if not self._dispatch.assign(start, self._now()):  # look at the ledger again, and plan with that
            self.sight.expire()
            self._book.plan_due, self._plan_after = True, self._now() + SOON

    def _stop_latecomer(self, job: Job | None) -> None:
        """Stop what slipped in before it was called back."""
        if job is not None and self._stopping is not None and not self._roster.is_guest(job.id):
            self.cancel(job.id, *self._stopping)

    def _keeper_gone(self, keeper: str) -> None:
        self._buried.append(keeper)
        if self._hearing.gone(keeper):
            self.trouble = "a keeper died before it could start anything; trying again"
            self._plan_after = self._now() + RETRY_INTERVAL

    def _stop_attempt(self, job: Job, grace: float | None, number: int = 0) -> None:
        assert isinstance(job.state, Active)
        patience = job.terms.grace if grace is None else grace
        self._equipment.backend.stop(job.state.keeper, attempt_key(job.id, job.state.attempt), patience, number)

    def _nothing(self) -> None:
        """The backend is read in a step of its own."""

    def _see_off(self, leaving: set[str]) -> None:
        """Wait a moment for dismissed keepers, so that nothing of them is left behind."""
        deadline = time.monotonic() + 1.0
        while leaving and time.monotonic() < deadline:
            for keeper, record in self._equipment.backend.poll():
                if isinstance(record, Gone):
                    leaving.discard(keeper)
                    if not self._changes:  # else its journal may be all there is of an end
                        self._equipment.backend.forget(keeper)
            if not leaving:
                return
            burial = self._equipment.backend.next_burial
            with contextlib.suppress(InterruptedError):
                self._selector.select(SOON if burial is None else min(SOON, burial))

    @property
    def _look_interval(self) -> float:
        now = self._now()
        usual = self.sight.hurried_interval(now) if self._sharing.waits else LOOK_INTERVAL
        return self._measuring.interval(now, usual)

    def _now(self) -> float:
        return self._equipment.clock()
