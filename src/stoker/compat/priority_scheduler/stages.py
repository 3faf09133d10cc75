"""Profile and training stages of priority_scheduler."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from stoker.compat.priority_scheduler.task_file import Row, Rows
from stoker.core.device import Device
from stoker.core.errors import StokerError
from stoker.core.job import Ended, Job
from stoker.core.launch import INHERIT
from stoker.core.planner.fairshare import never_within_limits
from stoker.core.planner.placement import never_fits
from stoker.core.planner.policy import Policy
from stoker.core.spec import Command, JobSpec, NewJob, Resources, content_of
from stoker.core.text import outcome
from stoker.engine.foreground import Foreground
from stoker.queue.options import Surroundings, spec_of
from stoker.queue.task_list import Task
from stoker.store.logs import last_line

Stage = Literal["profile", "train"]

PROFILE_EPOCHS = 2

PROFILES = "priority_scheduler profiles"
"""The group of all profile runs, of which one runs at a time."""

VARIABLE = "STOKER_TASK"
"""Tells a job from every other one, also from the same command of an earlier run."""


class RunRequest(Struct, frozen=True):
    """One run of a row's task."""

    row: Row
    stage: Stage

    @property
    def key(self) -> str:
        """What the variable says."""
        return f"{self.row.ticket.token}.{self.stage}"


class Bench(Struct, frozen=True):
    """All that jobs are made of, but for the tasks themselves."""

    around: Surroundings
    devices: Sequence[Device]
    policy: Policy
    logs: str
    mps: int | None = None
    """Percent of a GPU's threads; None is without MPS."""

    @property
    def measures(self) -> bool:
        """Whether anybody can tell how much memory a run takes."""
        return any(device.memory for device in self.devices)

    def fault(self, task: Task) -> str:
        """Why a task could never run here; empty where it could."""
        try:
            spec = self._spec(task)
        except StokerError as error:
            return error.message
        if task.options.array is not None:
            return "it cannot be an array"
        if INHERIT in (spec.out, spec.err):
            return "its output must go to files"
        resources = spec.resources
        return (
            never_fits(resources, self.devices) or never_within_limits(resources.gpus, self.devices, self.policy) or ""
        )

    def job(self, run_request: RunRequest) -> NewJob:
        """The job of an errand."""
        task, number = run_request.row.task, run_request.row.ticket.number
        profile = run_request.stage == "profile"
        name = f"task-{number}-profile" if profile else f"task-{number}"
        spec = self._spec(task)
        log = f"{self.logs.replace('%', '%%')}/{name}.log"
        spec = replace(
            spec,
            resources=self._resources(task, spec.resources, profile=profile),
            mps_optional=True,
            group=PROFILES if profile else spec.group,
            extra_env=(*spec.extra_env, (VARIABLE, run_request.key)),
            out=log if profile or task.options.out is None else spec.out,
            err="" if profile else spec.err,
            tags=(*spec.tags, ("task", str(number))),
        )
        words = task.words(PROFILE_EPOCHS if profile else task.epochs, number)
        return NewJob(Command(words), spec, task.options.name or name)

    def _spec(self, task: Task) -> JobSpec:
        """What a row asks for; its memory is learnt unless it says how much."""
        own = task.options
        vram = "auto" if own.vram is None and own.gpus != 0 else own.vram
        return spec_of(replace(own, chdir=task.directory or None, priority=-task.priority, vram=vram), self.around)

    def _resources(self, task: Task, resources: Resources, *, profile: bool) -> Resources:
        """A whole GPU to learn what it takes; then that much, as a client of MPS where there is one to be."""
        if profile:
            return replace(resources, memory=None, auto=False, mps=None)
        told = task.options.mps is not None or not resources.shares or resources.gpus != 1
        return resources if told else replace(resources, mps=self.mps)


def key_of(job: Job) -> str:
    """The key of the errand that a job is."""
    return dict(job.spec.extra_env).get(VARIABLE, "")


def return_code(state: Ended) -> int:
    """How Python would tell the end: the exit code, or the signal with a minus before it."""
    return -state.signal if state.signal else state.code or 0


PEAK_PATIENCE = 4.0
"""Seconds for which the driver's last word on a profile run is waited for."""

BRIEF = 0.5
"""Seconds; what ran no longer than that may have been over before anybody looked."""


