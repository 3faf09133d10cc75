"""Orders for nodes: one for each attempt, and the batch scripts that Slurm starts."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stoker.core.job import Job
from stoker.core.launch import LaunchOrder, order_of, output_paths, variables
from stoker.core.settings import ClusterSettings
from stoker.features.slurm.node import ARRAY, GPUS
from stoker.features.slurm.shared import BundleFolder
from stoker.runner.processes import ALLOCATION
from stoker.store.paths import Paths
from stoker.store.writer import Store

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
        order: LaunchOrder = order_of(job, self.outputs(job), extra)
        return {**msgspec.structs.asdict(order), "gpus": job.spec.resources.gpus}

    def outputs(self, job: Job) -> tuple[str, str]:
        """Where its output and its errors go."""
        return output_paths(job, self._user)

    def environment(self, digest: str) -> dict[str, str]:
        """The variables that a job was submitted with."""
        if digest not in self._environments:
            self._environments[digest] = self._store.environment(digest)
        return self._environments[digest]


def pilot_script(settings: ClusterSettings, folder: BundleFolder) -> str:
    """The batch script of a pilot."""
    python = settings.python or sys.executable
    words = [python, "-P", "-m", "stoker.features.slurm.guard", "pilot", folder.path]
    words += [python, "-P", "-m", "stoker.features.slurm.pilot.runtime", folder.path]
    export = f"export {ALLOCATION}={shlex.quote(folder.path)}"
    return f"#!/bin/sh\n{export}\nexec {shlex.join(words)} 2>> {shlex.quote(folder.errors)}/0\n"


def check_script(settings: ClusterSettings, words: Sequence[str]) -> str:
    """The batch script of a check of a node."""
    python = settings.python or sys.executable
    return f"#!/bin/sh\nexec {shlex.join([python, '-P', '-m', 'stoker.features.slurm.guard', 'check', *words])}\n"


def node_script(settings: ClusterSettings, folder: BundleFolder) -> str:
    """The batch script: the node's program, on the interpreter of the settings or on ours."""
    python = settings.python or sys.executable
    program = [python, "-P", "-m", "stoker.features.slurm.node"] if settings.python else _own_program(python)
    missing = f'echo "$(hostname): no "{shlex.quote(python)} >> {shlex.quote(folder.errors)}/$index; exit 1'
    return (
        "#!/bin/sh\nindex=${SLURM_ARRAY_TASK_ID:-0}\n"
        f"export {ALLOCATION}={shlex.quote(folder.path)}/$index\n"
        f"[ -x {shlex.quote(python)} ] || {{ {missing}; }}\n"
        f"exec {shlex.join([*program, folder.path])}\n"
    )


def _own_program(python: str) -> list[str]:
    return [python, "-I", "-S", "-c", _PROGRAM, _PACKAGE_PARENT]
