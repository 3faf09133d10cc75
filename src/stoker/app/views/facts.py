"""The facts of a queue at one moment: the store, the engines' status files, and the processes on the GPUs."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stoker.app.jobs.local_time import clock_text
from stoker.app.views.engines import EngineStatuses, read_statuses
from stoker.core.amounts import amount_now, amount_to_come
from stoker.core.device import Device, node_gpu
from stoker.core.job import Active, Job, Running, resources_of
from stoker.core.learning import Learnt, usual_pace
from stoker.core.planner.order import QueuePosition, overtaken_by
from stoker.core.planner.queue import JobKind, ReasonKey, job_kind_of, resolved, without_memory
from stoker.core.planner.reasons import Outranked, Reason, sentence
from stoker.core.settings import Policy
from stoker.core.spec import Dependency, Outcome, Resources
from stoker.devices.interface import ancestors, parent_of, process_file, user_name
from stoker.store import queries
from stoker.store.engine_lock import QUEUE, is_background
from stoker.store.paths import Paths
from stoker.store.queries import Load, Owned
from stoker.store.reader import Reader
from stoker.store.status_file import EngineStatus
from stoker.store.writer import open_store

if TYPE_CHECKING:
    from stoker.core.logs.progress import Progress
if TYPE_CHECKING:
    from stoker.core.parent import ParentAllocation

MOST_LOGS = 64
"""Logs that are read for one screen: each takes about a millisecond."""


class QueueFacts:
    """Everything a screen is made of, as of one moment."""

    def __init__(
        self,
        store: Reader,
        statuses: EngineStatuses,
        now: float,
        *,
        simulated: bool,
        paths: Paths | None = None,
        active: list[Owned] | None = None,
        jobs_by_process: Mapping[int, int | None] | None = None,
    ) -> None:
        """`active` are the jobs to show as placed, default all in the store.

        Without `paths`, neither progress nor jobs of other queues are known.
        """
        self.store = store
        self.statuses = statuses
        self.now = now
        self.user = user_name(os.geteuid())
        self.simulated = simulated
        self.active: list[Owned] = queries.all_active(store) if active is None else active
        self.settings: Mapping[str, Any] = store.settings()
        self.devices = statuses.devices
        self.readings = {device_id: statuses.reading(device_id) for device_id in self.devices}
        processes = [process for reading in self.readings.values() for process in reading.processes]
        self.jobs_by_process = (
            jobs_of_processes(process.pid for process in processes) if jobs_by_process is None else jobs_by_process
        )
        self.used_bytes: dict[int, int] = {}
        """Memory of each job on all its devices together, if known."""
        for process in processes:
            job_id = self.jobs_by_process.get(process.pid)
            if job_id is not None and process.memory is not None:
                self.used_bytes[job_id] = self.used_bytes.get(job_id, 0) + process.memory
        self._living = statuses.living
        self._paths = paths
        self._logs_read = 0
        self._outcomes: dict[Dependency, Outcome] = {}
        self._learnt: dict[str, Learnt] = {}
        self._to_come: dict[tuple[str, JobKind], Resources] = {}
        self._run_labels: dict[int, str] = {}

    @cached_property
    def loads(self) -> Mapping[str, Load]:
        """The engines that own open jobs, with their counts; counted only for screens that show them."""
        return queries.loads(self.store)

    @cached_property
    def _reasons(self) -> dict[tuple[str, ReasonKey], Reason]:
        return self.statuses.reasons()

    @cached_property
    def nested(self) -> set[int]:
        """Jobs that run inside other jobs, on what is reserved for those."""
        engines = {status.engine for status in self.statuses if status.nested}
        return {job.id for job, engine in self.active if engine in engines}

    @cached_property
    def elsewhere(self) -> list[JobElsewhere]:
        """Jobs of this user's other queues; processes are searched only if a lease tells of such a queue."""
        if self._paths is None or not any(lease.owner == self.user for lease in self.statuses.leases):
            return []
        return jobs_elsewhere(self._paths.workers)

    @cached_property
    def speeds(self) -> dict[int, float]:
        return speeds_of((job for job, _ in self.active), self.devices, self.learnt)

    @cached_property
    def positions(self) -> QueuePositions:
        return QueuePositions(
            self.store, (status for status in self.statuses if status.engine in self._living), self.now
        )

    def progress(self, job: Job) -> Progress | None:
        """Read the progress of a running job, of at most MOST_LOGS jobs."""
        if self._paths is None or self._logs_read >= MOST_LOGS:
            return None
        from stoker.store.reports import progress_of  # it loads the patterns of log lines

        self._logs_read += 1
        return progress_of(job, self._paths.report(job.id), self.now)

    def devices_of(self, device_ids: Sequence[str]) -> list[Device]:
        return [self.devices[device_id] for device_id in device_ids if device_id in self.devices]

    def learnt(self, kind: str) -> Learnt:
        if kind not in self._learnt:
            self._learnt[kind] = self.store.learnt(kind)
        return self._learnt[kind]

    def outcome(self, dependency: Dependency) -> Outcome:
        if dependency not in self._outcomes:
            self._outcomes[dependency] = self.store.outcome(dependency)
        return self._outcomes[dependency]

    def run_label(self, batch: int) -> str:
        """The command line, as `simple_gpu_scheduler --gpus 0`."""
        if batch not in self._run_labels:
            self._run_labels[batch] = self.store.batch_label(batch) or "a run"
        return self._run_labels[batch]

    def reserved(self, job: Job, engine: str) -> int | None:
        """Bytes reserved for a job on each GPU, or that would be if it started now; None is the whole GPU."""
        if isinstance(job.state, Active):
            return amount_now(resources_of(job), self.devices_of(job.state.devices))
        status = self.statuses.of(engine)
        resources = self._estimated(engine, job_kind_of(job))
        return amount_to_come(resources, status.devices if status else self.devices.values())

    def _estimated(self, engine: str, job_kind: JobKind) -> Resources:
        """The resources that the engine would reserve."""
        key = engine, job_kind
        if key not in self._to_come:
            status = self.statuses.of(engine)
            margin = status.settings.margin if status and status.settings else Policy().margin
            learnt = self.learnt(job_kind.kind) if job_kind.resources.shares else None
            self._to_come[key] = job_kind.resources if learnt is None else resolved(job_kind, learnt, margin)
        return self._to_come[key]

    def lives(self, engine: str) -> bool:
        return engine in self._living

    def is_interrupted(self, engine: str) -> bool:
        """Whether an engine is a foreground run that died."""
        return not is_background(engine) and engine not in self._living

    def last_seen(self, engine: str, started: float) -> float | None:
        """When an engine last confirmed that a job runs, if none confirms it now; None if one does.

        The background engine also watches jobs of dead runs.
        """
        status = self.statuses.of(engine)
        watched = engine in self._living or (self.statuses.lives and not is_background(engine))
        if watched and not (engine == QUEUE and self.statuses.silence):
            return None
        return max(started, status.at) if status else started

    def reason(self, job: Job, engine: str) -> Reason | None:
        """Why a job waits for devices, by the last plan of its engine; None if it is about to start."""
        job_kind = job_kind_of(job)
        key = ReasonKey(self._estimated(engine, job_kind), job_kind.priority, job_kind.caps)
        return self._reasons.get((engine, key)) or self._reasons.get((engine, without_memory(key)))

    def sentence(self, reason: Reason) -> str:
        return sentence(reason, lambda at: clock_text(at, self.now), self.store.shown_id)


