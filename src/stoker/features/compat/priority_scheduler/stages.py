"""The jobs of priority_scheduler: each batch is profiled task by task, then trained together."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from stoker.app.jobs.context import SubmitContext
from stoker.app.jobs.job_spec import spec_of
from stoker.app.jobs.task_list import Task
from stoker.core.device import Device
from stoker.core.errors import StokerError
from stoker.core.job import Ended, Job
from stoker.core.launch import INHERIT, literal
from stoker.core.planner.reasons import never_fits
from stoker.core.settings import Policy, beyond_rules
from stoker.core.spec import Command, JobSpec, NewJob, Resources, WorkKey, work_of
from stoker.core.text import outcome
from stoker.engine.foreground import Foreground
from stoker.features.compat.priority_scheduler.task_file import TaskRow, TaskRows
from stoker.store.logs import last_line

Stage = Literal["profile", "train"]

PROFILE_EPOCHS = 2

PROFILES = "priority_scheduler profiles"
"""The group of all profile runs; one of them runs at a time."""

VARIABLE = "STOKER_TASK"
"""The variable that makes each run unique: the same command of an earlier run has another value."""


class TaskRun(Struct, frozen=True):
    """One run of a row's task."""

    row: TaskRow
    stage: Stage

    @property
    def key(self) -> str:
        return f"{self.row.ticket.token}.{self.stage}"


class TaskJobs(Struct, frozen=True):
    """Builds the jobs of tasks."""

    context: SubmitContext
    devices: Sequence[Device]
    policy: Policy
    logs: str
    mps: int | None = None
    """Percent of a GPU's threads; None is no MPS."""

    def fault(self, task: Task) -> str:
        """Why a task can never run here; empty if it can."""
        try:
            spec = self._spec(task)
        except StokerError as error:
            return error.message
        if task.options.array is not None:
            return "it cannot be an array"
        if INHERIT in (spec.out, spec.err):
            return "its output must go to files"
        resources = spec.resources
        never = never_fits(resources, self.devices, self.policy.max_use, self.policy.min_free)
        return never or beyond_rules(resources, self.policy.locked)

    def job(self, run: TaskRun) -> NewJob:
        task, number = run.row.task, run.row.ticket.number
        profile = run.stage == "profile"
        name = f"task-{number}-profile" if profile else f"task-{number}"
        spec = self._spec(task)
        log = f"{literal(self.logs)}/{name}.log"
        spec = replace(
            spec,
            resources=self._resources(task, spec.resources, profile=profile),
            mps_optional=True,
            group=PROFILES if profile else spec.group,
            extra_env=(*spec.extra_env, (VARIABLE, run.key)),
            out=log if profile or task.options.out is None else spec.out,
            err="" if profile else spec.err,
            tags=(*spec.tags, ("task", str(number))),
        )
        words = task.words(PROFILE_EPOCHS if profile else task.epochs, number)
        return NewJob(Command(words), spec, task.options.name or name)

    def _spec(self, task: Task) -> JobSpec:
        """The resources of a row. Its memory is learnt unless the row gives it."""
        own = task.options
        vram = "auto" if own.vram is None and own.gpus != 0 else own.vram
        return spec_of(replace(own, chdir=task.directory or None, priority=-task.priority, vram=vram), self.context)

    def _resources(self, task: Task, resources: Resources, *, profile: bool) -> Resources:
        """A profile run has a whole GPU. A training gets the learnt memory, as an MPS client if possible."""
        if profile:
            return replace(resources, memory=None, auto=False, mps=None)
        given = task.options.mps is not None or not resources.shares or resources.gpus != 1
        return resources if given else replace(resources, mps=self.mps)


PEAK_PATIENCE_SECONDS = 4.0
"""Seconds to wait for the driver's account of a profile run."""

BRIEF_SECONDS = 0.5
"""Seconds. The engine may not have measured a run that was shorter."""


