"""The loop: see, plan, act, record. The only place that knows every adapter."""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from stoker.backends import journal
from stoker.backends.local import Gone, LocalBackend, Order
from stoker.core.attempt import attempt_key, output_paths, parse_key, variables
from stoker.core.device import Device
from stoker.core.errors import StokerError
from stoker.core.job import (
    Assigned,
    Cancelled,
    Event,
    Exited,
    Held,
    Job,
    Lost,
    Need,
    Returned,
    Running,
    Started,
    Starting,
    Stopping,
    Waiting,
    advance,
)
from stoker.core.lease import Lease
from stoker.core.occupancy import claims_on
from stoker.core.plan import Plan, Policy, Start, plan
from stoker.core.reasons import Reason
from stoker.core.waiting import WaitingJobs
from stoker.devices.kind import Devices
from stoker.ledger import Ledger
from stoker.posts import Paces, Post
from stoker.store import Change, Store

LOOK_INTERVAL = 1.0
"""Seconds between looks at devices and ledger when nothing calls for one."""
RETRY_INTERVAL = 1.0
"""Seconds after which a write that failed is tried again."""
SOON = 0.01
ACCEPT_LIMIT = 2000
"""Jobs read from the store in one turn, so that running ones are not left waiting."""


@dataclass(frozen=True)
class Equipment:
    """Everything outside the engine that it works with."""

    store: Store
    ledger: Ledger
    devices: Devices
    backend: LocalBackend
    user: str
    clock: Callable[[], float] = time.time


class Happening(Struct, frozen=True):
    """Something that happened to a job and is safely recorded; the job is as it was right after."""

    job: Job
    event: Event
    devices: tuple[Device, ...]
    log: str = ""
    """Where the attempt that just ended wrote its output."""


@dataclass
class _Pending:
    """What happened to one job and is not yet recorded."""

    job: Job
    events: list[tuple[int, Event]] = field(default_factory=list)


