"""Ask the planner what it would do: where jobs would start and why others would wait, and which GPUs are free."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial

from msgspec import Struct

from stoker.app.jobs.config import load_config
from stoker.app.jobs.local_time import clock_text, to_datetime
from stoker.app.jobs.submit import JobGroup
from stoker.core.booking import of_others
from stoker.core.device import Device, Snapshot
from stoker.core.job import Active, Job, Waiting, limit_of, resources_of, slot_of, started_at
from stoker.core.launch import shown_command
from stoker.core.planner.forecast import Now, forecast
from stoker.core.planner.occupancy import Preemption, Slot
from stoker.core.planner.plan import Plan, plan
from stoker.core.planner.queue import WaitingJobs, caps_of, why_not_eligible
from stoker.core.planner.reasons import sentence
from stoker.core.settings import Policy, policy_of
from stoker.core.spec import NeverSatisfied, NewJob, Resources, dependency_text, never_satisfied_text, single_jobs
from stoker.core.units import size_text
from stoker.store.engine_lock import QUEUE
from stoker.store.history import RunHistory
from stoker.store.queries import with_user_settings
from stoker.store.status_file import EngineStatus
from stoker.store.writer import Store

_MOST_PLANNED = 20_000
"""Jobs in the queue that are planned together with the new ones."""


class PlannedJob(Struct, frozen=True):
    """The expected start and place of a job."""

    job: str
    """Its place in what is submitted; a task of an array has its index behind a dot."""
    how: str
    """`exec`, or the shell that would read it."""
    need: str
    devices: list[str]
    """Labels of the devices it would start on now; empty where it would wait."""
    start: datetime | None
    """The expected start, where there is one."""
    after: list[str]
    directory: str
    command: str
    why: str
    displaces: list[str] = []
    """Running jobs that would give way to it, as users type them."""


class _Outlook(Struct, frozen=True):
    """The plan that an engine would make now; without one if no engine has seen the machine yet."""

    store: Store
    now: float
    plan: Plan | None = None
    devices: Sequence[Device] = ()
    starts: Mapping[int, float] = {}
    name: Callable[[int], str] = str
    """From a job's number to the id that reasons show."""


def plan_submission(
    groups: Sequence[JobGroup], store: Store, view: EngineStatus | None, now: float
) -> list[PlannedJob]:
    """New jobs as the engine of the queue would place them behind those that are there."""
    jobs = dict(_numbered(groups, (store.last_job() or 0) + 1, now))
    waiting = _waiting((*store.open_jobs(QUEUE, 0, _MOST_PLANNED), *jobs.values()), store, now)
    outlook = _Outlook(store, now) if view is None else _queue_outlook(waiting, view, store, now)
    return [_planned(place, job, outlook, _why(job, outlook)) for place, job in jobs.items()]


def plan_run(
    jobs: Sequence[NewJob], succeeded: Callable[[NewJob], bool], snapshot: Snapshot, policy: Policy, store: Store
) -> list[PlannedJob]:
    """Jobs of a run as it would place them at its start; those that succeeded before are skipped."""
    now = snapshot.at
    numbered = [
        Job(number, 0, new.command, new.spec, Waiting(now), now, new.name, array=new.array, task=new.task)
        for number, new in enumerate(jobs, 1)
    ]
    done = {job.id for job, new in zip(numbered, jobs, strict=True) if succeeded(new)}
    waiting = _waiting((job for job in numbered if job.id not in done), store, now)
    outlook = _Outlook(store, now, plan(waiting, [], snapshot, [], policy, now), snapshot.devices)
    reasons = ("succeeded before" if job.id in done else _why(job, outlook) for job in numbered)
    return [_planned(str(job.id), job, outlook, why) for job, why in zip(numbered, reasons, strict=True)]


def _numbered(groups: Sequence[JobGroup], first: int, now: float) -> Iterator[tuple[str, Job]]:
    """The new jobs by their places, with the ids that they would get."""
    place = 0
    for group in groups:
        array, place = (first, place + 1) if group.array else (0, place)
        for new in single_jobs(group.jobs):
            place += not group.array
            word = str(place) if new.task is None else f"{place}.{new.task}"
            yield word, Job(first, 0, new.command, new.spec, Waiting(now), now, new.name, array=array, task=new.task)
            first += 1


def _waiting(jobs: Iterable[Job], store: Store, now: float) -> WaitingJobs:
    waiting = WaitingJobs()
    for job in jobs:
        if (
            isinstance(job.state, Waiting)
            and not job.spec.cluster
            and why_not_eligible(job, now, store.outcome) is None
        ):
            waiting.add(job)
    return waiting


