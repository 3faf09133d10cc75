"""Who may speak for all users of a machine: root, and members of the group that root names in the configuration."""

from __future__ import annotations

import grp
import os
import pwd
import stat
import tomllib
from contextlib import suppress

from stoker.core.places import SYSTEM_FILE

ROOT = 0


def is_coordinator(uid: int, system: str = SYSTEM_FILE) -> bool:
    """Whether files of this user drain devices for all, and tell all users something."""
    if uid == ROOT:
        return True
    group = coordinators(system)
    with suppress(KeyError):
        user = pwd.getpwuid(uid)
        return bool(group) and grp.getgrnam(group).gr_gid in os.getgrouplist(user.pw_name, user.pw_gid)
    return False


def coordinators(system: str = SYSTEM_FILE) -> str:
    """The group that `coordinators` under [locked] names in root's file; empty if there is none."""
    try:
        with open(system, "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != ROOT or status.st_mode & stat.S_IWOTH:
                return ""
            locked = tomllib.load(file).get("locked", {})
    except (OSError, ValueError):
        return ""
    name = locked.get("coordinators", "") if isinstance(locked, dict) else ""
    return name if isinstance(name, str) else ""
