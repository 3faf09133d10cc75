"""Measurements of earlier runs by kind of work, cached in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from stoker.core.job import Job, Running, limit_of
from stoker.core.learning import (
    Learnt,
    expected_seconds,
    observe,
    observe_save,
    observe_start,
    observe_use,
    remaining_seconds,
    signature_of,
)
from stoker.core.planner.displacement import unknown_rest
from stoker.core.planner.occupancy import Preemption
from stoker.core.planner.queue import JobKind, resolved
from stoker.core.settings import Policy
from stoker.core.spec import Resources
from stoker.store.reports import NO_WORD, OwnWord
from stoker.store.writer import Store

WORTH_LEARNING = 1.0
"""Seconds; the durations of shorter runs are not recorded."""
UNKNOWN_START_SECONDS = 60.0
"""Seconds until a job that gave way works again after its next start: programs load data and compile."""
STOP_SECONDS = 5.0
"""Seconds until a job has ended that need not save."""
UNKNOWN_SAVE_SECONDS = 60.0
LEAST_SAVE_SECONDS = 1.0
_REMEMBERED = 10_000
Key = TypeVar("Key")
Value = TypeVar("Value")
News = tuple[str, Learnt]
"""The signature of a kind of work, and what is now known of it."""


class RunHistory:
    """Durations and GPU use by kind of work. The caller records what `learn` returns with the event it came from."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._learnt: dict[str, Learnt] = {}
        self._signatures: dict[int, str] = {}
        self._news: set[str] = set()
        self._has_learnt = store.has_learnt()

    def expected(self, job: Job) -> float | None:
        """Expected seconds of a run: the median of the last runs, at most its time limit; the rest if it gave way."""
        if job.kept_seconds:
            rest = self.remaining(job, job.kept_seconds)
            return unknown_rest(job.kept_seconds, Policy().unknown) if rest is None else rest
        limit = limit_of(job)
        if not self._has_learnt:
            return limit
        seconds = expected_seconds(self._known(self._signature(job)))
        return limit if seconds is None or (limit is not None and limit < seconds) else seconds

    def preemption(self, job: Job, now: float, word: OwnWord = NO_WORD) -> Preemption | None:
        """How a running job gives way to others; None if it does not, or is about to. `word` is what it reported."""
        state, spec = job.state, job.spec
        if not spec.preemptible or not isinstance(state, Running) or state.giving_way is not None:
            return None
        save = STOP_SECONDS
        if spec.preemptible == "save":
            learnt = self.save_seconds(job)
            save = min(spec.save_time, UNKNOWN_SAVE_SECONDS) if learnt is None else max(learnt, LEAST_SAVE_SECONDS)
        ran = max(0.0, now - state.since)
        remaining = self.remaining(job, job.kept_seconds + ran) if word.left is None else word.left
        restarts = spec.preemptible == "restart" and word.kept is not None
        return Preemption(
            spec.preemptible,
            priority=spec.priority,
            times=job.preemptions,
            done=job.kept_seconds,
            remaining=remaining,
            save=save,
            start=self.start_seconds(job),
            unsaved=max(0.0, ran - (word.kept or 0.0)) if restarts else None,
        )

    def remaining(self, job: Job, ran: float) -> float | None:
        """Expected rest of a job that has worked so long, by its limit and by earlier runs; None if nothing tells."""
        limit = limit_of(job)
        usual = remaining_seconds(self._known(self._signature(job)), ran) if self._has_learnt else None
        rests = [rest for rest in (usual, None if limit is None else max(0.0, limit - ran)) if rest is not None]
        return min(rests, default=None)

    def save_seconds(self, job: Job) -> float | None:
        """How long such jobs took at most to save and leave, of the last times; None if none did."""
        return max(self._known(self._signature(job)).saves, default=None) if self._has_learnt else None

    def start_seconds(self, job: Job) -> float:
        """How long such jobs usually take from their start until their GPUs compute."""
        starts = sorted(self._known(self._signature(job)).starts) if self._has_learnt else []
        return starts[len(starts) // 2] if starts else UNKNOWN_START_SECONDS

    def learn_start(self, job: Job, seconds: float) -> News:
        """Add the seconds that a job took until its GPUs computed."""
        signature = self._signature(job)
        return self._keep(signature, observe_start(self._known(signature), seconds))

    def learn_save(self, job: Job, seconds: float) -> News:
        """Add the seconds that a job took to save and leave."""
        signature = self._signature(job)
        return self._keep(signature, observe_save(self._known(signature), max(0.0, seconds)))

    def knows(self, job: Job) -> bool:
        """Whether such a job has succeeded before."""
        return bool(self._has_learnt and self._known(self._signature(job)).seconds)

    def estimate(self, job_kind: JobKind, margin: int) -> Resources:
        """Resources to reserve for jobs of one kind, with a margin on what was learnt."""
        return (
            resolved(job_kind, self._known(job_kind.kind), margin) if job_kind.resources.shares else job_kind.resources
        )

    def learn(self, job: Job, seconds: float) -> News | None:
        """Add the duration of a successful run; None if it is too short to record."""
        if seconds < WORTH_LEARNING:
            return None
        signature = self._signature(job)
        return self._keep(signature, observe(self._known(signature), seconds))

    def learn_use(
        self, job: Job, models: Iterable[str], *, peak: int | None, load: int | None = None, pace: float | None = None
    ) -> News | None:
        """Add the measurements of a run on GPUs of these models; None is unknown."""
        if peak is None and load is None and pace is None:
            return None
        signature = self._signature(job)
        known = self._known(signature)
        for model in set(models):
            known = observe_use(known, model, peak=peak, load=load, pace=pace)
        return self._keep(signature, known)

    def knows_less(self, job: Job, models: Iterable[str], peak: int) -> bool:
        """Whether peaks are known for such work on these models, all of them below this one."""
        known = self._known(self._signature(job)).models
        runs = [known[model].peaks for model in models if model in known]
        return any(peaks and max(peaks) < peak for peaks in runs)

    def take_learnt(self) -> set[str]:
        """The kinds of work of which more is known since the last call."""
        news, self._news = self._news, set()
        return news

    def _keep(self, signature: str, known: Learnt) -> News:
        self._has_learnt = True
        self._news.add(signature)
        _remember(self._learnt, signature, known)
        return signature, known

    def _known(self, signature: str) -> Learnt:
        known = self._learnt.pop(signature, None)
        known = self._store.learnt(signature) if known is None else known
        _remember(self._learnt, signature, known)
        return known

    def _signature(self, job: Job) -> str:
        if job.kind:
            return job.kind
        signature = self._signatures.pop(job.id, "") or signature_of(job.command, job.spec.cwd, job.member)
        _remember(self._signatures, job.id, signature)
        return signature


def _remember(remembered: dict[Key, Value], key: Key, value: Value) -> None:
    """Add an entry as the newest one, and drop the oldest if there are too many."""
    remembered[key] = value
    if len(remembered) > _REMEMBERED:
        del remembered[next(iter(remembered))]
