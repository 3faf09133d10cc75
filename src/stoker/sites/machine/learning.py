"""What the engine learns from attempts that were measured, and what of it is written down."""

from __future__ import annotations

from stoker.core.device import Snapshot
from stoker.core.job import Ended, Job, state_word
from stoker.core.logs.progress import read_pace
from stoker.engine.recorder import Recorder
from stoker.sites.machine.telemetry import Measuring, Watched
from stoker.store.history import RunHistory
from stoker.store.logs import read_tail
from stoker.store.schema import Measured

LOOKS_ENOUGH = 3
"""Looks after which the mean of how busy a GPU was says something."""
COMPLETE = ("done", "timeout")
"""Ends of attempts that went all the way, or as far as they may: what they held at most is all there is to it."""


class Learning:
    """Takes what was measured to the record, and to what is known of such work."""

    def __init__(self, measuring: Measuring, run_history: RunHistory, changes: Recorder) -> None:
        self._measuring = measuring
        self._run_history = run_history
        self._recorder = changes

    def draw(self, snapshot: Snapshot, now: float) -> None:
        """Write down what is known of attempts that are over, and of those that run for long."""
        for one in self._measuring.overdue(now):
            self._recorder.measure(Measured(one.job.id, one.number, one.use))
        for one in self._measuring.finished(snapshot, now):
            self._take_in(one)

    def finish(self) -> None:
        """Write down what is known: nobody will look at what is over again, and others will at what goes on."""
        for one in self._measuring.left():
            self._take_in(one)
        for one in self._measuring.running():
            self._recorder.measure(Measured(one.job.id, one.number, one.use))

    def _take_in(self, one: Watched) -> None:
        if one.use.looks or one.use.peak:
            self._recorder.measure(Measured(one.job.id, one.number, one.use))
            self._learn(one)

    def _learn(self, one: Watched) -> None:
        """The peak of a run that was cut short says little, unless it is higher than any before."""
        models = [device.model for device in one.devices]
        peak = one.use.peak or None
        if _result(one.job) not in COMPLETE:
            if peak is not None and self._run_history.knows_less(one.job, models, peak):
                self._recorder.learn(self._run_history.learn_use(one.job, models, peak=peak))
            return
        load = one.use.utilisation if one.use.busy >= LOOKS_ENOUGH else None
        pace = None if one.shared else _pace(one.log)
        self._recorder.learn(self._run_history.learn_use(one.job, models, peak=peak, load=load, pace=pace))


def _result(after: Job) -> str:
    return state_word(after) if isinstance(after.state, Ended) else ""


def _pace(log: str) -> float | None:
    pace = read_pace(read_tail(log)) if log else None
    return pace.per_second if pace is not None else None
