"""For programs inside a job: what they were given, how far they are, and whether they should stop.

Nothing of ours is imported here, and little of Python's before it is needed: training scripts import this.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType
    from typing import Any

_JOB = "STOKER_JOB_ID"
_REPORT = "STOKER_REPORT"
_NOT_NUMBERS = {float("inf"): "inf", float("-inf"): "-inf"}


class _Wish:
    """Whether somebody wants this process to stop, and whether it listens for that."""

    came = False
    listens = False


def params() -> dict[str, Any]:
    """The parameters that a sweep gave to this job; empty outside of one."""
    text = os.environ.get("STOKER_PARAMS")
    if not text:
        return {}
    import json

    given = json.loads(text)
    return given if isinstance(given, dict) else {}


def work_dir() -> Path:
    """The directory that this job belongs into; outside of one, where we are."""
    from pathlib import Path

    return Path(os.environ.get("STOKER_WORK_DIR") or Path.cwd())


def report(**values: Any) -> None:
    """Tell Stoker something of this run, such as `report(step=3, loss=0.4)`; `stoker status ID` shows the newest.

    Costs a few microseconds, does nothing outside of a job, and never raises where it cannot be written.
    """
    if values:
        _append({"values": values})


def progress(done: float, total: float) -> None:
    """Tell Stoker how much of the work is done."""
    _append({"done": done, "total": total})


def should_stop() -> bool:
    """Whether this job was asked to end: cancelled, out of time, or TERM for another reason.

    With the first call the program takes over: from then on TERM no longer ends it at once, and it is to look here now
    and then and to end by itself, before the grace is over and KILL comes. A handler for TERM that is there already is
    still called. Call it from the main thread first. Outside of a job it is False, and changes nothing.
    """
    if not _Wish.listens and _JOB in os.environ:
        _listen()
    return _Wish.came


def _listen() -> None:
    import signal

    before = signal.getsignal(signal.SIGTERM)

    def heed(number: int, frame: FrameType | None) -> None:
        _Wish.came = True
        if callable(before):
            before(number, frame)

    try:
        signal.signal(signal.SIGTERM, heed)
    except ValueError:  # only the main thread may; a later call from there does it
        return
    _Wish.listens = True


def _append(entry: dict[str, Any]) -> None:
    path = os.environ.get(_REPORT)
    if not path:
        return
    import json
    import time

    entry = {"at": time.time(), "attempt": int(os.environ.get("STOKER_ATTEMPT") or 1), **_plain(entry)}
    try:
        _write(path, (json.dumps(entry) + "\n").encode(errors="backslashreplace"))
    except OSError:  # a full disk must not cost the run
        return


def _write(path: str, line: bytes) -> None:
    """One write, so that several processes of a job do not mix their lines."""
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
    """The value as JSON has it: scalars of numpy or torch as numbers, what is no number as a word, others as text."""
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
    except Exception:  # a thing of the user's, which may do anything
        return repr(value)
    return _plain(scalar) if isinstance(scalar, bool | int | float | str) else repr(value)
