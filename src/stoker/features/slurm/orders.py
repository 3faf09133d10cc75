"""The head's files for nodes: the directory of its queue, an order for each attempt, and batch scripts."""

from __future__ import annotations

import shlex
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from stoker.core.job import Assigned, Job
from stoker.core.launch import LaunchOrder, order_of, output_paths, variables
from stoker.core.settings import ClusterSettings
from stoker.features.slurm.node import ARRAY, GPUS
from stoker.features.slurm.shared import MARKER, BundleFolder
from stoker.runner.processes import ALLOCATION
from stoker.sites.interface import EngineJobs
from stoker.sites.prepared import prepared_start
from stoker.store.paths import Paths
from stoker.store.writer import Store

PILOT_MARK = "pilot"
CHECK_MARK = "check"
"""Begin the names of pilots and of checks of nodes."""
REMOVED_AT_ONCE = 20
"""Names that are removed in one turn: each may take milliseconds on a network file system."""
_PACKAGE_PARENT = str(Path(__file__).resolve().parents[3])
_PROGRAM = """import os, sys
sys.path.insert(0, sys.argv.pop(1))
try:
    from stoker.features.slurm.node import main
except Exception as error:  # such as a library that the node lacks
    with open(f"{sys.argv[1]}/errors/{os.environ.get('SLURM_ARRAY_TASK_ID', 0)}", "a") as file:
        print(f"{os.uname().nodename}: {sys.executable}: {error}", file=file)
    raise
main()"""


class QueueDirectory:
    """The directory of this queue on the shared file system, and its troubles."""

    def __init__(self, files: Paths) -> None:
        self.files = files
        self.trouble = ""
        """Why it cannot be written, for the user; empty if it can."""
        self.away = ""
        """Why it cannot be seen."""
        self._made = False
        self._over: list[BundleFolder] = []
        self._removals: deque[Iterator[None]] = deque()

    def folder(self, name: str) -> Path:
        return self.files.state / name

    def make(self) -> None:
        """Make the directory, once."""
        if not self._made:
            for folder in (self.files.state, self.files.logs, self.files.reports, self.files.software):
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

    def failed(self, error: OSError) -> None:
        self.trouble = f"cannot write to the shared directory {self.files.state}: {error.strerror}"

    def discard(self, folder: BundleFolder) -> None:
        """Remove a folder once the last event of its attempts is recorded."""
        self._over.append(folder)

    def remove_discarded(self, most: float = REMOVED_AT_ONCE) -> None:
        """Remove so many names in discarded folders: a pilot leaves one for each of its attempts."""
        over, self._over = self._over, []
        for removal in [folder.removal() for folder in over]:
            next(removal)
            self._removals.append(removal)
        while self._removals and most > 0:
            most -= 1
            if next(self._removals[0], self) is self:
                self._removals.popleft()

    @property
    def is_removing(self) -> bool:
        return bool(self._removals)


class Orders:
    """Makes orders for the jobs of a store."""

    def __init__(self, store: Store, files: Paths, user: str) -> None:
        """`files` is the directory of the queue that nodes see."""
        self._store = store
        self._files = files
        self._user = user
        self._environments: dict[str, dict[str, str]] = {}

    def order(self, job: Job) -> dict[str, object]:
        """The order for a node; which GPUs it gets, the node fills in."""
        extra = {**variables(job, (), self.environment(job.spec.environment)), "STOKER_GPU_IDS": GPUS}
        extra["STOKER_REPORT"] = str(self._files.report(job.id))
        if job.spec.resources.gpus:
            del extra["CUDA_VISIBLE_DEVICES"]
        # srun needs Slurm's own variables; only the array is Stoker's, since a bundle is another one.
        extra = {name: extra[name] for name in extra if not name.startswith("SLURM_") or name.startswith(ARRAY)}
        order: LaunchOrder = order_of(job, output_paths(job, self._user), extra)
        if job.spec.code:
            order = prepared_start(order, job.spec, self.environment(job.spec.environment), self._files)
        return {**msgspec.structs.asdict(order), "gpus": job.spec.resources.gpus}

    def assigned(self, job: Job, ref: str, now: float) -> Assigned:
        """The event that gives a job to a node, which fills in the GPUs."""
        out, err = output_paths(job, self._user)
        return Assigned(ref, (), out, now, "" if err == out else err)

    def environment(self, digest: str) -> dict[str, str]:
        """The variables that a job was submitted with."""
        if digest not in self._environments:
            self._environments[digest] = self._store.environment(digest)
        return self._environments[digest]


class ClusterContext(NamedTuple):
    """The parts that direct mode, pilots and checks share."""

    name: str
    settings: ClusterSettings
    jobs: EngineJobs
    directory: QueueDirectory
    orders: Orders
    tag: str
    """Begins the tags of this queue."""
    instance: str
    """Name of the engine's process, which no other one ever had."""
    numbers: Iterator[int]

    def new_name(self, mark: str = "") -> str:
        """A name for a bundle; `mark` tells a new engine what it is, if it is not one of direct mode."""
        return f"{mark}{self.instance}-{next(self.numbers)}"


def instance_of(name: str) -> str:
    """The engine that gave this name."""
    return name.removeprefix(PILOT_MARK).removeprefix(CHECK_MARK).rpartition("-")[0]


# -- batch scripts -------------------------------------------------------------------------------


def interpreter(settings: ClusterSettings) -> str:
    """The Python of the nodes: that of the settings, or ours."""
    return settings.python or sys.executable


def module_words(python: str, module: str, *arguments: str) -> list[str]:
    """The command of a program of this package."""
    return [python, "-P", "-m", f"stoker.features.slurm.{module}", *arguments]


def pilot_script(settings: ClusterSettings, folder: BundleFolder) -> str:
    """The batch script of a pilot."""
    python = interpreter(settings)
    words = module_words(python, "guard", "pilot", folder.path, *module_words(python, "pilot.runtime", folder.path))
    export = f"export {ALLOCATION}={shlex.quote(folder.path)}"
    return f"#!/bin/sh\n{export}\nexec {shlex.join(words)} 2>> {shlex.quote(folder.errors)}/0\n"


def check_script(settings: ClusterSettings, words: Sequence[str]) -> str:
    """The batch script of a check of a node."""
    return f"#!/bin/sh\nexec {shlex.join(module_words(interpreter(settings), 'guard', 'check', *words))}\n"


def node_script(settings: ClusterSettings, folder: BundleFolder) -> str:
    """The batch script of a bundle."""
    python = interpreter(settings)
    own = [python, "-I", "-S", "-c", _PROGRAM, _PACKAGE_PARENT]
    program = module_words(python, "node") if settings.python else own
    missing = f'echo "$(hostname): no "{shlex.quote(python)} >> {shlex.quote(folder.errors)}/$index; exit 1'
    return (
        "#!/bin/sh\nindex=${SLURM_ARRAY_TASK_ID:-0}\n"
        f"export {ALLOCATION}={shlex.quote(folder.path)}/$index\n"
        f"[ -x {shlex.quote(python)} ] || {{ {missing}; }}\n"
        f"exec {shlex.join([*program, folder.path])}\n"
    )
