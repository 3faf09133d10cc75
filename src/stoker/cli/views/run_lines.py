"""A run told line by line, for pipes, files and terminals without a live display."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

from stoker.cli.console import to_stderr
from stoker.core.job import Ended, Exited, JobEvent, Lost, Started, Waiting, resources_of
from stoker.core.launch import INHERIT
from stoker.core.text import after, outcome, printable, title
from stoker.core.units import size_text
from stoker.engine.foreground import Complaints, Foreground
from stoker.queue.view_builder import sparing_text
from stoker.queue.view_model import amount_now


class LineView:
    """One line per event on standard error, none of them ever overwritten."""

    interval: float | None = None

    def __init__(self, write: Callable[[str], object] = to_stderr) -> None:
        self._write = write
        self._lines: list[str] = []
        """Lines of this turn: one write for all of them is what a short job can afford."""
        self._complaints = Complaints(self.say)

    def happened(self, job_event: JobEvent) -> None:
        """Tell of starts and ends; what lies between is of no interest in a log."""
        job, state = job_event.job, job_event.job.state
        match job_event.event:
            case Started(at=at):
                gpus = printable(",".join(device.label for device in job_event.devices))
                memory = f" mem={size_text(amount)}" if (amount := _set_aside(job_event)) else ""
                where = f" gpu={gpus}" if gpus else ""
                self._line(at, f"start #{job.id}{where}{memory} {title(job, 200)}")
            case Exited(at=at) as event if isinstance(state, Waiting) and event.cause and event.shared:
                self._line(at, f"again #{job.id} {title(job, 200)} ({sparing_text(job, event)})")
            case Exited(at=at, code=code) if isinstance(state, Waiting):
                self._line(at, f"again #{job.id} after exit {code} {title(job, 200)}")
            case Lost(at=at) if isinstance(state, Waiting):
                self._line(at, f"again #{job.id} after its worker died {title(job, 200)}")
        if isinstance(state, Ended):
            ran = after(job, job_event.started)
            note = f" ({printable(state.note)})" if state.note else ""
            word = state.result if state.result in ("done", "cancelled") else "FAILED"
            said = f" {outcome(state)}" if word == "FAILED" else ""
            self._line(state.at, f"{word} #{job.id}{said}{ran} {title(job, 200)}{note}")

    def refresh(self, run: Foreground) -> None:
        """Write what the turn brought, and say why nothing starts, where that is so for a while."""
        self._flush()
        self._complaints.check(run)

    def say(self, text: str) -> None:
        """A sentence to the person."""
        self._lines.append(f"stoker: {printable(text)}\n")
        self._flush()

    def close(self) -> None:
        """Write what is left."""
        self._flush()

    def _line(self, at: float, text: str) -> None:
        self._lines.append(f"{_clock(int(at))} {text}\n")

    def _flush(self) -> None:
        if self._lines:
            self._write("".join(self._lines))
            self._lines.clear()


class QuietView(LineView):
    """Only what a person must know: of starts nothing, of ends what would else pass unnoticed."""

    def happened(self, job_event: JobEvent) -> None:
        """Tell of a limit that was reached, of what was left behind, and of what could not be started."""
        state, event = job_event.job.state, job_event.event
        if not isinstance(state, Ended):
            return
        if state.result == "timeout":
            self.say("stopped: it reached its time limit (-t)")
        told_by_worker = isinstance(event, Exited) and event.why == "refused" and job_event.log == INHERIT
        if state.note and not told_by_worker:
            self.say(state.note)


def _set_aside(job_event: JobEvent) -> int | None:
    """Bytes on each GPU, where it may share them."""
    resources = resources_of(job_event.job)
    return amount_now(resources, job_event.devices) if resources.shares and job_event.devices else None


@lru_cache(maxsize=16)
def _clock(second: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(second))
