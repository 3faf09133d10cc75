"""Record measurements of attempts, and learn from them what such work uses."""

from __future__ import annotations

from stoker.core.device import Snapshot
from stoker.core.job import Ended, Job, state_word
from stoker.core.learning import MeasuredUse
from stoker.core.logs.progress import read_pace
from stoker.core.outcomes import WHOLE_RESULTS
from stoker.sites.interface import EngineJobs
from stoker.sites.machine.telemetry import Telemetry, WatchedAttempt
from stoker.store.history import RunHistory
from stoker.store.logs import read_tail
from stoker.store.schema import Measured

LOOKS_ENOUGH = 3
"""Snapshots after which the mean load of a GPU is meaningful, and a peak of 0."""


class Learning:
    """Takes measurements to the record and to the history."""

    def __init__(self, telemetry: Telemetry, history: RunHistory, jobs: EngineJobs) -> None:
        self._telemetry = telemetry
        self._history = history
        self._jobs = jobs

    def learn(self, snapshot: Snapshot, now: float) -> None:
        """Record ended attempts, and running ones from time to time."""
        for attempt in self._telemetry.overdue(now):
            self._jobs.measure(Measured(attempt.job.id, attempt.number, attempt.use))
        for attempt in self._telemetry.finished(snapshot, now):
            self._finished(attempt)

    def finish(self) -> None:
        """Record all attempts before the engine leaves; another engine may go on with the running ones."""
        for attempt in self._telemetry.left():
            self._finished(attempt)
        for attempt in self._telemetry.running():
            self._jobs.measure(Measured(attempt.job.id, attempt.number, attempt.use))

    def _finished(self, attempt: WatchedAttempt) -> None:
        if attempt.use.looks or attempt.use.peak:
            self._jobs.measure(Measured(attempt.job.id, attempt.number, attempt.use))
            self._learn(attempt)

    def _learn(self, attempt: WatchedAttempt) -> None:
        """Of a run that was cut short only a peak counts that is higher than any before."""
        models = [device.model for device in attempt.devices]
        peak = attempt.use.peak or (0 if _shows_no_memory(attempt.use) else None)
        if _result(attempt.job) not in WHOLE_RESULTS:
            if peak and self._history.knows_less(attempt.job, models, peak):
                self._jobs.learn(self._history.learn_use(attempt.job, models, peak=peak))
            return
        load = attempt.use.utilisation if attempt.use.busy >= LOOKS_ENOUGH else None
        pace = None if attempt.shared else _pace(attempt.log)
        self._jobs.learn(self._history.learn_use(attempt.job, models, peak=peak, load=load, pace=pace))


def _shows_no_memory(use: MeasuredUse) -> bool:
    """Whether a peak of 0 is a fact: no other process was on its GPUs, such as one that a container started for it."""
    return use.peak == 0 and use.looks == use.busy >= LOOKS_ENOUGH


def _result(after: Job) -> str:
    return state_word(after) if isinstance(after.state, Ended) else ""


def _pace(log: str) -> float | None:
    pace = read_pace(read_tail(log)) if log else None
    return pace.per_second if pace is not None else None
