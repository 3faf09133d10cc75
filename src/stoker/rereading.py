"""Configuration files that change while an engine runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from stoker.config import SYSTEM_FILE, Config
from stoker.configfile import user_file
from stoker.core.errors import StokerError

Stamp = tuple[tuple[int, ...], ...]


class Rereading:
    """Reads the configuration again when a file of it is not what it was; where that fails, the old one holds on."""

    def __init__(self, environment: Mapping[str, str], load: Callable[[], Config], say: Callable[[str], None]) -> None:
        """What `load` reads by the same environment is as new as the files are now."""
        own = user_file(environment)
        self._files = [SYSTEM_FILE, *([own] if own else [])]
        self._load = load
        self._say = say
        self._stamp = self._seen()

    def news(self) -> Config | None:
        """The configuration, if a file has changed since the last time and all of them can be read."""
        stamp = self._seen()
        if stamp == self._stamp:
            return None
        self._stamp = stamp  # also where it cannot be read: that is told once
        try:
            config = self._load()
        except StokerError as error:
            self._say(f"{error.message}; {error.hint}; the settings stay as they were")
            return None
        for warning in config.warnings:
            self._say(warning)
        return config

    def _seen(self) -> Stamp:
        return tuple(map(_stamp, self._files))


def _stamp(path: Path) -> tuple[int, ...]:
    with contextlib.suppress(OSError):
        found = os.stat(path)
        return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
    return ()
