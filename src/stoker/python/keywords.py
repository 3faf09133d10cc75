"""Job options as keyword arguments: their types, their signature in notebooks, and errors that name keywords."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import msgspec

from stoker.app.jobs.job_files import read_options
from stoker.app.jobs.options import BY_NAME, OPTIONS, JobOptions, Option
from stoker.core.errors import StokerError, UsageError

if TYPE_CHECKING:
    from stoker.python.job import Job

Function = TypeVar("Function", bound=Callable[..., Any])


class Keywords(TypedDict, total=False):
    """The table of job options, in the form that type checkers read."""

    gpus: int
    vram: str
    cap: bool
    cluster: str
    nodes: int
    slurm: dict[str, Any]
    on: str | int | list[str | int]
    prefer: str | int | list[str | int]
    gpu_type: str
    mps: str | bool
    mps_optional: bool
    priority: int
    group: str
    time: str | int | timedelta
    grace: str | int | timedelta
    signal: str
    first_output: str | int | timedelta
    silent: str | int | timedelta
    idle: str | int | timedelta
    begin: str | datetime
    start_within: str | int | timedelta
    nonblock: bool
    after: Job | int | str | Sequence[Job | int | str]
    retries: int
    retry_on: str | list[str | int]
    no_requeue: bool
    preemptible: str | bool
    save_signal: str
    save_time: str | int | timedelta
    save_exit: int
    urgent: bool
    chdir: str | os.PathLike[str]
    freeze: str | bool
    warm: str | bool | list[str]
    env: dict[str, Any]
    out: str | os.PathLike[str]
    err: str | os.PathLike[str]
    name: str
    tag: dict[str, Any]
    tags: dict[str, Any]
    notify: str | list[str]


def read_keywords(given: Mapping[str, Any]) -> JobOptions:
    """The options; None is the same as not given, and `tags` the same as `tag`."""
    words = {key: _word(value) for key, value in given.items() if value is not None}
    if "tags" in words:
        words["tag"] = {**words.get("tag", {}), **words.pop("tags")}
    with naming_keywords():
        return read_options(words, "the keywords")


def with_variables(options: JobOptions, environment: Mapping[str, str]) -> JobOptions:
    """The options, completed by STOKER_* variables."""
    values = {}
    for option in OPTIONS:
        variable = option.variable_in(environment)
        text = environment.get(variable) if variable and option.name != "array" else None
        if text and getattr(options, option.name) is None:
            values[option.name] = _read_variable(option, text)
    return msgspec.structs.replace(options, **values) if values else options


def _read_variable(option: Option, text: str) -> Any:
    types = {field.name: field.type for field in msgspec.structs.fields(JobOptions)}
    try:
        return msgspec.convert(text, types[option.name], strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"{option.variable}={text} cannot be read: {error}", "correct or unset it") from None


def _word(value: Any) -> Any:
    """The value as a job file has it."""
    if isinstance(value, list | tuple | set | frozenset):
        return [_word(item) for item in value]
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.3f}".rstrip("0").rstrip(".") + "s"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return getattr(value, "shown_id", value)


def takes_job_options(function: Function) -> Function:
    """Give a function with `**options` the signature and the help of the job options, which notebooks show."""
    signature = inspect.signature(function)
    own = [given for given in signature.parameters.values() if given.kind is not given.VAR_KEYWORD]
    named = {parameter.name for parameter in own}
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(kind))
        for name, kind in Keywords.__annotations__.items()
        if name not in named
    ]
    function.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    function.__doc__ = f"{function.__doc__}\n\n{_help(option.name for option in options)}"
    return function


def _annotation(kind: Any) -> Any:
    return getattr(kind, "__forward_arg__", kind)


def _help(names: Iterable[str]) -> str:
    lines = [f"    {name}: {_in_keywords(BY_NAME[name].help)}" for name in names if name in BY_NAME]
    return "\n".join(["Job options, as on the command line:", *lines])


@contextlib.contextmanager
def naming_keywords() -> Iterator[None]:
    """Errors in this block name keywords in place of options of the command line."""
    try:
        yield
    except StokerError as error:
        texts = _in_keywords(error.message), _in_keywords(error.hint)
        if texts == (error.message, error.hint):
            raise
        raise type(error)(*texts) from error.__cause__


def _in_keywords(text: str) -> str:
    """`--retry-on oom` becomes `retry_on=oom`."""
    return re.sub(r"(?<![\w-])(--?[A-Za-z][a-z-]*)(?:[ =](?=[\d'\"]|(?:auto|all|off)\b))?", _keyword, text)


def _keyword(match: re.Match[str]) -> str:
    name = _FLAGS.get(match[1])
    if name is None:
        return match[0]
    return f"{name}=" if match[0] != match[1] else name


_FLAGS = {flag: option.name for option in OPTIONS for flag in (option.flag, option.short) if flag}
