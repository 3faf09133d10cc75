"""Build the data of `stoker status` from store, status file and ledger."""

from __future__ import annotations

import contextlib
import heapq
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from stoker import __version__
from stoker.core.device import Device, Process, Reading
from stoker.core.job import (
    Active,
    Ended,
    Event,
    Exited,
    Job,
    OnHold,
    Running,
    Starting,
    Stopping,
    id_text,
    needs_exclusive,
    resources_of,
    started_at,
)
from stoker.core.learning import Learnt, Live, usual_pace
from stoker.core.lease import Lease
from stoker.core.planner.placement import suits
from stoker.core.planner.policy import Policy
from stoker.core.planner.queue import NotEligible, Shape, is_gated, resolved, shape_of, why_not_eligible
from stoker.core.planner.reasons import Behind, NotBefore, Reason, sentence
from stoker.core.spec import Dependency, NeverSatisfied, Outcome, amount_on, never_satisfied_text
from stoker.core.text import text_for_json
from stoker.core.units import duration_text, size_text
from stoker.devices.interface import user_name
from stoker.queue.view_model import (
    Counts,
    DeviceLine,
    EngineLine,
    ForeignProcess,
    JobLine,
    JobWord,
    LeaseLine,
    Mark,
    Status,
    VramMode,
    amount_now,
    amount_to_come,
    exactly,
    mode_of,
    moment,
)
from stoker.store import queries
from stoker.store.engine_lock import QUEUE, engine_lives, living_engines, wake
from stoker.store.paths import Paths
from stoker.store.queries import Load, Owned, Period, Tasks, drained_key, paused_key
from stoker.store.reader import Reader
from stoker.store.status_file import View, read_status
from stoker.store.writer import open_store

DAY = 86400.0

_SPANS = (("d", DAY), ("h", 3600.0), ("m", 60.0), ("s", 1.0))


def clock_text(at: float, now: float) -> str:
    """`14:32` where it is today, with as much of a date as is needed elsewhere."""
    then, today = time.localtime(at), time.localtime(now)
    if then[:3] == today[:3]:
        return time.strftime("%H:%M", then)
    if abs(at - now) < 6 * DAY:
        return time.strftime("%a %H:%M", then)
    return time.strftime("%Y-%m-%d" if abs(at - now) > 300 * DAY else "%b %d", then)


