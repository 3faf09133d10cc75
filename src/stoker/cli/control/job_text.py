"""A waiting job's options as one would type them: what an editor shows, and what the lines of changes say."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from stoker.core.dependency import Dependency, Name
from stoker.core.errors import UsageError
from stoker.core.job import Job
from stoker.core.secrets import shown_value
from stoker.words import text_for_json
from stoker.zone import LocalZone

TABLES = ("env", "tag")
_UNITS = ((2**40, "T"), (2**30, "G"), (2**20, "M"))
_COMMENTS = {
    "gpus": "0 is a job without GPU",
    "vram": "on each GPU, for example 12G; auto is learnt, all is the whole card",
    "cap": "whether PyTorch keeps to that",
    "on": "only these devices, for example 0,2",
    "prefer": "these first",
    "priority": "higher starts first",
    "time": "limit, for example 2h",
    "grace": "between TERM and KILL",
    "begin": "not before: 22:00, now+1hour",
    "after": "after these jobs succeeded; any:ID, notok:ID",
    "retry_on": "for example oom,timeout,75; empty is any failure",
}


def options_of(job: Job, label: Callable[[str], str], name: Name = str) -> dict[str, Any]:
    """Every option that can be changed, with its value; empty texts where there is none, stars for secrets."""
    terms, need = job.terms, job.terms.need
    return {
        "name": text_for_json(job.name),
        "priority": terms.priority,
        "gpus": need.gpus,
        "vram": "auto" if need.auto else "all" if need.memory is None else _size(need.memory),
        "cap": terms.cap,
        "on": ",".join(map(label, need.allowed)),
        "prefer": ",".join(map(label, need.preferred)),
        "gpu_type": need.model,
        "time": "" if terms.limit is None else _seconds(terms.limit),
        "grace": _seconds(terms.grace),
        "begin": "" if terms.begin is None else _moment(terms.begin),
        "after": ",".join(_dependency(one, name) for one in terms.after),
        "retries": terms.retries,
        "retry_on": ",".join(terms.retry_on),
        "no_requeue": not terms.requeue,
        "group": terms.group,
        "chdir": text_for_json(terms.cwd),
        "out": text_for_json(terms.out),
        "err": text_for_json(terms.err),
        "env": {text_for_json(name): text_for_json(shown_value(name, value)) for name, value in terms.extra_env},
        "tag": dict(terms.tags),
    }


def write_toml(options: Mapping[str, Any], heading: str) -> str:
    """The options as a text that one can edit."""
    plain = [_line(name, value) for name, value in options.items() if name not in TABLES]
    tables = [line for name in TABLES for line in ("", f"[{name}]", *_lines(options[name]))]
    return "\n".join([*(f"# {line}" for line in heading.splitlines()), "", *plain, *tables, ""])


def changes(before: Mapping[str, Any], text: str) -> dict[str, Any]:
    """What is different in the text; a line that was removed changes nothing, but a variable is taken away."""
    try:
        after = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"that is no TOML: {error}", "write KEY = VALUE on each line") from error
    wish = {name: value for name, value in after.items() if value != before.get(name)}
    for name, value in wish.items():
        _check(name, before, value)
    for name in TABLES:
        if name in wish:
            gone = dict.fromkeys(before[name].keys() - wish[name].keys())
            wish[name] = {**gone, **{key: wish[name][key] for key in wish[name]}}
    return wish


def _check(name: str, before: Mapping[str, Any], value: Any) -> None:
    if name not in before:
        import difflib

        near = difflib.get_close_matches(name, before, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(before)}"
        raise UsageError(f"{name} is nothing that a job has", hint)
    wanted = type(before[name])
    if type(value) is not wanted or (wanted is dict and not all(isinstance(each, str) for each in value.values())):
        kinds = {int: "a number", str: "a text in quotes", bool: "true or false", dict: "a table of texts"}
        raise UsageError(f"{name} = {value!r} is not {kinds[wanted]}", f"it was {name} = {_value(before[name])}")


def _line(name: str, value: Any) -> str:
    comment = f"  # {_COMMENTS[name]}" if name in _COMMENTS else ""
    return f"{name} = {_value(value)}{comment}"


def _lines(table: Mapping[str, str]) -> list[str]:
    return [f"{_quoted(name)} = {_quoted(value)}" for name, value in table.items()]


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(_lines(value)) + "}"
    return str(value) if isinstance(value, int) else _quoted(value)


def _quoted(text: str) -> str:
    """A basic string of TOML, in which every control character is an escape."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in plain) + '"'


def _size(size: int) -> str:
    return next((f"{size // unit}{letter}" for unit, letter in _UNITS if size % unit == 0), f"{size}B")


def _seconds(seconds: float) -> str:
    return f"{seconds:g}s" if seconds < 1e6 else f"{seconds:.0f}s"


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, LocalZone()).isoformat(timespec="seconds")


def _dependency(dependency: Dependency, name: Name) -> str:
    return f"{dependency.kind}:{dependency.target if dependency.array else name(dependency.target)}"
