"""Render the summary at the end of `stoker run`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from msgspec import Struct

from stoker.core.job import Ended, Exited, Job, state_word
from stoker.core.learning import Learnt, usual_pace
from stoker.core.logs.progress import read_pace
from stoker.core.text import outcome, printable, shortened, text_for_json, title
from stoker.core.units import count_text, duration_text
from stoker.engine.foreground import Foreground
from stoker.engine.run_result import Companion, Tally
from stoker.queue.view_builder import oom_advice
from stoker.store.logs import last_line, read_tail
from stoker.store.writer import Store

LEAST_SECONDS = 1.0
"""What is less than this is not worth telling."""


class Saving(NamedTuple):
    """GPU time that jobs would have needed on GPUs of their own, less what they had."""

    seconds: float
    exact: bool
    """Whether it is known of every job in company how much slower that made it; else it is the most."""


def saving_of(tally: Tally, learnt: Callable[[str], Learnt]) -> Saving:
    """Time that jobs had a GPU together counts once; what they only took because of each other is no saving."""
    busy = tally.busy
    together = tally.gpu_seconds - busy.seconds
    if together < LEAST_SECONDS:
        return Saving(0.0, exact=True)
    speeds = [_speed(one, learnt) for one in busy.companions]
    slower = sum(
        one.seconds * (1 - speed) for one, speed in zip(busy.companions, speeds, strict=True) if speed is not None
    )
    saved = together - slower
    return Saving(saved if saved >= LEAST_SECONDS else 0.0, exact=None not in speeds and not busy.forgotten)


def saving_text(saving: Saving) -> str:
    """`packing saved 01:12:03 of GPU time`; empty where it saved nothing."""
    most = "" if saving.exact else "up to "
    return f"packing saved {most}{duration_text(saving.seconds)} of GPU time" if saving.seconds else ""


def _speed(companion: Companion, learnt: Callable[[str], Learnt]) -> float | None:
    """How fast an attempt was, in parts of its speed alone; None where nobody can tell."""
    if not companion.kind or len(companion.models) != 1:
        return None
    exclusive = usual_pace(learnt(companion.kind), *companion.models)
    pace = read_pace(read_tail(companion.log)) if exclusive else None
    return min(1.0, pace.per_second / exclusive) if exclusive and pace and pace.per_second is not None else None


SHOWN_FAILURES = 10


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
    """What packing saved against one job for each GPU; the most, unless the speed of each job alone is known."""


def summary_lines(run: Foreground, again: str, logs: str = "stoker logs") -> list[str]:
    """The block at the end, fit for pasting into a message; `again` and `logs` are what to type next."""
    tally = run.tally
    wall = time.time() - run.started
    parts = [f"{tally.results['done']} ok"]
    parts += [f"{count} {result}" for result, count in sorted(tally.results.items()) if result != "done"]
    parts += [f"{tally.skipped} done before"] if tally.skipped else []
    parts += [f"{tally.elsewhere} in the hands of another run"] if tally.elsewhere else []
    parts += [count_text(tally.unusable, "unusable line")] if tally.unusable else []
    parts += [f"{run.engine.waiting} not started"] if run.engine.waiting else []
    hours = tally.gpu_seconds / 3600
    told = [", ".join(parts), f"{duration_text(wall)} wall", f"{hours:.2f} GPU-hours"]
    lines = [" · ".join(filter(None, (*told, saving_text(saving_of(tally, run.store.learnt)))))]
    lines += [_failure_line(run, job, logs) for job in tally.failures[:SHOWN_FAILURES]]
    hidden = sum(count for result, count in tally.results.items() if result != "done") - SHOWN_FAILURES
    if hidden > 0:
        lines.append(f"  … and {hidden} more")
    if again and (tally.failures or run.engine.waiting):
        lines.append(f"  run what is missing: {again}")
    return lines


def _failure_line(run: Foreground, job: Job, logs: str) -> str:
    assert isinstance(job.state, Ended)
    log = newest_log(run.store, job.id)
    said = printable(job.state.note) or (last_line(log) if log else "")
    advice = _advice(run, job, logs) if job.state.result == "oom" else ""
    said = f"{said.partition(': ')[0]}; {advice}" if advice else shortened(said, 100)
    show = f"  [{logs} {job.id}]" if os.path.exists(log) else ""
    return f"  ✗ #{job.id} {title(job, 40)}: {outcome(job.state)}  {said}{show}".rstrip()


def _advice(run: Foreground, job: Job, logs: str) -> str:
    """What may help a job that ran out of GPU memory."""
    ends = [event for event in run.store.events(job.id) if isinstance(event, Exited)]
    devices = run.engine.snapshot.devices
    had = run.store.attempts(job.id)[-1].devices if ends else ()
    typed = f"{logs.removeprefix('stoker logs')} {job.id}"
    return oom_advice(job, ends[-1], [one for one in devices if one.id in had], devices, typed) if ends else ""


def newest_log(store: Store, job_id: int) -> str:
    """Path of the job's last log, empty where it wrote to a terminal or never ran."""
    attempts = store.attempts(job_id)
    if not attempts:
        return ""
    log = attempts[-1].errors or attempts[-1].log
    return "" if log == "-" else log


def run_result(run: Foreground, job_ids: list[int]) -> RunResult:
    """The run as data."""
    return RunResult(
        schema="stoker.run/1",
        jobs=[_job_result(run.store, job_id) for job_id in job_ids],
        counts={str(result): count for result, count in run.tally.results.items()},
        skipped=run.tally.skipped,
        waiting=run.engine.waiting,
        unusable=run.tally.unusable,
        wall_seconds=round(time.time() - run.started, 3),
        gpu_hours=run.tally.gpu_seconds / 3600,
        saved_gpu_hours=saving_of(run.tally, run.store.learnt).seconds / 3600,
    )


def _job_result(store: Store, job_id: int) -> JobResult:
    job = store.job(job_id)
    assert job is not None
    attempts = store.attempts(job_id)
    last = attempts[-1] if attempts else None
    ended = job.state if isinstance(job.state, Ended) else None
    started = last.started if last else None
    return JobResult(
        id=job.id,
        name=text_for_json(job.name),
        command=text_for_json(job.command.text),
        state=state_word(job),
        exit_code=ended.code if ended else None,
        signal=ended.signal if ended else 0,
        note=text_for_json(ended.note) if ended else "",
        attempts=job.attempts,
        devices=[text_for_json(device) for device in last.devices] if last else [],
        started=_iso(started),
        ended=_iso(ended.at if ended else None),
        seconds=ended.at - started if ended and started is not None else None,
        peak_memory=last.peak_memory if last else None,
        log=text_for_json(last.log) if last and last.log != "-" else None,
    )


def _iso(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
