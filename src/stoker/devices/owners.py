"""Whose a process is, by name."""

from __future__ import annotations

import os
import pwd
from functools import lru_cache


def owner_name(pid: int) -> str:
    """The name of a process's user; `?` for a process that is gone, hidden, or of another PID namespace."""
    try:
        return user_name(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return "?"


def user_name(uid: int) -> str:
    """The name of a user, the number where there is no name."""
    try:
        return _account(uid)
    except KeyError:
        return str(uid)


@lru_cache
def _account(uid: int) -> str:
    # Only names are kept: a directory service that is down for a moment must not leave a number for good.
    return pwd.getpwuid(uid).pw_name
