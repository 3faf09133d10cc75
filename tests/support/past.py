"""A queue with a past: attempts that ran at chosen times, and the status file of its engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from stoker.app.views.engines import EngineStatuses
from stoker.app.views.facts import QueueFacts
from stoker.core.device import Device, Reading
from stoker.core.job import Assigned, Event, Exited, Job, Lost, Started
from stoker.core.spec import Command, JobSpec, NewJob, Resources
from stoker.store.engine_lock import QUEUE
from stoker.store.paths import Paths
from stoker.store.status_file import EngineStatus
from stoker.store.writer import Store
from support.build import GIB, simulated
from support.store import after, wanted

NOW = 1_800_000_000.0
DEVICES = simulated(24, 24)


class PastQueue:
    """Writes jobs as engines do; times are seconds before (negative) or after `now`."""

    def __init__(self, directory: Path, now: float = NOW, devices: tuple[Device, ...] = DEVICES) -> None:
        self.now = now
        self.devices = devices
        self.paths = Paths(directory)
        self.store = Store(self.paths.database)

    def close(self) -> None:
        self.store.close()

    def submit(self, name: str = "", *, at: float = -5000, gib: float | None = None, group: str = "") -> Job:
        """A job that waits."""
        resources = Resources(memory=None if gib is None else int(gib * GIB))
        new = NewJob(Command(("python", "train.py")), JobSpec(resources=resources, group=group), name)
        batch = self.store.add_batch("test", self.now + at)
        (job_id,) = self.store.add_jobs(batch, QUEUE, [new], self.now + at)
        return wanted(self.store, job_id)

    def attempt(self, job: Job, device: str, start: float, end: float | None, *, code: int = 0, log: str = "") -> Job:
        """One more run of a job; without an end it runs still, and a code of -1 means that it was lost."""
        number = job.attempts + 1
        resources = job.spec.resources
        events: list[Event] = [
            Assigned(f"w{job.id} - 0", (device,) if device else (), log, self.now + start, resources=resources),
            Started(number, self.now + start),
        ]
        if end is not None:
            ended = Lost(number, self.now + end) if code == -1 else Exited(number, code, 0, self.now + end)
            events.append(ended)
        self.store.record([after(job, events)])
        return wanted(self.store, job.id)

    def ran(
        self, name: str, device: str, start: float, end: float | None, *, code: int = 0, log: str = "", **options: Any
    ) -> Job:
        """A job with one attempt."""
        return self.attempt(self.submit(name, at=start - 10, **options), device, start, end, code=code, log=log)

    def status(self, **fields: Any) -> EngineStatus:
        """What the engine shows of itself."""
        readings = {
            device.id: Reading(used=GIB, utilisation=50, temperature=60, power=200.0) for device in self.devices
        }
        usual: dict[str, Any] = {
            "engine": QUEUE,
            "label": "",
            "pid": 1,
            "version": "1",
            "since": self.now - 9000,
            "at": self.now,
            "waiting": 0,
            "blocked": 0,
            "devices": self.devices,
            "readings": readings,
            "note": "",
            "trouble": "",
            "draining": False,
            "leases": (),
            "waits": (),
        }
        return EngineStatus(**{**usual, **fields})

    def write_status(self, **fields: Any) -> None:
        """Write it as the engine does."""
        self.paths.engines.mkdir(exist_ok=True)
        made = self.paths.engines / "new"
        made.write_bytes(msgspec.json.encode(self.status(**fields)))
        made.rename(self.paths.status_file(QUEUE))

    def facts(self, *, lives: bool = True, **fields: Any) -> QueueFacts:
        """What a screen knows of it."""
        return QueueFacts(self.store, EngineStatuses(self.status(**fields), lives), self.now, simulated=True)