def stamp(at: float) -> str:
    """`2026-11-15 22:14:03`, here."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def span_text(seconds: float) -> str:
    """`3d 2h`, `2h`, `5m`: the largest unit, and the next one for days."""
    whole = max(0.0, seconds)
    if whole >= DAY:
        days, rest = divmod(whole, DAY)
        return f"{days:.0f}d {rest // 3600:.0f}h"
    return next((f"{whole // size:.0f}{unit}" for unit, size in _SPANS if whole >= size), "0s")


def ago_text(at: float, now: float) -> str:
    """`2h ago`."""
    return f"{span_text(now - at)} ago"


def watch_text(seconds: float) -> str:
    """Hours, minutes and seconds that have passed: `1:12:03`, `2-03:00:00` with days as Slurm writes them."""
    days, rest = divmod(max(0, int(seconds)), 86400)
    hours, rest = divmod(rest, 3600)
    clock = f"{hours}:{rest // 60:02}:{rest % 60:02}"
    return f"{days}-{hours:02}{clock[clock.index(':') :]}" if days else clock


def left_text(seconds: float) -> str:
    """Hours and minutes that are left: `0:31`, with days where there are any; less than a minute is `0:00`."""
    days, rest = divmod(max(0, int(seconds)), 86400)
    clock = f"{rest // 3600}:{rest % 3600 // 60:02}"
    return f"{days}d{clock}" if days else clock


def midnight(now: float) -> float:
    """When today began, here."""
    year, month, day, *_ = time.localtime(now)
    return time.mktime((year, month, day, 0, 0, 0, 0, 0, -1))


GIB = 2**30


def vram_text(mode: VramMode, size: int | None) -> str:
    """`6.0G`, `auto` or `all`, as it was asked for."""
    return size_text(size) if mode == "size" else "-" if mode == "none" else mode


def sparing_text(job: Job, event: Exited) -> str:
    """Why company cost a job its attempt, and what is different the next time, or now that it runs again."""
    return f"{_what_happened(event)}; {_what_follows(job, event)}"


def consequence_text(job: Job, event: Exited) -> str:
    """The same for where there is little room: what is different comes first."""
    return f"{_what_follows(job, event)}; {_what_happened(event)}"


def last_mishap(events: Iterable[Event]) -> Exited | None:
    """The last attempt that company cost a job."""
    found = [event for event in events if isinstance(event, Exited) and event.cause and event.shared]
    return found[-1] if found else None


def oom_advice(job: Job, event: Exited, had: Iterable[Device], devices: Iterable[Device], typed: str) -> str:
    """What may help a job that ran out of GPU memory for good; `had` is what it had of all devices."""
    retry = f"stoker retry{typed}"
    if event.shared:
        return f"others on its GPU had that memory; try again alone: {retry} --vram all"
    largest = max((device.memory or 0 for device in had), default=0)
    larger = [device.memory or 0 for device in devices if suits(device, job.spec.resources)]
    if largest and max(larger, default=0) > largest:
        return f"there are larger GPUs: {retry} --vram {largest // GIB + 1}G"
    return "needs a larger GPU, a smaller batch, or more GPUs (-G)"


def _what_happened(event: Exited) -> str:
    if event.cause == "fault":
        return "died of a fault that all clients of MPS were told"
    return "ran out of GPU memory beside others" if event.floor else "found the GPU's memory taken by others"


def _what_follows(job: Job, event: Exited) -> str:
    runs = isinstance(job.state, Active)
    if needs_exclusive(job):
        return "now alone" if runs else "next time alone"
    again = "now" if runs else "again"
    if not event.floor:
        return f"{again} with as much set aside as before"
    return f"{again} with {size_text(max(job.floor, job.spec.resources.memory or 0))} set aside"


OLD_SECONDS = 2.0
"""Age at which what an engine shows is asked for anew..."""

PATIENCE = 0.5
"""... and how many seconds it may take to show it."""

SILENT_SECONDS = 3.0
"""Age at which what an engine shows that does not answer is too old to pass for the truth."""

_STEP = 0.01


class Views(Struct, frozen=True):
    """The engine of the queue, whether or not it lives, and the foreground runs that do."""

    queue: View | None
    lives: bool
    runs: tuple[View, ...] = ()
    silence: float = 0.0
    """Seconds for which the engine of the queue has shown nothing, although it was asked; 0 where it answers."""

    def __iter__(self) -> Iterator[View]:
        """All of them, that of the queue first."""
        return iter(self.runs if self.queue is None else (self.queue, *self.runs))

    def of(self, engine: str) -> View | None:
        """What one engine shows."""
        return next((view for view in self if view.engine == engine), None)

    @property
    def current(self) -> list[View]:
        """Those of living engines; where none lives, what the last one showed."""
        living = [view for view in self if self.lives or view.engine != QUEUE]
        return living or list(self)

    @property
    def devices(self) -> dict[str, Device]:
        """All devices that anybody knows of."""
        return {device.id: device for view in self.current for device in view.devices}

    def reading(self, device_id: str) -> Reading:
        """The newest reading of a device."""
        newest = sorted(self.current, key=lambda view: -view.at)
        return next((view.readings[device_id] for view in newest if device_id in view.readings), Reading())

    @property
    def leases(self) -> tuple[Lease, ...]:
        """Those that the engines see of others, each once."""
        return tuple(dict.fromkeys(lease for view in self.current for lease in view.leases))

    def reasons(self) -> dict[tuple[str, Shape], Reason]:
        """Why jobs wait, by engine and shape."""
        return {(view.engine, wait.shape): wait.reason for view in self for wait in view.waits}


def look(paths: Paths, now: float) -> Views:
    """What engines show; one that lives and has not shown anything new for a while is asked to."""
    lives = engine_lives(paths, QUEUE)
    path = paths.status_file(QUEUE)
    written, queue = _written(path), read_status(path)
    silence = 0.0
    if lives and (queue is None or now - queue.at > OLD_SECONDS) and wake(paths, QUEUE):
        answers = _wait_until_newer(path, written)
        queue = read_status(path) or queue
        silence = now - queue.at if queue and not answers else 0.0
    others = (read_status(paths.status_file(name)) for name in living_engines(paths) if name != QUEUE)
    runs = tuple(view for view in others if view is not None)
    return Views(queue, lives, runs, silence if silence > SILENT_SECONDS else 0.0)


def _wait_until_newer(path: Path, written: int) -> bool:
    deadline = time.monotonic() + PATIENCE
    while _written(path) == written and time.monotonic() < deadline:
        time.sleep(_STEP)
    return _written(path) != written


def _written(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


MOST_ANCESTORS = 32

_MARK = re.compile(rb"(?:\A|\0)STOKER_JOB_ID=(\d{1,18})\0")


def jobs_of_processes(pids: Iterable[int]) -> dict[int, int | None]:
    """The job of each process that still exists, None where it is nobody's of ours."""
    found = {pid: _job_of(pid) for pid in set(pids)}
    return {pid: job for pid, job in found.items() if job is not None or _parent(pid) is not None}


