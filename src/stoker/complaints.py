"""What keeps a run from going on, told once and again only when it changes."""

from __future__ import annotations

import time
from collections.abc import Callable

from stoker.core.reasons import sentence
from stoker.foreground import Foreground

PATIENCE = 2.0
"""Seconds after which a run in which nothing can start says why."""


class Complaints:
    """Says once what keeps a run from going on, and again only when that changes."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said = ""
        self._stuck_since: float | None = None

    def check(self, run: Foreground) -> None:
        """Look whether there is something to say."""
        engine = run.engine
        text = engine.trouble or engine.snapshot.note or next(iter(engine.sight.warnings), "")
        if not text and engine.waiting and not engine.held and not engine.draining:
            text = self._why_stuck(run)
        else:
            self._stuck_since = None
        if text and text != self._said:
            self._say(text)
        if text or not self._stuck_since:
            self._said = text

    def _why_stuck(self, run: Foreground) -> str:
        now = time.monotonic()
        self._stuck_since = self._stuck_since or now
        job = run.engine.next_waiting
        reason = run.engine.reason(job) if job is not None else None
        if job is None or reason is None or now - self._stuck_since < PATIENCE:
            return ""
        return f"#{job.id} waits: {sentence(reason)}"
