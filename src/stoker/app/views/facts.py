"""What front ends know of a queue: the store, the engines' status files, and the processes on the GPUs."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from stoker.app.jobs.local_time import clock_text
from stoker.app.views.positions import Places
from stoker.app.views.words import last_mishap, sparing_text
from stoker.core.amounts import amount_now, amount_to_come
from stoker.core.device import Device, Process, Reading
from stoker.core.job import (
    Active,
    Ended,
    Job,
    Running,
    Starting,
    Stopping,
    id_text,
    is_handed_over,
    resources_of,
    slot_of,
    started_at,
)
from stoker.core.learning import Learnt, Live, usual_pace
from stoker.core.lease import Lease
from stoker.core.outcomes import JobWord
from stoker.core.parent import VARIABLE, ParentAllocation, read_parent
from stoker.core.planner.queue import (
    NotEligible,
    Shape,
    Wants,
    is_gated,
    queued_word,
    resolved,
    roughly,
    shape_of,
    why_not_eligible,
)
from stoker.core.planner.reasons import CapFull, Outranked, Reason, UnknownDuration, sentence
from stoker.core.settings import Policy
from stoker.core.spec import Dependency, NeverSatisfied, Outcome, Resources, never_satisfied_text
from stoker.devices.interface import ancestors, parent_of, process_file, user_name
from stoker.store import queries
from stoker.store.engine_lock import QUEUE, engine_lives, is_background, living_engines, wake
from stoker.store.paths import Paths, write_problem
from stoker.store.queries import Load, Owned
from stoker.store.reader import Reader
from stoker.store.status_file import EngineStatus, read_status
from stoker.store.writer import open_store

if TYPE_CHECKING:
    from stoker.core.logs.progress import Progress

NO_ENGINE = "engine not running (stoker engine start)"
OLD_SECONDS = 2.0
"""Age of a status file from which on its engine is asked for a new one..."""
PATIENCE = 0.5
"""... and how many seconds it may take to write it."""
SILENT_SECONDS = 3.0
"""Age from which on the status of an engine that does not answer is reported as old."""
_STEP = 0.01


# -- engines -------------------------------------------------------------------------------------


class EngineStatuses(Struct, frozen=True):
    """The last status of the queue's engine, dead or alive, and those of the living foreground runs."""

    queue: EngineStatus | None
    lives: bool
    runs: tuple[EngineStatus, ...] = ()
    silence: float = 0.0
    """Seconds since the queue's engine wrote its status, if it does not answer; 0 if it does."""
    problem: str = ""
    """Why the engine cannot write its status, as on a full disk; empty where that is unknown."""
    probe: EngineStatus | None = None
    """The status that driver and ledger give now, if no engine lives and a screen asked them."""

    def __iter__(self) -> Iterator[EngineStatus]:
        """All of them, that of the queue first."""
        return iter(self.runs if self.queue is None else (self.queue, *self.runs))

    def of(self, engine: str) -> EngineStatus | None:
        return next((status for status in self if status.engine == engine), None)

    @property
    def current(self) -> list[EngineStatus]:
        """Those of living engines; if none lives, what was asked instead, or the last one of the queue."""
        living = [status for status in self if self.lives or status.engine != QUEUE]
        return living or ([self.probe] if self.probe else list(self))

    @property
    def devices(self) -> dict[str, Device]:
        found: dict[str, Device] = {}
        for device in (device for status in self.current for device in status.devices):
            if device.id not in found or device.whole is None:  # the whole GPU rather than a parent job's part of it
                found[device.id] = device
        return found

    def reading(self, device_id: str) -> Reading:
        newest = sorted(self.current, key=lambda status: (status.nested, -status.at))
        return next((status.readings[device_id] for status in newest if device_id in status.readings), Reading())

    @property
    def leases(self) -> tuple[Lease, ...]:
        return tuple(dict.fromkeys(lease for status in self.current for lease in status.leases))

    def reasons(self) -> dict[tuple[str, Wants], Reason]:
        """Why jobs wait, by engine and by what they want; where that is not listed, by what they roughly want."""
        waits = [(status.engine, wait) for status in self for wait in status.waits]
        rough = {(engine, roughly(wait.wants)): wait.reason for engine, wait in reversed(waits)}
        return rough | {(engine, wait.wants): wait.reason for engine, wait in waits}


