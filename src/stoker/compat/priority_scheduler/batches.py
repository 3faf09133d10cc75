"""Batches of tasks: all of one are profiled one by one, then trained together; then the file is read again."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from stoker.compat.priority_scheduler.rows import Rows
from stoker.compat.priority_scheduler.work import Bench, Errand, key_of, return_code
from stoker.core.job import Ended, Job
from stoker.core.submission import NewJob, content_of
from stoker.foreground import Foreground
from stoker.words import last_line, outcome

PEAK_PATIENCE = 4.0
"""Seconds for which the driver's last word on a profile run is waited for."""
BRIEF = 0.5
"""Seconds; what ran no longer than that may have been over before anybody looked."""


class Batches:
    """Gives out the jobs of one batch after the other, and tells the rows how they ended."""

    def __init__(self, rows: Rows, bench: Bench, run: Foreground, announce: Callable[[str], None]) -> None:
        self.exhausted = False
        self._rows = rows
        self._bench = bench
        self._run = run
        self._announce = announce
        self._bell = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when there are jobs to take, or another batch to look for."""
        self._outgoing: deque[NewJob] = deque()
        self._open: dict[str, Errand] = {}
        """What was given out and is not over."""
        self._passed: list[Errand] = []
        """Profile runs that succeeded."""
        self._profiles: dict[str, Job] = {}
        """Their jobs by the key of the errand, as far as those ran here."""
        self._unmeasured: list[Job] = []
        """Profile runs whose peak is still to be told..."""
        self._deadline: float | None = None
        """... and until when it is waited for."""
        self._not_submitted = 0

    # -- as a source of jobs ---------------------------------------------------------------------

    def fileno(self) -> int:
        """The bell."""
        return self._bell

    def take(self, limit: int) -> Sequence[NewJob]:
        """The next jobs of this batch, or the first of another."""
        os.eventfd_read(self._bell)
        while not self._outgoing and not self._open and not self.exhausted:
            self._go_on()
        jobs = [self._outgoing.popleft() for _ in range(min(limit, len(self._outgoing)))]
        if self._outgoing:
            self._ring()
        return jobs

    def close(self) -> None:
        """Give the bell back."""
        os.close(self._bell)

    # -- stage after stage -----------------------------------------------------------------------

    def _go_on(self) -> None:
        if self._passed:
            self._train()
        elif batch := self._rows.next_batch(self._bench.fault, self._run.say):
            self._announce(f"Number of files: {len(batch)}")
            self._give_out([errand for row in batch if (errand := self._begin(Errand(row, "profile")))])
        else:
            self.exhausted = True

    def _begin(self, profile: Errand) -> Errand | None:
        """The profile run of a row, unless an earlier scheduler has brought it further."""
        train = Errand(profile.row, "train")
        if not profile.row.new and self._succeeded(train):
            self._run.say(f"{train.row.title} succeeded in an earlier run")
            self._rows.succeeded(train.row)
        elif not profile.row.new and self._succeeded(profile):
            self._passed.append(profile)
        else:
            return profile
        return None

    def _train(self) -> None:
        passed, self._passed = self._passed, []
        passed.sort(key=lambda errand: (errand.row.task.priority, errand.row.ticket.number))
        self._announce(f"peak_mems: {[self._peak(errand) for errand in passed]}")
        self._profiles.clear()
        self._give_out(Errand(errand.row, "train") for errand in passed)

    def _give_out(self, errands: Iterable[Errand]) -> None:
        for errand in errands:
            self._open[errand.key] = errand
            self._outgoing.append(self._bench.job(errand))

    # -- what becomes of them --------------------------------------------------------------------

    def ended(self, job: Job, state: Ended, started: float | None, log: str) -> None:
        """A job is over."""
        errand = self._open.pop(key_of(job), None)
        if errand is None:
            return
        self._announce(f"return-code for {errand.row.title}: {return_code(state)}")
        if state.result == "done":
            self._well(errand)
            self._note_profile(errand, job, 0.0 if started is None else state.at - started)
        elif self._run.stopped_by is None:
            self._rows.failed(errand.row, _why(errand, state, log))
        self._ring_if_over()

    def look_around(self) -> None:
        """Between turns: see to what nobody tells of."""
        not_submitted = self._run.tally.skipped + self._run.tally.elsewhere
        if not_submitted > self._not_submitted:
            self._not_submitted = not_submitted
            for errand in list(self._open.values()):
                self._sort_out(errand)
            self._ring_if_over()
        if self._deadline is not None and (self._is_measured or time.monotonic() >= self._deadline):
            self._deadline, self._unmeasured = None, []
            self._ring()

    @property
    def waits_for_peaks(self) -> bool:
        """Whether there is something to look for soon."""
        return self._deadline is not None

    @property
    def trains(self) -> bool:
        """Whether tasks are being trained."""
        return any(errand.stage == "train" for errand in self._open.values())

    def _sort_out(self, errand: Errand) -> None:
        """A job that was not submitted is done by now, or another engine has it."""
        if self._succeeded(errand):
            del self._open[errand.key]
            self._well(errand)
        elif self._run.store.times_open(self._content(errand), self._run.engine.name):
            del self._open[errand.key]
            self._rows.left_to_others(errand.row)
            self._run.say(f"{errand.row.title} is in the hands of another engine; its row stays")

    def _well(self, errand: Errand) -> None:
        if errand.stage == "profile":
            self._passed.append(errand)
        else:
            self._rows.succeeded(errand.row)

    # -- what profile runs showed ----------------------------------------------------------------

    def _note_profile(self, errand: Errand, job: Job, seconds: float) -> None:
        if errand.stage == "profile":
            self._profiles[errand.key] = job
            self._unmeasured += [job] if seconds > BRIEF and self._bench.measures else []

    def _peak(self, errand: Errand) -> int:
        """Bytes that a profile run held at most; 0 where nobody knows."""
        job = self._profiles.get(errand.key)
        uses = {} if job is None else self._run.store.uses(job.id)
        return max((use.peak for use in uses.values()), default=0)

    @property
    def _is_measured(self) -> bool:
        return all(self._run.store.uses(job.id) for job in self._unmeasured)

    # -- inside ----------------------------------------------------------------------------------

    def _succeeded(self, errand: Errand) -> bool:
        return self._run.store.times_done(self._content(errand)) > 0

    def _content(self, errand: Errand) -> bytes:
        job = self._bench.job(errand)
        return content_of(job.command, job.terms, job.task)

    def _ring_if_over(self) -> None:
        if self._open or self._outgoing:
            return
        if self._unmeasured:
            self._deadline = time.monotonic() + PEAK_PATIENCE
        else:
            self._ring()

    def _ring(self) -> None:
        os.eventfd_write(self._bell, 1)


def _why(errand: Errand, state: Ended, log: str) -> str:
    said = state.note or last_line(log)
    where = " in its profile run" if errand.stage == "profile" else ""
    return f"{outcome(state)}{where}" + (f": {said}" if said else "") + (f" [{log}]" if log else "")
