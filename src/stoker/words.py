"""Jobs in words, safe for a terminal whatever their names, commands and logs contain."""

from __future__ import annotations

import os
import re

from stoker.core.job import Ended, Job, id_text
from stoker.core.units import duration_text

__all__ = ["after", "id_text", "last_line", "outcome", "printable", "shortened", "text_for_json", "title"]

_TAIL_BYTES = 16_384
_HIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_ESCAPE_SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


def printable(text: str) -> str:
    """The text with everything that could move a cursor or hide something shown as an escape."""
    if text.isprintable():
        return text
    return _HIDDEN.sub(lambda match: ascii(match[0])[1:-1], text)


def text_for_json(text: str) -> str:
    """Bytes that are not UTF-8 are shown as escapes: JSON has no place for them."""
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")


def shortened(text: str, width: int) -> str:
    """At most that many characters, with a sign that there was more."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def title(job: Job, width: int = 60) -> str:
    """The job's name, or its command where it has none, on one line."""
    text = job.name or job.command.text.strip().replace("\\\n", " ").replace("\n", "; ")
    return shortened(printable(text), width)


def outcome(state: Ended) -> str:
    """How a job ended: `exit 1`, `signal 9 (SIGKILL)`, `timeout`."""
    if state.result == "done":
        return "done"
    if state.result in ("timeout", "cancelled", "skipped", "lost", "oom"):
        return state.result
    return f"signal {state.signal}" if state.signal else f"exit {state.code}"


def after(job: Job, started: float | None) -> str:
    """How long it ran, in words."""
    if started is None or not isinstance(job.state, Ended):
        return ""
    return f" after {duration_text(job.state.at - started)}"


def last_line(path: str) -> str:
    """The last line of a log that says something; empty where there is none or it cannot be read."""
    try:
        with open(path, "rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - _TAIL_BYTES))
            tail = _ESCAPE_SEQUENCE.sub(b"", log.read())
    except OSError:
        return ""
    lines = [part.strip() for line in tail.splitlines() for part in line.split(b"\r")]
    said = [line for line in lines if line]
    return printable(said[-1].decode(errors="backslashreplace")) if said else ""
