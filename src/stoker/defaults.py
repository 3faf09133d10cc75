"""Default job options of configuration files: which there are, and whether their values make sense."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import msgspec

from stoker.core.errors import UsageError
from stoker.core.settings import KEYS, setting_text
from stoker.core.units import parse_duration
from stoker.options import JobOptions, parse_grace, parse_mps, parse_retry_on, parse_vram, vram_word

OF_ONE_JOB = ("name", "begin", "after", "array")
"""Options that make sense for a job or a batch, and never for all."""

NAMES = tuple(JobOptions.__struct_fields__)

BUILT_IN: Mapping[str, object] = {"gpus": 1, "vram": "all", "priority": 0, "grace": "30s", "retries": 0}
"""What holds when nobody says anything, as one would write it."""


def _at_least_zero(number: int) -> None:
    if number < 0:
        raise UsageError(f"{number} is less than nothing", "give 0 or more")


_CHECKS: Mapping[str, Callable[[Any], object]] = {
    "gpus": _at_least_zero,
    "retries": _at_least_zero,
    "vram": lambda text: vram_word(text) or parse_vram(text),
    "mps": parse_mps,
    "time": parse_duration,
    "grace": parse_grace,
    "retry_on": parse_retry_on,
}
_KINDS = {"str": "text", "int": "a whole number", "bool": "true or false", "object": "a table", "array": "a list"}


def checked_defaults(table: object, place: str) -> dict[str, Any]:
    """The options, with numbers as text where text is wanted; the place says in an error which file it was."""
    if not isinstance(table, dict):
        raise UsageError(f"{place}: defaults is not a table", "write [defaults] on a line above the options")
    return {name: _checked(name, value, f"{place}: {name} under [defaults]") for name, value in table.items()}


def _checked(name: str, raw: object, place: str) -> object:
    if name not in NAMES or name in OF_ONE_JOB:
        _refuse(name, place)
    value = _converted(name, raw, place)
    try:
        _CHECKS.get(name, lambda _: None)(value)
    except UsageError as error:
        raise UsageError(f"{place}: {error.message}", error.hint) from None
    return value


def _converted(name: str, raw: object, place: str) -> object:
    """A number may stand where the command line takes text, as in job lists."""
    problem: msgspec.ValidationError | None = None
    for candidate in (raw, _as_text(raw)):
        try:
            return getattr(msgspec.convert({name: candidate}, JobOptions), name)
        except msgspec.ValidationError as error:
            problem = problem or error
    match = re.search(r"Expected `(\w+)", str(problem))
    kind = _KINDS.get(match[1], match[1]) if match else "what it takes"
    raise UsageError(f"{place} is {setting_text(raw)!r}, not {kind}", "see stoker submit --help for what it takes")


def _as_text(raw: object) -> object:
    if isinstance(raw, dict):
        return {name: _as_text(value) for name, value in raw.items()}
    return str(raw) if isinstance(raw, int | float) and not isinstance(raw, bool) else raw


def _refuse(name: str, place: str) -> NoReturn:
    if name in OF_ONE_JOB:
        raise UsageError(f"{place} would be the same for all jobs", f"give --{name} to the jobs it is meant for")
    if name in KEYS:
        raise UsageError(f"{place} is not a job option", f"{name} is a setting of the engine: put it above [defaults]")
    import difflib

    known = [each for each in NAMES if each not in OF_ONE_JOB]
    near = difflib.get_close_matches(name, known, 1)
    raise UsageError(f"{place} is unknown", f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}")
