"""The summary of a sweep, from the store: a look reads only what changed since the last one."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from math import nan
from pathlib import Path
from random import Random
from sys import maxsize

import msgspec
from msgspec import Struct

from stoker import __version__
from stoker.core.job import Ended, Job
from stoker.features.sweep.model.importance import METHOD, importance_of
from stoker.features.sweep.model.objective import parse_objectives
from stoker.features.sweep.model.record import REPEAT, SweepSpec
from stoker.features.sweep.model.result import BriefResult, brief_results
from stoker.features.sweep.model.space import Choices, Params, Space
from stoker.features.sweep.model.summary import MICRO, SavedSummary, TrialRecord, TrialSummary
from stoker.features.sweep.store import (
    StoredSweep,
    TrialState,
    TrialTime,
    count_trials,
    event_at,
    params_at_ends,
    result_bodies,
    touched_trials,
    trial_params,
    trial_times,
    trials_among,
)
from stoker.store.changes import Cursor, cursor_now, jobs_changed_since
from stoker.store.paths import Paths
from stoker.store.reader import Reader

MOST_STUDIED = 2000
"""Trials from which the importance of parameters is computed."""
MOST_RECORDS = 200_000
"""Trials that a process remembers; of more, only those of the sweep that it showed last."""
FORMAT = 1
"""Of the file; other files are not read."""
LEAST_SAVED = 1000
UNSAVED_SHARE = 0.02
"""Of all trials; writing the file costs as much as reading about so many from the store."""
_EXAMINED = 100
"""Trials at both ends of a sweep, between which nearly all parameters differ that ever do."""
_WORDS = {"waiting": "queued"}
_NO_RESULT = BriefResult(-1)
_NO_TIME = TrialTime(None, None, 0.0, 0)


class SweepSummaries:
    """The summaries of sweeps, for a process that shows them again and again, in several threads.

    Those of large sweeps are also kept in files, for processes that show them once.
    """

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._lock = threading.Lock()
        self._known: dict[int, TrackedSweep] = {}

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Let one thread look at a time. Enter it before the read transaction: no look is older than the last one."""
        with self._lock:
            yield
            for tracked in self._known.values():
                tracked.save(self._paths)

    def look(self, reader: Reader, stored: StoredSweep, tuner: Job | None) -> TrackedSweep:
        """A sweep as it is now."""
        tracked = self._known.pop(stored.batch, None)
        if tracked is None or not tracked.is_of(stored):
            tracked = TrackedSweep(stored)
            tracked.load(self._paths)
        tracked.look(reader, stored, tuner)
        self._known[stored.batch] = tracked
        while len(self._known) > 1 and sum(map(len, self._known.values())) > MOST_RECORDS:
            del self._known[next(iter(self._known))]
        return tracked


class _SavedSweep(Struct, frozen=True, array_like=True):
    """The file of a sweep."""

    identity: bytes
    cursor: tuple[int, int]
    event: list[tuple[int, float]]
    tuner_over: int | None
    total: int
    reference: Params | None
    varied: set[str]
    studied: list[tuple[int, float]]
    importance: dict[str, float]
    summary: SavedSummary


