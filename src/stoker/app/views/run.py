"""Build the data of a foreground run: the live display and the result."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from stoker.app.jobs.local_time import to_datetime
from stoker.app.views.facts import QueueFacts
from stoker.app.views.failure import said_at_end
from stoker.app.views.job import retry_text
from stoker.app.views.model import Notice, NoticeMark, RunCounts, RunStatus
from stoker.app.views.status import active_lines, device_lines
from stoker.core.device import Device
from stoker.core.job import Assigned, Ended, Exited, Job, JobEvent, Lost, Waiting, result_of, state_word
from stoker.core.launch import INHERIT, shown_command
from stoker.core.run_result import Tally
from stoker.core.text import common_lead, outcome, title, without_lead
from stoker.core.units import duration_text
from stoker.store.status_file import EngineStatus
from stoker.store.writer import Store

KEPT_NOTICES = 20
KEPT_SUCCESSES = 40
LONGEST_NAME = 60
SETTLING_SECONDS = 2.0
"""After the end of a job a snapshot of the device may still show its process."""
NO_JOB_WAITS = ("no jobs waiting", "no jobs waiting, more may come")


class Recent:
    """The last ends of a run, and what its commands have in common; bounded, however many jobs the run has."""

    def __init__(self) -> None:
        self._freed: dict[str, float] = {}
        self._fresh: deque[tuple[JobEvent, float | None]] = deque(maxlen=KEPT_NOTICES)
        """Ends whose logs were not read yet: if many jobs fail at once, most logs never are."""
        self._notices: deque[Notice] = deque(maxlen=KEPT_NOTICES)
        self._successes: deque[int] = deque(maxlen=KEPT_SUCCESSES)
        self._lead: tuple[str, ...] | None = None

    def note(self, job_event: JobEvent) -> None:
        """Take in an event."""
        job = job_event.job
        match job_event.event:
            case Assigned() if not job.name:
                words = tuple(title(job, LONGEST_NAME).split(" "))
                self._lead = words if self._lead is None else common_lead(self._lead, words)
            case Exited(at=at) | Lost(at=at):
                self._freed.update((device.id, at) for device in job_event.devices)
                self._note_end(job_event, at)
            case _ if isinstance(job.state, Ended):
                self._fresh.append((job_event, None))

    def _note_end(self, job_event: JobEvent, at: float) -> None:
        job, state = job_event.job, job_event.job.state
        ran = None if job_event.started is None else at - job_event.started
        done = isinstance(state, Ended) and state.result == "done"
        if done:
            self._successes.append(job.id)
        if not done or (isinstance(state, Ended) and state.note):
            self._fresh.append((job_event, ran))

    def settling(self, at: float) -> set[str]:
        """The devices on which a snapshot of that moment may show a job that has ended."""
        return {device_id for device_id, freed in self._freed.items() if at <= freed + SETTLING_SECONDS}

    def notices(self) -> tuple[Notice, ...]:
        while self._fresh:
            self._notices.append(self._notice(*self._fresh.popleft()))
        return tuple(self._notices)

    def successes(self) -> tuple[int, ...]:
        return tuple(self._successes)

    def short_name(self, job: Job) -> str:
        """The name, or the part of the command in which it differs from the others."""
        full = title(job, LONGEST_NAME)
        return full if job.name or not self._lead else without_lead(full, self._lead)

    def _notice(self, job_event: JobEvent, ran: float | None) -> Notice:
        job, event = job_event.job, job_event.event
        after = "" if ran is None else f" after {duration_text(ran)}"
        if isinstance(event, Exited) and event.cause and event.shared and isinstance(job.state, Waiting):
            return Notice("again", job.id, self.short_name(job), f"oom{after}", retry_text(job, event))
        mark, what, note = _end_of(job_event)
        log = job_event.log if isinstance(event, Exited) and os.path.isfile(job_event.log) else ""
        said = said_at_end(note, log)
        again = "retrying" + (": " if said else "") if mark == "again" else ""
        return Notice(mark, job.id, self.short_name(job), f"{what}{after}", again + said)


def _end_of(job_event: JobEvent) -> tuple[NoticeMark, str, str]:
    """The kind of end, the end in words, and the note of the worker or the engine."""
    state, event = job_event.job.state, job_event.event
    if isinstance(state, Ended):
        return ("note" if state.result == "done" else "failed"), outcome(state), state.note
    assert isinstance(state, Waiting)
    if state.gave_way is not None:
        return "again", "preempted", ""
    if isinstance(event, Exited):
        result = result_of(event.why, event.code, event.signal)
        return "again", outcome(Ended(result, event.at, event.code, event.signal)), event.note
    return "again", "lost", "its worker was killed"


# -- the live display ----------------------------------------------------------------------------


def run_status(
    facts: QueueFacts,
    tally: Tally,
    recent: Recent,
    *,
    next_job: Job | None,
    seen_at: float,
    expected: int | None,
    logs: str,
) -> RunStatus:
    """The only run that `facts` is about, whose engine saw its devices at `seen_at`.

    `expected` is the number of its jobs, None while more may come.
    """
    (status,) = facts.statuses.runs
    counts = run_counts(tally, len(facts.active), expected)
    names = {job.id: recent.short_name(job) for job, _ in facts.active}
    return RunStatus(
        label=status.label,
        at=to_datetime(facts.now),
        elapsed=facts.now - status.since,
        simulated=facts.simulated,
        logs=logs,
        devices=device_lines(facts, recent.settling(seen_at)),
        jobs=[replace(line, name=names[line.id]) for line in active_lines(facts, on_finish_jobs=True)],
        counts=counts,
        left=None if counts.open_ended else time_left(status, counts, facts.now),
        next=_next(status, next_job, counts, facts),
        notices=recent.notices(),
        successes=recent.successes(),
    )


def run_counts(tally: Tally, running: int, expected: int | None) -> RunCounts:
    """A list is submitted in parts: jobs that were not submitted yet count as waiting."""
    total = tally.given if expected is None else max(tally.given, expected - tally.skipped - tally.unusable)
    done = tally.results["done"]
    waiting = max(0, total - tally.ended - running)
    return RunCounts(total, done, tally.ended - done, running, waiting, open_ended=expected is None)


def time_left(status: EngineStatus, counts: RunCounts, now: float) -> float | None:
    """Seconds until the run is over, by the engine's forecast; jobs that it does not have yet take as long."""
    if status.empty is None:
        return None
    more = counts.waiting / status.waiting if status.waiting and not status.draining else 1.0
    return max(0.0, status.empty - now) * max(1.0, more)


