"""View, setup and job spec shared by the older tools that run an engine in the foreground."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from stoker.core.job import JobEvent
from stoker.core.settings import Policy
from stoker.core.spec import JobSpec
from stoker.devices.interface import Devices
from stoker.engine.foreground import Complaints, Foreground, Setup
from stoker.ledger import find_ledger
from stoker.queue.options import current_umask, current_user
from stoker.sites.machine.site import MachineConfig
from stoker.store.paths import find_paths


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


def tool_setup(devices: Devices, label: str, **site: Any) -> Setup:
    """Jobs run on these devices, with the queue and the ledger of the user; `site` are more fields of MachineConfig."""
    return Setup(
        paths=find_paths(os.environ, socket.gethostname(), simulated=False),
        site=MachineConfig(ledger=find_ledger(os.environ), devices=devices, user=current_user(), **site),
        policy=Policy(order="age"),
        label=label,
    )


def inherited_spec(run: Foreground) -> JobSpec:
    """Jobs have the directory, environment and umask of this process."""
    return JobSpec(cwd=os.getcwd(), environment=run.store.add_environment(os.environ), umask=current_umask())
