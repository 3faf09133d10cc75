"""A job in a Python program: a future of concurrent.futures with an id, by which other processes find it."""

from __future__ import annotations

import contextlib
import pickle
import signal
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from pathlib import Path
from typing import Any, NamedTuple, get_args

from stoker.core.errors import JobFailed, NoSuchJob, StokerError
from stoker.core.job import Active, Ended, Queued, Waiting, id_text, is_delegated, single, state_word
from stoker.core.job import Job as Record
from stoker.core.launch import INHERIT
from stoker.core.outcomes import CancelResult
from stoker.core.requests import Cancel
from stoker.core.text import printable, title
from stoker.core.units import duration_text
from stoker.python.connection import Link, find_link, known, watch
from stoker.python.function_child import UNWRITTEN, result_path
from stoker.store import queries
from stoker.store.engine_lock import QUEUE
from stoker.store.logs import Tail, last_line
from stoker.store.paths import Paths
from stoker.store.reports import read_reports
from stoker.store.schema import AttemptRow
from stoker.store.status_file import read_machine

NOTE = "cancelled by a program"
CANCELLED = get_args(CancelResult)
FOLLOW_INTERVAL = 0.2
"""Seconds between two reads of a log that is followed."""
_FAILED = Exception("the job failed; its error is read on first use")
"""Tells wait() and as_completed() of the standard library that a job failed."""


