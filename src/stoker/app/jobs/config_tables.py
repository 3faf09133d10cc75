"""The tables of configuration files: job options and settings of clusters, each value checked."""

from __future__ import annotations

import re
from typing import Any, NoReturn

import msgspec

from stoker.app.jobs.options import BY_NAME, KINDS, OPTIONS, JobOptions
from stoker.core.errors import UsageError, did_you_mean
from stoker.core.settings import CLUSTER_KEYS, KEYS, LOCAL, read_setting, setting_text

_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", re.ASCII)


def checked_defaults(table: object, place: str, header: str = "defaults") -> dict[str, Any]:
    """The options, with numbers as text where the option is text; `place` is the file, for errors."""
    if not isinstance(table, dict):
        raise UsageError(f"{place}: {header} is not a table", f"write [{header}] on a line above the options")
    return {name: _checked(name, value, f"{place}: {name} under [{header}]") for name, value in table.items()}


def checked_groups(tables: object, place: str) -> dict[str, dict[str, Any]]:
    """The `[group.NAME]` tables of a file: options of the jobs of a group."""
    if not isinstance(tables, dict):
        raise UsageError(f"{place}: group is not a table", f'write group = "{tables}" under [defaults]')
    for name, table in tables.items():
        header = f"group.{name}"
        if isinstance(table, dict) and "group" in table:
            raise UsageError(f"{place}: group under [{header}] has no meaning", "leave it out")
        if not isinstance(table, dict):
            hint = f"write {name} = {table} under [groups] for how many of its jobs run at once"
            raise UsageError(f"{place}: {header} is not a table", hint)
    return {name: checked_defaults(table, place, f"group.{name}") for name, table in tables.items()}


def _checked(name: str, raw: object, place: str) -> object:
    if name not in BY_NAME or BY_NAME[name].of_one_job:
        _refuse(name, place)
    value = _converted(name, raw, place)
    try:
        BY_NAME[name].parse(value)
    except UsageError as error:
        raise UsageError(f"{place}: {error.message}", error.hint) from None
    return value


def _converted(name: str, raw: object, place: str) -> object:
    """A number is accepted where the command line takes text."""
    problem: msgspec.ValidationError | None = None
    for candidate in (raw, _as_text(raw)):
        try:
            return getattr(msgspec.convert({name: candidate}, JobOptions), name)
        except msgspec.ValidationError as error:
            problem = problem or error
    match = re.search(r"Expected `(\w+)", str(problem))
    kind = KINDS.get(match[1], match[1]) if match else "a valid value"
    raise UsageError(f"{place} is {setting_text(raw)!r}, not {kind}", "see stoker submit --help for its values")


def _as_text(raw: object) -> object:
    if isinstance(raw, dict):
        return {name: _as_text(value) for name, value in raw.items()}
    return str(raw) if isinstance(raw, int | float) and not isinstance(raw, bool) else raw


def _refuse(name: str, place: str) -> NoReturn:
    if name in BY_NAME:
        raise UsageError(f"{place} would be the same for all jobs", f"use --{name} for single jobs")
    if name in KEYS:
        raise UsageError(f"{place} is not a job option", f"{name} is a setting of the engine: put it above [defaults]")
    names = [option.name for option in OPTIONS if not option.of_one_job]
    raise UsageError(f"{place} is unknown", did_you_mean(name, names, f"known: {', '.join(names)}"))


def checked_clusters(tables: object, place: str) -> dict[str, dict[str, Any]]:
    """The `[cluster.NAME]` tables of a file, every value checked."""
    if not isinstance(tables, dict):
        hint = f'write [cluster.{tables}] above its settings; for a default write cluster = "{tables}" under [defaults]'
        raise UsageError(
            f"{place}: cluster is not a table", hint if isinstance(tables, str) else "write [cluster.NAME]"
        )
    return {name: _checked_cluster(name, table, place) for name, table in tables.items()}


def check_cluster_name(name: str) -> None:
    if not _CLUSTER_NAME.fullmatch(name) or name == LOCAL:
        why = "means this machine" if name == LOCAL else "is not the name of a cluster"
        raise UsageError(f"{name!r} {why}", "letters, digits, - and _ make a name, at most 40 of them")


def _checked_cluster(name: str, table: object, place: str) -> dict[str, Any]:
    check_cluster_name(name)
    if not isinstance(table, dict):
        raise UsageError(f"{place}: cluster.{name} is not a table", f"write [cluster.{name}] above its settings")
    for key, raw in table.items():
        if key not in CLUSTER_KEYS:
            hint = did_you_mean(key, CLUSTER_KEYS, f"known: {', '.join(CLUSTER_KEYS)}")
            raise UsageError(f"{place}: unknown key {key!r} under [cluster.{name}]", hint)
        read_setting(key, raw, f"{place}: {key} under [cluster.{name}]", CLUSTER_KEYS)
    return {"kind": "slurm", **table}  # so that a table without keys is one all the same
