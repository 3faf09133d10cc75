"""For programs inside a job: parameters, reports, progress, and whether to stop.

It imports nothing of Stoker and little of the standard library, since training scripts import it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType
    from typing import Any

_JOB = "STOKER_JOB_ID"
_REPORT = "STOKER_REPORT"
_NOT_NUMBERS = {float("inf"): "inf", float("-inf"): "-inf"}


class _Stop:
    """Whether TERM was received, and whether its handler is installed."""

    requested = False
    is_handled = False


def params() -> dict[str, Any]:
    """The parameters of this job, such as those of a trial of a sweep; empty for a job without parameters."""
    text = os.environ.get("STOKER_PARAMS")
    if not text:
        return {}
    import json

    given = json.loads(text)
    return given if isinstance(given, dict) else {}


class CallWithParams:
    """A call of a function with the parameters of this job; it is pickled by its name."""

    def __init__(self, function: Callable[..., Any], objectives: tuple[str, ...]) -> None:
        self._function = function
        self._objectives = objectives
        """Names of the values that are to be reported."""

    def __call__(self) -> Any:
        """What the function returns. A number is reported as the objective, a dictionary as several values."""
        value = self._function(**params())
        if self._objectives:
            values = value if isinstance(value, dict) else {self._objectives[0]: value}
            report(**{str(name): each for name, each in values.items() if each is not None})
        return value


def work_dir() -> Path:
    """The working directory of this job; outside of a job, the current directory."""
    from pathlib import Path

    return Path(os.environ.get("STOKER_WORK_DIR") or Path.cwd())


def report(**values: Any) -> None:
    """Report values of this run, such as `report(step=3, loss=0.4)`; `stoker status ID` shows the newest.

    It takes a few microseconds, does nothing outside of a job, and does not raise where it cannot write.
    """
    if values:
        _append({"values": values})


def progress(done: float, total: float) -> None:
    """Report how much of the work is done."""
    _append({"done": done, "total": total})


def should_stop() -> bool:
    """Whether this job was asked to end: cancelled, out of time, or TERM for another reason.

    The first call installs a handler of TERM. From then on TERM no longer ends the program: it must call this function
    now and then, and end itself before the grace is over and KILL follows. An existing handler of TERM is still called.
    The first call must be in the main thread. Outside of a job it returns False and changes nothing.
    """
    if not _Stop.is_handled and _JOB in os.environ:
        _handle_term()
    return _Stop.requested


def _handle_term() -> None:
    import signal

    before = signal.getsignal(signal.SIGTERM)

    def request_stop(number: int, frame: FrameType | None) -> None:
        _Stop.requested = True
        if callable(before):
            before(number, frame)

    try:
        signal.signal(signal.SIGTERM, request_stop)
    except ValueError:  # only the main thread may install one; a later call from there does it
        return
    _Stop.is_handled = True


def _append(entry: dict[str, Any]) -> None:
    path = os.environ.get(_REPORT)
    if not path:
        return
    import json
    import time

    entry = {"at": time.time(), "attempt": int(os.environ.get("STOKER_ATTEMPT") or 1), **_plain(entry)}
    try:
        _write(path, (json.dumps(entry) + "\n").encode(errors="backslashreplace"))
    except OSError:  # a full disk must not end the run
        return


def _write(path: str, line: bytes) -> None:
    """Append with a single write, so that processes of a job do not mix their lines."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        descriptor = os.open(path, flags, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _plain(value: Any) -> Any:
    """The value for JSON: scalars of numpy or torch as numbers, nan and inf as words, other objects as text."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return "nan" if value != value else _NOT_NUMBERS.get(value, value)  # noqa: PLR0124
    if value is None or isinstance(value, bool | int | str):
        return value
    return _unknown(value)


def _unknown(value: Any) -> Any:
    try:
        scalar = value.item()
    except Exception:  # an object of the user, which may raise anything
        return repr(value)
    return _plain(scalar) if isinstance(scalar, bool | int | float | str) else repr(value)
