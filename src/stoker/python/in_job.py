"""For programs inside a job: parameters, reports, progress, and whether to stop or to give way.

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
_SAVE_SIGNAL = "STOKER_SAVE_SIGNAL"
"""Names the signal that asks a preemptible job to save its state and exit."""
_NOT_NUMBERS = {float("inf"): "inf", float("-inf"): "-inf"}


_callbacks: dict[int, list[Callable[[], object]]] = {}
"""By the signals that are handled, the functions to call."""


class _Stop:
    """Whether the job was asked to end or to give way, and whether `should_stop` listens."""

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
        """Call the function. A number that it returns is reported as the objective, a dictionary as several values."""
        value = self._function(**params())
        if self._objectives:
            values = value if isinstance(value, dict) else {self._objectives[0]: value}
            report(**{str(name): number for name, number in values.items() if number is not None})
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


def saved() -> None:
    """Say that all work so far is saved, so that the next run goes on from here.

    A job with `--preemptible=restart` then loses little if it gives way now, and it counts as that much further.
    """
    _append({"saved": True})


def should_stop() -> bool:
    """Whether this job was asked to end (cancelled, out of time, or TERM for another reason) or to give way to another.

    The first call installs a handler of TERM, and of the signal that asks a preemptible job to save. From then on they
    do not end the program: it must call this function now and then, save, and exit with a code other than 0 before its
    time is over. Existing handlers are still called. The first call must be in the main thread; until then other
    threads get False. Outside of a job it returns False and changes nothing.
    """
    if not _Stop.is_handled and _JOB in os.environ:
        import signal

        _Stop.is_handled = all(_listen(number) for number in (signal.SIGTERM, _save_signal()) if number)
    return _Stop.requested


def on_preempt(callback: Callable[[], object]) -> Callable[[], object]:
    """Call a function in the main thread when this job is asked to save its state and to give way to another.

    It may save and exit, or set a flag for the program to do so. `should_stop` is true from then on. Without
    --preemptible, and outside of a job, it is never called. The first call must be in the main thread.
    """
    if _JOB in os.environ and (number := _save_signal()):
        if not _listen(number):
            raise RuntimeError("call stoker.on_preempt() in the main thread first: only that can handle signals")
        _callbacks[number].append(callback)
    return callback


def _save_signal() -> int | None:
    import signal

    name = os.environ.get(_SAVE_SIGNAL)
    return getattr(signal, f"SIG{name}", None) if name else None


def _listen(number: int) -> bool:
    """Handle a signal from now on; False if this is not the main thread, so that a later call from there does it."""
    import signal

    if number in _callbacks:
        return True
    before = signal.getsignal(number)
    callbacks: list[Callable[[], object]] = []

    def request_stop(number: int, frame: FrameType | None) -> None:
        _Stop.requested = True
        for callback in callbacks:
            callback()
        if callable(before):
            before(number, frame)

    try:
        signal.signal(number, request_stop)
    except ValueError:
        return False
    _callbacks[number] = callbacks
    return True


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
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
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
