"""Job options as keyword arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from stoker.core.errors import UsageError
from stoker.queue.job_files import read_options
from stoker.queue.options import OPTIONS, JobOptions, Option

if TYPE_CHECKING:
    from stoker.python.job import Job


class Keywords(TypedDict, total=False):
    """The table of job options, in the form that type checkers read."""

    gpus: int
    vram: str
    cap: bool
    on: str | int | list[str | int]
    prefer: str | int | list[str | int]
    gpu_type: str
    mps: str | bool
    mps_optional: bool
    priority: int
    group: str
    time: str | int | timedelta
    grace: str | int | timedelta
    begin: str | datetime
    after: Job | int | str | Sequence[Job | int | str]
    retries: int
    retry_on: str | list[str | int]
    no_requeue: bool
    chdir: str | os.PathLike[str]
    env: dict[str, Any]
    out: str | os.PathLike[str]
    err: str | os.PathLike[str]
    name: str
    tag: dict[str, Any]
    tags: dict[str, Any]


def read_keywords(given: Mapping[str, Any]) -> JobOptions:
    """The options; None is the same as not given, and `tags` the same as `tag`."""
    words = {key: _word(value) for key, value in given.items() if value is not None}
    if "tags" in words:
        words["tag"] = {**words.get("tag", {}), **words.pop("tags")}
    return read_options(words, "the keywords")


def with_variables(options: JobOptions, environment: Mapping[str, str]) -> JobOptions:
    """The options, completed by STOKER_* variables."""
    found = {}
    for option in OPTIONS:
        variable = option.variable_in(environment)
        text = environment.get(variable) if variable and option.name != "array" else None
        if text and getattr(options, option.name) is None:
            found[option.name] = _read_variable(option, text)
    return msgspec.structs.replace(options, **found) if found else options


def _read_variable(option: Option, text: str) -> Any:
    types = {field.name: field.type for field in msgspec.structs.fields(JobOptions)}
    try:
        return msgspec.convert(text, types[option.name], strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"{option.variable}={text} cannot be read: {error}", "correct or unset it") from None


def _word(value: Any) -> Any:
    """The value as a job file has it."""
    if isinstance(value, list | tuple | set | frozenset):
        return [_word(each) for each in value]
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.3f}".rstrip("0").rstrip(".") + "s"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return getattr(value, "shown_id", value)