@contextlib.contextmanager
def read_facts(paths: Paths, statuses: EngineStatuses | None = None) -> Iterator[QueueFacts]:
    """Read the status files before the store, which is then read in one transaction."""
    now = time.time()
    seen = statuses or read_statuses(paths, now)
    with contextlib.closing(open_store(paths)) as store, store.reading():
        yield QueueFacts(store, seen, now, simulated=paths.is_simulated, paths=paths)


# -- devices -------------------------------------------------------------------------------------


def device_labels(device_ids: Sequence[str], devices: Mapping[str, Device]) -> list[str]:
    """As users call them; several GPUs of one node share its name: `lab:n3 0`, `1`."""
    labels, last_node = [], None
    for device_id in device_ids:
        gpu = node_gpu(device_id)
        label = devices[device_id].label if device_id in devices else device_id
        labels.append(gpu.gpu if gpu is not None and gpu[:2] == last_node else label)
        last_node = gpu[:2] if gpu is not None else None
    return labels


def jobs_by_device(jobs: Iterable[Job]) -> dict[str, list[Job]]:
    """The active jobs on each device, by its id."""
    on: dict[str, list[Job]] = {}
    for job in jobs:
        for device_id in job.state.devices if isinstance(job.state, Active) else ():
            on.setdefault(device_id, []).append(job)
    return on


def speeds_of(jobs: Iterable[Job], devices: Mapping[str, Device], learnt: Callable[[str], Learnt]) -> dict[int, float]:
    """The speed of each running job on a shared GPU as a part of its speed alone, if both rates are known."""
    running = jobs_by_device(job for job in jobs if isinstance(job.state, Running))
    exclusive: list[tuple[int, str, float]] = []
    for job in {job.id: job for sharing in running.values() if len(sharing) > 1 for job in sharing}.values():
        assert isinstance(job.state, Running)
        models = {devices[device].model for device in job.state.devices if device in devices}
        pace = usual_pace(learnt(job.kind), models.pop()) if job.kind and len(models) == 1 else None
        exclusive += [(job.id, job.state.log, pace)] if pace else []
    if not exclusive:
        return {}
    from stoker.core.logs.progress import read_pace  # most screens have no rates to compare
    from stoker.store.logs import read_tail

    speeds = {}
    for job_id, log, pace in exclusive[:MOST_LOGS]:
        now = read_pace(read_tail(log))
        if now is not None and now.per_second is not None:
            speeds[job_id] = round(now.per_second / pace, 2)
    return speeds


