"""What the tasks of priority_scheduler become: a job that is profiled on a whole GPU, and one that is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from stoker.compat.priority_scheduler.rows import Row
from stoker.core.attempt import INHERIT
from stoker.core.courtesy import never_modest
from stoker.core.device import Device
from stoker.core.errors import StokerError
from stoker.core.fit import never_fits
from stoker.core.job import Ended, Job
from stoker.core.policy import Policy
from stoker.core.submission import NewJob
from stoker.core.terms import Command, Need, Terms
from stoker.options import Surroundings, terms_of
from stoker.tasklist import Task

Stage = Literal["profile", "train"]

PROFILE_EPOCHS = 2
PROFILES = "priority_scheduler profiles"
"""The group of all profile runs, of which one runs at a time."""
VARIABLE = "STOKER_TASK"
"""Tells a job from every other one, also from the same command of an earlier run."""


class Errand(Struct, frozen=True):
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
            terms = self._terms(task)
        except StokerError as error:
            return error.message
        if task.options.array is not None:
            return "it cannot be an array"
        if INHERIT in (terms.out, terms.err):
            return "its output must go to files"
        need = terms.need
        return never_fits(need, self.devices) or never_modest(need.gpus, self.devices, self.policy) or ""

    def job(self, errand: Errand) -> NewJob:
        """The job of an errand."""
        task, number = errand.row.task, errand.row.ticket.number
        profile = errand.stage == "profile"
        name = f"task-{number}-profile" if profile else f"task-{number}"
        terms = self._terms(task)
        log = f"{self.logs.replace('%', '%%')}/{name}.log"
        terms = replace(
            terms,
            need=self._need(task, terms.need, profile=profile),
            mps_optional=True,
            group=PROFILES if profile else terms.group,
            extra_env=(*terms.extra_env, (VARIABLE, errand.key)),
            out=log if profile or task.options.out is None else terms.out,
            err="" if profile else terms.err,
            tags=(*terms.tags, ("task", str(number))),
        )
        words = task.words(PROFILE_EPOCHS if profile else task.epochs, number)
        return NewJob(Command(words), terms, task.options.name or name)

    def _terms(self, task: Task) -> Terms:
        """What a row asks for; its memory is learnt unless it says how much."""
        own = task.options
        vram = "auto" if own.vram is None and own.gpus != 0 else own.vram
        return terms_of(replace(own, chdir=task.directory or None, priority=-task.priority, vram=vram), self.around)

    def _need(self, task: Task, need: Need, *, profile: bool) -> Need:
        """A whole GPU to learn what it takes; then that much, as a client of MPS where there is one to be."""
        if profile:
            return replace(need, memory=None, auto=False, mps=None)
        told = task.options.mps is not None or not need.shares or need.gpus != 1
        return need if told else replace(need, mps=self.mps)


def key_of(job: Job) -> str:
    """The key of the errand that a job is."""
    return dict(job.terms.extra_env).get(VARIABLE, "")


def return_code(state: Ended) -> int:
    """How Python would tell the end: the exit code, or the signal with a minus before it."""
    return -state.signal if state.signal else state.code or 0
