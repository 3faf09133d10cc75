"""A runner and a site that start nothing: tests report events and read the calls."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stoker.core.device import Device, Snapshot
from stoker.core.job import Active, Assigned, Ended, Exited, Job, JobEvent, Returned, Started, Stopping
from stoker.core.launch import LaunchOrder, attempt_key
from stoker.core.planner.forecast import Forecast
from stoker.core.planner.reasons import Reason
from stoker.core.settings import Policy
from stoker.core.spec import Command, JobSpec, NewJob, Resources
from stoker.core.warm import Template
from stoker.devices.detect import DeclaredDevices
from stoker.devices.interface import Devices
from stoker.engine.job_table import Jobs
from stoker.engine.loop import Engine
from stoker.ledger import Ledger, prepare_ledger
from stoker.runner.interface import AttemptExited, AttemptReturned, AttemptStarted, Event, WorkerLost
from stoker.sites.interface import EngineJobs, Site, SiteContext, SiteStatus
from stoker.sites.machine.context import MachineContext, machine_context
from stoker.sites.machine.site import MachineSite
from stoker.store.paths import Paths
from stoker.store.writer import Store
from support.build import declared

START = 1_000_000.0


class FakeClock:
    """Time that passes only when a test lets it."""

    def __init__(self, now: float = START) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def pass_seconds(self, seconds: float) -> None:
        self.now += seconds


class FakeDevices:
    """Devices that show the snapshot they were given."""

    variables: Mapping[str, str] = {}

    def __init__(self, *devices: Device) -> None:
        self.shown = Snapshot(0.0, devices)
        self.newer_than: list[float] = []

    def snapshot(self, now: float, newer_than: float = 0.0) -> Snapshot:
        self.newer_than.append(newer_than)
        return Snapshot(now, self.shown.devices, self.shown.readings, self.shown.note)

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        pass


class FakeRunner:
    """A `WorkerRunner` whose workers run nothing: events in, calls out."""

    def __init__(self, clock: Callable[[], float] = lambda: START) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.orders: dict[str, LaunchOrder] = {}
        """By attempt, those that were sent."""
        self.workers: dict[str, str] = {}
        """By attempt, the worker it was sent to."""
        self.dead: set[str] = set()
        """Workers that left no trace."""
        self.full: set[str] = set()
        self.pids: dict[str, int] = {}
        self.roots: dict[str, int] = {}
        self.next_cleanup: float | None = None
        self.survivors: dict[int, str] = {}
        self.trouble = ""
        self.refusals: dict[str, str] = {}
        """By key of a template; `*` is any."""
        self.fails: Exception | None = None
        """Raised at the start of a worker."""
        self._clock = clock
        self._queued: list[tuple[str, LaunchOrder]] = []
        self._events: list[tuple[str, Event]] = []
        self._leases: dict[str, list[int]] = {}
        self._descriptor = os.eventfd(0)
        self._count = 0

    # -- what a test does -------------------------------------------------------------------------

    def report(self, worker: str, event: Event) -> None:
        self._events.append((worker, event))

    def started(self, attempt: str) -> None:
        self.report(self.workers[attempt], AttemptStarted(attempt, self._clock()))

    def exited(self, attempt: str, code: int = 0, why: str = "exited") -> None:
        self.report(self.workers[attempt], AttemptExited(attempt, self._clock(), code, 0, why, 1, ""))

    def returned(self, attempt: str, errno: int = 0, note: str = "") -> None:
        self.report(self.workers[attempt], AttemptReturned(attempt, self._clock(), errno, note))

    def lost(self, worker: str, errno: int = 0, damaged: bool = False, warm: bool = False) -> None:
        self.release(worker)
        self.report(worker, WorkerLost(errno, damaged, warm))

    def called(self, name: str) -> list[list[Any]]:
        """The arguments of all calls with this name."""
        return [arguments for called, *arguments in self.calls if called == name]

    # -- WorkerRunner -----------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._descriptor

    def refusal(self, template: Template) -> str:
        return self.refusals.get(template.key, self.refusals.get("*", ""))

    def start_worker(self, template: Template | None = None) -> str:
        if self.fails:
            raise self.fails
        self._count += 1
        self.calls.append(("start_worker", f"w{self._count}"))
        return f"w{self._count}"

    def stop_worker(self, worker: str) -> None:
        self.calls.append(("stop_worker", worker))
        self.lost(worker)

    def give_lease(self, worker: str, path: str, descriptor: int) -> None:
        self.calls.append(("give_lease", worker, path))
        self._leases.setdefault(worker, []).append(descriptor)

    def release(self, worker: str) -> None:
        for descriptor in self._leases.pop(worker, []):
            os.close(descriptor)

    def recall(self, worker: str) -> None:
        self.calls.append(("recall", worker))

    def journal_is_full(self, worker: str) -> bool:
        return worker in self.full

    def is_dead(self, worker: str) -> bool:
        return worker in self.dead

    def start(self, worker: str, order: LaunchOrder, variables: Mapping[str, str]) -> None:
        self._queued.append((worker, order))

    def flush(self) -> None:
        for worker, order in self._queued:
            self.calls.append(("start", worker, order.attempt))
            self.orders[order.attempt] = order
            self.workers[order.attempt] = worker
        self._queued.clear()

    def set_limits(self, worker: str, attempt: str, spec: JobSpec) -> None:
        self.calls.append(("set_limits", worker, attempt, spec.limit))

    def give_way(self, worker: str, attempt: str, signal_number: int, seconds: float, *, saves: bool) -> None:
        self.calls.append(("give_way", worker, attempt, signal_number, seconds, saves))

    def stop(self, worker: str, attempt: str, grace: float, signal_number: int = 0) -> None:
        self.calls.append(("stop", worker, attempt, grace, signal_number))

    def adopt(self, worker: str) -> bool:
        self.calls.append(("adopt", worker))
        return worker not in self.dead

    def account(self, worker: str, attempt: str) -> None:
        self.calls.append(("account", worker, attempt))
        self.workers[attempt] = worker

    def poll(self) -> Iterable[tuple[str, Event]]:
        events, self._events = self._events, []
        return events

    def process_of(self, worker: str, attempt: str) -> int | None:
        return self.pids.get(attempt)

    def root_of(self, worker: str) -> int | None:
        return self.roots.get(worker)

    def forget(self, worker: str) -> None:
        self.calls.append(("forget", worker))

    def close(self) -> None:
        self.calls.append(("close",))
        for worker in list(self._leases):
            self.release(worker)
        os.close(self._descriptor)


class FakeSite:
    """A `Site` with room for some jobs, which start and end when a test says so."""

    def __init__(self, jobs: EngineJobs, room: int = 1) -> None:
        self.jobs = jobs
        self.room = room
        self.can_set_limit = True
        self.calls: list[tuple[object, ...]] = []
        self.sent: list[int] = []
        self.gone: set[int] = set()
        self.due: float | None = None
        self.policies: list[Policy] = []
        self.pending: list[Callable[[], None]] = []
        """What `poll` reports next."""
        self.shown = SiteStatus(Snapshot(START, declared("0")))
        self.draining = False
        self.idle: dict[int, float | None] = {}
        self._unsent: list[int] = []

    # -- what a test does -------------------------------------------------------------------------

    def start(self, job_id: int) -> None:
        self.pending.append(lambda: self._apply(job_id, lambda job: Started(job.attempts, self.jobs.clock())))

    def exit(self, job_id: int, code: int = 0) -> None:
        self.pending.append(lambda: self._apply(job_id, lambda job: Exited(job.attempts, code, 0, self.jobs.clock())))

    def give_back(self, job_id: int, shortage: str = "") -> None:
        self.pending.append(
            lambda: self._apply(job_id, lambda job: Returned(job.attempts, self.jobs.clock(), shortage))
        )

    def called(self, name: str) -> list[list[Any]]:
        """The arguments of all calls with this name."""
        return [arguments for called, *arguments in self.calls if called == name]

    def _apply(self, job_id: int, event: Callable[[Job], Started | Exited | Returned]) -> None:
        job = self.jobs.active(job_id)
        assert job is not None
        self.jobs.apply(job, event(job))

    # -- Site -------------------------------------------------------------------------------------

    def sources(self) -> Sequence[tuple[object, Callable[[], None]]]:
        return ()

    def due_in(self, now: float, *, placing: bool) -> float | None:
        self.calls.append(("due_in", placing))
        return self.due

    def poll(self) -> None:
        pending, self.pending = self.pending, []
        for report in pending:
            report()

    def place(self, now: float, policy: Policy) -> None:
        self.policies.append(policy)
        waiting = sorted((job for group in self.jobs.waiting.groups() for job in group), key=lambda job: job.id)
        for job in waiting[: 0 if policy.paused else self.room]:
            self.room -= 1
            self.jobs.apply(job, Assigned(f"slot{job.id} x", ("0",), "/log", now))
            self._unsent.append(job.id)

    def dispatch(self, *, recorded: bool) -> None:
        self.calls.append(("dispatch", recorded))
        if not recorded:
            return
        unsent, self._unsent = self._unsent, []
        for job_id in unsent:
            if self.draining:
                self._apply(job_id, lambda job: Returned(job.attempts, self.jobs.clock()))
            else:
                self.sent.append(job_id)

    cluster = ""

    def recall(self, job: Job) -> None:
        pass

    def drain(self) -> None:
        self.draining = True
        self.calls.append(("drain",))

    def adopt(self, job: Job) -> None:
        self.calls.append(("adopt", job.id))

    def is_gone(self, job: Job) -> bool:
        return job.id in self.gone

    def stop(self, job: Job, grace: float | None, signal_number: int = 0) -> None:
        assert isinstance(job.state, Stopping)
        self.calls.append(("stop", job.id, grace, signal_number))

    def set_limit(self, job: Job) -> bool:
        self.calls.append(("set_limit", job.id, job.spec.limit))
        return self.can_set_limit

    def can_give_way(self, job: Job) -> bool:
        return True

    def give_way(self, job: Job) -> None:
        self.calls.append(("give_way", job.id))

    def reason(self, job: Job) -> Reason | None:
        return next((reason for _, reason in self.shown.waits), None)

    def status(self) -> SiteStatus:
        return self.shown

    def forecast(self, typical: float | None = None) -> Forecast:
        self.calls.append(("forecast",))
        return Forecast()

    def devices(self, device_ids: Sequence[str]) -> tuple[Device, ...]:
        return declared(*device_ids)

    def process_of(self, job: Job) -> int | None:
        return 4242

    def idle_since(self) -> Mapping[int, float | None]:
        return self.idle

    def finish(self) -> None:
        self.calls.append(("finish",))

    def close(self, *, recorded: bool) -> None:
        self.calls.append(("close", recorded))


class FakeSiteConfig:
    """Opens a fake site and keeps it for the test; `ready` is called with it."""

    def __init__(self, ready: Callable[[FakeSite], None] = lambda _: None) -> None:
        self.ready = ready
        self.site: FakeSite | None = None

    def open(self, context: SiteContext) -> FakeSite:
        self.site = FakeSite(context.jobs)
        self.ready(self.site)
        return self.site


class EngineTest(ABC):
    """An engine with a real store, a fake clock and some site."""

    name = "test"
    cluster = ""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.paths = Paths(directory)
        self.clock = FakeClock()
        self.store = Store(self.paths.database, durable=False)
        self.jobs = Jobs(self.store, self.clock)
        self.events: list[JobEvent] = []
        self._closed = False

    @abstractmethod
    def open_site(self) -> Site:
        """Open the site for `jobs`."""

    def open(self) -> None:
        self.engine = Engine(self.name, self.jobs, self.open_site(), Policy(), notify=self.events.append)

    def restart(self) -> None:
        """Let the engine die as by SIGKILL; another one of the same name adopts its jobs at a site of its own."""
        self.jobs = Jobs(self.store, self.clock)
        self.open()
        for job in self.store.open_jobs(self.name, 0, 1000):
            if isinstance(job.state, Active):
                self.engine.adopt(job, adopted=False)

    def add(self, count: int = 1, *, engine: str = "", resources: Resources | None = None, **spec: object) -> list[int]:
        """Put jobs into the store and return their ids."""
        digest = self.store.add_environment({"PATH": "/bin"})
        spec = {"out": str(self.directory / "%j.log"), "cluster": self.cluster, **spec}
        shared = JobSpec(resources=resources or Resources(), environment=digest, **spec)  # type: ignore[arg-type]
        jobs = [NewJob(Command(("true",)), shared)] * count
        batch = self.store.add_batch("test", self.clock())
        ids = list(self.store.add_jobs(batch, engine or self.name, jobs, self.clock()))
        self.engine.wake()
        return ids

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            self.engine.turn(0)

    def job(self, job_id: int) -> Job:
        """A job as the store has it."""
        job = self.store.job(job_id)
        assert job is not None
        return job

    def ended(self, job_id: int) -> Ended:
        state = self.job(job_id).state
        assert isinstance(state, Ended)
        return state

    def kinds(self, job_id: int) -> list[str]:
        """The recorded events of a job."""
        return [type(event).__name__ for event in self.store.events(job_id)]

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """The store cannot be written."""
        self.store._database._connection.execute("PRAGMA query_only = 1")
        yield
        self.store._database._connection.execute("PRAGMA query_only = 0")

    def close_engine(self) -> None:
        """Close the engine, if it is open."""
        if not self._closed:
            self._closed = True
            self.engine.close()

    def close(self) -> None:
        self.close_engine()
        self.store.close()


class EngineAtFakeSite(EngineTest):
    """An engine whose site is a fake."""

    def __init__(self, directory: Path, room: int = 1) -> None:
        super().__init__(directory)
        self._room = room
        self.open()

    def open_site(self) -> FakeSite:
        self.site = FakeSite(self.jobs, self._room)
        return self.site


class EngineOnFakeRunner(EngineTest):
    """An engine at a machine site whose runner is a fake."""

    def __init__(self, directory: Path, devices: Devices | None = None, ledger: Ledger | None = None) -> None:
        super().__init__(directory)
        self.runner = FakeRunner(self.clock)
        self.ledger = ledger or Ledger(prepare_ledger(directory / "ledger"))
        self._devices = devices or DeclaredDevices(["0", "1"])
        self.open()

    def open_site(self) -> MachineSite:
        context = SiteContext(self.name, "me", "label", self.paths, self.store, self.jobs)
        self.parts = self.make_parts(machine_context(context, self._devices, self.runner, self.ledger.path))
        self.site = MachineSite(self.parts, "tester")
        return self.site

    def make_parts(self, parts: MachineContext) -> MachineContext:
        """The parts of the site; a test may replace some of them by fakes."""
        return parts

    def run(self, job_id: int) -> str:
        """Turn until the job is sent, report its start, and return the name of its attempt."""
        self.turn(2)
        key = attempt_key(job_id, self.job(job_id).attempts)
        self.runner.started(key)
        self.turn()
        assert isinstance(self.job(job_id).state, Active)
        return key
