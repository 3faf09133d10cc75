"""Assign attempts to workers and send start orders."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from stoker.core.errors import StokerError
from stoker.core.job import Assigned, Job, Paused, Returned, Stopping, id_text, resources_of
from stoker.core.launch import LaunchOrder, order_of, output_paths, variables
from stoker.core.parent import VARIABLE, ParentAllocation, parent_gpus
from stoker.core.planner.plan import Start
from stoker.core.spec import Command
from stoker.core.warm import Template, WarmRun, read_python, template_of
from stoker.devices.interface import Devices
from stoker.devices.mps.daemon import MpsTrouble
from stoker.sites.machine.allocations import Allocation
from stoker.sites.machine.context import MachineContext
from stoker.sites.machine.mps import PLAIN, Served
from stoker.sites.machine.ref import WorkerRef, lease_name
from stoker.sites.machine.worker_events import WorkerEvents
from stoker.sites.prepared import obstacle_to, prepared_start
from stoker.store.logs import size_of
from stoker.store.paths import Paths
from stoker.store.writer import Store


class Assignment(NamedTuple):
    """An assignment that is sent to its worker once it is recorded."""

    job: Job
    allocation: Allocation
    outputs: tuple[str, str]
    cold: str = ""
    """Why it starts without a template, although it wants one."""


class OrderBuilder:
    """Makes the order of an attempt; caches environments."""

    def __init__(self, store: Store, devices: Devices, paths: Paths, user: str) -> None:
        self.user = user
        self._paths = paths
        self._own_logs = f"{paths.logs}/"
        self._store = store
        self._devices = devices
        self._environments: dict[str, dict[str, str]] = {}

    def order(self, assignment: Assignment, served: Served) -> tuple[LaunchOrder, dict[str, str]]:
        """The order, and the environment that it names."""
        job, allocation, outputs, cold = assignment
        base = self.environment(job)
        given = {**variables(job, allocation.devices, base), **served.variables}
        extra = {**self._devices.variables, **given, "STOKER_REPORT": str(self._paths.report(job.id))}
        if gpus := parent_gpus(allocation.devices, resources_of(job)):
            extra[VARIABLE] = ParentAllocation(id_text(job), str(self._paths.workers / allocation.worker), gpus).text
        order = order_of(job, outputs, extra, allocation.devices, self._own_logs)
        if job.spec.code:
            order = prepared_start(order, job.spec, base, self._paths)
        if job.spec.warm:
            order = self._warm(order, allocation.template, cold)
        return replace(order, mps_terminate=served.mps_terminate) if served.mps_terminate else order, base

    def template(self, job: Job, outputs: tuple[str, str]) -> Template | str:
        """The template that a job wants, or why it can have none. Its variables are those that jobs share."""
        base = self.environment(job)
        extra = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **base, **dict(job.spec.extra_env)}
        order = order_of(job, outputs, {**extra, "STOKER_GPU_IDS": ""})
        if job.spec.code:
            order = prepared_start(order, job.spec, base, self._paths)
        python = read_python(Command(order.words, order.shell))
        if isinstance(python, str):
            return python
        own = {name: value for name, value in order.extra.items() if name != "STOKER_GPU_IDS"}
        return template_of(python, job.spec.warm, order.cwd, own)

    def _warm(self, order: LaunchOrder, template: str, cold: str) -> LaunchOrder:
        python = read_python(Command(order.words, order.shell))
        if isinstance(python, str) or cold or not template:
            return replace(order, cold=cold or "it runs behind a job without a template")
        return replace(order, warm=WarmRun(template, python.kind, python.target, python.arguments))

    def environment(self, job: Job) -> dict[str, str]:
        """The environment that the job was submitted with."""
        digest = job.spec.environment
        if digest not in self._environments:
            self._environments[digest] = self._store.environment(digest)
        return self._environments[digest]


class Dispatch:
    """The way of a job from the plan to its worker; a client of MPS waits on it for its daemon."""

    def __init__(self, context: MachineContext, worker_events: WorkerEvents, user: str) -> None:
        self.trouble = ""
        """A note on MPS for users; empty if all goes well."""
        self._jobs = context.jobs
        self._allocations = context.allocations
        self._observation = context.observation
        self._worker_events = worker_events
        self._paths = context.paths
        self._runner = context.runner
        self._orders = OrderBuilder(context.store, context.devices, context.paths, user)
        self._within = context.within
        self._observers = context.observers
        self._mps_clients = context.mps_clients
        self._unsent: list[Assignment] = []

    @property
    def waits(self) -> bool:
        """Whether assignments wait for an MPS daemon."""
        return self._mps_clients.busy

    def obstacle(self, start: Start) -> str:
        """Why a job that was prepared at submit cannot start now; empty if it can."""
        return obstacle_to(start.job.spec, self._paths) if start.job.spec.code else ""

    def hold(self, start: Start, reason: str, now: float) -> None:
        """Hold a job that would have to run with something else than what was prepared for it."""
        job = self._jobs.waiting.get(start.job.id)
        assert job is not None
        self._jobs.apply(job, Paused(now, reason))

    def assign(self, start: Start, now: float) -> bool:
        """Put a job on the devices that the plan gave it; False if another engine was faster to claim them."""
        devices = self._observation.devices(start.devices)
        job = self._jobs.waiting.get(start.job.id)
        assert job is not None
        out, err = output_paths(job, self._orders.user)
        template, cold = self._template(job, (out, err))
        allocation = (
            self._allocations[start.behind]
            if start.behind
            else self._allocations.open(start.resources, devices, now, template)
        )
        if allocation is None:
            return False
        errors = "" if err == out else err
        resources = None if start.resources == job.spec.resources else start.resources
        lease, log_start = lease_name(allocation.lease, self._within), size_of(err) if start.devices else 0
        ref = WorkerRef(allocation.worker, lease, log_start).text
        assigned = Assigned(ref, start.devices, out, now, errors, resources)
        self._take(Assignment(self._jobs.apply(job, assigned), allocation, (out, err), cold), now)
        if start.resources.shares:
            self._allocations.note_sharing(self._observation.leases)
        return True

    def send(self, *, draining: bool, mps_exclusive: bool) -> None:
        """Send recorded assignments to their workers; `mps_exclusive` is about the compute mode of GPUs under MPS."""
        self._mps_clients.exclusive = mps_exclusive
        unsent, self._unsent = self._unsent, []
        for assignment in unsent:
            job, allocation = assignment.job, assignment.allocation
            now = self._jobs.active(job.id)
            if now is None or now.attempts != job.attempts:  # returned while the store could not be written
                self._mps_clients.forget(job)
            elif draining or _is_called_off(now):  # stopped after it was assigned
                self._return(now, allocation)
            elif (served := self._served(assignment, now)) is not None:
                self._start(assignment, now, served)
        self._runner.flush()

    def close(self) -> None:
        """Wait for no MPS daemon any more, but for what observers write."""
        self._mps_clients.close()
        for observer in self._observers:
            observer.close()

    def _template(self, job: Job, outputs: tuple[str, str]) -> tuple[Template | None, str]:
        """The template for a job that wants one, or why it starts cold."""
        if not job.spec.warm:
            return None, ""
        if job.spec.terminal:
            return None, "it has a terminal of its own"
        try:
            template = self._orders.template(job, outputs)
        except StokerError:  # its start will say why
            return None, ""
        cold = template if isinstance(template, str) else self._runner.refusal(template)
        return (None, cold) if cold or isinstance(template, str) else (template, "")

    def _take(self, assignment: Assignment, now: float) -> None:
        if not assignment.allocation.jobs:  # now that it is busy, more may be prefetched
            self._jobs.plan_due = True
        assignment.allocation.take(assignment.job.id, now)
        self._unsent.append(assignment)

    def _return(self, job: Job, allocation: Allocation) -> None:
        self._mps_clients.forget(job)
        self._jobs.apply(job, Returned(job.attempts, self._jobs.clock()))
        self._worker_events.leave_allocation(allocation.worker, job)

    def _start(self, assignment: Assignment, job: Job, served: Served) -> None:
        worker = assignment.allocation.worker
        try:
            order, environment = self._orders.order(assignment, served)
        except StokerError as error:  # what was prepared for it was removed a moment ago
            self._worker_events.refuse(worker, job, str(error))
            return
        for observer in self._observers:
            observer.starting(job, environment, self._observation.snapshot.devices, self._jobs.clock())
        self._runner.start(worker, order, environment)
        if isinstance(job.state, Stopping):
            self._runner.stop(worker, order.attempt, 0.0)

    def _served(self, assignment: Assignment, job: Job) -> Served | None:
        """The variables of MPS for the attempt; None if they are not ready yet, or never will be."""
        if resources_of(job).mps is None:
            return PLAIN
        try:
            served = self._mps_clients.serve(
                job, assignment.allocation, self._orders.environment(job), self._jobs.clock()
            )
        except MpsTrouble as error:
            return self._without_mps(assignment, job, error)
        if served is None:
            self._unsent.append(assignment)
        self.trouble = self._mps_clients.trouble or self._mps_clients.news()
        return served

    def _without_mps(self, assignment: Assignment, job: Job, error: MpsTrouble) -> Served | None:
        """Run the job without a daemon if that is allowed; else it has failed."""
        if job.spec.mps_optional:
            self.trouble = f"MPS is not used: {error.message}"
            return PLAIN
        self._worker_events.refuse(assignment.allocation.worker, job, str(error))
        return None


def _is_called_off(job: Job) -> bool:
    """Whether a job is being stopped that may still have to wait for its MPS daemon."""
    return isinstance(job.state, Stopping) and resources_of(job).mps is not None