def _job_of(pid: int) -> int | None:
    """The job that it, or the nearest process above it that can be read, was started for."""
    above: int | None = pid
    for _ in range(MOST_ANCESTORS):
        if above is None or above <= 1:
            return None
        match = _MARK.search(_content(above, "environ"))
        if match:
            return int(match[1])
        above = _parent(above)
    return None


def _parent(pid: int) -> int | None:
    fields = _content(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else None


def _content(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:  # gone, or somebody else's
        return b""


MOST_LOGS = 64
"""Logs that are looked at for one screen: each takes about a millisecond."""


def speeds_of(jobs: Iterable[Job], devices: Mapping[str, Device], learnt: Callable[[str], Learnt]) -> dict[int, float]:
    """The speed of every running job in company whose rate is known, both now and alone."""
    exclusive = [(job, pace) for job in is_shared(jobs) if (pace := _pace_alone(job, devices, learnt))]
    return _compared(exclusive[:MOST_LOGS]) if exclusive else {}


def together(jobs: Sequence[Job], speeds: Mapping[int, float]) -> float | None:
    """What all jobs on a device do together, against one that is alone; None where not all are known."""
    known = [speeds[job.id] for job in jobs if job.id in speeds]
    return round(sum(known), 2) if len(known) == len(jobs) > 1 else None


def is_shared(jobs: Iterable[Job]) -> list[Job]:
    """The running jobs that share a device with another of them."""
    on: dict[str, list[Job]] = {}
    running = [job for job in jobs if isinstance(job.state, Running)]
    for job in running:
        for device in _devices(job):
            on.setdefault(device, []).append(job)
    return [job for job in running if any(len(on[device]) > 1 for device in _devices(job))]


def _devices(job: Job) -> tuple[str, ...]:
    return job.state.devices if isinstance(job.state, Running) else ()


def _pace_alone(job: Job, devices: Mapping[str, Device], learnt: Callable[[str], Learnt]) -> float | None:
    models = {devices[device].model for device in _devices(job) if device in devices}
    return usual_pace(learnt(job.kind), models.pop()) if job.kind and len(models) == 1 else None


def _compared(exclusive: Sequence[tuple[Job, float]]) -> dict[int, float]:
    from stoker.core.logs.progress import read_pace  # most screens have nothing to compare with, and do without
    from stoker.store.logs import read_tail

    speeds = {}
    for job, pace in exclusive:
        assert isinstance(job.state, Running)
        now = read_pace(read_tail(job.state.log))
        if now is not None and now.per_second is not None:
            speeds[job.id] = round(now.per_second / pace, 2)
    return speeds


NO_ENGINE = "no engine runs (stoker engine start)"


class Knowledge:
    """Read within one transaction of the store."""

    def __init__(self, store: Reader, views: Views, now: float, user: str, *, simulated: bool) -> None:
        self.store = store
        self.views = views
        self.now = now
        self.user = user
        self.simulated = simulated
        self.active: list[Owned] = queries.all_active(store)
        self.settings: Mapping[str, Any] = store.settings()
        self.loads = queries.loads(store)
        self._reasons = views.reasons()
        self._outcomes: dict[Dependency, Outcome] = {}
        self._learnt: dict[str, Learnt] = {}
        self._to_come: dict[tuple[str, Shape], int | None] = {}
        self.devices = views.devices
        self._labels = {device.id: device.label for device in self.devices.values()}
        self._living = {view.engine for view in views.runs} | ({QUEUE} if views.lives else set())
        processes = [process for device in self.devices for process in views.reading(device).processes]
        self.jobs_by_process = jobs_of_processes(process.pid for process in processes)
        self._used: dict[int, int] = {}
        for process in processes:
            job_id = self.jobs_by_process.get(process.pid)
            if job_id is not None and process.memory is not None:
                self._used[job_id] = self._used.get(job_id, 0) + process.memory

    def clock(self, at: float) -> str:
        """A moment as the reader's clock shows it."""
        return clock_text(at, self.now)

    def labels(self, device_ids: Sequence[str]) -> list[str]:
        """What people call the devices."""
        return [self._labels.get(one, one) for one in device_ids]

    def used_by(self, job_id: int) -> int | None:
        """The bytes that a job has on all its devices, None where nobody can tell."""
        return self._used.get(job_id)

    def live(self, job_id: int) -> Live | None:
        """What a running job holds of its GPUs, where an engine has measured it."""
        return next((view.uses[job_id] for view in self.views if job_id in view.uses), None)

    def learnt(self, kind: str) -> Learnt:
        """What is known of work of a kind."""
        if kind not in self._learnt:
            self._learnt[kind] = self.store.learnt(kind)
        return self._learnt[kind]

    @cached_property
    def speeds(self) -> dict[int, float]:
        """How fast jobs in company go, as parts of their speed alone."""
        return speeds_of((job for job, _ in self.active), self.devices, self.learnt)

    def set_aside(self, job: Job, engine: str) -> int | None:
        """Bytes on each GPU that a job has, or would have if it started now; None is all of it."""
        if isinstance(job.state, Active):
            return amount_now(resources_of(job), self.devices_of(job.state.devices))
        key = engine, shape_of(job)
        if key not in self._to_come:
            self._to_come[key] = self._estimated(*key)
        return self._to_come[key]

    def devices_of(self, device_ids: Sequence[str]) -> list[Device]:
        """The devices with these ids, as far as they are known."""
        return [self.devices[one] for one in device_ids if one in self.devices]

    def _estimated(self, engine: str, shape: Shape) -> int | None:
        view = self.views.of(engine)
        margin = view.settings.margin if view and view.settings else Policy().margin
        resources = resolved(shape, self.learnt(shape.kind), margin) if shape.kind else shape.resources
        return amount_to_come(resources, view.devices if view else self.devices.values())

    def is_left_behind(self, engine: str) -> bool:
        """Whether jobs belong to a run that is dead, and so to nobody."""
        return engine != QUEUE and engine not in self._living

    def situation(self, job: Job, engine: str) -> tuple[JobWord, str]:
        """A job's state in the words of the screens, and why it is not further."""
        if isinstance(job.state, Ended):
            return job.state.result, job.state.note
        if isinstance(job.state, Active):
            return _active_word(job), self._about_active(job, engine)
        word, why = self._about_queued(job, engine)
        if self.is_left_behind(engine):
            return word, f"left by a run that died; go on with it: stoker resume {id_text(job)}"
        return word, why

    def _about_active(self, job: Job, engine: str) -> str:
        if isinstance(job.state, Stopping) and job.state.note:
            return job.state.note
        if self.is_left_behind(engine):
            return "its run died; it goes on by itself"
        if isinstance(job.state, Starting) and resources_of(job).mps is not None:
            return "waits for the MPS daemon of its GPU"
        return self._mishap(job)

    def _about_queued(self, job: Job, engine: str) -> tuple[JobWord, str]:
        hindered = why_not_eligible(job, self.now, self._outcome) if is_gated(job) else None
        if hindered is not None:
            return _queued_word(job, hindered), _sentence(hindered, self)
        if engine == QUEUE and not self.views.lives:
            return "queued", NO_ENGINE
        reason = self._reasons.get((engine, shape_of(job)))
        why = "about to start" if reason is None else sentence(reason, self.clock, self.store.shown_id)
        return "queued", "; ".join(filter(None, (why, self._mishap(job))))

    def _mishap(self, job: Job) -> str:
        """What company has cost a job that is not over yet."""
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


def _queued_word(job: Job, why: NotEligible | NeverSatisfied) -> JobWord:
    if isinstance(job.state, OnHold):
        return "held"
    return (
        "scheduled" if isinstance(why, NotBefore) else "blocked" if isinstance(why, Behind | NeverSatisfied) else "held"
    )


def _sentence(why: NotEligible | NeverSatisfied, knowledge: Knowledge) -> str:
    if isinstance(why, NeverSatisfied):
        return f"{never_satisfied_text(why, knowledge.store.shown_id)}; it will be skipped"
    return sentence(why, knowledge.clock, knowledge.store.shown_id)


@contextlib.contextmanager
def known(paths: Paths, *, simulated: bool, views: Views | None = None) -> Iterator[Knowledge]:
    """All that is known now; the engines are asked before the store, which then stands still for a moment."""
    now = time.time()
    seen = views or look(paths, now)
    with contextlib.closing(open_store(paths)) as store, store.reading():
        yield Knowledge(store, seen, now, user_name(os.geteuid()), simulated=simulated)


_PAGE = 256


def active_lines(knowledge: Knowledge, *, on_finish_jobs: bool = False) -> list[JobLine]:
    """The jobs that workers have."""
    wanted = [one for one in knowledge.active if on_finish_jobs or one.job.spec.role != "hook"]
    return [job_line(job, engine, knowledge) for job, engine in wanted]


def queued_lines(
    knowledge: Knowledge, limit: int | None, *, each_task: bool, on_finish_jobs: bool = False
) -> list[JobLine]:
    """The first jobs that no worker has, in the order of their ids; tasks of an array on one line unless unwanted."""
    lines = [_queued_of(engine, knowledge, each_task=each_task) for engine in knowledge.loads]
    merged = heapq.merge(*lines, key=lambda line: line.id)
    return list(islice((line for line in merged if on_finish_jobs or not line.hook), limit))


def _queued_of(engine: str, knowledge: Knowledge, *, each_task: bool) -> Iterator[JobLine]:
    store, after = knowledge.store, 0
    while jobs := queries.queued_jobs(store, engine, after, _PAGE):
        for job in jobs:
            if job.id <= after:
                continue  # it was told of together with the first of its array
            after = job.id
            if job.array and not each_task:
                after = queries.last_of_array(store, job.array)
                tasks = queries.queued_tasks(store, engine, job.array)
                yield from sorted((_tasks_line(one, engine, knowledge) for one in tasks), key=lambda line: line.id)
            else:
                yield job_line(job, engine, knowledge)


def _tasks_line(tasks: Tasks, engine: str, knowledge: Knowledge) -> JobLine:
    line = job_line(tasks.first, engine, knowledge)
    if tasks.size == 1:
        return line
    label = f"{tasks.first.array}.[{tasks.first.task}-{tasks.last.task}]"
    return msgspec.structs.replace(line, label=label, tasks=tasks.size)


def job_line(job: Job, engine: str, knowledge: Knowledge) -> JobLine:
    """One job as it is now."""
    word, why = knowledge.situation(job, engine)
    spec, resources, started = job.spec, job.spec.resources, started_at(job)
    view = knowledge.views.of(engine)
    devices = job.state.devices if isinstance(job.state, Active) else ()
    live = knowledge.live(job.id) if devices else None
    return JobLine(
        id=job.id,
        label=id_text(job),
        tasks=1,
        name=text_for_json(job.name),
        command=text_for_json(job.command.text),
        state=word,
        group=text_for_json(spec.group),
        priority=spec.priority,
        gpus=resources.gpus,
        devices=[text_for_json(label) for label in knowledge.labels(devices)],
        vram_bytes=resources.memory,
        used_bytes=knowledge.used_by(job.id),
        submitted=exactly(job.submitted),
        started=moment(started),
        seconds=None if started is None else round(max(0.0, knowledge.now - started), 3),
        limit_seconds=spec.limit,
        expected_start=moment(view.starts.get(job.id)) if view else None,
        expected_end=moment(view.ends.get(job.id)) if view else None,
        why=text_for_json(why),
        run="" if engine == QUEUE else text_for_json(view.label if view else engine),
        hook=spec.role == "hook",
        vram_mode=mode_of(resources),
        reserved_bytes=knowledge.set_aside(job, engine),
        held_bytes=live.memory if live else None,
        peak_vram_bytes=live.peak if live else None,
        utilisation_percent=live.utilisation if live else None,
        speed=knowledge.speeds.get(job.id) if devices else None,
    )


class Holders(NamedTuple):
    """Who is on a device."""

    jobs: Sequence[Job]
    leases: Sequence[LeaseLine]
    strangers: Sequence[Process]
    used_by_ours: int


def device_lines(knowledge: Knowledge) -> list[DeviceLine]:
    """Every device that an engine knows, in its order."""
    on: dict[str, list[Job]] = {}
    for job, _ in knowledge.active:
        for device_id in job.state.devices if isinstance(job.state, Active) else ():
            on.setdefault(device_id, []).append(job)
    return [_device_line(device, on.get(device.id, []), knowledge) for device in knowledge.devices.values()]


def mark_of(value: Any) -> Mark | None:
    """What somebody set, as it is kept among the settings."""
    if not isinstance(value, dict):
        return None
    return Mark(text_for_json(str(value.get("note", ""))), moment(value.get("at")))


def _device_line(device: Device, jobs: Sequence[Job], knowledge: Knowledge) -> DeviceLine:
    reading = knowledge.views.reading(device.id)
    holders = _holders(device, reading, jobs, knowledge)
    ours, others = _amounts(device, reading, holders)
    return DeviceLine(
        id=text_for_json(device.id),
        label=text_for_json(device.label),
        model=text_for_json(device.model),
        kind=device.kind,
        memory_bytes=device.memory,
        used_bytes=reading.used,
        ours_bytes=ours,
        reserved_bytes=_reserved(device, jobs),
        others_bytes=others,
        utilisation_percent=reading.utilisation,
        temperature_celsius=reading.temperature,
        power_watts=reading.power,
        problem=text_for_json(reading.problem),
        drained=mark_of(knowledge.settings.get(drained_key(device.id))),
        jobs=[id_text(job) for job in jobs],
        leases=list(holders.leases),
        strangers=[_foreign_process(process) for process in holders.strangers],
        combined_speed=_together(holders, knowledge),
    )


def _holders(device: Device, reading: Reading, jobs: Sequence[Job], knowledge: Knowledge) -> Holders:
    whose = knowledge.jobs_by_process
    ids = {job.id for job in jobs}
    ours = [process for process in reading.processes if whose.get(process.pid) in ids]
    living = [process for process in reading.processes if process.pid in whose or process.owner != knowledge.user]
    leases = [lease for lease in _leases(device, knowledge) if not (jobs and lease.owner == knowledge.user)]
    strangers = [process for process in living if process not in ours and whose.get(process.pid) is None]
    return Holders(jobs, leases, strangers, sum(process.memory or 0 for process in ours))


def _leases(device: Device, knowledge: Knowledge) -> Iterator[LeaseLine]:
    for lease in knowledge.views.leases:
        claim = next((claim for claim in lease.claims if claim.name in device.claims), None)
        if claim is not None:
            owner, what = text_for_json(lease.owner), text_for_json(lease.what)
            yield LeaseLine(owner, lease.pid, what, claim.memory, exactly(lease.since))


def _amounts(device: Device, reading: Reading, holders: Holders) -> tuple[int, int]:
    """What is used by us and by others; what no visible process has is whose jobs are on the device."""
    used, ours = reading.used or 0, holders.used_by_ours
    theirs = sum(process.memory or 0 for process in holders.strangers)
    rest = max(0, used - ours - theirs)
    if holders.jobs and all(process.memory is not None for process in holders.strangers):
        ours += rest
    else:
        theirs += rest
    whole = device.memory or 0
    claimed = sum(whole if lease.memory_bytes is None else lease.memory_bytes for lease in holders.leases)
    return ours, max(theirs, min(claimed, whole))


def _reserved(device: Device, jobs: Sequence[Job]) -> int:
    whole = device.memory or 0
    amounts = [amount_on(resources_of(job), device) for job in jobs]
    return min(whole, sum(whole if amount is None else amount for amount in amounts))


def _together(holders: Holders, knowledge: Knowledge) -> float | None:
    """Where others compute there too, ours say too little."""
    if holders.leases or not all(process.graphics for process in holders.strangers):
        return None
    return together(holders.jobs, knowledge.speeds) if len(holders.jobs) > 1 else None


def _foreign_process(process: Process) -> ForeignProcess:
    owner, command = text_for_json(process.owner), text_for_json(process.command)
    return ForeignProcess(process.pid, owner, command, process.memory, process.graphics)


SCHEMA = "stoker.status/1"


def status_of(
    knowledge: Knowledge, host: str, limit: int | None, *, each_task: bool = False, on_finish_jobs: bool = False
) -> Status:
    """The queue now, with all active jobs and the first of those that wait."""
    views = knowledge.views
    active = active_lines(knowledge, on_finish_jobs=on_finish_jobs)
    queued = queued_lines(knowledge, limit, each_task=each_task, on_finish_jobs=on_finish_jobs)
    counts = _counts(knowledge, on_finish_jobs=on_finish_jobs)
    return Status(
        schema=SCHEMA,
        at=exactly(knowledge.now),
        host=text_for_json(host),
        version=__version__,
        simulated=knowledge.simulated,
        engine=engine_line(knowledge),
        devices=device_lines(knowledge),
        jobs=[*active, *queued],
        counts=counts,
        hidden=_hidden(counts, len(active), queued),
        today=queries.past_counts(knowledge.store, Period(midnight(knowledge.now), on_finish_jobs=on_finish_jobs)),
        expected_empty=moment(views.queue.empty) if views.queue and views.lives else None,
        notes=[text_for_json(note) for note in _notes(views)],
    )


def engine_line(knowledge: Knowledge) -> EngineLine:
    """The engine in the background as it is now, or as it was when it left."""
    view, lives = knowledge.views.queue, knowledge.views.lives
    paused = mark_of(knowledge.settings.get(paused_key(QUEUE)))
    seen = moment(max((one.at for one in knowledge.views.current), default=None))
    if view is None:
        return EngineLine(lives, seen=seen, paused=paused)
    return EngineLine(
        running=lives,
        pid=view.pid if lives else None,
        version=view.version,
        since=moment(view.since) if lives else None,
        seen=seen,
        trouble=text_for_json(view.trouble) if lives else "",
        draining=view.draining and lives,
        paused=paused,
        silence=_silence(knowledge.views),
    )


def _silence(views: Views) -> str:
    if not views.silence:
        return ""
    return f"the engine does not answer: what it showed is {duration_text(views.silence)} old; see stoker engine status"


def _counts(knowledge: Knowledge, *, on_finish_jobs: bool) -> Counts:
    loads: list[Load] = list(knowledge.loads.values())
    running = 0 if on_finish_jobs else sum(one.job.spec.role == "hook" for one in knowledge.active)
    waiting = sum(load.waiting for load in loads) - (
        0 if on_finish_jobs else queries.queued_on_finish_jobs(knowledge.store)
    )
    return Counts(len(knowledge.active) - running, waiting, sum(load.held for load in loads))


def _hidden(counts: Counts, active: int, queued: list[JobLine]) -> Counts:
    held = sum(line.tasks for line in queued if line.state == "held")
    waiting = sum(line.tasks for line in queued) - held
    return Counts(counts.active - active, max(0, counts.waiting - waiting), max(0, counts.held - held))


def _notes(views: Views) -> list[str]:
    notes = [view.note for view in views.current if view.note]
    troubles = [view.trouble for view in views.current if view.trouble and (views.lives or view.engine != QUEUE)]
    silence = [_silence(views)] if views.silence else []
    return list(dict.fromkeys([*silence, *notes, *troubles]))
