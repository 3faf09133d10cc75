"""Assign attempts to workers and send start orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from stoker.core.job import Assigned, Job, Returned, Stopping, resources_of
from stoker.core.launch import Order, order_of, output_paths, variables
from stoker.core.planner.plan import Start
from stoker.devices.interface import Devices
from stoker.devices.mps.daemon import MpsTrouble
from stoker.engine.job_table import JobBook
from stoker.sites.machine.allocations import Allocation, Allocations
from stoker.sites.machine.mps import PLAIN, MpsClients, Served
from stoker.sites.machine.observation import Observation
from stoker.sites.machine.ref import WorkerRef
from stoker.sites.machine.resources import EngineResources
from stoker.sites.machine.worker_events import WorkerEvents
from stoker.store.logs import size_of
from stoker.store.writer import Store


class Assignment(NamedTuple):
    """An assignment that is to be given to a worker once it is recorded."""

    job: Job
    allocation: Allocation
    outputs: tuple[str, str]


class Orders:
    """Assignments that wait to be given, and the environments they refer to."""

    def __init__(self, store: Store, devices: Devices, report: Callable[[int], str]) -> None:
        """`report` is where a job may tell of itself."""
        self._report = report
        self._store = store
        self._devices = devices
        self._waiting: list[Assignment] = []
        self._environments: dict[str, dict[str, str]] = {}

    def put(self, assignment: Assignment) -> None:
        """Keep an assignment until it is recorded."""
        self._waiting.append(assignment)

    def take(self) -> Iterator[Assignment]:
        """All that was put; each is given once."""
        waiting, self._waiting = self._waiting, []
        return iter(waiting)

    def order(self, assignment: Assignment, served: Served) -> tuple[Order, dict[str, str]]:
        """What the worker has to know, and the environment that the order names."""
        job, allocation, outputs = assignment
        base = self.environment(job)
        given = {**variables(job, allocation.devices, base), **served.variables}
        extra = {**self._devices.variables, **given, "STOKER_REPORT": self._report(job.id)}
        order = order_of(job, outputs, extra, allocation.devices)
        return replace(order, mps_terminate=served.mps_terminate) if served.mps_terminate else order, base

    def environment(self, job: Job) -> dict[str, str]:
        """The environment that the job was submitted with."""
        digest = job.spec.environment
        if digest not in self._environments:
            self._environments[digest] = self._store.environment(digest)
        return self._environments[digest]


class Dispatch:
    """The way of a job from the plan to its worker, which a client of MPS has to wait on for its daemon."""

    def __init__(
        self,
        book: JobBook,
        allocations: Allocations,
        observation: Observation,
        worker_events: WorkerEvents,
        engine_resources: EngineResources,
    ) -> None:
        self.trouble = ""
        """What people should know of MPS, in words; empty where all goes well."""
        self._book = book
        self._allocations = allocations
        self._observation = observation
        self._worker_events = worker_events
        self._backend = engine_resources.backend
        self._user = engine_resources.user
        self._orders = Orders(engine_resources.store, engine_resources.devices, engine_resources.report)
        self._mps_clients = MpsClients(engine_resources.backend)

    @property
    def waits(self) -> bool:
        """Whether assignments wait for a daemon of MPS."""
        return self._mps_clients.busy

    def assign(self, start: Start, now: float) -> bool:
        """Put a job on the devices that the plan gave it; False where somebody else was faster to claim them."""
        devices = self._observation.devices(start.devices)
        allocation = (
            self._allocations[start.behind] if start.behind else self._allocations.open(start.resources, devices, now)
        )
        if allocation is None:
            return False
        job = self._book.table.waiting.remove(start.job.id)
        assert job is not None
        out, err = output_paths(job, self._user)
        errors = "" if err == out else err
        resources = None if start.resources == job.spec.resources else start.resources
        lease, log_start = allocation.lease.rpartition("/")[2], size_of(err) if start.devices else 0
        ref = WorkerRef(allocation.worker, lease, log_start).text
        assigned = Assigned(ref, start.devices, out, now, errors, resources)
        self._take(allocation, self._book.apply(job, assigned), (out, err), now)
        if start.resources.shares:
            self._allocations.note_sharing(self._observation.leases)
        return True

    def hand_over(self, *, draining: bool, exclusive: bool) -> None:
        """Give recorded assignments to their workers; `exclusive` is about the compute mode of GPUs under MPS."""
        self._mps_clients.exclusive = exclusive
        for assignment in self._orders.take():
            job, allocation, _ = assignment
            now = self._book.table.active(job.id)
            if now is None or now.attempts != job.attempts:  # came back while the disk was full
                self._mps_clients.forget(job)
            elif draining or _is_called_off(now):  # somebody stopped it between the decision and this
                self._return(now, allocation)
            elif (served := self._served(assignment, now)) is not None:
                self._give(assignment, now, served)
        self._backend.flush()

    def close(self) -> None:
        """Want nothing of MPS any more."""
        self._mps_clients.close()

    def _take(self, allocation: Allocation, job: Job, outputs: tuple[str, str], now: float) -> None:
        if not allocation.jobs:  # now that it is busy, more may be handed over ahead
            self._book.plan_due = True
        allocation.take(job.id, now)
        self._orders.put(Assignment(job, allocation, outputs))

    def _return(self, job: Job, allocation: Allocation) -> None:
        self._mps_clients.forget(job)
        self._book.apply(job, Returned(job.attempts, self._book.clock()))
        self._worker_events.leave_allocation(allocation.worker, job)

    def _give(self, assignment: Assignment, job: Job, served: Served) -> None:
        worker = assignment.allocation.worker
        order, environment = self._orders.order(assignment, served)
        self._backend.start(worker, order, environment)
        if isinstance(job.state, Stopping):
            self._backend.stop(worker, order.attempt, 0.0)

    def _served(self, assignment: Assignment, job: Job) -> Served | None:
        """What MPS has for the attempt; None where that is not ready yet, or never will be."""
        if resources_of(job).mps is None:
            return PLAIN
        try:
            served = self._mps_clients.serve(
                job, assignment.allocation, self._orders.environment(job), self._book.clock()
            )
        except MpsTrouble as error:
            return self._without(assignment, job, error)
        if served is None:
            self._orders.put(assignment)
        self.trouble = self._mps_clients.trouble or self._mps_clients.news()
        return served

    def _without(self, assignment: Assignment, job: Job, error: MpsTrouble) -> Served | None:
        """There will be no daemon: the job goes without it where that was allowed, else it is over."""
        if job.spec.mps_optional:
            self.trouble = f"MPS is not used: {error.message}"
            return PLAIN
        self._worker_events.refuse(assignment.allocation.worker, job, f"{error.message}; {error.hint}")
        return None


def _is_called_off(job: Job) -> bool:
    """Whether nobody wants a job any more that may still have to wait for its MPS daemon."""
    return isinstance(job.state, Stopping) and resources_of(job).mps is not None