class Job(Future[Any]):
    """One job of the queue. It continues when this handle, or the program, is gone."""

    def __init__(self, link: Link, record: Record) -> None:
        super().__init__()
        self.link = link
        """Its queue."""
        self._record = record
        """The job as read last."""
        self._outcome: Outcome | None = None
        self._reading = threading.Lock()

    # -- properties --------------------------------------------------------------------------------

    @property
    def id(self) -> int:
        """Its number, by which stoker.job() finds it."""
        return self._record.id

    @property
    def shown_id(self) -> str:
        """Its id as users type it: `12`, or `12.3` for a task of an array."""
        return id_text(self._record)

    @property
    def job_id(self) -> str:
        """The same as shown_id, as submitit calls it."""
        return self.shown_id

    @property
    def name(self) -> str:
        return self._record.name

    @property
    def state(self) -> str:
        """Its state: queued, held, starting, running, stopping; or its result, such as done or failed."""
        record = self._refreshed()
        return "queued" if isinstance(record.state, Waiting) or is_delegated(record) else state_word(record)

    @property
    def _files(self) -> Paths:
        """Where its files are: a job on a cluster has them where nodes see them."""
        return self.link.paths.on(self._record.spec.cluster)

    @property
    def devices(self) -> list[str]:
        """The labels of the GPUs of its last attempt; empty before it starts."""
        attempts = self._attempts()
        machine = read_machine(self.link.paths.status_file(QUEUE))
        labels = {device.id: device.label for device in machine.devices} if machine else {}
        return [labels.get(device, device) for device in attempts[-1].devices] if attempts else []

    @property
    def exit_code(self) -> int | None:
        """The exit code of its process, 128 and more after a signal; None before the end."""
        state = self._refreshed().state
        return state.code if isinstance(state, Ended) else None

    @property
    def peak_vram(self) -> int | None:
        """Most bytes of memory on one GPU in its last attempt; None where not measured."""
        with self.link.opened() as store:
            uses = store.uses(self.id)
        return uses[max(uses)].peak or None if uses else None

    @property
    def log(self) -> Path | None:
        """The log file of its last attempt; None before it starts."""
        path = log_of(self._attempts(), errors=False)
        return Path(path) if path else None

    def stdout(self) -> str:
        """The output of its last attempt so far."""
        return _text(log_of(self._attempts(), errors=False))

    def stderr(self) -> str:
        """The standard error of its last attempt so far; the same as stdout(), unless `err` was given."""
        return _text(log_of(self._attempts()))

    def tail(self, lines: int = 20) -> str:
        """The last lines of its output so far; a progress bar as it stands."""
        path = log_of(self._attempts(), errors=False)
        if not path:
            return ""
        with contextlib.closing(Tail(path, lines)) as tail:
            text = b"".join(tail.read()).decode(errors="replace")
        return "\n".join(
            next(filter(None, reversed(line.split("\r"))), "") for line in text.removesuffix("\n").split("\n")
        )

    def follow(self) -> None:
        """Print its output as it comes, until it ends. Ctrl-C ends only the following: the job continues."""
        tail, ended = Tail(""), False
        while not ended:
            ended = self.wait(FOLLOW_INTERVAL)
            _print_new(tail)
            path = log_of(self._attempts(), errors=False)
            if path != tail.path:  # of the first attempt, or of a retry
                tail.close()
                tail = Tail(path)
                _print_new(tail)
        tail.close()

    def reports(self) -> list[dict[str, Any]]:
        """Its reports by stoker.report() and stoker.progress(), oldest first."""
        return [entry.as_dict() for entry in read_reports(self._files.report(self.id))]

    # -- the interface of futures --------------------------------------------------------------------

    def result(self, timeout: float | None = None) -> Any:
        """The value of the function; 0 for a command. Raises what it raised, or JobFailed, or CancelledError.

        Raises TimeoutError after `timeout` seconds. Ctrl-C ends only the waiting: the job continues.
        """
        if error := self._trouble(timeout):
            raise error
        outcome = self._get_outcome()
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def results(self) -> list[Any]:
        """The result in a list, as submitit has it: a job is one task."""
        return [self.result()]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error that result() would raise; a CancelledError is raised here, too."""
        if error := self._trouble(timeout):
            return error
        error = self._get_outcome().error
        if isinstance(error, CancelledError):
            raise error
        return error

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; False after the timeout."""
        try:
            super().exception(timeout)
        except TimeoutError:
            return False
        return True

    def running(self) -> bool:
        return not self.done() and isinstance(self._refreshed().state, Active)

    def cancelled(self) -> bool:
        """Whether it was cancelled and has ended."""
        return self.done() and isinstance(self._record.state, Ended) and self._record.state.result in CANCELLED

    def cancel(self) -> bool:
        """Remove it from the queue, or stop it: TERM, and KILL after its grace. False where it has ended.

        A running job is done when its processes have ended; then cancelled() says whether this was in time.
        """
        if self.done():
            return self.cancelled()
        cancel_all(self.link, [self])
        state = self._refreshed().state
        return not isinstance(state, Ended) or state.result in CANCELLED

    # -- called by the watcher -----------------------------------------------------------------------

    def mark_ended(self, job: Record | None) -> None:
        """Mark it as ended; None where it is no longer in the queue."""
        if job is None:
            self.mark_unreadable(NoSuchJob(f"job {self.shown_id} is no longer in the queue", "see the setting keep"))
            return
        self._keep(job)
        with contextlib.suppress(InvalidStateError):  # another thread was faster
            if isinstance(job.state, Ended) and job.state.result not in ("done", *CANCELLED):
                self.set_exception(_FAILED)
            else:
                self.set_result(None)

    def mark_unreadable(self, error: StokerError) -> None:
        """Fail with an error: its end cannot be read."""
        with contextlib.suppress(InvalidStateError):
            self.set_exception(error)

    def _trouble(self, timeout: float | None) -> BaseException | None:
        """Wait for the end; the error if its end cannot be read."""
        error = super().exception(timeout)
        return None if error is _FAILED else error

    def _get_outcome(self) -> Outcome:
        """Read the result on first use, in the calling thread: it may be large and import modules."""
        with self._reading:
            if self._outcome is None:
                self._outcome = outcome_of(self._record, self._attempts(), self.link.paths)
            return self._outcome

    def _refreshed(self) -> Record:
        if not self.done():
            with self.link.opened() as store:
                record = known(store.job(self.id), self.id)
            if isinstance(record.state, Ended):
                self.mark_ended(record)
            else:
                self._keep(record)
        return self._record

    def _keep(self, record: Record) -> None:
        """Keep the newer record: the watcher may have seen the end while another thread read the job."""
        with self._condition:
            if not isinstance(self._record.state, Ended):
                self._record = record

    def _attempts(self) -> list[AttemptRow]:
        with self.link.opened() as store:
            return store.runs(self.id)

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        with contextlib.suppress(StokerError):
            return f"<stoker.Job {self.shown_id}{name} {self.state}>"
        return f"<stoker.Job {self.shown_id}{name}>"

    def _repr_html_(self) -> str:
        from stoker.python.tables import html_table

        cells = (self.shown_id, self.name, self.state, ", ".join(self.devices), self.tail(1))
        return html_table(("id", "name", "state", "GPU", "last line"), [[printable(cell) for cell in cells]])

    def __reduce__(self) -> tuple[Any, ...]:
        return find_job, (self.id,)


