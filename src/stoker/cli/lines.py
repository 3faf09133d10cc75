"""A run told line by line, for pipes, files and terminals without a live display."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from stoker.changes import Happening
from stoker.cli.words import after, outcome, title
from stoker.core.job import Ended, Exited, Lost, Started, Waiting, event_word
from stoker.core.reasons import sentence
from stoker.core.units import size_text
from stoker.foreground import Foreground

PATIENCE = 2.0
"""Seconds after which a run in which nothing can start says why."""


class LineView:
    """One line per event on standard error, none of them ever overwritten."""

    interval: float | None = None

    def __init__(self, write: Callable[[str], object] = sys.stderr.write) -> None:
        self._write = write
        self._started: dict[int, float] = {}
        self._complaints = Complaints(self.say)

    def happened(self, happening: Happening) -> None:
        """Tell of starts and ends; what lies between is of no interest in a log."""
        job, state = happening.job, happening.job.state
        match happening.event:
            case Started(at=at):
                self._started[job.id] = at
                gpus = ",".join(device.label for device in happening.devices)
                memory = f" mem={size_text(job.terms.need.memory)}" if job.terms.need.memory else ""
                where = f" gpu={gpus}" if gpus else ""
                self._line(at, f"start #{job.id}{where}{memory} {title(job, 200)}")
            case Exited(at=at) | Lost(at=at) if isinstance(state, Waiting):
                self._line(at, f"again #{job.id} {event_word(happening.event)} {title(job, 200)}")
        if isinstance(state, Ended):
            ran = after(job, self._started.pop(job.id, None))
            note = f" ({state.note})" if state.note else ""
            word = "done" if state.result == "done" else "FAILED"
            said = "" if state.result == "done" else f" {outcome(state)}"
            self._line(state.at, f"{word} #{job.id}{said}{ran} {title(job, 200)}{note}")

    def refresh(self, run: Foreground) -> None:
        """Say why nothing starts, where that is so for a while."""
        self._complaints.check(run)

    def say(self, text: str) -> None:
        """A sentence to the person."""
        self._write(f"stoker: {text}\n")

    def close(self) -> None:
        """Nothing to undo."""

    def _line(self, at: float, text: str) -> None:
        self._write(f"{time.strftime('%H:%M:%S', time.localtime(at))} {text}\n")


class QuietView(LineView):
    """Only what a person must know: nothing of starts and ends."""

    def happened(self, happening: Happening) -> None:
        """Whoever wants to know looks at the results."""


class Complaints:
    """Says once what keeps a run from going on, and again only when that changes."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said = ""
        self._stuck_since: float | None = None

    def check(self, run: Foreground) -> None:
        """Look whether there is something to say."""
        engine = run.engine
        text = engine.trouble or engine.snapshot.note
        if not text and engine.waiting and not engine.held and not engine.draining:
            text = self._why_stuck(run)
        else:
            self._stuck_since = None
        if text and text != self._said:
            self._say(text)
            self._said = text

    def _why_stuck(self, run: Foreground) -> str:
        now = time.monotonic()
        self._stuck_since = self._stuck_since or now
        job = run.engine.next_waiting
        reason = run.engine.reason(job) if job is not None else None
        if job is None or reason is None or now - self._stuck_since < PATIENCE:
            return ""
        return f"#{job.id} waits: {sentence(reason)}"