class Batches:
    """A source of jobs, batch after batch and stage after stage; records in the rows how they ended."""

    def __init__(self, rows: TaskRows, jobs: TaskJobs, run: Foreground, announce: Callable[[str], None]) -> None:
        self.exhausted = False
        self._rows = rows
        self._jobs = jobs
        self._run = run
        self._announce = announce
        self._wake = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """An eventfd: readable when there are jobs to take, or the next stage or batch is due."""
        self._outgoing: deque[NewJob] = deque()
        self._open: dict[str, TaskRun] = {}
        """Unfinished runs by their keys."""
        self._passed: list[TaskRun] = []
        """Successful profile runs."""
        self._profiles: dict[str, Job] = {}
        """Their jobs by key, if this scheduler ran them."""
        self._unmeasured: list[Job] = []
        """Profile runs whose peak memory is not known yet."""
        self._deadline: float | None = None
        """When the scheduler stops waiting for those peaks."""
        self._not_submitted = 0
        self._reports_memory = any(device.memory for device in jobs.devices)

    # -- source ----------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._wake

    def take(self, limit: int) -> Sequence[NewJob]:
        """The next jobs of this batch, or the first of the next one."""
        os.eventfd_read(self._wake)
        while not self._outgoing and not self._open and not self.exhausted:
            self._next_stage()
        jobs = [self._outgoing.popleft() for _ in range(min(limit, len(self._outgoing)))]
        if self._outgoing:
            self._wake_up()
        return jobs

    def close(self) -> None:
        os.close(self._wake)

    # -- stages ----------------------------------------------------------------------------------

    def _next_stage(self) -> None:
        if self._passed:
            self._train()
        elif batch := self._rows.next_batch(self._jobs.fault, self._run.say):
            self._announce(f"Number of files: {len(batch)}")
            self._submit([run for row in batch if (run := self._begin(TaskRun(row, "profile")))])
        else:
            self.exhausted = True

    def _begin(self, profile: TaskRun) -> TaskRun | None:
        """The profile run of a row, unless it succeeded under an earlier scheduler."""
        train = TaskRun(profile.row, "train")
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
        passed.sort(key=lambda run: (run.row.task.priority, run.row.ticket.number))
        self._announce(f"peak_mems: {[self._peak(run) for run in passed]}")
        self._profiles.clear()
        self._submit(TaskRun(run.row, "train") for run in passed)

    def _submit(self, task_runs: Iterable[TaskRun]) -> None:
        for run in task_runs:
            self._open[run.key] = run
            self._outgoing.append(self._jobs.job(run))

    # -- ends ------------------------------------------------------------------------------------

    def ended(self, job: Job, state: Ended, started: float | None, log: str) -> None:
        """Record the end of a job, and go on when the stage is over."""
        run = self._open.pop(dict(job.spec.extra_env).get(VARIABLE, ""), None)
        if run is None:
            return
        code = -state.signal if state.signal else state.code or 0  # as Python's subprocess has it
        self._announce(f"return-code for {run.row.title}: {code}")
        if state.result == "done":
            self._on_success(run)
            if run.stage == "profile":
                self._profiles[run.key] = job
                if self._reports_memory and started is not None and state.at - started > BRIEF_SECONDS:
                    self._unmeasured.append(job)
        elif self._run.stopped_by is None:
            self._rows.failed(run.row, _why(run, state, log))
        self._wake_if_over()

    def check_progress(self) -> None:
        """Find out between turns what causes no event: jobs not submitted, and peaks that arrived."""
        not_submitted = self._run.tally.skipped + self._run.tally.elsewhere
        if not_submitted > self._not_submitted:
            self._not_submitted = not_submitted
            for run in list(self._open.values()):
                self._resolve(run)
            self._wake_if_over()
        if self._deadline is not None:
            measured = all(self._run.store.uses(job.id) for job in self._unmeasured)
            if measured or time.monotonic() >= self._deadline:
                self._deadline, self._unmeasured = None, []
                self._wake_up()

    @property
    def waits_for_peaks(self) -> bool:
        return self._deadline is not None

    @property
    def trains(self) -> bool:
        return any(run.stage == "train" for run in self._open.values())

    def _resolve(self, run: TaskRun) -> None:
        """A job that was not submitted has succeeded before, or another engine runs it."""
        if self._succeeded(run):
            del self._open[run.key]
            self._on_success(run)
        elif self._run.store.times_open(self._jobs.job(run), self._run.engine.name):
            del self._open[run.key]
            self._rows.leave_running(run.row)
            self._run.say(f"{run.row.title} is being run by another engine; its row stays")

    def _on_success(self, run: TaskRun) -> None:
        if run.stage == "profile":
            self._passed.append(run)
        else:
            self._rows.succeeded(run.row)

    # -- peaks -----------------------------------------------------------------------------------

    def _peak(self, run: TaskRun) -> int:
        """Peak memory of a profile run in bytes; 0 if it is not known."""
        job = self._profiles.get(run.key)
        uses = {} if job is None else self._run.store.uses(job.id)
        return max((use.peak for use in uses.values()), default=0)

    def _succeeded(self, run: TaskRun) -> bool:
        return self._run.store.times_done(self._work(run)) > 0

    def _work(self, run: TaskRun) -> WorkKey:
        return work_of(self._jobs.job(run))

    def _wake_if_over(self) -> None:
        if self._open or self._outgoing:
            return
        if self._unmeasured:
            self._deadline = time.monotonic() + PEAK_PATIENCE_SECONDS
        else:
            self._wake_up()

    def _wake_up(self) -> None:
        os.eventfd_write(self._wake, 1)


def _why(run: TaskRun, state: Ended, log: str) -> str:
    reason = state.note or last_line(log)
    where = " in its profile run" if run.stage == "profile" else ""
    return f"{outcome(state)}{where}" + (f": {reason}" if reason else "") + (f" [{log}]" if log else "")