def find_job(job_id: int) -> Job:
    link = find_link()
    return handles_of(link, [job_id])[0]


def handles_of(link: Link, ids: Sequence[int]) -> list[Job]:
    """Handles of jobs, in this order. The watcher marks the open ones when they end."""
    with link.opened() as store:
        records = {record.id: record for record in single(queries.jobs_of(store, ids))}
    handles = [Job(link, known(records.get(job_id), job_id)) for job_id in ids]
    unfinished: list[Job] = []
    for handle in handles:
        record = records[handle.id]
        if isinstance(record.state, Ended):
            handle.mark_ended(record)
        else:
            unfinished.append(handle)
    if unfinished:
        watch(link, unfinished)
    return handles


def cancel_all(link: Link, jobs: Sequence[Job], *, only_waiting: bool = False) -> None:
    """Request the cancellation of jobs, and wait until the engine has handled the requests."""
    from stoker.app.control.requests import Control, Unanswered, carry_out

    with link.opened() as store:
        records = queries.jobs_of(store, [job.id for job in jobs])
        states = Queued if only_waiting else Active | Queued
        requests = [
            Cancel(record.id, NOTE, count=record.count) for record in records if isinstance(record.state, states)
        ]
        with contextlib.suppress(Unanswered):  # it is recorded, and the next engine handles it
            carry_out(Control(link.paths, store), requests)


def _print_new(tail: Tail) -> None:
    for block in tail.read():
        sys.stdout.write(block.decode(errors="replace"))
    sys.stdout.flush()


