"""The limits of `[locked]` in /etc/stoker/config.toml, which no user's configuration can loosen."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from stoker.core.errors import UsageError, did_you_mean
from stoker.core.settings import LOCKED_KEYS, LockedLimits, read_setting
from stoker.core.spec import JobSpec
from stoker.core.units import count_text, duration_text
from stoker.store.queries import loads
from stoker.store.reader import Reader

OF_SOME = ("user", "group")
"""Tables below `[locked]` with the limits of a user or of a Unix group: a user's own go first."""


def checked_locked(table: object, place: str) -> dict[str, Any]:
    """The table of a file, every value checked."""
    if not isinstance(table, dict):
        raise UsageError(f"{place}: locked is not a table", "write [locked] on a line above the limits")
    checked = {key: value for key, value in table.items() if key not in OF_SOME}
    _check(checked, f"{place}: [locked]")
    for kind in OF_SOME:
        tables = table.get(kind, {})
        if not isinstance(tables, dict) or not all(isinstance(limits, dict) for limits in tables.values()):
            raise UsageError(f"{place}: locked.{kind} is not a table", f"write [locked.{kind}.NAME] above its limits")
        for name, limits in tables.items():
            _check(limits, f"{place}: [locked.{kind}.{name}]")
    return table


def _check(limits: Mapping[str, object], place: str) -> None:
    for key, raw in limits.items():
        if key not in LOCKED_KEYS:
            raise UsageError(
                f"{place}: unknown key {key!r}", did_you_mean(key, LOCKED_KEYS, f"known: {', '.join(LOCKED_KEYS)}")
            )
        read_setting(key, raw, f"{place}: {key}", LOCKED_KEYS)


def limits_here(locked: Mapping[str, Any]) -> LockedLimits:
    """The limits of the user of this process."""
    return limits_of(locked, os.getuid())


def limits_of(locked: Mapping[str, Any], uid: int) -> LockedLimits:
    """The limits of a user."""
    if not locked:
        return LockedLimits()
    layers = [locked]
    user, groups = _names(uid)
    layers += [table for name, table in locked.get("group", {}).items() if name in groups]
    layers += [table for name, table in locked.get("user", {}).items() if name == user]
    given = {key: table[key] for table in layers for key in LockedLimits.__struct_fields__ if key in table}
    return LockedLimits(**{key: read_setting(key, raw, key, LOCKED_KEYS) for key, raw in given.items()})


def _names(uid: int) -> tuple[str, set[str]]:
    """The name of a user, and the names of its groups."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return "", set()
    names = set()
    for gid in os.getgrouplist(entry.pw_name, entry.pw_gid):
        try:
            names.add(grp.getgrgid(gid).gr_name)
        except KeyError:
            continue
    return entry.pw_name, names


def within_longest(spec: JobSpec, limits: LockedLimits) -> JobSpec:
    """The spec of a job of this machine: without a time limit it gets the longest; a longer one is refused."""
    longest = limits.longest
    if longest is None or spec.cluster:
        return spec
    if spec.limit is None:
        return replace(spec, limit=longest)
    if spec.limit > longest:
        wanted, most = duration_text(spec.limit), duration_text(longest)
        raise UsageError(f"-t {wanted} is too long: {limits.named('longest')} allows {most}", f"use -t {most} or less")
    return spec


def check_waiting(reader: Reader, new: int, limits: LockedLimits) -> None:
    """Refuse more waiting jobs than the limit."""
    if limits.waiting is None:
        return
    waiting = sum(load.waiting + load.held for load in loads(reader).values())
    if waiting + new > limits.waiting:
        left = max(0, limits.waiting - waiting)
        raise UsageError(
            f"{limits.named('waiting')} allows {count_text(limits.waiting, 'waiting job')} per user: "
            f"you have {waiting}, and {new} more are too many ({left} left)",
            "submit the others when some have started, or cancel some that wait",
        )