def read_statuses(paths: Paths, now: float) -> EngineStatuses:
    """Read the status files; ask the queue's engine for a new one if its file is old."""
    lives = engine_lives(paths, QUEUE)
    path = paths.status_file(QUEUE)
    written, queue = _written(path), read_status(path)
    silence = 0.0
    if lives and (queue is None or now - queue.at > OLD_SECONDS) and wake(paths, QUEUE):
        deadline = time.monotonic() + PATIENCE
        while _written(path) == written and time.monotonic() < deadline:
            time.sleep(_STEP)
        answers = _written(path) != written
        queue = read_status(path) or queue
        silence = now - queue.at if queue and not answers else 0.0
    others = (read_status(paths.status_file(name)) for name in living_engines(paths) if name != QUEUE)
    runs = tuple(status for status in others if status is not None)
    silence = silence if silence > SILENT_SECONDS else 0.0
    return EngineStatuses(queue, lives, runs, silence, write_problem(paths.engines) if silence else "")


def _written(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


# -- processes -----------------------------------------------------------------------------------

_MARK = re.compile(rb"(?:\A|\0)STOKER_JOB_ID=(\d{1,18})\0")


def jobs_of_processes(pids: Iterable[int]) -> dict[int, int | None]:
    """The job of each living process; None for a process that belongs to none of ours."""
    found = {pid: _job_of(pid) for pid in set(pids)}
    return {pid: job for pid, job in found.items() if job is not None or parent_of(pid) is not None}


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
    ledger = os.environ.get("STOKER_LEDGER", "")
    found: dict[str, JobElsewhere] = {}
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        environment = process_file(pid, "environ")
        if VARIABLE.encode() not in environment:
            continue
        variables = dict(pair.partition("=")[::2] for pair in environment.decode(errors="replace").split("\0"))
        allocation = read_parent(variables.get(VARIABLE, ""))
        if allocation is None or variables.get("STOKER_LEDGER", "") != ledger:
            continue
        if Path(allocation.folder).parent != workers:
            found.setdefault(allocation.folder, JobElsewhere(pid, variables.get("STOKER_JOB_NAME", ""), allocation))
    return list(found.values())


# -- speeds --------------------------------------------------------------------------------------

MOST_LOGS = 64
"""Logs that are read for one screen: each takes about a millisecond."""


def jobs_by_device(jobs: Iterable[Job]) -> dict[str, list[Job]]:
    """The active jobs on each device, by its id."""
    on: dict[str, list[Job]] = {}
    for job in jobs:
        for device_id in job.state.devices if isinstance(job.state, Active) else ():
            on.setdefault(device_id, []).append(job)
    return on


def speeds_of(jobs: Iterable[Job], devices: Mapping[str, Device], learnt: Callable[[str], Learnt]) -> dict[int, float]:
    """The speed of each running job on a shared GPU as a part of its speed alone, where both rates are known."""
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


# -- all of it -----------------------------------------------------------------------------------


class Knowledge:
    """Everything a screen is made of, as of one moment."""

    def __init__(
        self,
        store: Reader,
        statuses: EngineStatuses,
        now: float,
        *,
        simulated: bool,
        active: list[Owned] | None = None,
        report_of: Callable[[int], Path] | None = None,
        jobs_by_process: Mapping[int, int | None] | None = None,
        workers: Path | None = None,
    ) -> None:
        """`active` are the jobs to show as placed, default all in the store.

        `report_of` names the file of a job's reports; `workers` is the queue's directory of workers.
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
        self._used = self._used_by_jobs(processes)
        self._workers = workers
        self._report_of = report_of
        self._logs_read = 0
        self._outcomes: dict[Dependency, Outcome] = {}
        self._learnt: dict[str, Learnt] = {}
        self._to_come: dict[tuple[str, Shape], Resources] = {}
        self._run_labels: dict[int, str] = {}
        self._living = {status.engine for status in statuses.runs} | ({QUEUE} if statuses.lives else set())

    def _used_by_jobs(self, processes: Iterable[Process]) -> dict[int, int]:
        used: dict[int, int] = {}
        for process in processes:
            job_id = self.jobs_by_process.get(process.pid)
            if job_id is not None and process.memory is not None:
                used[job_id] = used.get(job_id, 0) + process.memory
        return used

    @cached_property
    def loads(self) -> Mapping[str, Load]:
        return queries.loads(self.store)

    @cached_property
    def _reasons(self) -> dict[tuple[str, Wants], Reason]:
        return self.statuses.reasons()

    @cached_property
    def nested(self) -> set[int]:
        """Jobs that run inside other jobs, on what is reserved for those."""
        engines = {status.engine for status in self.statuses if status.nested}
        return {job.id for job, engine in self.active if engine in engines}

    @cached_property
    def elsewhere(self) -> list[JobElsewhere]:
        """Jobs of this user's other queues; processes are searched only if a lease tells of such a queue."""
        others = self._workers and any(lease.owner == self.user for lease in self.statuses.leases)
        return jobs_elsewhere(self._workers) if self._workers and others else []

    @cached_property
    def speeds(self) -> dict[int, float]:
        return speeds_of((job for job, _ in self.active), self.devices, self.learnt)

    def progress(self, job: Job) -> Progress | None:
        """The progress of a running job; of so many jobs as one screen shows."""
        if self._report_of is None or self._logs_read >= MOST_LOGS:
            return None
        from stoker.store.progress import progress_of  # it loads the patterns of log lines

        self._logs_read += 1
        return progress_of(job, self._report_of(job.id), self.now)

    def clock(self, at: float) -> str:
        return clock_text(at, self.now)

    def labels(self, device_ids: Sequence[str]) -> list[str]:
        """As users call them; several GPUs of one node share its name: `lab:n3 0`, `1`."""
        labels = [self.devices[one].label if one in self.devices else one for one in device_ids]
        nodes = [label.rpartition(" ")[0] for label in labels]
        return [
            label.rpartition(" ")[2] if place and node and node == nodes[place - 1] else label
            for place, (label, node) in enumerate(zip(labels, nodes, strict=True))
        ]

    def devices_of(self, device_ids: Sequence[str]) -> list[Device]:
        return [self.devices[one] for one in device_ids if one in self.devices]

    def used_by(self, job_id: int) -> int | None:
        """Bytes that a job holds on all its devices, None if unknown."""
        return self._used.get(job_id)

    def live(self, job_id: int) -> Live | None:
        return next((status.uses[job_id] for status in self.statuses if job_id in status.uses), None)

    def learnt(self, kind: str) -> Learnt:
        if kind not in self._learnt:
            self._learnt[kind] = self.store.learnt(kind)
        return self._learnt[kind]

    def tolerance(self, device_id: str) -> int:
        """Bytes that an idle device may show as used, by the settings of the engine that has it."""
        configured = (
            status.settings.tolerance
            for status in self.statuses.current
            if status.settings and any(device.id == device_id for device in status.devices)
        )
        return next(configured, Policy().tolerance)

    def reserved(self, job: Job, engine: str) -> int | None:
        """Bytes reserved for a job on each GPU, or that would be if it started now; None is the whole GPU."""
        if isinstance(job.state, Active):
            return amount_now(resources_of(job), self.devices_of(job.state.devices))
        status = self.statuses.of(engine)
        resources = self._estimated(engine, shape_of(job))
        return amount_to_come(resources, status.devices if status else self.devices.values())

    def _estimated(self, engine: str, shape: Shape) -> Resources:
        """The resources that the engine would reserve."""
        key = engine, shape
        if key not in self._to_come:
            status = self.statuses.of(engine)
            margin = status.settings.margin if status and status.settings else Policy().margin
            learnt = self.learnt(shape.kind) if shape.resources.shares else None
            self._to_come[key] = shape.resources if learnt is None else resolved(shape, learnt, margin)
        return self._to_come[key]

    def is_abandoned(self, engine: str) -> bool:
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

    def reason(self, job: Job, engine: str) -> str:
        """Why a job waits for devices, in words; empty if it is about to start."""
        return self._in_words(self._reason(job, engine))

    def _in_words(self, reason: Reason | None) -> str:
        return "" if reason is None else sentence(reason, self.clock, self.store.shown_id)

    def _reason(self, job: Job, engine: str) -> Reason | None:
        """Find a waiting job in the last plan of its engine."""
        shape = shape_of(job)
        wants = Wants(self._estimated(engine, shape), shape.priority, shape.caps)
        return self._reasons.get((engine, wants)) or self._reasons.get((engine, roughly(wants)))

    @cached_property
    def places(self) -> Places:
        return Places(self.store, (status for status in self.statuses if status.engine in self._living), self.now)

    def order_text(self, reason: Outranked | UnknownDuration) -> str:
        return sentence(reason, self.clock, self.store.shown_id)

    def situation(self, job: Job, engine: str) -> tuple[JobWord, str]:
        """A job's state in the words of the screens, and why it is not further."""
        if isinstance(job.state, Ended):
            return job.state.result, job.state.note
        if isinstance(job.state, Active):
            if (elsewhere := self._in_cluster(job, engine)) is not None:
                return "queued", elsewhere
            return _active_word(job), "; ".join(
                filter(None, (self._unseen(job, engine), self._about_active(job, engine)))
            )
        word, why = self._about_queued(job, engine)
        if self.is_abandoned(engine):
            return word, f"{self._run_label(job.batch)} was interrupted; continue: stoker resume {id_text(job)}"
        return word, why

    def _in_cluster(self, job: Job, engine: str) -> str | None:
        """Why a job that was handed over to a cluster has not started; None for all others."""
        if not is_handed_over(job):
            return None
        if is_background(engine) and engine not in self._living:
            return "handed over to the cluster; no engine runs that could tell more (stoker status starts it)"
        assert isinstance(job.state, Starting)
        status = self.statuses.of(engine)
        known = status.handed_over.get(slot_of(job.state.ref).rpartition(".")[0]) if status else None
        return sentence(known, self.clock, self.store.shown_id) if known else "about to be handed over"

    def _unseen(self, job: Job, engine: str) -> str:
        seen = self.last_seen(engine, started_at(job) or 0.0)
        return "" if seen is None else f"last seen {self.clock(seen)}" if seen else "not confirmed by an engine"

    def _run_label(self, batch: int) -> str:
        """What the user typed, as `simple_gpu_scheduler --gpus 0`."""
        if batch not in self._run_labels:
            self._run_labels[batch] = self.store.batch_label(batch) or "a run"
        return self._run_labels[batch]

    def _about_active(self, job: Job, engine: str) -> str:
        if survivors := next((status.survivors[job.id] for status in self.statuses if job.id in status.survivors), ""):
            return survivors
        if isinstance(job.state, Stopping) and job.state.note:
            return job.state.note
        if self.is_abandoned(engine):
            return (
                "its run was interrupted" if self._unseen(job, engine) else "its run was interrupted; the job continues"
            )
        if isinstance(job.state, Starting) and resources_of(job).mps is not None:
            return "waiting for the MPS daemon of its GPU"
        return self._mishap(job)

    def _about_queued(self, job: Job, engine: str) -> tuple[JobWord, str]:
        hindered = why_not_eligible(job, self.now, self._outcome) if is_gated(job) else None
        if hindered is not None:
            return queued_word(job, hindered), self._not_eligible_text(hindered)
        if is_background(engine) and engine not in self._living:
            return "queued", NO_ENGINE
        reason = self._reason(job, engine)
        # At the limit of its own array or group it waits for that, whichever job goes first.
        passed = "" if reason is None or isinstance(reason, CapFull) else self._passed(job, engine)
        words = self._in_words(reason) or "about to start", passed, self._mishap(job)
        return "queued", "; ".join(filter(None, words))

    def _passed(self, job: Job, engine: str) -> str:
        """Which younger job goes first, and why; empty where the first one is older, as users expect."""
        first = self.places.outranked(job, engine)
        return self.order_text(first) if first and first.job > job.id and first.by != "priority" else ""

    def _not_eligible_text(self, why: NotEligible | NeverSatisfied) -> str:
        if isinstance(why, NeverSatisfied):
            return f"{never_satisfied_text(why, self.store.shown_id)}; it will be skipped"
        return sentence(why, self.clock, self.store.shown_id)

    def _mishap(self, job: Job) -> str:
        """The last attempt that an unfinished job lost on a shared GPU."""
        event = last_mishap(self.store.events(job.id)) if job.shared_failures else None
        return sparing_text(job, event) if event else ""

    def _outcome(self, dependency: Dependency) -> Outcome:
        known = self._outcomes.get(dependency)
        if known is None:
            known = self._outcomes[dependency] = self.store.outcome(dependency)
        return known


def _active_word(job: Job) -> JobWord:
    match job.state:
        case Running():
            return "running"
        case Stopping():
            return "stopping"
        case _:
            return "starting"


@contextlib.contextmanager
def known(paths: Paths, statuses: EngineStatuses | None = None) -> Iterator[Knowledge]:
    """What is known now; status files are read before the store, which is then read in one transaction."""
    now = time.time()
    seen = statuses or read_statuses(paths, now)
    with contextlib.closing(open_store(paths)) as store, store.reading():
        yield Knowledge(store, seen, now, simulated=paths.is_simulated, report_of=paths.report, workers=paths.workers)