class TrackedSweep:
    """One sweep as of the last look."""

    def __init__(self, stored: StoredSweep) -> None:
        self._identity = _identity(stored)
        self._id, self._batch = stored.id, stored.batch
        self.objectives = parse_objectives(stored.sweep.objectives, stored.sweep.goal or None)
        self._repeat = stored.sweep.repeat
        self._cursor: Cursor | None = None
        self._event: list[tuple[int, float]] = []
        """The last event that was read."""
        self._unsaved = 0
        """Trials that have changed since the file was written."""
        self._tuner_over: int | None = None
        """The attempt of the tuner that is over; it writes nothing more."""
        self._studied: list[tuple[int, float]] = []
        self._importance: dict[str, float] = {}
        self._begin()

    def _begin(self) -> None:
        self.summary = TrialSummary(self.objectives, self._repeat)
        self.total = 0
        """Trials in the queue."""
        self._reference: Params | None = None
        self._varied: set[str] = set()

    def is_of(self, stored: StoredSweep) -> bool:
        return self._identity == _identity(stored)

    def __len__(self) -> int:
        return len(self.summary.records)

    # -- looking --------------------------------------------------------------------------------------

    def look(self, reader: Reader, stored: StoredSweep, tuner: Job | None) -> None:
        """Read what has changed. Call it within a read transaction."""
        cursor, total = cursor_now(reader), count_trials(reader, self._batch)
        over = tuner.attempts if tuner is not None and isinstance(tuner.state, Ended) else None
        results_are_final = over is not None and over == self._tuner_over
        rows = self._changed(reader, total, results_are_final=results_are_final)
        if rows is None:
            self._begin()
            self._put(reader, touched_trials(reader, self._batch), everything=True)
            added = None
        else:
            self._put(reader, rows)
            added = [row.job for row in rows if self._cursor and row.job > self._cursor.job]
        self.total = total
        self._compare_params(reader, stored.sweep, added)
        self._cursor, self._event, self._tuner_over = cursor, event_at(reader, cursor.event), over

    def _changed(self, reader: Reader, total: int, *, results_are_final: bool) -> list[TrialState] | None:
        """Trials that are new, had an event, or may have another result; None if all have to be read."""
        if self._cursor is None or event_at(reader, self._cursor.event) != self._event:
            return None
        jobs = set(jobs_changed_since(reader, self._cursor, maxsize))
        if not results_are_final:
            jobs.update(self.summary.records[number].job for number in self.summary.unsettled)
        rows = trials_among(reader, self._batch, jobs) if jobs else []
        added = sum(row.job > self._cursor.job for row in rows)
        return rows if self.total + added == total else None  # else some were deleted

    def _put(self, reader: Reader, rows: Sequence[TrialState], *, everything: bool = False) -> None:
        if not rows:
            return
        times = trial_times(reader, self._batch, None if everything else [row.job for row in rows])
        numbers = None if everything else [row.number for row in rows]
        bodies = result_bodies(reader, self._batch, numbers) if self.objectives else {}
        decode, records = brief_results().decode, self.summary.records
        news: dict[int, TrialRecord | None] = {}
        for row in rows:
            body = bodies.get(row.number)
            result = _NO_RESULT if body is None else decode(body)
            record = None if row.is_untouched else self._record(row, times.get(row.job, _NO_TIME), result)
            if record != records.get(row.number):
                news[row.number] = record
        self.summary.put(news)
        self._unsaved += len(news)

    def _record(self, row: TrialState, time: TrialTime, result: BriefResult) -> TrialRecord:
        is_current = result.attempt == row.attempt
        current = result if is_current else _NO_RESULT
        state = _WORDS.get(row.state, row.state)
        last_step = result.last_step(self.objectives[0].name) if self.objectives else None
        return TrialRecord(
            number=row.number,
            job=row.job,
            state="failed" if state == "done" and current.message else state,
            attempt=row.attempt,
            started=time.started,
            finished=time.ended,
            devices=time.devices,
            ended=row.ended,
            gpu_time=round(time.gpu_seconds / 3600 * MICRO),
            values=tuple([_stored(current.values, objective.name) for objective in self.objectives]),
            step=last_step if is_current else None,
            message=current.message,
            notice=result.notice,
            has_curve=last_step is not None,
            is_settled=row.ended is not None and (not self.objectives or (is_current and result.over)),
        )

    # -- the file -------------------------------------------------------------------------------------

    def load(self, paths: Paths) -> None:
        """Begin with the look of another process, if its file is there and can be read."""
        try:
            saved = msgspec.msgpack.decode(summary_path(paths, self._id).read_bytes(), type=_SavedSweep)
        except (OSError, msgspec.DecodeError):
            return
        if saved.identity == self._identity:
            self.summary.restore(saved.summary)
            self._cursor, self._event, self._tuner_over = Cursor(*saved.cursor), saved.event, saved.tuner_over
            self.total, self._reference, self._varied = saved.total, saved.reference, saved.varied
            self._studied, self._importance = saved.studied, saved.importance

    def save(self, paths: Paths) -> None:
        """Write the file if that is due; without it, the next process reads all trials."""
        if self._cursor is None or not is_save_due(self._unsaved, len(self)):
            return
        saved = _SavedSweep(
            self._identity,
            self._cursor,
            self._event,
            self._tuner_over,
            self.total,
            self._reference,
            self._varied,
            self._studied,
            self._importance,
            self.summary.saved(),
        )
        path = summary_path(paths, self._id)
        written = path.with_name(f"{path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):  # it is a copy
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            written.write_bytes(msgspec.msgpack.encode(saved))
            written.replace(path)
        self._unsaved = 0

    # -- parameters -----------------------------------------------------------------------------------

    def _compare_params(self, reader: Reader, sweep: SweepSpec, added: Sequence[int] | None) -> None:
        """Find the parameters that differ between trials: of all trials, or with those that were added."""
        constant = _constants(sweep.space)
        undecided = [name for name in self.names(sweep) if name not in self._varied and name not in constant]
        if not undecided or added == [] or not self.total:
            return
        if added is None:
            self._compare(params_at_ends(reader, self._batch, _EXAMINED), undecided)
        if any(name not in self._varied for name in undecided):
            self._compare([params for _, _, params in trial_params(reader, self._batch, added)], undecided)

    def _compare(self, points: Sequence[Params], names: Sequence[str]) -> None:
        for params in points:
            reference = self._reference = params if self._reference is None else self._reference
            self._varied.update(name for name in names if repr(params.get(name)) != repr(reference.get(name)))

    def names(self, sweep: SweepSpec) -> list[str]:
        """All parameters in the order of the space."""
        return [*sweep.space.names, *([REPEAT] if sweep.repeat > 1 and REPEAT not in sweep.space.names else [])]

    def tuned(self, sweep: SweepSpec) -> list[str]:
        """Parameters that differ between trials, in the order of the space."""
        return [name for name in self.names(sweep) if name in self._varied]

    def importance(self, reader: Reader) -> dict[str, float]:
        """How much each parameter matters; of many trials, some are chosen, and nearly always the same ones."""
        ended = self.summary.by_end.numbers
        chosen = sorted(ended if len(ended) <= MOST_STUDIED else Random(0).sample(ended, MOST_STUDIED))  # noqa: S311
        records = [self.summary.records[number] for number in chosen]
        studied = [(record.number, record.value) for record in records]
        if studied != self._studied:
            params = {number: point for number, _, point in trial_params(reader, self._batch, _jobs(records))}
            points = [(without_repeat(params[record.number]), record.value) for record in records]
            self._studied, self._importance = studied, importance_of(points)
        return self._importance

    @property
    def importance_method(self) -> str:
        many = len(self.summary.by_end.numbers) > MOST_STUDIED
        return f"{METHOD}; from {MOST_STUDIED:,} trials chosen at random" if many else METHOD


def is_save_due(changed: int, trials: int) -> bool:
    """Whether so many trials changed since the file was written that reading them again would take long."""
    return changed >= max(LEAST_SAVED, trials * UNSAVED_SHARE)


def summary_path(paths: Paths, sweep_id: int) -> Path:
    return paths.batch(sweep_id) / "summary"


def _identity(stored: StoredSweep) -> bytes:
    """Differs if a summary cannot be used: for another sweep, or written by other code."""
    sweep = stored.sweep
    facts = __version__, FORMAT, stored.batch, stored.created, sweep.objectives, sweep.goal, sweep.repeat
    return msgspec.json.encode(facts)


def _stored(values: dict[str, float | None], name: str) -> float | None:
    """The value of an objective: nan for a stored null, None if there is none."""
    value = values.get(name)
    return nan if value is None and name in values else value


def _jobs(records: Sequence[TrialRecord]) -> list[int]:
    return [record.job for record in records]


def without_repeat(params: Params) -> Params:
    return {name: value for name, value in params.items() if name != REPEAT}


def _constants(space: Space) -> set[str]:
    """Parameters that have the same value at all points."""
    if len(space.products) > 1:
        return set()
    return {
        parameter.name
        for parameter in space.parameters
        if not parameter.when and isinstance(parameter.domain, Choices) and len(parameter.domain.values) == 1
    }
