"""Text that is safe for a terminal, JSON, hidden secrets, titles and outcomes of jobs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import msgspec

from stoker.core.job import Ended, Job
from stoker.core.launch import shown_command
from stoker.core.units import duration_text

PATTERNS = (
    "*TOKEN*",
    "*SECRET*",
    "*PASSWORD*",
    "*PASSWD*",
    "*PASSPHRASE*",
    "*API_KEY*",
    "*APIKEY*",
    "*ACCESS_KEY*",
    "*PRIVATE_KEY*",
    "*CREDENTIAL*",
    "*_AUTH",
    "AWS_*KEY*",
    "*_DSN",
    "DATABASE_URL",
    "PGPASS*",
)

HIDDEN = "********"
"""Shown in place of a secret; of fixed length, because the length of a secret is information, too."""
_UNSAFE = r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
"""A character that could move a cursor or hide text, or that is none."""
ESCAPE_SEQUENCE = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)|[ -/]*[0-OQ-WYZ\\`-~])"
"""A whole sequence that a program writes to colour text or to control a terminal, on one line."""


def looks_secret(name: str, patterns: Iterable[str] = PATTERNS) -> bool:
    """Whether a variable's name matches one of the patterns, in upper or lower case."""
    return any(fnmatchcase(name.upper(), pattern.upper()) for pattern in patterns)


def shown_value(name: str, value: str, patterns: Iterable[str] = PATTERNS) -> str:
    return HIDDEN if looks_secret(name, patterns) else value


def printable(text: str) -> str:
    """The text with every character escaped that could move a cursor or hide text; escaped text stays as it is.

    Writers of terminals and HTML call this. All other code holds text as it is.
    """
    if text.isprintable():
        return text
    return re.sub(_UNSAFE, lambda match: _escaped(match[0]), text)


def _escaped(character: str) -> str:
    """The character as an escape; a byte that is not UTF-8 as that byte."""
    byte = ord(character) - 0xDC00
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else ascii(character)[1:-1]


def valid_text(text: str) -> str:
    """The text with bytes that are not UTF-8 as escapes, since neither JSON nor TOML can hold them."""
    return re.sub("[\ud800-\udfff]", lambda match: _escaped(match[0]), text)


_encoder = msgspec.json.Encoder()


def to_json(value: object) -> bytes:
    """The value as JSON that is also safe on a terminal. All JSON for users and front ends is written here."""
    try:
        data = _encoder.encode(value)
    except UnicodeEncodeError:
        data = _encoder.encode(_with_valid_text(value))
    if data.isascii() and b"\x7f" not in data:
        return data
    text = data.decode()
    return data if text.isprintable() else re.sub(_UNSAFE, lambda match: f"\\u{ord(match[0]):04x}", text).encode()


def _with_valid_text(value: object) -> object:
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, dict):
        return {_with_valid_text(key) if isinstance(key, str) else key: _part(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_part(part) for part in value]
    return _with_valid_text(msgspec.to_builtins(value))


def _part(value: object) -> object:
    try:
        return msgspec.Raw(_encoder.encode(value))  # quick, and most parts are valid
    except UnicodeEncodeError:
        return _with_valid_text(value)


def shortened(text: str, width: int) -> str:
    """At most `width` characters, with … where text was cut."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def common_lead(lead: Sequence[str], words: Sequence[str]) -> tuple[str, ...]:
    differing = (place for place, pair in enumerate(zip(lead, words, strict=False)) if pair[0] != pair[1])
    return tuple(lead[: next(differing, min(len(lead), len(words)))])


def without_lead(text: str, lead: Sequence[str]) -> str:
    """The text without the words that all begin with; an option that differs only in its value keeps its name."""
    common = list(lead[:-1] if lead and lead[-1].startswith("-") else lead)
    words = text.split(" ")
    rest = words[len(common) :]
    return " ".join(rest) if rest and words[: len(common)] == common else text


def without_common_leads(texts: Iterable[str]) -> dict[str, str]:
    """Each text without the words that all of the same program (the first two words) begin with, `…` in their place."""
    leads: dict[tuple[str, ...], tuple[str, ...]] = {}
    split = {text: tuple(text.split(" ")) for text in texts}
    for words in split.values():
        leads[words[:2]] = common_lead(leads.get(words[:2], words), words)
    short = {text: without_lead(text, leads[words[:2]]) for text, words in split.items()}
    return {text: text if rest == text else f"… {rest}" for text, rest in short.items()}


def title(job: Job, width: int = 60) -> str:
    """The title of a job, safe for a terminal and at most so wide."""
    return shortened(printable(title_text(job)), width)


def title_text(job: Job, *, array: bool = False) -> str:
    """The title of a job on all screens, on one line: its name, or its command with the placeholders replaced.

    A Python call is shown with its arguments. `array` is for all tasks together: values that differ are left open.
    """
    command = job.command if array else shown_command(job)
    if call := command.call:
        return f"{job.name or call.function}({'…' if array else ', '.join(call.arguments)})"
    return on_one_line(job.name or command.text)


def on_one_line(text: str) -> str:
    return text.strip().replace("\\\n", " ").replace("\n", "; ")


def outcome(state: Ended) -> str:
    """How a job ended: `exit 1`, `signal 9 (SIGKILL)`, `timeout`."""
    if state.result != "failed":
        return state.result
    return f"signal {state.signal}" if state.signal else f"exit {state.code}"


def after(job: Job, started: float | None) -> str:
    """How long it ran: ` after 01:12`."""
    if started is None or not isinstance(job.state, Ended):
        return ""
    return f" after {duration_text(job.state.at - started)}"
