"""Engines with everything real but the GPUs, for tests of the loop itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from uuid import uuid4

from stoker.core.job import Ended, Job, JobEvent
from stoker.core.settings import Policy
from stoker.core.spec import Command, JobSpec, NewJob, Resources
from stoker.devices.detect import DeclaredDevices
from stoker.devices.interface import Devices
from stoker.engine.job_table import Jobs
from stoker.engine.loop import Engine
from stoker.engine.resources import steady_clock
from stoker.ledger import prepare_ledger
from stoker.runner.local import LocalRunner
from stoker.sites.interface import SiteContext
from stoker.sites.machine.context import machine_context
from stoker.sites.machine.site import MachineSite
from stoker.store.paths import Paths
from stoker.store.writer import Store
from support.wait import PATIENCE_SECONDS


@dataclass
class Workshop(AbstractContextManager["Workshop"]):
    """A state directory with one engine at work in it."""

    directory: Path
    devices: Devices = field(default_factory=lambda: DeclaredDevices(["0", "1"]))
    policy: Policy = field(default_factory=Policy)
    name: str = "test"
    ledger: Path | None = None
    job_events: list[JobEvent] = field(default_factory=list)
    on_event: Callable[[JobEvent], None] = lambda _: None

    def __post_init__(self) -> None:
        paths = Paths(self.directory)
        instance = f"{self.name}-{uuid4().hex[:8]}"  # a lost worker's processes are found by its name, in any test
        self.runner = LocalRunner(paths.workers, instance)
        self.store = Store(paths.database)
        jobs = Jobs(self.store, steady_clock())
        ledger = prepare_ledger(self.ledger or self.directory / "ledger")
        context = SiteContext(self.name, instance, "stoker", paths, self.store, jobs)
        site = MachineSite(machine_context(context, self.devices, self.runner, ledger), "tester")
        self.engine = Engine(self.name, jobs, site, self.policy, notify=self._notified)
        self.environment = self.store.add_environment(os.environ)
        self.batch = self.store.add_batch("test", time.time())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.engine.stop(0.0, "the test is over")
        self.work_until(lambda: self.engine.at_rest)
        self.close()

    def _notified(self, job_event: JobEvent) -> None:
        self.job_events.append(job_event)
        self.on_event(job_event)

    def close(self) -> None:
        """Leave in order."""
        self.engine.close()
        self.store.close()

    def abandon(self) -> None:
        """Let go of everything as a dying engine would: whatever runs goes on."""
        self.runner.close()
        self.store.close()

    def submit(self, *lines: str, resources: Resources | None = None, **spec: object) -> list[int]:
        """Queue shell lines and return their ids."""
        shared = JobSpec(
            resources=resources or Resources(),
            cwd=str(self.directory),
            environment=self.environment,
            out=str(self.directory / "%j.log"),
            **spec,  # type: ignore[arg-type]
        )
        jobs = [NewJob(Command((line,), "/bin/sh"), shared) for line in lines]
        ids = self.store.add_jobs(self.batch, self.name, jobs, time.time())
        self.engine.wake()
        return list(ids)

    def work_until(self, condition: Callable[[], bool]) -> None:
        """Turn the loop until the condition holds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, "the engine did not get there in time"
            self.engine.turn(0.05)

    def finish(self) -> None:
        """Turn the loop until everything submitted is over."""
        self.work_until(lambda: self.engine.idle)

    def job(self, job_id: int) -> Job:
        """A job as the store has it."""
        job = self.store.job(job_id)
        assert job is not None
        return job

    def ended(self, job_id: int) -> Ended:
        """How a job ended, as the store has it."""
        state = self.job(job_id).state
        assert isinstance(state, Ended)
        return state

    def log(self, job_id: int) -> str:
        """The output of a job's first attempt."""
        return (self.directory / f"{job_id}.log").read_text()
