"""A job as a Python program has it: a future of concurrent.futures with an id, which another process can find again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from pathlib import Path
from typing import Any

from stoker.core.errors import NoSuchJob, StokerError
from stoker.core.job import Active, Ended, Queued, Waiting, id_text, state_word
from stoker.core.job import Job as Record
from stoker.core.requests import Cancel
from stoker.python.connection import Link, find_link, known
from stoker.python.result import Outcome, log_of, outcome_of
from stoker.python.watcher import watch
from stoker.store import queries
from stoker.store.engine_lock import QUEUE
from stoker.store.schema import AttemptRow
from stoker.store.status_file import read_machine

NOTE = "cancelled by a program"


class Job(Future[Any]):
    """One job of the queue. It goes on when this handle, or the whole program, is gone."""

    def __init__(self, link: Link, record: Record) -> None:
        super().__init__()
        self.link = link
        """The queue it is in."""
        self._record = record
        """As it was when we looked last."""
        self._outcome: Outcome | None = None
        self._reading = threading.Lock()

    # -- what it is --------------------------------------------------------------------------------

    @property
    def id(self) -> int:
        """Its number, by which stoker.job() finds it again."""
        return self._record.id

    @property
    def shown_id(self) -> str:
        """Its id as people type it: `12`, or `12.3` for a task of an array."""
        return id_text(self._record)

    @property
    def name(self) -> str:
        """Its name."""
        return self._record.name

    @property
    def state(self) -> str:
        """What it is doing: queued, held, starting, running, stopping; or how it ended: done, failed, cancelled..."""
        record = self._looked_up()
        return "queued" if isinstance(record.state, Waiting) else state_word(record)

    @property
    def devices(self) -> list[str]:
        """The GPUs of its last run, under the names that people have for them; empty before it starts."""
        attempts = self._attempts()
        machine = read_machine(self.link.paths.status_file(QUEUE))
        labels = {device.id: device.label for device in machine.devices} if machine else {}
        return [labels.get(device, device) for device in attempts[-1].devices] if attempts else []

    @property
    def exit_code(self) -> int | None:
        """The exit code of its process, 128 and more where a signal ended it; None before the end."""
        state = self._looked_up().state
        return state.code if isinstance(state, Ended) else None

    @property
    def peak_vram(self) -> int | None:
        """Bytes of GPU memory that it held at most on one GPU, in its last run; None where nobody has measured."""
        with self.link.opened() as store:
            uses = store.uses(self.id)
        return uses[max(uses)].peak or None if uses else None

    @property
    def log(self) -> Path | None:
        """The file with the output of its last run; None before it starts."""
        path = log_of(self._attempts(), errors=False)
        return Path(path) if path else None

    def stdout(self) -> str:
        """What its last run has written so far."""
        return _text(log_of(self._attempts(), errors=False))

    def stderr(self) -> str:
        """What its last run has written to its standard error; the same as stdout(), unless `err` was given."""
        return _text(log_of(self._attempts()))

    def reports(self) -> list[dict[str, Any]]:
        """What it has told of itself by stoker.report() and stoker.progress(), oldest first."""
        from stoker.store.reports import read_reports

        return [entry.as_told() for entry in read_reports(self.link.paths.report(self.id))]

    # -- the contract of futures ---------------------------------------------------------------------

    def result(self, timeout: float | None = None) -> Any:
        """What the function returned; 0 for a command. Raises what it raised, or JobFailed, or CancelledError.

        TimeoutError after so many seconds. Ctrl-C ends only the waiting: the job goes on.
        """
        super().result(timeout)
        outcome = self._get_outcome()
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What result() would raise; CancelledError is raised here, too."""
        if error := super().exception(timeout):
            return error
        error = self._get_outcome().error
        if isinstance(error, CancelledError):
            raise error
        return error

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is over, however it ends; False where time was up before."""
        try:
            super().exception(timeout)
        except TimeoutError:
            return False
        return True

    def running(self) -> bool:
        """Whether it runs now."""
        return not self.done() and isinstance(self._looked_up().state, Active)

    def cancelled(self) -> bool:
        """Whether it was cancelled, and is gone."""
        return self.done() and isinstance(self._record.state, Ended) and self._record.state.result == "cancelled"

    def cancel(self) -> bool:
        """Take it out of the queue, or stop it where it runs: TERM, and KILL after its grace. False where it is over.

        A job that runs is done when it is gone, not at once; then cancelled() tells whether this was in time.
        """
        if self.done():
            return self.cancelled()
        cancel_all(self.link, [self])
        state = self._looked_up().state
        return not isinstance(state, Ended) or state.result == "cancelled"

    # -- for those who watch -------------------------------------------------------------------------

    def is_over(self, job: Record | None) -> None:
        """It has ended; None where it is not in the queue any more."""
        if job is None:
            self.is_unknown(
                NoSuchJob(f"job {self.shown_id} is not in the queue any more", "see keep in the configuration")
            )
            return
        self._note(job)
        with contextlib.suppress(InvalidStateError):  # somebody else has told it before
            self.set_result(None)

    def is_unknown(self, error: StokerError) -> None:
        """Nobody can tell what became of it."""
        with contextlib.suppress(InvalidStateError):
            self.set_exception(error)

    # -- inside ----------------------------------------------------------------------------------

    def _get_outcome(self) -> Outcome:
        """Read when somebody asks, by whoever asks: results may be large, and bring their modules along."""
        with self._reading:
            if self._outcome is None:
                self._outcome = outcome_of(self._record, self._attempts(), self.link.paths)
            return self._outcome

    def _looked_up(self) -> Record:
        if not self.done():
            with self.link.opened() as store:
                record = known(store.job(self.id), self.id)
            if isinstance(record.state, Ended):
                self.is_over(record)
            else:
                self._note(record)
        return self._record

    def _note(self, record: Record) -> None:
        """Whoever watches may have seen its end while somebody else looked it up; then that is what counts."""
        with self._condition:
            if not isinstance(self._record.state, Ended):
                self._record = record

    def _attempts(self) -> list[AttemptRow]:
        with self.link.opened() as store:
            return [attempt for attempt in store.attempts(self.id) if attempt.why != "returned"]

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        with contextlib.suppress(StokerError):
            return f"<stoker.Job {self.shown_id}{name} {self.state}>"
        return f"<stoker.Job {self.shown_id}{name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return find_job, (self.id,)


def find_job(job_id: int) -> Job:
    """The handle of a job, by its number."""
    link = find_link()
    return handles_of(link, [job_id])[0]


def handles_of(link: Link, ids: Sequence[int]) -> list[Job]:
    """Handles of jobs, in their order; those that are not over will be told when they are."""
    with link.opened() as store:
        records = {record.id: record for record in queries.jobs_of(store, ids)}
    handles = [Job(link, known(records.get(job_id), job_id)) for job_id in ids]
    still: list[Job] = []
    for handle in handles:
        record = records[handle.id]
        if isinstance(record.state, Ended):
            handle.is_over(record)
        else:
            still.append(handle)
    if still:
        watch(link, still)
    return handles


def cancel_all(link: Link, jobs: Sequence[Job], *, only_waiting: bool = False) -> None:
    """Ask for the end of jobs, and wait until the engine has heard it."""
    from stoker.queue.control import Control, Unanswered, carry_out

    with link.opened() as store:
        found = queries.jobs_of(store, [job.id for job in jobs])
        meant = Queued if only_waiting else Active | Queued
        wishes = [Cancel(record.id, NOTE) for record in found if isinstance(record.state, meant)]
        with contextlib.suppress(Unanswered):  # it is recorded, and the next engine carries it out
            carry_out(Control(link.paths, store, link.sim), wishes)


def _text(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text(errors="replace") if path else ""
    return ""
