"""The result of an ended job: the value it returned, or the error to raise."""

from __future__ import annotations

import pickle
import signal
import sys
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any, NamedTuple

from stoker.core.errors import JobFailed
from stoker.core.job import Ended, Job, id_text
from stoker.core.launch import INHERIT
from stoker.core.text import title
from stoker.core.units import duration_text
from stoker.python.calls import is_function
from stoker.python.function_child import UNWRITTEN, result_path
from stoker.store.logs import last_line
from stoker.store.paths import Paths
from stoker.store.schema import AttemptRow


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


def outcome_of(job: Job, attempts: list[AttemptRow], paths: Paths) -> Outcome:
    """The value or error of an ended job."""
    assert isinstance(job.state, Ended)
    if job.state.result == "cancelled":
        return Outcome(error=CancelledError(f"job {id_text(job)} was {job.state.note or 'cancelled'}"))
    failure = _Failure(job, log_of(attempts))
    if not is_function(job.command):
        return Outcome(0) if job.state.result == "done" else failure.outcome(_how(job))
    path = result_path(str(paths.function(job.array or job.id)), job.task or 0)
    return _read(job, Path(path), failure)


def log_of(attempts: list[AttemptRow], *, errors: bool = True) -> str:
    """The file of standard error, or output, of the last attempt; empty where there is none."""
    if not attempts:
        return ""
    path = (attempts[-1].errors if errors else "") or attempts[-1].log
    return "" if path == INHERIT else path


class _Failure(NamedTuple):
    """A job and its log, which every error names."""

    job: Job
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


def _read(job: Job, path: Path, failure: _Failure) -> Outcome:
    """The result of the job's last attempt."""
    try:
        with path.open("rb") as file:
            header = pickle.load(file)
            if header["attempt"] < job.tries:  # of an earlier attempt; the last one wrote none
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
            return failure.outcome(f"could not be begun: {kind}: {message}", cause)
    error = _exception(file)
    if error is None:
        return failure.outcome(f"raised {kind}: {message}" if message else f"raised {kind}", cause)
    error.__cause__ = cause
    return Outcome(error=error)


def _loaded(header: dict[str, Any], file: Any, failure: _Failure) -> Outcome:
    try:
        return Outcome(pickle.load(file))
    except Exception as error:
        wrote, reads = ("{}.{}".format(*each) for each in (header["python"], sys.version_info[:2]))
        version = "" if wrote == reads else f" (it was written by Python {wrote}, and this is {reads})"
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


def _missing(job: Job, path: Path, failure: _Failure) -> Outcome:
    state = job.state
    assert isinstance(state, Ended)
    if not path.parent.is_dir() and (state.result == "done" or state.code == UNWRITTEN):
        return failure.outcome(f"has no result: its folder is gone ({path.parent})")
    if state.result == "done":
        return failure.outcome(f"succeeded without a result: it left by os._exit(), or somebody removed {path}")
    return failure.outcome(_how(job))


def _how(job: Job) -> str:
    """How a job without a result ended."""
    state = job.state
    assert isinstance(state, Ended)
    note = f" ({state.note})" if state.note else ""
    match state.result:
        case "timeout":
            limit = "" if job.spec.limit is None else f" of {duration_text(job.spec.limit)}"
            return f"reached its time limit{limit}"
        case "oom":
            return f"ran out of GPU memory{note}"
        case "skipped" | "lost":
            return f"was {state.result}{note}"
    if state.signal:
        return f"was killed by signal {state.signal} ({_signal(state.signal)}){_guess(state.signal)}{note}"
    if state.code == UNWRITTEN and is_function(job.command):
        return f"could not write its result; is the disk full?{note}"
    return f"ended with exit code {state.code}{note}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a real-time one"


def _guess(number: int) -> str:
    return ", as the kernel does when memory runs out" if number == signal.SIGKILL else ""
