"""The engine's jobs, the settings and the directory that nodes see: the context of direct mode and pilots."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from stoker.core.settings import ClusterSettings
from stoker.features.slurm.orders import Orders
from stoker.features.slurm.shared import MARKER
from stoker.sites.interface import EngineJobs
from stoker.store.paths import Paths


class QueueDirectory:
    """The directory of this queue on the shared file system, and its troubles."""

    def __init__(self, files: Paths) -> None:
        self.files = files
        self.trouble = ""
        """Why it cannot be written, for the user; empty if it can."""
        self.away = ""
        """Why it cannot be seen."""
        self._made = False

    def folder(self, name: str) -> Path:
        return self.files.state / name

    def make(self) -> None:
        """Make the directory, once."""
        if not self._made:
            for folder in (self.files.state, self.files.logs, self.files.reports):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.files.state / MARKER).touch()
            self._made = True

    @property
    def is_there(self) -> bool:
        return (self.files.state / MARKER).exists()

    def is_reachable(self) -> bool:
        """Whether it can be seen, after it was made; if not, `away` says so."""
        words = f"the shared directory {self.files.state} cannot be reached; jobs on the cluster go on"
        self.away = "" if self.is_there else words
        return not self.away

    def failed(self, what: str, error: OSError) -> None:
        self.trouble = f"cannot {what} {self.files.state}: {error.strerror}"


class ClusterContext(NamedTuple):
    """The parts that direct mode and pilots share."""

    name: str
    settings: ClusterSettings
    jobs: EngineJobs
    directory: QueueDirectory
    orders: Orders
    tag: str
    """Begins the tags of this queue."""
    instance: str
    """Name of the engine's process, which no other one ever had."""
