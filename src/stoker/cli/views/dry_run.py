"""`stoker submit --dry-run`: what would be submitted, and what the very plan of the queue would make of it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial

import msgspec
from msgspec import Struct

from stoker.core.job import Active, Job, Waiting, limit_of, resources_of, slot_of, started_at
from stoker.core.planner.forecast import Now, forecast
from stoker.core.planner.occupancy import Slot
from stoker.core.planner.plan import Plan, plan
from stoker.core.planner.queue import WaitingJobs, caps_of, why_not_eligible
from stoker.core.planner.reasons import Reason, sentence
from stoker.core.settings import policy_of
from stoker.core.spec import NeverSatisfied, Resources, dependency_text, never_satisfied_text
from stoker.core.text import printable, text_for_json
from stoker.core.units import size_text
from stoker.engine.requests import RequestReader
from stoker.queue.config import load_config
from stoker.queue.submit import Part
from stoker.queue.view_text import clock_text
from stoker.store.engine_lock import QUEUE
from stoker.store.history import RunHistory
from stoker.store.paths import Paths
from stoker.store.status_file import EngineStatus, read_status
from stoker.store.writer import Store

COLUMNS = ("JOB", "HOW", "NEED", "GPU", "START", "AFTER", "DIRECTORY", "COMMAND", "WHY")
_MOST_LOOKED_AT = 20_000
"""Jobs in the queue that are planned together with the new ones."""


class PlannedJob(Struct, frozen=True):
    """What would become of one job."""

    job: str
    """Its place in what is submitted; a task of an array has its index behind a dot."""
    how: str
    """`exec`, or the shell that would read it."""
    need: str
    devices: list[str]
    """Labels of the devices it would start on now; empty where it would wait."""
    start: datetime | None
    """When it is expected to start, where that can be told."""
    after: list[str]
    directory: str
    command: str
    why: str


class SubmitPlan(Struct, frozen=True):
    """All that would be submitted: `stoker submit --dry-run --json`."""

    schema: str
    jobs: list[PlannedJob]


def show_plan(parts: Sequence[Part], store: Store, paths: Paths, *, as_json: bool) -> int:
    """Print a line for each job, or all of them as one JSON value."""
    planned = list(_Prospect(parts, store, read_status(paths.status_file(QUEUE)), time.time()).planned())
    if as_json:
        sys.stdout.write(msgspec.json.encode(SubmitPlan("stoker.submit-plan/1", planned)).decode() + "\n")
        return 0
    print("\t".join(COLUMNS))
    now = time.time()
    for one in planned:
        lists = ",".join(one.devices) or "-", _start_text(one.start, now), ", ".join(one.after) or "-"
        fields = (one.job, one.how, one.need, *lists, one.directory, one.command, one.why)
        print("\t".join(printable(field) for field in fields))
    return 0


class _Prospect:
    """The queue as it would be with the new jobs in it."""

    def __init__(self, parts: Sequence[Part], store: Store, view: EngineStatus | None, now: float) -> None:
        self._store = store
        self._view = view
        self._now = now
        self._jobs = dict(_as_jobs(parts, (store.last_job() or 0) + 1, now))
        self._waiting = WaitingJobs()
        for job in (*store.open_jobs(QUEUE, 0, _MOST_LOOKED_AT), *self._jobs.values()):
            if isinstance(job.state, Waiting) and why_not_eligible(job, now, store.outcome) is None:
                self._waiting.add(job)

    def planned(self) -> Iterator[PlannedJob]:
        """What would become of each new job."""
        decided, starts = (None, {}) if self._view is None else self._decided(self._view)
        for place, job in self._jobs.items():
            after = [dependency_text(dependency, self._store.shown_id) for dependency in job.spec.after]
            start, why = self._start(job, starts), self._why(job, decided)
            yield _planned_job(place, job, self._devices(job, decided), start, why, after=after)

    def _decided(self, view: EngineStatus) -> tuple[Plan, dict[int, float]]:
        settings = load_config(os.environ, None).engine
        policy = RequestReader(self._store, QUEUE).overlaid(policy_of(settings, os.cpu_count() or 1))
        run_history = RunHistory(self._store)
        slots = [_slot(job, self._now) for job in _heads(self._store.active_jobs(QUEUE))]
        estimate = partial(run_history.estimate, margin=policy.margin)
        present = Now(self._waiting, slots, view.snapshot, view.leases, policy, self._now, estimate)
        decided = plan(self._waiting, slots, view.snapshot, view.leases, policy, self._now, estimate=estimate)
        return decided, forecast(present, run_history.expected).starts

    def _start(self, job: Job, starts: dict[int, float]) -> float | None:
        begin = job.spec.begin
        if begin is not None and begin > self._now and not job.spec.after:
            return begin
        return starts.get(job.id)

    def _devices(self, job: Job, decided: Plan | None) -> list[str]:
        if decided is None or self._view is None:
            return []
        labels = {device.id: device.label for device in self._view.devices}
        chosen = next((start.devices for start in decided.starts if start.job.id == job.id), ())
        return [text_for_json(labels[device]) for device in chosen]

    def _why(self, job: Job, decided: Plan | None) -> str:
        gate = why_not_eligible(job, self._now, self._store.outcome)
        if isinstance(gate, NeverSatisfied):
            return f"would be skipped: {never_satisfied_text(gate, self._store.shown_id)}"
        if gate is not None:
            return self._sentence(gate)
        if decided is None:
            return "no engine has looked at this machine yet"
        reason = decided.reason(job)
        return "starts at once" if reason is None else self._sentence(reason)

    def _sentence(self, reason: Reason) -> str:
        return sentence(reason, lambda moment: clock_text(moment, self._now), self._store.shown_id)


def _as_jobs(parts: Sequence[Part], first: int, now: float) -> Iterator[tuple[str, Job]]:
    """The new jobs by their places, with the ids that they would get."""
    place = 0
    for part in parts:
        array, place = (first, place + 1) if part.array else (0, place)
        for new in part.jobs:
            place += not part.array
            word = str(place) if new.task is None else f"{place}.{new.task}"
            yield word, Job(first, 0, new.command, new.spec, Waiting(now), now, new.name, array=array, task=new.task)
            first += 1


def _planned_job(
    place: str, job: Job, devices: list[str], start: float | None, why: str, *, after: list[str]
) -> PlannedJob:
    return PlannedJob(
        job=place,
        how=f"{job.command.shell} -c" if job.command.shell else "exec",
        need=_resources_text(job.spec.resources),
        devices=devices,
        start=None if start is None else datetime.fromtimestamp(round(start), UTC),
        after=after,
        directory=text_for_json(job.spec.cwd),
        command=text_for_json(job.command.text),
        why=why,
    )


def _start_text(start: datetime | None, now: float) -> str:
    if start is None:
        return "?"
    return "now" if start.timestamp() <= now else clock_text(start.timestamp(), now)


def _resources_text(resources: Resources) -> str:
    if not resources.gpus:
        return "no GPU"
    gpus = "1 GPU" if resources.gpus == 1 else f"{resources.gpus} GPUs"
    size = "learnt" if resources.auto else "" if resources.memory is None else size_text(resources.memory)
    each = " each" if size and resources.gpus > 1 else ""
    return gpus + (f", {size}{each}" if size else "") + (f", {resources.model}" if resources.model else "")


def _heads(active: Sequence[Job]) -> Iterator[Job]:
    """The job that each worker runs, without those handed over behind it."""
    seen: set[str] = set()
    for job in sorted(active, key=lambda job: started_at(job) is None):
        assert isinstance(job.state, Active)
        if slot_of(job.state.ref) not in seen:
            seen.add(slot_of(job.state.ref))
            yield job


def _slot(job: Job, now: float) -> Slot:
    assert isinstance(job.state, Active)
    limit = limit_of(job)
    since = started_at(job)
    until = None if limit is None else (since or now) + limit
    return Slot(
        slot_of(job.state.ref), job.id, resources_of(job), job.state.devices, until, caps=caps_of(job), since=since
    )
