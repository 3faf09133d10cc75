"""Build the list of GPUs, and pick free ones."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from stoker import __version__
from stoker.core.device import Device, Lease, Snapshot
from stoker.core.errors import Impossible, StokerError
from stoker.core.job import Active, Job, Waiting, resources_of, slot_of
from stoker.core.planner.occupancy import Slot
from stoker.core.planner.plan import plan
from stoker.core.planner.queue import WaitingJobs, caps_of
from stoker.core.planner.reasons import NeverFits, sentence
from stoker.core.settings import Policy, policy_of
from stoker.core.spec import Command, JobSpec, Resources
from stoker.core.text import text_for_json
from stoker.queue.config import load_config
from stoker.queue.knowledge import EngineStatuses, Knowledge, known, read_statuses
from stoker.queue.view_builder import device_lines
from stoker.queue.view_model import DeviceLine, exactly
from stoker.store.engine_lock import QUEUE
from stoker.store.paths import Paths, host_name
from stoker.store.queries import drained_key
from stoker.store.status_file import EngineStatus

SCHEMA = "stoker.gpus/1"


class Gpus(Struct, frozen=True):
    """The devices of this machine: `stoker gpus --json`."""

    schema: str
    at: datetime
    host: str
    simulated: bool
    engine_running: bool
    devices: list[DeviceLine]
    picked: list[str]
    """With --pick: values for CUDA_VISIBLE_DEVICES."""
    notes: list[str]


@contextlib.contextmanager
def known_devices(paths: Paths, *, simulated: bool) -> Iterator[Knowledge]:
    """What is known of devices now; without an engine, the driver is asked."""
    now = time.time()
    statuses = read_statuses(paths, now)
    if not statuses.lives and not statuses.runs:
        statuses = EngineStatuses(_without_engine(paths, statuses, now, simulated=simulated), lives=False)
    with known(paths, simulated=simulated, statuses=statuses) as knowledge:
        yield knowledge


def gpus_of(knowledge: Knowledge, picked: Sequence[str] = ()) -> Gpus:
    statuses = knowledge.statuses
    return Gpus(
        schema=SCHEMA,
        at=exactly(knowledge.now),
        host=text_for_json(host_name()),
        simulated=knowledge.simulated,
        engine_running=statuses.lives,
        devices=device_lines(knowledge),
        picked=[text_for_json(one) for one in picked],
        notes=list(dict.fromkeys(text_for_json(status.note) for status in statuses.current if status.note)),
    )


def _without_engine(paths: Paths, before: EngineStatuses, now: float, *, simulated: bool) -> EngineStatus | None:
    """What an engine would see if it started now; what the last one saw if that cannot be found out."""
    try:
        snapshot = _simulated(paths, now) if simulated else _from_driver(now)
    except Impossible as error:
        return _status(Snapshot(now, (), note=error.message), (), now)
    return before.queue if snapshot is None else _status(snapshot, _leases(paths, simulated=simulated), now)


def _from_driver(now: float) -> Snapshot:
    from stoker.devices.detect import detect

    named = load_config(os.environ, None).engine.devices
    with contextlib.closing(detect(named.split(",") if named else [], now)) as devices:
        return devices.snapshot(now)


def _simulated(paths: Paths, now: float) -> Snapshot | None:
    """None if STOKER_SIM does not tell how many there are."""
    from stoker.devices.detect import simulate

    spec = os.environ.get("STOKER_SIM")
    return simulate(spec, str(paths.simulator), [], now).snapshot(now) if spec else None


def _leases(paths: Paths, *, simulated: bool) -> tuple[Lease, ...]:
    from stoker.ledger import Ledger, find_ledger

    own = simulated and not os.environ.get("STOKER_LEDGER")
    path = paths.state / "ledger" if own else find_ledger(os.environ)
    return tuple(Ledger(path).live().leases.values()) if path.exists() else ()


def _status(snapshot: Snapshot, leases: tuple[Lease, ...], now: float) -> EngineStatus:
    return EngineStatus(
        engine=QUEUE,
        label="",
        pid=0,
        version=__version__,
        since=now,
        at=now,
        waiting=0,
        blocked=0,
        devices=snapshot.devices,
        readings=dict(snapshot.readings),
        note=snapshot.note,
        trouble="",
        draining=False,
        leases=leases,
        waits=(),
    )


class NotFree(StokerError):
    """The machine has such devices, but they are not free."""

    exit_code = 1


def picked(knowledge: Knowledge, resources: Resources) -> tuple[Device, ...]:
    """The devices on which a job with these resources would be started now."""
    status = next(iter(knowledge.statuses.current), None)
    if status is None:
        raise Impossible("no GPU is known here", "start an engine that finds them: stoker engine start")
    asking = Job(0, 0, Command(("true",)), JobSpec(resources), Waiting(knowledge.now), knowledge.now)
    waiting = WaitingJobs()
    waiting.add(asking)
    decided = plan(waiting, _slots(knowledge, status), status.snapshot, status.leases, _policy(knowledge), status.at)
    if decided.starts:
        return tuple(knowledge.devices[device_id] for device_id in decided.starts[0].devices)
    reason = decided.reason(asking)
    why = "nothing is free" if reason is None else sentence(reason, knowledge.clock, knowledge.store.shown_id)
    if isinstance(reason, NeverFits):
        raise Impossible(why, "see stoker gpus")
    raise NotFree(why, "stoker submit waits until there is a place")


def _slots(knowledge: Knowledge, status: EngineStatus) -> list[Slot]:
    """What the jobs of the engine hold; without a living engine, the leases of their workers count instead."""
    if status.engine == QUEUE and not knowledge.statuses.lives:
        return []
    jobs = [job for job, engine in knowledge.active if engine == status.engine]
    return [
        Slot(slot_of(job.state.ref), job.id, resources_of(job), job.state.devices, caps=caps_of(job))
        for job in jobs
        if isinstance(job.state, Active)
    ]


def _policy(knowledge: Knowledge) -> Policy:
    """That of the engine, without its limits on how many GPUs this user may have: the GPUs are not for Stoker."""
    drained = {
        device: (knowledge.settings[drained_key(device)] or {}).get("note", "drained")
        for device in knowledge.devices
        if drained_key(device) in knowledge.settings
    }
    policy = policy_of(load_config(os.environ, None).engine, cores=1)
    return replace(policy, closed=drained, max_use=None, min_free=0)
