"""A run line by line, for pipes, files and simple terminals, and the summary at its end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import lru_cache

from stoker.app.views.failure import newest_log, said_at_end
from stoker.app.views.job import shared_failure_text
from stoker.app.views.job_details import oom_advice
from stoker.app.views.run import FinishedRun, saved_seconds
from stoker.cli.console import to_stderr
from stoker.cli.screens.text import cells
from stoker.core.amounts import amount_now
from stoker.core.job import Assigned, Ended, Exited, Job, JobEvent, Lost, Started, Waiting, resources_of
from stoker.core.launch import INHERIT
from stoker.core.outcomes import FAILURES
from stoker.core.text import after, outcome, printable, shortened, title
from stoker.core.units import count_text, duration_text, size_text
from stoker.store.logs import Tail

LONG_LIST = 20
"""Ended jobs from which on a run suggests a report."""
SHOWN_FAILURES = 10


class LineView:
    """One line per event on standard error."""

    interval: float | None = None

    def __init__(self, write: Callable[[str], object] = to_stderr) -> None:
        self._write = write
        self._lines: list[str] = []
        """Lines of this turn, written at once: a write for each would slow down short jobs."""

    def happened(self, job_event: JobEvent) -> None:
        """Report starts and ends."""
        job, state = job_event.job, job_event.job.state
        match job_event.event:
            case Started(at=at):
                gpus = ",".join(device.label for device in job_event.devices)
                memory = f" mem={size_text(amount)}" if (amount := _reserved(job_event)) else ""
                where = f" gpu={gpus}" if gpus else ""
                self._line(at, f"start #{job.id}{where}{memory} {title(job, 200)}")
            case Exited(at=at) as event if isinstance(state, Waiting) and event.cause and event.shared:
                self._line(at, f"again #{job.id} {title(job, 200)} ({shared_failure_text(job, event)})")
            case Exited(at=at) | Lost(at=at) if isinstance(state, Waiting) and state.gave_way is not None:
                self._line(at, f"again #{job.id} after it gave way {title(job, 200)}")
            case Exited(at=at, code=code) if isinstance(state, Waiting):
                self._line(at, f"again #{job.id} after exit {code} {title(job, 200)}")
            case Lost(at=at) if isinstance(state, Waiting):
                self._line(at, f"again #{job.id} after its worker died {title(job, 200)}")
        if isinstance(state, Ended):
            ran = after(job, job_event.started)
            note = f" ({state.note})" if state.note else ""
            word = "FAILED" if state.result in (*FAILURES, "skipped") else state.result
            said = f" {outcome(state)}" if word == "FAILED" else ""
            self._line(state.at, f"{word} #{job.id}{said}{ran} {title(job, 200)}{note}")

    def refresh(self, read: object) -> None:
        self._flush()

    def say(self, text: str) -> None:
        self._add(f"stoker: {text}")
        self._flush()

    def close(self) -> None:
        self._flush()

    def _line(self, at: float, text: str) -> None:
        self._add(f"{_clock(int(at))} {text}")

    def _add(self, line: str) -> None:
        self._lines.append(f"{printable(line)}\n")

    def _flush(self) -> None:
        if self._lines:
            self._write("".join(self._lines))
            self._lines.clear()


class QuietView(LineView):
    """For a single command: only what would otherwise pass unnoticed."""

    def happened(self, job_event: JobEvent) -> None:
        """Report a limit that was reached, processes left behind, and a command that could not be started."""
        state, event = job_event.job.state, job_event.event
        if not isinstance(state, Ended):
            return
        if state.result == "timeout":
            self.say("stopped: it reached its time limit (-t)")
        shown_by_worker = isinstance(event, Exited) and event.why == "refused" and job_event.log == INHERIT
        if state.note and not shown_by_worker:
            self.say(state.note)


class FollowingView(QuietView):
    """For a single command on a cluster: shows its output as the shared directory shows it."""

    interval = 0.2

    def __init__(self) -> None:
        super().__init__()
        self._tail: Tail | None = None

    def happened(self, job_event: JobEvent) -> None:
        if isinstance(job_event.event, Assigned):
            self._tail = Tail(job_event.event.log)
        super().happened(job_event)

    def refresh(self, _read: object) -> None:
        self._show()

    def close(self) -> None:
        self._show()
        super().close()

    def _show(self) -> None:
        for block in self._tail.read() if self._tail is not None else ():
            sys.stdout.buffer.write(block)
        sys.stdout.flush()


def _reserved(job_event: JobEvent) -> int | None:
    """Bytes on each GPU for a job that may share them."""
    resources = resources_of(job_event.job)
    return amount_now(resources, job_event.devices) if resources.shares and job_event.devices else None


@lru_cache(maxsize=16)
def _clock(second: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(second))


# -- the summary ---------------------------------------------------------------------------------


def summary_lines(
    run: FinishedRun, again: str, logs: str = "stoker logs", folder: str = "", width: int | None = None
) -> list[str]:
    """The summary, fit for pasting into a message; `again` and `logs` are the commands to type next.

    `folder` is the directory of the logs. On a terminal, the reason of a failure gets the room that its width leaves.
    """
    tally = run.tally
    wall = time.time() - run.started
    parts = [f"{tally.results['done']} ok"]
    parts += [f"{count} {result}" for result, count in sorted(tally.results.items()) if result != "done"]
    parts += [f"{tally.skipped} skipped (already done)"] if tally.skipped else []
    parts += [f"{tally.elsewhere} being run by another stoker run"] if tally.elsewhere else []
    parts += [count_text(tally.unusable, "unusable line")] if tally.unusable else []
    parts += [f"{run.waiting} not started"] if run.waiting else []
    hours = tally.gpu_seconds / 3600
    totals = [", ".join(parts), f"{duration_text(wall)} wall", f"{hours:.2f} GPU-hours"]
    totals += (
        [f"sharing GPUs saved up to {duration_text(saved)} of GPU time"] if (saved := saved_seconds(tally)) else []
    )
    lines = [" · ".join(totals)]
    lines += [_failure_line(run, job, logs, width) for job in tally.failures[:SHOWN_FAILURES]]
    hidden = sum(count for result, count in tally.results.items() if result != "done") - SHOWN_FAILURES
    if hidden > 0:
        lines.append(f"  … and {hidden} more")
    if folder:
        lines.append(f"  logs: {folder}/")
    if again and (tally.failures or run.waiting):
        lines.append(f"  rerun the rest: {again}")
    if logs and tally.ended >= LONG_LIST and tally.last_ended is not None:
        sim = logs.removeprefix("stoker logs")
        lines.append(f"  charts: stoker report{sim} --batch {tally.last_ended.id} --html report.html")
    return lines


def _failure_line(run: FinishedRun, job: Job, logs: str, width: int | None) -> str:
    assert isinstance(job.state, Ended)
    log = newest_log(run.store, job.id)
    said = said_at_end(job.state.note or job.state.said, log)
    advice = _advice(run, job, logs) if job.state.result == "oom" else ""
    said = f"{said.partition(': ')[0]}; {advice}" if advice else shortened(said, 100)
    show = f"  [{logs} {job.id}]" if logs and os.path.exists(log) else ""
    name = title(job, 40 if width is None else min(40, max(12, width // 4)))
    head = f"  ✗ #{job.id} {name}: {outcome(job.state)}  "
    if width is not None and not advice:
        said = shortened(said, max(12, width - cells(head) - cells(show)))
    return f"{head}{said}{show}".rstrip()


def _advice(run: FinishedRun, job: Job, logs: str) -> str:
    """Advice for a job that ran out of GPU memory."""
    ends = [event for event in run.store.events(job.id) if isinstance(event, Exited)]
    had = run.store.attempts(job.id)[-1].devices if ends else ()
    typed = f"{logs.removeprefix('stoker logs')} {job.id}"
    return (
        oom_advice(job, ends[-1], [device for device in run.devices if device.id in had], run.devices, typed)
        if ends
        else ""
    )