def _queue_outlook(waiting: WaitingJobs, view: EngineStatus, store: Store, now: float) -> _Outlook:
    history = RunHistory(store)
    present = _present(waiting, view, store, history, now)
    decided = plan(
        waiting,
        present.slots,
        view.snapshot,
        view.leases,
        present.policy,
        now,
        estimate=present.estimate,
        bookings=present.bookings,
    )
    starts = forecast(present, history.expected).starts
    return _Outlook(store, now, decided, view.devices, starts, store.shown_id)


def _present(waiting: WaitingJobs, view: EngineStatus, store: Store, history: RunHistory, now: float) -> Now:
    settings = load_config(os.environ, None).engine
    policy = with_user_settings(policy_of(settings, os.cpu_count() or 1), store.settings(), QUEUE)
    slots = slots_of(store.active_jobs(QUEUE), now, history.preemption)
    estimate = partial(history.estimate, margin=policy.margin)
    bookings = of_others(view.bookings, os.geteuid())
    return Now(waiting, slots, view.snapshot, view.leases, policy, now, estimate, bookings=bookings)


def expected_end(
    jobs: Sequence[Job], view: EngineStatus, store: Store, now: float, typical: float | None
) -> float | None:
    """When the queue would be empty, if it had these jobs, too; None where durations are unknown."""
    history = RunHistory(store)
    waiting = _waiting((*store.open_jobs(QUEUE, 0, _MOST_PLANNED), *jobs), store, now)
    present = _present(waiting, view, store, history, now)
    return forecast(present, history.expected, typical=typical).empty


def _planned(place: str, job: Job, outlook: _Outlook, why: str) -> PlannedJob:
    begin = job.spec.begin
    begins_later = begin is not None and begin > outlook.now and not job.spec.after
    start = begin if begins_later else outlook.starts.get(job.id)
    starts = outlook.plan.starts if outlook.plan else ()
    chosen = next((start.devices for start in starts if start.job.id == job.id), ())
    labels = {device.id: device.label for device in outlook.devices}
    victims = _displaced(job, outlook)
    leave = f"job{'s' * (len(victims) > 1)} {', '.join(victims)}" if victims else ""
    return PlannedJob(
        job=place,
        how=f"{job.command.shell} -c" if job.command.shell else "exec",
        need=_resources_text(job.spec.resources),
        devices=[labels[device] for device in chosen],
        start=None if start is None else to_datetime(round(start)),
        after=[dependency_text(dependency, outlook.store.shown_id) for dependency in job.spec.after],
        directory=job.spec.cwd,
        command=shown_command(job).text,
        why="; ".join(filter(None, (why, leave and f"{leave} would give way"))),
        displaces=victims,
    )


def _displaced(job: Job, outlook: _Outlook) -> list[str]:
    """The running jobs that would give way to a job."""
    decided = outlook.plan.displacements if outlook.plan else ()
    return [
        outlook.store.shown_id(victim)
        for displacement in decided
        if displacement.for_job == job.id
        for victim in displacement.victims
    ]


def _why(job: Job, outlook: _Outlook) -> str:
    store, now = outlook.store, outlook.now

    def clock(moment: float) -> str:
        return clock_text(moment, now)

    gate = why_not_eligible(job, now, store.outcome)
    if isinstance(gate, NeverSatisfied):
        return f"would be skipped: {never_satisfied_text(gate, store.shown_id)}"
    if gate is not None:
        return sentence(gate, clock, store.shown_id)
    if job.spec.cluster:
        return f"is handed over to {job.spec.cluster}"
    if outlook.plan is None:
        return "not known: the engine has not run here yet"
    reason = outlook.plan.reason(job)
    return "starts at once" if reason is None else sentence(reason, clock, outlook.name)


def _resources_text(resources: Resources) -> str:
    if not resources.gpus:
        return "no GPU"
    gpus = "1 GPU" if resources.gpus == 1 else f"{resources.gpus} GPUs"
    size = "learnt" if resources.auto else "" if resources.memory is None else size_text(resources.memory)
    each = " each" if size and resources.gpus > 1 else ""
    return gpus + (f", {size}{each}" if size else "") + (f", {resources.model}" if resources.model else "")


def slots_of(
    active: Sequence[Job], now: float, gives_way: Callable[[Job, float], Preemption | None] = lambda job, now: None
) -> list[Slot]:
    """The allocation of the job that each worker runs, without jobs prefetched behind it."""
    slots: dict[str, Slot] = {}
    for job in sorted(active, key=lambda job: started_at(job) is None):
        assert isinstance(job.state, Active)
        name, limit, since = slot_of(job.state.ref), limit_of(job), started_at(job)
        until = None if limit is None else (since or now) + limit
        held = Slot(
            name,
            job.id,
            resources_of(job),
            job.state.devices,
            until,
            caps=caps_of(job),
            since=since,
            kind=job.kind,
            preemption=gives_way(job, now),
        )
        slots.setdefault(name, held)
    return list(slots.values())
