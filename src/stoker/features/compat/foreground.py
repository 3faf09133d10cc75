"""View, setup and job spec shared by the older tools that run an engine in the foreground."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from stoker.app.jobs.context import current_umask, current_user
from stoker.app.jobs.parent import find_parent, ledger_here
from stoker.core.job import JobEvent, Queued
from stoker.core.settings import Policy
from stoker.core.spec import JobSpec
from stoker.devices.interface import Devices
from stoker.engine.foreground import Complaints, Foreground, Setup
from stoker.sites.machine.site import MachineConfig
from stoker.store.paths import Paths, find_paths

_ALL = 1_000_000_000

_PASSES = 20
"""An engine reads new jobs in portions. If the store cannot be written, jobs are left as they are."""


class ToolView:
    """Says what keeps a run from going on; each tool adds what it shows of its jobs."""

    interval: float | None = None

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self._complaints = Complaints(say)

    def happened(self, job_event: JobEvent) -> None:
        """Called for an assignment before its worker starts the job."""

    def refresh(self, run: Foreground) -> None:
        """Called after each turn of the engine."""
        self._complaints.check(run)

    def close(self) -> None:
        """Called at the end of the run."""


def tool_setup(devices: Devices, label: str, paths: Paths | None = None, **site: Any) -> Setup:
    """Jobs run on these devices, with the queue of the user and the ledger of the machine or the parent job.

    `paths` name the queue if its GPUs may be simulated; `site` are more fields of MachineConfig.
    """
    paths = paths or find_paths(os.environ, socket.gethostname(), simulated=False)
    parent = find_parent(os.environ, paths)
    return Setup(
        paths=paths,
        site=MachineConfig(
            ledger=ledger_here(parent, paths),
            devices=devices,
            user=current_user(),
            within=parent.worker if parent else "",
            **site,
        ),
        policy=Policy(order="age"),
        label=label,
    )


def withdraw(run: Foreground, note: str) -> None:
    """Cancel what has not started, so that neither the queue nor `stoker resume` keeps jobs of a run that is over."""
    run.retire()  # another Ctrl-C must not change how the run ended
    for _ in range(_PASSES):
        run.engine.turn(0.0)  # reads the jobs that came last, and records those that were cancelled
        opened = run.store.open_jobs(run.engine.name, 0, _ALL)
        waiting = [job.id for job in opened if isinstance(job.state, Queued) and job.batch == run.batch]
        if not waiting:
            return
        for job_id in waiting:
            run.engine.cancel(job_id, None, note)


def inherited_spec(run: Foreground) -> JobSpec:
    """Jobs have the directory, environment and umask of this process."""
    return JobSpec(cwd=os.getcwd(), environment=run.store.add_environment(os.environ), umask=current_umask())