# -- the order of waiting jobs -------------------------------------------------------------------


class QueuePositions:
    """The first waiting jobs of living engines, in the order in which they will start, as far as is known.

    Jobs with a forecast come first, by their expected start; the others follow in the order of the plan.
    """

    def __init__(self, store: Reader, statuses: Iterable[EngineStatus], now: float) -> None:
        self._store = store
        self._now = now
        self._statuses = {status.engine: status for status in statuses}
        self._positions = {
            engine: {position.job: position for position in _by_start(status)}
            for engine, status in self._statuses.items()
        }
        self._places = {engine: _numbered(jobs.values()) for engine, jobs in self._positions.items()}
        self._counted: dict[int, tuple[int, int]] = {}
        """The last task of each array that a place was asked for, and how many waiting ones come before it."""

    def first(self, engine: str) -> list[int]:
        """The ids of the first jobs of an engine, one for each array."""
        return list(self._positions.get(engine, {}))

    def position(self, job: Job, engine: str) -> QueuePosition | None:
        """The figures that decide on a job's place, if its engine published them; all tasks of an array share them."""
        positions = self._positions.get(engine, {})
        if job.id in positions or not job.array:
            return positions.get(job.id)
        shared = (other for other in positions.values() if job.array <= other.job < job.id and other.tasks > 1)
        return next(shared, None)

    def place(self, job: Job, engine: str) -> int | None:
        """How many waiting jobs of its engine start before a job, plus one; None if unknown."""
        position = self.position(job, engine)
        if position is None:
            return None
        place = self._places[engine][position.job]
        if position.job == job.id:
            return place
        # Tasks are asked for by id: counting from the first one each time would take a square of their number.
        first, before = self._counted.get(position.job, (position.job, 0))
        if first > job.id:
            first, before = position.job, 0
        before += queries.count_waiting(self._store, engine, first, job.id)
        self._counted[position.job] = job.id, before
        return place + before

    def overtaken_by(self, job: Job, engine: str) -> Outranked | None:
        """The job that goes before this one, and why; None for the first in the order of the plan.

        Jobs with and without GPUs do not compete.
        """
        position = self.position(job, engine)
        if position is None:
            return None
        status = self._statuses[engine]
        policy = Policy(order=status.settings.order) if status.settings else Policy()
        first = next(rival for rival in status.order if bool(rival.gpus) == bool(position.gpus))
        return None if first.job == position.job else overtaken_by(position, first, policy, self._now)


def _by_start(status: EngineStatus) -> list[QueuePosition]:
    return sorted(status.order, key=lambda position: status.starts.get(position.job, inf))


def _numbered(positions: Iterable[QueuePosition]) -> dict[int, int]:
    """Places by job id: every task counts."""
    listed = list(positions)
    places = accumulate([position.tasks for position in listed], initial=1)
    return dict(zip([position.job for position in listed], places, strict=False))


# -- the jobs behind the processes on GPUs, by their environment in /proc -------------------------

_MARK = re.compile(rb"(?:\A|\0)STOKER_JOB_ID=(\d{1,18})\0")


def jobs_of_processes(pids: Iterable[int]) -> dict[int, int | None]:
    """The job of each living process; None for a process that belongs to none of ours."""
    jobs = {pid: _job_of(pid) for pid in set(pids)}
    return {pid: job for pid, job in jobs.items() if job is not None or parent_of(pid) is not None}


def _job_of(pid: int) -> int | None:
    """The job id in the environment of the process, or of its nearest ancestor that has one."""
    marks = (_MARK.search(process_file(above, "environ")) for above in ancestors(pid))
    return next((int(mark[1]) for mark in marks if mark), None)


class JobElsewhere(NamedTuple):
    """A job of another queue of this user, by the environment of its first process."""

    pid: int
    name: str
    allocation: ParentAllocation


def jobs_elsewhere(workers: Path) -> list[JobElsewhere]:
    """This user's jobs with GPUs of the same ledger whose workers are elsewhere, each by its oldest process."""
    from stoker.core.parent import VARIABLE, read_parent  # few users have several queues

    ledger = os.environ.get("STOKER_LEDGER", "")
    jobs: dict[str, JobElsewhere] = {}
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        environment = process_file(pid, "environ")
        if VARIABLE.encode() not in environment:
            continue
        variables = dict(pair.partition("=")[::2] for pair in environment.decode(errors="replace").split("\0"))
        allocation = read_parent(variables.get(VARIABLE, ""))
        if allocation is None or variables.get("STOKER_LEDGER", "") != ledger:
            continue
        if Path(allocation.folder).parent != workers:
            jobs.setdefault(allocation.folder, JobElsewhere(pid, variables.get("STOKER_JOB_NAME", ""), allocation))
    return list(jobs.values())
