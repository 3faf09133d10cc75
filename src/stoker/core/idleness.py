"""Jobs that hold GPUs without using them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stoker.core.job import Job, Running
from stoker.core.units import span_text

IDLE_PERCENT = 5
"""Utilisation up to which a GPU counts as idle."""


class Idleness(NamedTuple):
    """A running job, and since when its GPUs have shown no utilisation; None if they are used."""

    job: Job
    state: Running
    since: float | None

    @property
    def is_over(self) -> bool:
        """Whether it was reported, and is not true any more or not wanted."""
        is_idle = self.since is not None and self.job.spec.idle.seconds > 0
        return self.state.idle_since is not None and not is_idle

    def is_due(self, now: float) -> bool:
        """Whether it has lasted long enough, by this engine or the one that reported it."""
        if self.since is None or not self.job.spec.idle.seconds:
            return False
        return self.state.idle_since is not None or now - self.since >= self.job.spec.idle.seconds

    def text(self, now: float, labels: Sequence[str]) -> str:
        """`has held GPU 0 for 2h at 0 %`."""
        since = self.since if self.state.idle_since is None else self.state.idle_since
        return idle_text(now - (now if since is None else since), labels)


def idle_text(seconds: float, labels: Sequence[str]) -> str:
    return f"has held GPU {', '.join(labels)} for {span_text(seconds)} at 0 %"