def _text(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text(errors="replace") if path else ""
    return ""


class Outcome(NamedTuple):
    """A value or an error."""

    value: Any = None
    error: BaseException | None = None


class RemoteTraceback(Exception):
    """The traceback of an exception in the job, as text; set as the cause of that exception."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def outcome_of(job: Record, attempts: list[AttemptRow], paths: Paths) -> Outcome:
    """The value or error of an ended job."""
    assert isinstance(job.state, Ended)
    if job.state.result in CANCELLED:
        return Outcome(error=CancelledError(f"job {id_text(job)} was {job.state.note or job.state.result}"))
    failure = _Failure(job, log_of(attempts))
    if job.command.call is None:
        return Outcome(0) if job.state.result == "done" else failure.outcome(_how(job))
    owner, number = (job.member.batch, job.member.number) if job.member else (job.array or job.id, job.task or 0)
    path = result_path(str(paths.on(job.spec.cluster).function(owner)), number)
    return _read(job, Path(path), failure)


def log_of(attempts: list[AttemptRow], *, errors: bool = True) -> str:
    """The file of standard error, or output, of the last attempt; empty where there is none."""
    if not attempts:
        return ""
    path = (attempts[-1].errors if errors else "") or attempts[-1].log
    return "" if path == INHERIT else path


class _Failure(NamedTuple):
    """A job and its log, which every error names."""

    job: Record
    log: str

    def outcome(self, what: str, cause: BaseException | None = None) -> Outcome:
        """An error that says what happened and names the log."""
        last = last_line(self.log) if self.log else ""
        where = f"; its log is {self.log}" + (f", which ends with: {last}" if last else "") if self.log else ""
        shown = id_text(self.job)
        error = JobFailed(
            f"job {shown} ({title(self.job)}) {what}{where}", f"stoker logs {shown}", self.job.id, self.log
        )
        error.__cause__ = cause
        return Outcome(error=error)


def _read(job: Record, path: Path, failure: _Failure) -> Outcome:
    """The result of the job's last attempt."""
    try:
        with path.open("rb") as file:
            header = pickle.load(file)
            if header["attempt"] < job.run:  # of an earlier attempt; the last one wrote none
                return failure.outcome(_how(job))
            return _unpacked(header, file, failure)
    except FileNotFoundError:
        return _missing(job, path, failure)
    except Exception as error:
        return failure.outcome(f"has a result that cannot be read ({path}): {error}", error)


def _unpacked(header: dict[str, Any], file: Any, failure: _Failure) -> Outcome:
    kind, message = header["type"], header.get("message", "")
    cause = RemoteTraceback(header["traceback"]) if "traceback" in header else None
    match header["outcome"]:
        case "returned":
            return _loaded(header, file, failure)
        case "unpicklable":
            return failure.outcome(f"returned a {kind}, which cannot be sent back: {message}")
        case "unreadable":
            return failure.outcome(f"could not start: {kind}: {message}", cause)
    error = _exception(file)
    if error is None:
        return failure.outcome(f"raised {kind}: {message}" if message else f"raised {kind}", cause)
    error.__cause__ = cause
    return Outcome(error=error)


def _loaded(header: dict[str, Any], file: Any, failure: _Failure) -> Outcome:
    try:
        return Outcome(pickle.load(file))
    except Exception as error:
        wrote, reads = ("{}.{}".format(*numbers) for numbers in (header["python"], sys.version_info[:2]))
        version = "" if wrote == reads else f" (it was written by Python {wrote}, but this is {reads})"
        what = f"returned a {header['type']} that cannot be read here{version}: {type(error).__name__}: {error}"
        return failure.outcome(what, error)


def _exception(file: Any) -> BaseException | None:
    """The exception object, where it can be unpickled here."""
    try:
        error = pickle.load(file)
        if isinstance(error, tuple):
            error = _assembled(*error)
    except Exception:
        return None
    return error if isinstance(error, BaseException) else None


def _assembled(kind: type[BaseException], arguments: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    """An exception rebuilt without its constructor."""
    error = kind.__new__(kind, *arguments)
    vars(error).update(attributes)
    return error


def _missing(job: Record, path: Path, failure: _Failure) -> Outcome:
    state = job.state
    assert isinstance(state, Ended)
    if not path.parent.is_dir() and (state.result == "done" or state.code == UNWRITTEN):
        return failure.outcome(f"has no result: its folder was removed ({path.parent})")
    if state.result == "done":
        return failure.outcome(f"succeeded without a result: it called os._exit(), or {path} was removed")
    return failure.outcome(_how(job))


def _how(job: Record) -> str:
    """How a job without a result ended."""
    state = job.state
    assert isinstance(state, Ended)
    note = f" ({state.note})" if state.note else ""
    match state.result:
        case "timeout":
            limit = "" if job.spec.limit is None else f" of {duration_text(job.spec.limit)}"
            return f"reached its time limit{limit}"
        case "hung":
            return f"was ended because it hung{note}"
        case "oom":
            return f"ran out of GPU memory{note}"
        case "skipped" | "lost" | "expired" | "idle":
            return f"was {state.result}{note}"
    if state.signal:
        return f"{_killed(state.signal)}{note}"
    if state.code == UNWRITTEN and job.command.call is not None:
        return f"could not write its result; is the disk full?{note}"
    return f"ended with exit code {state.code}{note}"


def _killed(number: int) -> str:
    names = {Signal.value: Signal.name for Signal in signal.Signals}
    guess = ", as the kernel does when memory runs out" if number == signal.SIGKILL else ""
    return f"was killed by signal {number} ({names.get(number, 'a real-time one')}){guess}"
