"""A machine that does what the plan says, on a clock that moves only when told to."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from stoker.core.device import Device
from stoker.core.job import Job
from stoker.core.lease import Claim, Lease
from stoker.core.planner.occupancy import Slot, claims_on
from stoker.core.planner.plan import Plan, Start, plan
from stoker.core.planner.queue import WaitingJobs, caps_of
from stoker.core.settings import Policy
from stoker.core.spec import JobSpec, Resources
from support.build import a_job, a_snapshot


@dataclass
class Worker:
    """One running job, those that follow it on the same devices, and when the running one will end."""

    name: str
    devices: tuple[str, ...]
    jobs: deque[Job]
    since: float
    ends: float


@dataclass
class World:
    """Waiting jobs and workers on some devices."""

    devices: tuple[Device, ...]
    policy: Policy
    room: int = 0
    leases: Sequence[Lease] = ()
    clock: float = 0.0
    waiting: WaitingJobs = field(default_factory=WaitingJobs)
    workers: dict[str, Worker] = field(default_factory=dict)
    freed: dict[str, float] = field(default_factory=dict)
    run_times: dict[int, float] = field(default_factory=dict)
    started_at: dict[int, float] = field(default_factory=dict)

    def submit(
        self,
        resources: Resources,
        run_time: float,
        *,
        priority: int = 0,
        limited: bool = False,
        kind: str = "",
        group: str = "",
    ) -> Job:
        """Queue a job that will run so long, and whose time limit says so if it has one."""
        limit = run_time if limited else None
        spec = JobSpec(resources=resources, priority=priority, limit=limit, group=group)
        job = replace(a_job(len(self.run_times) + 1, spec=spec, since=self.clock), kind=kind)
        self.run_times[job.id] = run_time
        self.waiting.add(job)
        return job

    def plan(self, waiting: WaitingJobs | None = None) -> Plan:
        """What the plan says now, of these jobs or of all that wait."""
        snapshot = a_snapshot(self.devices, at=self.clock + 0.5)
        queue = self.waiting if waiting is None else waiting
        return plan(queue, self.slots(), snapshot, self.leases, self.policy, self.clock, self.freed)

    @property
    def jobs(self) -> list[Job]:
        """All jobs that wait."""
        return [job for group in self.waiting.groups() for job in group]

    def turn(self) -> Plan:
        """Plan, and do it."""
        decided = self.plan()
        for start in decided.starts:
            self.waiting.remove(start.job.id)
            self._act(start)
        return decided

    def end_next(self) -> None:
        """Move the clock to the next end of a job."""
        worker = min(self.workers.values(), key=lambda worker: (worker.ends, worker.name))
        self.clock = max(self.clock, worker.ends)
        worker.jobs.popleft()
        if worker.jobs:
            self._begin(worker)
        else:
            del self.workers[worker.name]
            self.freed.update(dict.fromkeys(worker.devices, self.clock))

    def slots(self) -> list[Slot]:
        """What an engine would tell the plan of its workers."""
        return [self._slot(worker) for worker in self.workers.values()]

    def claims(self) -> dict[str, list[Claim]]:
        """Everything held, ours and others', by its name in the ledger."""
        by_id = {device.id: device for device in self.devices}
        held = [claim for lease in self.leases for claim in lease.claims]
        for worker in self.workers.values():
            for device_id in worker.devices:
                held.extend(claims_on(by_id[device_id], worker.jobs[0].spec.resources))
        names = dict.fromkeys(claim.name for claim in held)
        return {name: [claim for claim in held if claim.name == name] for name in names}

    def _slot(self, worker: Worker) -> Slot:
        limits = [job.spec.limit for job in worker.jobs]
        known = [limit for limit in limits if limit is not None]
        until = worker.since + sum(known) if len(known) == len(limits) else None
        head = worker.jobs[0]
        room = self.room + 1 - len(worker.jobs)
        caps, since = caps_of(head), worker.since
        return Slot(worker.name, head.id, head.spec.resources, worker.devices, until, room, caps, since, kind=head.kind)

    def _act(self, start: Start) -> None:
        if start.behind:
            self.workers[start.behind].jobs.append(start.job)
            return
        worker = Worker(f"k{start.job.id}", start.devices, deque([start.job]), self.clock, self.clock)
        self.workers[worker.name] = worker
        self._begin(worker)

    def _begin(self, worker: Worker) -> None:
        job = worker.jobs[0]
        self.started_at[job.id] = worker.since = self.clock
        worker.ends = self.clock + self.run_times[job.id]