class Engine:
    """Runs the jobs it owns until told otherwise."""

    def __init__(
        self,
        name: str,
        equipment: Equipment,
        policy: Policy,
        tell: Callable[[Happening], None],
        label: str = "stoker",
    ) -> None:
        self.name = name
        self.policy = policy
        self.trouble = ""
        """What keeps the engine from working, in words; empty when nothing does."""
        self.draining = False
        self.snapshot = equipment.devices.look(equipment.clock())
        self.last_plan: Plan | None = None
        self._equipment = equipment
        self._tell = tell
        self._label = label
        self._waiting = WaitingJobs()
        self._held: dict[int, Job] = {}
        self._guests: set[int] = set()
        """Jobs of engines that died, of which only the end is recorded here."""
        self._posts: dict[str, Post] = {}
        self._idle: list[str] = []
        self._paces = Paces()
        self._freed: dict[str, float] = {}
        self._leases: Sequence[Lease] = ()
        self._changes: dict[int, _Pending] = {}
        self._happenings: list[Happening] = []
        self._handovers: list[tuple[str, Job]] = []
        self._buried: list[str] = []
        self._environments: dict[str, dict[str, str]] = {}
        self._last_accepted = 0
        self._accept_due = True
        self._plan_due = True
        self._looked_at = 0.0
        self._retry_at: float | None = None
        self._plan_after = 0.0
        self._selector = selectors.DefaultSelector()
        self._selector.register(equipment.backend, selectors.EVENT_READ, self._nothing)
        if equipment.devices.fileno() >= 0:
            self._selector.register(equipment.devices, selectors.EVENT_READ, self._devices_called)

    # -- what doors use --------------------------------------------------------------------------

    def watch(self, source: Any, callback: Callable[[], None]) -> None:
        """Call back from a turn whenever the source is readable."""
        self._selector.register(source, selectors.EVENT_READ, callback)

    def unwatch(self, source: Any) -> None:
        """Stop watching a source."""
        self._selector.unregister(source)

    def poke(self) -> None:
        """There are new jobs in the store."""
        self._accept_due = True

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return len(self._waiting)

    @property
    def held(self) -> list[Job]:
        """Our jobs that have devices."""
        return [job for job in self._held.values() if job.id not in self._guests]

    @property
    def next_waiting(self) -> Job | None:
        """The job that has waited longest among the most important ones."""
        heads = [next(iter(group)) for group in self._waiting.groups()]
        return min(heads, key=lambda job: (-job.terms.priority, job.id), default=None)

    @property
    def idle(self) -> bool:
        """Whether everything that was given to the engine is over and recorded."""
        nothing_held = len(self._held) == len(self._guests)
        return nothing_held and not self._waiting and not self._accept_due and not self._changes

    def reason(self, job: Job) -> Reason | None:
        """Why a job waits, as the plan said."""
        return self.last_plan.reason(job) if self.last_plan else None

    def drain(self) -> None:
        """Start nothing more; what runs may finish, what was handed over ahead comes back."""
        self.draining = True
        for post in self._posts.values():
            self._recall(post)

    def stop(self, grace: float | None, note: str) -> None:
        """Stop all that runs: TERM, and KILL after each job's grace or the one given."""
        self.drain()
        for job in self.held:
            self.cancel(job.id, grace, note)

    def cancel(self, job_id: int, grace: float | None, note: str) -> None:
        """End one job, whatever it is doing."""
        job = self._held.get(job_id)
        if job is None:
            waiting = self._waiting.remove(job_id)
            if waiting is not None:
                self._happen(waiting, Cancelled(self._now(), note))
            return
        assert isinstance(job.state, Held)
        if not isinstance(job.state, Stopping):
            self._happen(job, Cancelled(self._now(), note))
        patience = job.terms.grace if grace is None else grace
        self._equipment.backend.stop(job.state.keeper, attempt_key(job.id, job.state.attempt), patience)

    def keeper_is_dead(self, job: Job) -> bool:
        """Whether nobody runs the job any more, so that its end can be told."""
        return isinstance(job.state, Held) and self._equipment.backend.is_dead(job.state.keeper)

    def adopt(self, job: Job, *, guest: bool) -> None:
        """Take over a job of a dead engine; if it had been given to a keeper, that one's journal tells the rest."""
        if not isinstance(job.state, Held):
            self._waiting.add(job)
            self._plan_due = True
            return
        self._held[job.id] = job
        if guest:
            self._guests.add(job.id)
        keeper = job.state.keeper
        if keeper not in self._posts:
            devices = self._devices(job.state.devices)
            self._posts[keeper] = Post(keeper, job.terms.need, devices, head_since=self._now())
            if not self._equipment.backend.adopt(keeper):
                self._posts[keeper].take(job.id, self._now())
                self._keeper_gone(keeper)
                return
        self._posts[keeper].take(job.id, self._now())

    def close(self) -> None:
        """Leave: idle keepers are sent away, busy ones go on without us."""
        for post in list(self._posts.values()):
            if not post.jobs:
                self._give_up(post)
        for keeper in self._idle:
            self._equipment.backend.dismiss(keeper)
        self._see_keepers_off()
        self._selector.close()

    # -- the turn --------------------------------------------------------------------------------

    def turn(self, timeout: float | None = None) -> None:
        """One round of the loop."""
        self._listen(timeout)
        self._accept()
        self._hear()
        self._look()
        self._decide()
        self._record()
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
        if self._accept_due or (self._plan_due and not self.draining and self._retry_at is None and self._waiting):
            return 0.0
        if self._equipment.backend.restless:
            return SOON
        moments = [self._retry_at - self._now()] if self._retry_at is not None else []
        if any(len(post.jobs) > 1 for post in self._posts.values()):
            moments.append(0.25)
        if self._waiting or self._held:
            moments.append(LOOK_INTERVAL)
        return max(0.0, min(moments)) if moments else None

    def _accept(self) -> None:
        """Take new jobs that doors have put into the store for us."""
        if not self._accept_due:
            return
        jobs = self._equipment.store.open_jobs(self.name, self._last_accepted, ACCEPT_LIMIT)
        for job in jobs:
            if isinstance(job.state, Waiting):
                self._waiting.add(job)
            self._last_accepted = job.id
        self._accept_due = len(jobs) == ACCEPT_LIMIT
        self._plan_due = self._plan_due or bool(jobs)

    def _hear(self) -> None:
        """Read what keepers wrote into their journals."""
        for keeper, record in self._equipment.backend.poll():
            match record:
                case Gone():
                    self._keeper_gone(keeper)
                case journal.Began():
                    self._began(keeper, record)
                case journal.Over():
                    self._over(keeper, record)
                case journal.Back():
                    self._back(keeper, record)

    def _look(self) -> None:
        """See what devices and ledger look like, when it matters or when it is time."""
        now = self._now()
        if not self._plan_due and now - self._looked_at < LOOK_INTERVAL:
            return
        self.snapshot = self._equipment.devices.look(now)
        if now - self._looked_at >= LOOK_INTERVAL / 4:
            ours = {post.lease.rpartition("/")[2] for post in self._posts.values()}
            leases = self._equipment.ledger.live().leases
            self._leases = tuple(lease for name, lease in leases.items() if name not in ours)
            self._plan_due = self._plan_due or now - self._looked_at >= LOOK_INTERVAL
            self._looked_at = now

    def _decide(self) -> None:
        """Plan, and assign what the plan starts."""
        now = self._now()
        if not self._plan_due or self.draining or self._retry_at is not None or now < self._plan_after:
            return
        self._plan_due = False
        self.trouble = ""
        slots = [
            post.slot(self._held[post.jobs[0]], self._paces.of(post.need), now)
            for post in self._posts.values()
            if post.jobs
        ]
        self.last_plan = plan(self._waiting, slots, self.snapshot, self._leases, self.policy, now, self._freed)
        try:
            for start in self.last_plan.starts:
                self._assign(start)
        except StokerError as error:  # the ledger or the disk, not the job: it waits until they are well again
            self.trouble = f"{error.message}; {error.hint}"
            self._plan_after = now + RETRY_INTERVAL

    def _record(self) -> None:
        """Write what happened, all in one transaction; where that fails, keep it and try again later."""
        if not self._changes or (self._retry_at is not None and self._now() < self._retry_at):
            return
        try:
            self._equipment.store.record(Change(pending.job, pending.events) for pending in self._changes.values())
        except StokerError as error:
            self.trouble = f"{error.message}; {error.hint}"
            self._retry_at = self._now() + RETRY_INTERVAL
            return
        self._retry_at = None
        self._changes.clear()
        for keeper in self._buried:
            self._equipment.backend.forget(keeper)
        self._buried.clear()
        happenings, self._happenings = self._happenings, []
        for happening in happenings:
            self._tell(happening)

    def _hand_over(self) -> None:
        """Give recorded assignments to their keepers, never before they are recorded."""
        if self._retry_at is not None:
            return
        handovers, self._handovers = self._handovers, []
        for keeper, job in handovers:
            base = self._environment(job.terms.environment)
            self._equipment.backend.start(keeper, self._order(job, base), lambda base=base: base)  # type: ignore[misc]
            if self._held[job.id].state.__class__ is Stopping:
                self._equipment.backend.stop(keeper, attempt_key(job.id, job.attempts), 0.0)

    def _tidy(self) -> None:
        """Give back what is not used: leases of idle posts, attempts stuck behind a long one."""
        now = self._now()
        for post in list(self._posts.values()):
            if not post.jobs:
                self._give_up(post)
            elif post.overdue(now):
                self._recall(post)

    # -- what keepers say ------------------------------------------------------------------------

    def _began(self, keeper: str, record: journal.Began) -> None:
        job = self._held_attempt(record.attempt)
        if job is not None and isinstance(job.state, Starting | Stopping):
            self._happen(job, Started(job.attempts, 0, record.at))
            self._posts[keeper].head_since = record.at

    def _over(self, keeper: str, record: journal.Over) -> None:
        job = self._held_attempt(record.attempt)
        if job is None:
            return
        if isinstance(job.state, Running):
            self._paces.observe(job.terms.need, record.at - job.state.since)
        why: Any = record.why
        exited = Exited(
            job.attempts,
            record.code,
            record.signal,
            record.at,
            why=why,
            peak_memory=record.peak,
            note=record.note,
        )
        self._happen(job, exited)
        self._leave_post(keeper, job)

    def _back(self, keeper: str, record: journal.Back) -> None:
        job = self._held_attempt(record.attempt)
        if job is not None:
            self._happen(job, Returned(job.attempts, record.at))
            self._leave_post(keeper, job)

    def _keeper_gone(self, keeper: str) -> None:
        """The keeper is dead and said all it had to say: what it had started is lost, the rest never started."""
        self._buried.append(keeper)
        post = self._posts.pop(keeper, None)
        if keeper in self._idle:
            self._idle.remove(keeper)
        if post is None:
            return
        for job_id in list(post.jobs):
            job = self._held[job_id]
            gone_at = self._now()
            started = isinstance(job.state, Running)
            self._happen(job, Lost(job.attempts, gone_at) if started else Returned(job.attempts, gone_at))
            self._free(post)
        self._withdraw(post)

    def _held_attempt(self, key: str) -> Job | None:
        """The job of an attempt, unless that attempt is known to be over (a journal may be read twice)."""
        job_id, number = parse_key(key)
        job = self._held.get(job_id)
        return job if job is not None and job.attempts == number else None

    # -- assigning -------------------------------------------------------------------------------

    def _assign(self, start: Start) -> None:
        post = self._posts[start.behind] if start.behind else self._post_for(start.job.terms.need, start.devices)
        if post is None:
            return
        job = self._waiting.remove(start.job.id)
        assert job is not None
        now = self._now()
        out, _ = output_paths(job, self._equipment.user)
        job = self._happen(job, Assigned(post.keeper, start.devices, out, now))
        post.take(job.id, now)
        self._handovers.append((post.keeper, job))

    def _post_for(self, need: Need, device_ids: tuple[str, ...]) -> Post | None:
        """A keeper that holds just these devices; None where somebody else was faster to claim them."""
        for post in self._posts.values():
            if not post.jobs and post.suits(need, device_ids) and not self._equipment.backend.worn_out(post.keeper):
                return post
        for post in [post for post in self._posts.values() if not post.jobs]:
            self._give_up(post)
        devices = self._devices(device_ids)
        claims = tuple(claim for device in devices for claim in claims_on(device, need))
        now = self._now()
        held = self._equipment.ledger.claim(claims, self._label, now, _capacities(devices)) if claims else None
        if claims and held is None:
            self._looked_at = 0.0
            return None
        keeper = self._idle.pop() if self._idle else self._equipment.backend.hire()
        if held is not None:
            self._equipment.backend.equip(keeper, str(held.path), held.fd)
        self._posts[keeper] = Post(keeper, need, devices, lease=str(held.path) if held is not None else "")
        return self._posts[keeper]

    def _give_up(self, post: Post) -> None:
        """An idle post's devices go back to everybody; its keeper waits for other work."""
        del self._posts[post.keeper]
        self._withdraw(post)
        if self._equipment.backend.worn_out(post.keeper):
            self._equipment.backend.dismiss(post.keeper)
        else:
            self._equipment.backend.release(post.keeper)
            self._idle.append(post.keeper)

    def _withdraw(self, post: Post) -> None:
        if post.lease:
            self._equipment.ledger.withdraw(post.lease)
            post.lease = ""

    def _leave_post(self, keeper: str, job: Job) -> None:
        post = self._posts[keeper]
        post.finish(job.id, self._now())
        self._free(post)

    def _free(self, post: Post) -> None:
        self._plan_due = True
        if not post.jobs:
            now = self._now()
            self._freed.update((device_id, now) for device_id in post.device_ids)

    def _recall(self, post: Post) -> None:
        if len(post.jobs) > 1 and not post.recalled:
            post.recalled = True
            self._equipment.backend.recall(post.keeper)

    def _order(self, job: Job, base: Mapping[str, str]) -> Order:
        assert isinstance(job.state, Held)
        out, err = output_paths(job, self._equipment.user)
        extra = {
            **self._equipment.devices.variables,
            **variables(job, self._devices(job.state.devices), base),
        }
        return Order(
            attempt=attempt_key(job.id, job.attempts),
            words=job.command.words,
            shell=job.command.shell,
            cwd=job.terms.cwd,
            umask=job.terms.umask,
            environment=job.terms.environment,
            extra=extra,
            out=out,
            err=err,
            limit=job.terms.limit,
            grace=job.terms.grace,
        )

    # -- inside ----------------------------------------------------------------------------------

    def _happen(self, job: Job, event: Event) -> Job:
        """The only way a job changes here: advance it, note it down, and put it where it now belongs."""
        after = advance(job, event)
        pending = self._changes.setdefault(job.id, _Pending(after))
        pending.job = after
        pending.events.append((after.attempts, event))
        device_ids = job.state.devices if isinstance(job.state, Held) else ()
        device_ids = after.state.devices if isinstance(after.state, Held) else device_ids
        log = output_paths(job, self._equipment.user)[0] if isinstance(event, Exited) else ""
        self._happenings.append(Happening(after, event, self._devices(device_ids), log))
        if isinstance(after.state, Held):
            self._held[job.id] = after
            return after
        self._held.pop(job.id, None)
        if isinstance(after.state, Waiting) and job.id not in self._guests:
            self._waiting.add(after)
        self._guests.discard(job.id)
        return after

    def _devices(self, device_ids: Sequence[str]) -> tuple[Device, ...]:
        known = {device.id: device for device in self.snapshot.devices}
        return tuple(known[device_id] for device_id in device_ids if device_id in known)

    def _environment(self, digest: str) -> dict[str, str]:
        if digest not in self._environments:
            self._environments[digest] = self._equipment.store.environment(digest)
        return self._environments[digest]

    def _devices_called(self) -> None:
        self._looked_at = 0.0

    def _nothing(self) -> None:
        """The backend is read in a step of its own."""

    def _see_keepers_off(self) -> None:
        """Wait a moment for dismissed keepers, so that nothing of them is left behind."""
        deadline = time.monotonic() + 1.0
        leaving = set(self._idle)
        while leaving and time.monotonic() < deadline:
            for keeper, record in self._equipment.backend.poll():
                if isinstance(record, Gone):
                    leaving.discard(keeper)
                    self._equipment.backend.forget(keeper)
            with contextlib.suppress(InterruptedError):
                self._selector.select(SOON)

    def _now(self) -> float:
        return self._equipment.clock()


def _capacities(devices: Sequence[Device]) -> dict[str, int | None]:
    return {name: device.memory for device in devices for name in device.claims}
