"""What direct mode and pilots share: the engine's jobs, the settings, and a directory that nodes see too."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from stoker.core.settings import ClusterSettings
from stoker.features.slurm.orders import Orders
from stoker.features.slurm.shared import MARKER
from stoker.sites.interface import EngineJobs
from stoker.store.paths import Paths


class QueueDirectory:
    """The directory of this queue on the shared file system, and what is wrong with it."""

    def __init__(self, files: Paths) -> None:
        self.files = files
        self.trouble = ""
        """Why it cannot be written, for the user; empty where it can."""
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
        """Whether it can be seen, after it was made; where not, that is a trouble."""
        words = f"the shared directory {self.files.state} cannot be reached; jobs on the cluster go on"
        self.away = "" if self.is_there else words
        return not self.away

    def failed(self, what: str, error: OSError) -> None:
        self.trouble = f"cannot {what} {self.files.state}: {error.strerror}"


class ClusterContext(NamedTuple):
    """What both modes work with."""

    name: str
    settings: ClusterSettings
    jobs: EngineJobs
    directory: QueueDirectory
    orders: Orders
    tag: str
    """Begins the tags of this queue."""
    instance: str
    """Name of the engine's process, which no other one ever had."""
