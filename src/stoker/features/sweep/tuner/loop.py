"""The loop of the tuner: read values, record results, stop trials, choose new ones, until the sweep is over.

All that it knows is in the queue: after a crash at any point the next process continues. A point is first in the
study, then its trials are added under their numbers, which the queue takes only once.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import msgspec

from stoker.app.control.requests import ask
from stoker.app.views.failure import failure_text
from stoker.core.errors import StokerError
from stoker.core.job import Ended, Job
from stoker.core.requests import Cancel
from stoker.core.text import outcome
from stoker.features.sweep.folders import make_folder
from stoker.features.sweep.model.objective import Objective, parse_objectives
from stoker.features.sweep.model.points import ADAPTIVE
from stoker.features.sweep.model.pruning import TrialCurve, parse_pruner, stop_reason
from stoker.features.sweep.model.record import REPEAT, SweepSpec, file_of_trial, trial_job
from stoker.features.sweep.model.result import TrialResult, ended_result, made_result, read_result
from stoker.features.sweep.model.space import Params
from stoker.features.sweep.store import (
    StoredSweep,
    TrialJob,
    active_trials,
    add_trial,
    all_trials,
    count_queued_trials,
    ended_trials,
    find_sweep,
    has_held_trials,
    set_trial_result,
    study_path,
    trial_results,
    trials_numbered,
)
from stoker.features.sweep.summary import SweepSummaries, is_save_due
from stoker.features.sweep.tuner.values import TrialValues
from stoker.features.sweep.tuner_job import TRY_AGAIN, StudyLost
from stoker.store.changes import StoreChanges
from stoker.store.engine_lock import QUEUE, engine_lives, engine_of, wake
from stoker.store.paths import Paths, try_lock
from stoker.store.queries import has_open_members
from stoker.store.status_file import read_machine
from stoker.store.writer import Store

if TYPE_CHECKING:
    from stoker.features.sweep.tuner.study import Study, StudyRecord

KEPT_CURVES = 1000
"""Ended trials that rules compare with; of more, the newest."""
SAVE_SECONDS = 2.0
"""How often the values of running trials are written to the store, for screens."""
AHEAD_SHARE = 8
"""The tuner queues one extra trial per so many running ones. It is chosen without the results of these."""
NO_ENGINE_SECONDS = 3.0
"""How long to wait for an engine that was killed before this process ends: only then can its worker start one."""


class Tuner:
    """One sweep and its trials."""

    def __init__(self, paths: Paths, store: Store, sweep_id: int, clock: Callable[[], float] = time.time) -> None:
        self._paths = paths
        self._store = store
        self._clock = clock
        self._stored = _found(store, sweep_id)
        self._objectives = parse_objectives(self._sweep.objectives, self._sweep.goal or None)
        self._rules = [parse_pruner(text) for text in self._sweep.pruners]
        self._results = {number: read_result(body) for number, body in trial_results(store, self._stored.batch).items()}
        self._ended_curves: dict[int, TrialCurve] = {}
        self._running: dict[int, _RunningTrial] = {}
        self._study: Study | None = None
        self._untold: set[int] = set()
        """Points in the study that have no result there."""
        self._unsummarised = 0
        """Results since the file of the summary was written."""
        self._ended_up_to = 0.0
        self._changes = StoreChanges(store)
        self._saved_at = 0.0
        self._without_engine = 0.0

    def close(self) -> None:
        """Close the files of trials that run."""
        for trial in self._running.values():
            trial.close()

    @property
    def _sweep(self) -> SweepSpec:
        return self._stored.sweep

    @property
    def _primary(self) -> Objective:
        return self._objectives[0]

    @property
    def _chooses(self) -> bool:
        return self._sweep.method in ADAPTIVE

    # -- the loop -------------------------------------------------------------------------------------

    def run(self) -> int:
        """Work until the sweep is over; returns the exit code."""
        while True:
            try:
                busy = self.turn()
                if self.is_over:
                    return 0
            except StudyLost as error:
                say(str(error))
                self._study, busy = None, True
            if self._engine_was_killed():
                return TRY_AGAIN
            if busy:
                self._changes.hurry()
            self._changes.wait()

    def turn(self) -> bool:
        """Do all that is due; True where something happened."""
        changed = self._look()
        read = self._read_values()
        if changed:
            self._record_ends()
        if read:
            self._stop_bad_trials()
        if self._chooses:
            self._tell()
            changed = self._choose() or changed
        self._save()
        return changed or read

    @property
    def is_over(self) -> bool:
        """Whether no trial is left, none will come, and nothing has happened since the last look."""
        if self._running or self._untold or has_open_members(self._store, self._stored.batch):
            return False
        if self._chooses and self._missing():
            return False
        return self._changes.is_current

    def _look(self) -> bool:
        """Read the sweep and its active trials again, if the queue has changed."""
        if not self._changes.look():
            return False
        self._stored = _found(self._store, self._stored.id)
        active = {row.number: row for row in active_trials(self._store, self._stored.batch)}
        for number, row in active.items():
            watched = self._running.get(number)
            if watched is None or watched.attempt != row.attempt:
                self._watch(row)
            elif watched.row.state != row.state:
                watched.row = row
        return True

    def _watch(self, row: TrialJob) -> None:
        """Read the values of a trial from the beginning of its newest attempt."""
        if (watched := self._running.pop(row.number, None)) is not None:
            watched.close()
        values = self._values_of(row)
        if values is not None:
            self._running[row.number] = _RunningTrial(row, values)

    def _values_of(self, row: TrialJob) -> TrialValues | None:
        runs = self._store.runs(row.job)
        if not runs:
            return None
        report = self._paths.on(self._stored.spec.cluster).report(row.job)
        return TrialValues(self._objectives, runs[-1], len(runs), report, lambda text: self._path(row, text))

    def _path(self, row: TrialJob, text: str) -> str:
        return str(Path(self._stored.spec.cwd, file_of_trial(self._sweep, row.number, row.job, row.params, text)))

    def _read_values(self) -> bool:
        """Read the files of all running trials; True if one has new values."""
        fresh = [trial.read() for trial in self._running.values()]
        return any(fresh)

    # -- ends -----------------------------------------------------------------------------------------

    def _record_ends(self) -> None:
        """Write the results of trials that have ended. A retried trial ends again, and has a new result."""
        for row in ended_trials(self._store, self._stored.batch, self._ended_up_to):
            assert row.ended is not None
            self._ended_up_to = max(self._ended_up_to, row.ended)
            recorded = self._results.get(row.number)
            if recorded is None or not recorded.over or recorded.attempt != row.attempt:
                self._record_end(row)
            if (trial := self._running.pop(row.number, None)) is not None:
                trial.close()
        if is_save_due(self._unsummarised, len(self._results)):
            self._summarise()

    def _summarise(self) -> None:
        """Let the file of the summary follow the results, so that the first screen need not read all of them."""
        summaries = SweepSummaries(self._paths)
        with summaries.locked(), self._store.reading():
            summaries.look(self._store, self._stored, None)
        self._unsummarised = 0

    def _record_end(self, row: TrialJob) -> None:
        job = self._store.job(row.job)
        if job is None or not isinstance(job.state, Ended):  # it was retried meanwhile
            return
        result = ended_result(self._last_values(row), self._objectives, job.state.result, self._why(job))
        set_trial_result(self._store, self._stored.batch, row.number, msgspec.to_builtins(result))
        self._results[row.number] = result
        self._unsummarised += 1
        self._ended_curves.pop(row.number, None)
        if result.message and not result.stopped:
            say(f"trial {row.number}: {result.message}")

    def _last_values(self, row: TrialJob) -> TrialResult:
        trial = self._running.get(row.number)
        values = trial.values if trial is not None and trial.attempt == row.attempt else self._values_of(row)
        if values is None:
            return TrialResult(row.attempt)
        with contextlib.closing(values):
            values.read(last=True)
            return made_result(self._objectives, values.curves, row.attempt, values.notice)

    def _why(self, job: Job) -> str:
        assert isinstance(job.state, Ended)
        if job.state.result == "stopped":
            return job.state.note
        return ": ".join(filter(None, (outcome(job.state), failure_text(self._store, job))))

    def _save(self) -> None:
        """Write what running trials have reached, for screens."""
        now = self._clock()
        if now - self._saved_at < SAVE_SECONDS:
            return
        self._saved_at = now
        fresh = [(number, trial) for number, trial in self._running.items() if trial.is_unsaved]
        if not fresh:
            return
        with self._store.writing():
            for number, trial in fresh:
                result = made_result(self._objectives, trial.values.curves, trial.attempt, trial.values.notice)
                set_trial_result(self._store, self._stored.batch, number, msgspec.to_builtins(result))
                trial.is_unsaved = False

    # -- early stopping -------------------------------------------------------------------------------

    def _stop_bad_trials(self) -> None:
        """Judge trials that have new values, and ask the engine to stop those that are not worth finishing."""
        if not self._rules:
            return
        curves = self._curves()
        for number, trial in self._running.items():
            if not trial.is_unjudged or trial.row.state == "stopping":
                continue
            own = curves[number]
            others = [curve for other, curve in curves.items() if other != number]
            reason = stop_reason(self._rules, self._primary.goal, own, others, trial.judged)
            trial.judged, trial.is_unjudged = (own.curve[-1][0] if own.curve else -inf), False
            if reason:
                say(f"stopping trial {number}: {reason}")
                request = Cancel(trial.row.job, note=reason, result="stopped")
                ask(self._paths, self._store, [request], self._clock())

    def _curves(self) -> dict[int, TrialCurve]:
        """The values of the newest ended trials and of all running ones."""
        name = self._primary.name
        ended = [number for number, result in self._results.items() if result.over][-KEPT_CURVES:]
        for number in ended:
            if number not in self._ended_curves:
                result = self._results[number]
                value = result.values.get(name) if result.is_usable else None
                self._ended_curves[number] = TrialCurve(number, result.curve(name), value)
        ended_curves = {number: self._ended_curves[number] for number in ended}
        running = {number: TrialCurve(number, trial.values.curves[name]) for number, trial in self._running.items()}
        return {**ended_curves, **running}

    # -- choosing -------------------------------------------------------------------------------------

    def _missing(self) -> int:
        """How many points are still to be chosen."""
        if self._stored.stopped is not None:
            return 0
        return max(0, (self._sweep.count or 0) - len(self._open_study().trials()))

    def _open_study(self) -> Study:
        """The study, after it was compared with the queue."""
        if self._study is None:
            self._study = self._compared_study()
        return self._study

    def _compared_study(self) -> Study:
        from stoker.features.sweep.tuner.study import Study, StudyRecord  # loads Optuna, which a grid does not need

        sweep = self._sweep
        path = study_path(self._paths, self._stored.id)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        study = Study(path, f"sweep-{self._stored.id}", sweep, self._objectives)
        if restored := study.restore([self._told(*point) for point in self._points().items()]):
            say(f"the study had lost {restored} points; they are there again")
        unfinished = study.unfinished()
        self._untold = set(unfinished)
        by_point = self._points()
        for point, params in unfinished.items():
            if len(by_point.get(point, ())) == sweep.repeat:
                continue
            if self._stored.stopped is None:
                self._add_point(point, params)
            else:
                study.tell(StudyRecord(point, params, message="the sweep was stopped before it was queued"))
                self._untold.discard(point)
        return study

    def _points(self) -> dict[int, list[TrialJob]]:
        """The trials in the queue by point."""
        by_point: dict[int, list[TrialJob]] = {}
        for row in all_trials(self._store, self._stored.batch):
            by_point.setdefault(row.number // self._sweep.repeat, []).append(row)
        return by_point

    def _told(self, point: int, rows: Sequence[TrialJob]) -> StudyRecord:
        """The record of a point from the queue: the mean of its repeats."""
        from stoker.features.sweep.tuner.study import StudyRecord

        params = {name: value for name, value in rows[0].params.items() if name != REPEAT or self._sweep.repeat == 1}
        results = [self._results.get(row.number) for row in rows]
        over = [result for result in results if result is not None and result.over]
        if len(over) < self._sweep.repeat:
            return StudyRecord(point, params, over=False)
        usable = [result for result in over if result.is_usable] or [result for result in over if result.stopped]
        return StudyRecord(
            point,
            params,
            values=_means(usable, self._objectives),
            curve=usable[0].curve(self._primary.name) if usable else (),
            stopped=bool(usable) and usable[0].stopped,
            message=next((result.message for result in over if result.message), ""),
        )

    def _tell(self) -> None:
        """Give the study the results of points whose trials have all ended."""
        study = self._open_study()
        for point in sorted(self._untold):
            numbers = self._numbers(point)
            if all(number in self._results and self._results[number].over for number in numbers):
                told = self._told(point, trials_numbered(self._store, self._stored.batch, numbers))
                study.tell(told)
                self._untold.discard(point)

    def _numbers(self, point: int) -> range:
        """The trials of a point."""
        return range(point * self._sweep.repeat, (point + 1) * self._sweep.repeat)

    def _choose(self) -> bool:
        """Choose points while trials are wanted; True if one was added."""
        added = False
        while self._missing() and self._is_wanted():
            point, params = self._open_study().ask()
            self._untold.add(point)
            self._add_point(point, params)
            added = True
        return added

    def _add_point(self, point: int, params: Params) -> None:
        """Add the trials of a point to the queue; those that are there are not added again."""
        spec = self._stored.spec
        with self._store.writing():
            for number in self._numbers(point):
                make_folder(self._sweep, trial_job(self._sweep, spec, number, params))
                add_trial(self._store, self._stored, number, params, self._clock())
        wake(self._paths, engine_of(self._stored.spec.cluster))

    def _is_wanted(self) -> bool:
        """Whether one more trial should be in the queue: one always waits, so that no GPU does.

        None is wanted while the user holds one, which is how a sweep is paused.
        """
        if has_held_trials(self._store, self._stored.batch):
            return False
        running, waiting = len(self._running), count_queued_trials(self._store, self._stored.batch)
        if (most := self._sweep.max_parallel) is not None:
            return running + waiting + self._sweep.repeat <= max(most, self._sweep.repeat)
        ahead = 1 + running // AHEAD_SHARE
        return waiting < (ahead if self._results or running else max(ahead, self._slots()))

    def _slots(self) -> int:
        """How many trials the machine can start at once, as far as the engine has told."""
        gpus = self._stored.spec.resources.gpus
        if not gpus:
            return os.cpu_count() or 1
        machine = read_machine(self._paths.status_file(QUEUE))
        return len(machine.devices) // gpus if machine else 1

    def _engine_was_killed(self) -> bool:
        """Whether the engine is dead, and no worker of a trial will start it again."""
        engine = engine_of(self._stored.spec.cluster)
        if self._running or engine_lives(self._paths, engine) or not self._paths.restart.exists():
            self._without_engine = 0.0
            return False
        now = self._clock()
        self._without_engine = self._without_engine or now
        return now - self._without_engine > NO_ENGINE_SECONDS


class _RunningTrial:
    """A trial whose job is active, and what was read of it."""

    def __init__(self, row: TrialJob, values: TrialValues) -> None:
        self.row = row
        self.values = values
        self.judged = -inf
        """The last step that rules have judged."""
        self.is_unjudged = self.is_unsaved = False
        self._points = 0

    @property
    def attempt(self) -> int:
        return self.values.attempt

    def read(self) -> bool:
        """Read what is new; True if there are new values."""
        self.values.read()
        points, self._points = self._points, self.values.count
        if points != self._points:
            self.is_unjudged = self.is_unsaved = True
        return points != self._points

    def close(self) -> None:
        self.values.close()


def _means(results: Sequence[TrialResult], objectives: Sequence[Objective]) -> tuple[float, ...]:
    """The mean of each objective over the repeats; empty if one has none."""
    values = [
        [value for result in results if (value := result.values.get(objective.name)) is not None]
        for objective in objectives
    ]
    return tuple(map(fmean, values)) if all(values) else ()


def _found(store: Store, sweep_id: int) -> StoredSweep:
    stored = find_sweep(store, sweep_id)
    if stored is None:
        raise StokerError(f"there is no sweep {sweep_id} in the queue", "see stoker sweep status")
    return stored


def say(text: str) -> None:
    """Write to the log of this job; not by a buffer, whose rest would fail again at the end of the process."""
    line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n"
    with contextlib.suppress(OSError):  # a full disk must not end the sweep
        os.write(1, line.encode(errors="backslashreplace"))


@contextlib.contextmanager
def only_tuner(paths: Paths, sweep_id: int) -> Iterator[None]:
    """Hold the lock of a sweep: there is one tuner at a time, whatever happened to the last one."""
    folder = paths.batch(sweep_id)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not try_lock(descriptor):
            raise StokerError(f"another process tunes sweep {sweep_id}", "it may be the last one of this job")
        yield
    finally:
        os.close(descriptor)