class Batches:
    """Gives out the jobs of one batch after the other, and tells the rows how they ended."""

    def __init__(self, rows: Rows, bench: Bench, run: Foreground, announce: Callable[[str], None]) -> None:
        self.exhausted = False
        self._rows = rows
        self._bench = bench
        self._run = run
        self._announce = announce
        self._wake_fifo = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when there are jobs to take, or another batch to look for."""
        self._outgoing: deque[NewJob] = deque()
        self._open: dict[str, RunRequest] = {}
        """What was given out and is not over."""
        self._passed: list[RunRequest] = []
        """Profile runs that succeeded."""
        self._profiles: dict[str, Job] = {}
        """Their jobs by the key of the errand, as far as those ran here."""
        self._unmeasured: list[Job] = []
        """Profile runs whose peak is still to be told..."""
        self._deadline: float | None = None
        """... and until when it is waited for."""
        self._not_submitted = 0

    # -- as a source of jobs ---------------------------------------------------------------------

    def fileno(self) -> int:
        """The bell."""
        return self._wake_fifo

    def take(self, limit: int) -> Sequence[NewJob]:
        """The next jobs of this batch, or the first of another."""
        os.eventfd_read(self._wake_fifo)
        while not self._outgoing and not self._open and not self.exhausted:
            self._go_on()
        jobs = [self._outgoing.popleft() for _ in range(min(limit, len(self._outgoing)))]
        if self._outgoing:
            self._ring()
        return jobs

    def close(self) -> None:
        """Give the bell back."""
        os.close(self._wake_fifo)

    # -- stage after stage -----------------------------------------------------------------------

    def _go_on(self) -> None:
        if self._passed:
            self._train()
        elif batch := self._rows.next_batch(self._bench.fault, self._run.say):
            self._announce(f"Number of files: {len(batch)}")
            self._give_out([run_request for row in batch if (run_request := self._begin(RunRequest(row, "profile")))])
        else:
            self.exhausted = True

    def _begin(self, profile: RunRequest) -> RunRequest | None:
        """The profile run of a row, unless an earlier scheduler has brought it further."""
        train = RunRequest(profile.row, "train")
        if not profile.row.new and self._succeeded(train):
            self._run.say(f"{train.row.title} succeeded in an earlier run")
            self._rows.succeeded(train.row)
        elif not profile.row.new and self._succeeded(profile):
            self._passed.append(profile)
        else:
            return profile
        return None

    def _train(self) -> None:
        passed, self._passed = self._passed, []
        passed.sort(key=lambda run_request: (run_request.row.task.priority, run_request.row.ticket.number))
        self._announce(f"peak_mems: {[self._peak(run_request) for run_request in passed]}")
        self._profiles.clear()
        self._give_out(RunRequest(run_request.row, "train") for run_request in passed)

    def _give_out(self, run_requests: Iterable[RunRequest]) -> None:
        for run_request in run_requests:
            self._open[run_request.key] = run_request
            self._outgoing.append(self._bench.job(run_request))

    # -- what becomes of them --------------------------------------------------------------------

    def ended(self, job: Job, state: Ended, started: float | None, log: str) -> None:
        """A job is over."""
        run_request = self._open.pop(key_of(job), None)
        if run_request is None:
            return
        self._announce(f"return-code for {run_request.row.title}: {return_code(state)}")
        if state.result == "done":
            self._well(run_request)
            self._note_profile(run_request, job, 0.0 if started is None else state.at - started)
        elif self._run.stopped_by is None:
            self._rows.failed(run_request.row, _why(run_request, state, log))
        self._ring_if_over()

    def look_around(self) -> None:
        """Between turns: see to what nobody tells of."""
        not_submitted = self._run.tally.skipped + self._run.tally.elsewhere
        if not_submitted > self._not_submitted:
            self._not_submitted = not_submitted
            for run_request in list(self._open.values()):
                self._sort_out(run_request)
            self._ring_if_over()
        if self._deadline is not None and (self._is_measured or time.monotonic() >= self._deadline):
            self._deadline, self._unmeasured = None, []
            self._ring()

    @property
    def waits_for_peaks(self) -> bool:
        """Whether there is something to look for soon."""
        return self._deadline is not None

    @property
    def trains(self) -> bool:
        """Whether tasks are being trained."""
        return any(run_request.stage == "train" for run_request in self._open.values())

    def _sort_out(self, run_request: RunRequest) -> None:
        """A job that was not submitted is done by now, or another engine has it."""
        if self._succeeded(run_request):
            del self._open[run_request.key]
            self._well(run_request)
        elif self._run.store.times_open(self._content(run_request), self._run.engine.name):
            del self._open[run_request.key]
            self._rows.left_to_others(run_request.row)
            self._run.say(f"{run_request.row.title} is in the hands of another engine; its row stays")

    def _well(self, run_request: RunRequest) -> None:
        if run_request.stage == "profile":
            self._passed.append(run_request)
        else:
            self._rows.succeeded(run_request.row)

    # -- what profile runs showed ----------------------------------------------------------------

    def _note_profile(self, run_request: RunRequest, job: Job, seconds: float) -> None:
        if run_request.stage == "profile":
            self._profiles[run_request.key] = job
            self._unmeasured += [job] if seconds > BRIEF and self._bench.measures else []

    def _peak(self, run_request: RunRequest) -> int:
        """Bytes that a profile run held at most; 0 where nobody knows."""
        job = self._profiles.get(run_request.key)
        uses = {} if job is None else self._run.store.uses(job.id)
        return max((use.peak for use in uses.values()), default=0)

    @property
    def _is_measured(self) -> bool:
        return all(self._run.store.uses(job.id) for job in self._unmeasured)

    # -- inside ----------------------------------------------------------------------------------

    def _succeeded(self, run_request: RunRequest) -> bool:
        return self._run.store.times_done(self._content(run_request)) > 0

    def _content(self, run_request: RunRequest) -> bytes:
        job = self._bench.job(run_request)
        return content_of(job.command, job.spec, job.task)

    def _ring_if_over(self) -> None:
        if self._open or self._outgoing:
            return
        if self._unmeasured:
            self._deadline = time.monotonic() + PEAK_PATIENCE
        else:
            self._ring()

    def _ring(self) -> None:
        os.eventfd_write(self._wake_fifo, 1)


def _why(run_request: RunRequest, state: Ended, log: str) -> str:
    said = state.note or last_line(log)
    where = " in its profile run" if run_request.stage == "profile" else ""
    return f"{outcome(state)}{where}" + (f": {said}" if said else "") + (f" [{log}]" if log else "")
