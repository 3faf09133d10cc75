"""What an engine knows of its jobs, and the only way in which one of them changes."""

from __future__ import annotations

from collections.abc import Callable
from types import UnionType
from typing import Any

from stoker.changes import Changes, Happening, Sequel
from stoker.core.dependency import Dependency, Doomed, Outcome, doom_text, target_text
from stoker.core.gate import hindrance, is_gated
from stoker.core.job import Active, Assigned, Ended, Event, Job, Queued, Skipped
from stoker.roster import Roster
from stoker.sight import Sight
from stoker.store import Store

_SO = "; so "


class Book:
    """Every job in its place, and what happened to it, from the note to the record."""

    def __init__(
        self,
        store: Store,
        sight: Sight,
        clock: Callable[[], float],
        tell: Callable[[Happening], None],
        sequel: Sequel | None = None,
    ) -> None:
        self.clock = clock
        self.roster = Roster()
        self.changes = Changes(store, self._recorded, sequel)
        self.plan_due = True
        """Whether something happened since the last plan that may change it."""
        self._store = store
        self._sight = sight
        self._tell = tell
        self._ended: list[Job] = []
        """Jobs whose end is recorded, and for which others may have waited."""

    def happen(self, job: Job, event: Event) -> Job:
        """Note what happened, and put the job where it now belongs."""
        place = event if isinstance(event, Assigned) else job.state
        devices = self._sight.devices(place.devices) if isinstance(place, Assigned | Active) else ()
        after = self.changes.note(job, event, devices)
        self.settle(after)
        return after

    def settle(self, job: Job) -> None:
        """Put a job where it belongs: at work, in the queue, aside for a while, or nowhere any more."""
        why = None
        if isinstance(job.state, Queued):
            self.plan_due = True
            why = hindrance(job, self.clock(), self._outcome) if is_gated(job) else None
        if isinstance(why, Doomed):
            self.roster.withdraw(job.id)
            self.happen(job, Skipped(self.clock(), self._why_skipped(why)))
        elif why is not None:
            self.roster.park(job, why)
        else:
            self.roster.place(job)

    def change_queued(self, job_id: int, states: type[Any] | UnionType, event: Event) -> None:
        """Let something happen to a job that is in the queue, in one of these states; else it is too late for it."""
        job = self.roster.queued(job_id)
        if job is not None and isinstance(job.state, states):
            self.happen(job, event)

    def stored(self, job_id: int) -> Job | None:
        """A job as it is by now, if it is none of those at hand; its end may not be recorded yet."""
        if self.roster.knows(job_id):
            return None
        return self.changes.unwritten(job_id) or self._store.job(job_id)

    def free_those_due(self, now: float) -> None:
        """Let jobs go on whose moment has come."""
        for job in list(self.roster.parked.due(now)):
            self.settle(job)

    def free_those_behind_others(self) -> None:
        """Let jobs go on that were behind jobs of other engines which have ended."""
        self._free_those_behind(lambda dependency: not self.roster.knows(dependency.target))

    def release(self) -> None:
        """Let jobs go on that were behind jobs of ours which have ended, now that the end is recorded."""
        ended, self._ended = self._ended, []
        if ended and self.roster.parked:
            targets = {job.id for job in ended} | {job.array for job in ended}
            self._free_those_behind(lambda dependency: dependency.target in targets)

    def _free_those_behind(self, which: Callable[[Dependency], bool]) -> None:
        parked = self.roster.parked
        for dependency in [one for one in parked.targets if which(one)]:
            if self._outcome(dependency) != "open":
                for job in parked.behind(dependency):
                    self.settle(job)

    def _outcome(self, dependency: Dependency) -> Outcome:
        """What a target has come to; an end counts when it is recorded."""
        if self.roster.knows(dependency.target) and not dependency.array:
            return "open"
        return self._store.outcome(dependency)

    def _why_skipped(self, doomed: Doomed) -> str:
        """What went wrong; at the end of a long chain that is what its first job came to."""
        before = None if doomed.dependency.array else self.stored(doomed.dependency.target)
        if before is None or not isinstance(before.state, Ended) or before.state.result != "skipped":
            return doom_text(doomed, self._store.shown_id)
        root = before.state.note.partition(_SO)[0]
        return f"{root}{_SO}{target_text(doomed.dependency, self._store.shown_id)} was skipped"

    def _recorded(self, happening: Happening) -> None:
        if isinstance(happening.job.state, Ended):
            self._ended.append(happening.job)
        self._tell(happening)
