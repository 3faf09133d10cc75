"""Jobs, devices and snapshots for tests, each with one word for what matters and defaults for the rest."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.core.device import Device, Process, Reading, Snapshot
from stoker.core.job import Job, State, Waiting
from stoker.core.lease import Claim, Lease
from stoker.core.planner.occupancy import Slot
from stoker.core.planner.plan import Plan
from stoker.core.planner.queue import WaitingJobs
from stoker.core.spec import Command, JobSpec, Resources

GIB = 2**30


def a_need(
    gpus: int = 1,
    gib: float | None = None,
    allowed: Iterable[str] = (),
    preferred: Iterable[str] = (),
    required: Iterable[str] = (),
) -> Resources:
    """A need; memory in GiB."""
    memory = None if gib is None else int(gib * GIB)
    return Resources(gpus, memory, tuple(allowed), tuple(preferred), required=tuple(required))


def a_job(
    job_id: int,
    resources: Resources | None = None,
    *,
    priority: int = 0,
    limit: float | None = None,
    since: float = 0.0,
    spec: JobSpec | None = None,
    state: State | None = None,
) -> Job:
    """A job that waits, unless another state is given."""
    return Job(
        id=job_id,
        batch=1,
        command=Command(("true",)),
        spec=spec or JobSpec(resources=resources or Resources(), priority=priority, limit=limit),
        state=state or Waiting(since),
        submitted=since,
    )


def a_queue(*jobs: Job) -> WaitingJobs:
    """The jobs, waiting."""
    waiting = WaitingJobs()
    for job in jobs:
        waiting.add(job)
    return waiting


def declared(*words: str) -> tuple[Device, ...]:
    """One named device per word; a word that is listed again shares its claim."""
    return tuple(
        Device(
            id=word if word not in words[:index] else f"{word}#{index}",
            label=word,
            visible=word,
            claims=(word,),
            kind="declared",
            share=words.count(word),
        )
        for index, word in enumerate(words)
    )


def simulated(*gib: float) -> tuple[Device, ...]:
    """One measured device per size in GiB, with the ids 0, 1, 2 ..."""
    return tuple(
        Device(str(index), str(index), str(index), (str(index),), "simulated", memory=int(size * GIB))
        for index, size in enumerate(gib)
    )


def a_snapshot(devices: Iterable[Device], at: float = 0.0, **readings: Reading) -> Snapshot:
    """The devices, idle but for the readings given as gpu0=..., gpu1=..."""
    known = tuple(devices)
    seen = {device.id: Reading(used=0) for device in known if device.measured}
    seen.update({name.removeprefix("gpu"): reading for name, reading in readings.items()})
    return Snapshot(at, known, seen)


def a_reading(gib: float = 0.0, *owners: str, problem: str = "") -> Reading:
    """A device with so much memory in use, and one process for each owner."""
    processes = tuple(Process(1000 + index, None, owner) for index, owner in enumerate(owners))
    return Reading(used=int(gib * GIB), processes=processes, problem=problem)


def a_lease(*names: str, gib: float | None = None, owner: str = "alice", share: int = 1) -> Lease:
    """A lease of another user on the named devices."""
    memory = None if gib is None else int(gib * GIB)
    claims = tuple(Claim(name, memory, share if gib is None else 2**20) for name in names)
    return Lease(claims, owner, 4242, "train.py", 0.0)


def slot(
    job: int,
    *devices: str,
    resources: Resources | None = None,
    until: float | None = None,
    room: int = 0,
    since: float | None = None,
) -> Slot:
    """What the worker of a running job is doing."""
    return Slot(f"k{job}", job, resources or Resources(gpus=len(devices)), devices, until, room, since=since)


def where(decided: Plan) -> dict[int, str]:
    """Job -> its devices, joined by blanks, for those that start on open devices."""
    return {start.job.id: " ".join(start.devices) for start in decided.starts if not start.behind}


def behind(decided: Plan) -> dict[int, str]:
    """Job -> the worker whose running attempt it follows, for those that are handed over ahead."""
    return {start.job.id: start.behind for start in decided.starts if start.behind}
