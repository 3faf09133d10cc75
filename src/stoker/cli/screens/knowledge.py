"""All that a screen knows at one moment: the store, what engines show, and whose the processes on devices are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from stoker.cli.screens.clock import clock_text
from stoker.cli.screens.engine_views import Views
from stoker.cli.screens.job_processes import jobs_of_processes
from stoker.cli.screens.memory_words import last_mishap, sparing_text
from stoker.cli.screens.queue_scene import JobWord
from stoker.cli.screens.set_aside import amount_now, amount_to_come
from stoker.cli.screens.speeds import speeds_of
from stoker.core.dependency import Dependency, Doomed, Outcome, doom_text
from stoker.core.device import Device
from stoker.core.foresight import resolved
from stoker.core.gate import Hindrance, hindrance, is_gated
from stoker.core.job import Active, Ended, Job, OnHold, Running, Starting, Stopping, need_of
from stoker.core.memory import Learnt
from stoker.core.policy import Policy
from stoker.core.reasons import Behind, NotBefore, sentence
from stoker.core.use import Live
from stoker.core.waiting import Shape, shape_of
from stoker.presence import QUEUE
from stoker.store.listing import Listing, Owned
from stoker.words import id_text

NO_ENGINE = "no engine runs (stoker engine start)"


class Knowledge:
    """Read within one glance at the store."""

    def __init__(self, store: Listing, views: Views, now: float, user: str, *, simulated: bool) -> None:
        self.store = store
        self.views = views
        self.now = now
        self.user = user
        self.simulated = simulated
        self.active: list[Owned] = store.all_active()
        self.settings: Mapping[str, Any] = store.settings()
        self.loads = store.loads()
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
            return amount_now(need_of(job), self.devices_of(job.state.devices))
        key = engine, shape_of(job)
        if key not in self._to_come:
            self._to_come[key] = self._foreseen(*key)
        return self._to_come[key]

    def devices_of(self, device_ids: Sequence[str]) -> list[Device]:
        """The devices with these ids, as far as they are known."""
        return [self.devices[one] for one in device_ids if one in self.devices]

    def _foreseen(self, engine: str, shape: Shape) -> int | None:
        view = self.views.of(engine)
        margin = view.settings.margin if view and view.settings else Policy().margin
        need = resolved(shape, self.learnt(shape.kind), margin) if shape.kind else shape.need
        return amount_to_come(need, view.devices if view else self.devices.values())

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
        if isinstance(job.state, Starting) and need_of(job).mps is not None:
            return "waits for the MPS daemon of its GPU"
        return self._mishap(job)

    def _about_queued(self, job: Job, engine: str) -> tuple[JobWord, str]:
        hindered = hindrance(job, self.now, self._outcome) if is_gated(job) else None
        if hindered is not None:
            return _queued_word(job, hindered), _sentence(hindered, self)
        if engine == QUEUE and not self.views.lives:
            return "queued", NO_ENGINE
        reason = self._reasons.get((engine, shape_of(job)))
        why = "about to start" if reason is None else sentence(reason, self.clock, self.store.shown_id)
        return "queued", "; ".join(filter(None, (why, self._mishap(job))))

    def _mishap(self, job: Job) -> str:
        """What company has cost a job that is not over yet."""
        event = last_mishap(self.store.events(job.id)) if job.shortages else None
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


def _queued_word(job: Job, why: Hindrance | Doomed) -> JobWord:
    if isinstance(job.state, OnHold):
        return "held"
    return "scheduled" if isinstance(why, NotBefore) else "blocked" if isinstance(why, Behind | Doomed) else "held"


def _sentence(why: Hindrance | Doomed, knowledge: Knowledge) -> str:
    if isinstance(why, Doomed):
        return f"{doom_text(why, knowledge.store.shown_id)}; it will be skipped"
    return sentence(why, knowledge.clock, knowledge.store.shown_id)