def _next(status: EngineStatus, job: Job | None, counts: RunCounts, facts: QueueFacts) -> str:
    """The next job and why it waits, or why there is none."""
    if status.draining:
        return "starting no more jobs"
    if job is None:
        return NO_JOB_WAITS[counts.open_ended]
    reason = facts.reason(job, status.engine)
    return f"next (#{job.id}) {facts.sentence(reason)}" if reason else f"#{job.id} is about to start"


# -- the result ----------------------------------------------------------------------------------

LEAST_SECONDS = 1.0
"""A smaller saving is not reported."""


class FinishedRun(NamedTuple):
    """The figures of a summary."""

    tally: Tally
    store: Store
    devices: Sequence[Device]
    waiting: int
    """Jobs that never started."""
    started: float


def saved_seconds(tally: Tally) -> float:
    """GPU time that jobs on GPUs of their own would have needed more, at most: sharing may have slowed them down."""
    saved = tally.gpu_seconds - tally.busy.seconds
    return saved if saved >= LEAST_SECONDS else 0.0


class JobResult(Struct, frozen=True):
    """One job of a run."""

    id: int
    name: str
    command: str
    state: str
    exit_code: int | None
    signal: int
    note: str
    attempts: int
    devices: list[str]
    started: str | None
    ended: str | None
    seconds: float | None
    peak_memory: int | None
    log: str | None


class RunResult(Struct, frozen=True):
    """A whole run: `stoker run --json`."""

    schema: str
    jobs: list[JobResult]
    counts: dict[str, int]
    skipped: int
    waiting: int
    unusable: int
    wall_seconds: float
    gpu_hours: float
    """Of all attempts; where several share a GPU, of each of them."""
    saved_gpu_hours: float = 0.0
    """GPU time that packing saved at most against one job for each GPU."""


def run_result(run: FinishedRun, job_ids: list[int]) -> RunResult:
    return RunResult(
        schema="stoker.run/1",
        jobs=[_job_result(run.store, job_id) for job_id in job_ids],
        counts={str(result): count for result, count in run.tally.results.items()},
        skipped=run.tally.skipped,
        waiting=run.waiting,
        unusable=run.tally.unusable,
        wall_seconds=round(time.time() - run.started, 3),
        gpu_hours=run.tally.gpu_seconds / 3600,
        saved_gpu_hours=saved_seconds(run.tally) / 3600,
    )


def _iso(at: float | None) -> str | None:
    return None if at is None else to_datetime(at).isoformat(timespec="milliseconds")


def _job_result(store: Store, job_id: int) -> JobResult:
    job = store.job(job_id)
    assert job is not None
    runs = store.runs(job_id)
    last = runs[-1] if runs else None
    ended = job.state if isinstance(job.state, Ended) else None
    started = last.started if last else None
    return JobResult(
        id=job.id,
        name=job.name,
        command=shown_command(job).text,
        state=state_word(job),
        exit_code=ended.code if ended else None,
        signal=ended.signal if ended else 0,
        note=ended.note if ended else "",
        attempts=len(runs),
        devices=list(last.devices) if last else [],
        started=_iso(started),
        ended=_iso(ended.at if ended else None),
        seconds=ended.at - started if ended and started is not None else None,
        peak_memory=last.peak_memory if last else None,
        log=last.log if last and last.log != INHERIT else None,
    )
