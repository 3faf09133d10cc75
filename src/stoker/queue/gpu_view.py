"""Build the list of GPUs, and pick free ones."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec import Struct

from stoker import __version__
from stoker.core.device import Device, Snapshot
from stoker.core.errors import Impossible, StokerError
from stoker.core.job import Active, Job, Waiting, resources_of, slot_of
from stoker.core.lease import Lease
from stoker.core.planner.occupancy import Slot
from stoker.core.planner.plan import plan
from stoker.core.planner.policy import Policy
from stoker.core.planner.queue import WaitingJobs, caps_of
from stoker.core.planner.reasons import NeverFits, sentence
from stoker.core.spec import Command, JobSpec, Resources
from stoker.core.text import text_for_json
from stoker.queue import view_builder
from stoker.queue.config import load_config
from stoker.queue.view_builder import Knowledge, Views, device_lines, known
from stoker.queue.view_model import DeviceLine, exactly
from stoker.store.engine_lock import QUEUE
from stoker.store.paths import Paths, host_name
from stoker.store.queries import drained_key
from stoker.store.status_file import View

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
    """What CUDA_VISIBLE_DEVICES may be set to, where devices were to be picked."""
    notes: list[str]


@contextlib.contextmanager
def known_devices(paths: Paths, *, simulated: bool) -> Iterator[Knowledge]:
    """All that is known now of devices."""
    now = time.time()
    views = view_builder.look(paths, now)
    if not views.lives and not views.runs:
        views = Views(_asked(paths, views, now, simulated=simulated), lives=False)
    with known(paths, simulated=simulated, views=views) as knowledge:
        yield knowledge


def gpus_of(knowledge: Knowledge, picked: Sequence[str] = ()) -> Gpus:
    """The devices as lines of a screen."""
    views = knowledge.views
    return Gpus(
        schema=SCHEMA,
        at=exactly(knowledge.now),
        host=text_for_json(host_name()),
        simulated=knowledge.simulated,
        engine_running=views.lives,
        devices=device_lines(knowledge),
        picked=[text_for_json(one) for one in picked],
        notes=list(dict.fromkeys(text_for_json(view.note) for view in views.current if view.note)),
    )


def _asked(paths: Paths, before: Views, now: float, *, simulated: bool) -> View | None:
    """What an engine would see if one were started now; what the last one saw where nobody can be asked."""
    try:
        snapshot = _simulated(paths, now) if simulated else _from_driver(now)
    except Impossible as error:
        return _view(Snapshot(now, (), note=error.message), (), now)
    return before.queue if snapshot is None else _view(snapshot, _leases(paths, simulated=simulated), now)


def _from_driver(now: float) -> Snapshot:
    from stoker.devices.detect import detect
    from stoker.queue.config import load_config

    named = load_config(os.environ, None).engine.devices
    with contextlib.closing(detect(named.split(",") if named else [], now)) as devices:
        return devices.snapshot(now)


def _simulated(paths: Paths, now: float) -> Snapshot | None:
    """Without a word on how many are simulated, nobody can tell."""
    from stoker.devices.detect import simulate

    spec = os.environ.get("STOKER_SIM")
    return simulate(spec, str(paths.simulator), [], now).snapshot(now) if spec else None


def _leases(paths: Paths, *, simulated: bool) -> tuple[Lease, ...]:
    from stoker.ledger import Ledger, find_ledger

    own = simulated and not os.environ.get("STOKER_LEDGER")
    path = paths.state / "ledger" if own else find_ledger(os.environ)
    return tuple(Ledger(path).live().leases.values()) if path.exists() else ()


def _view(snapshot: Snapshot, leases: tuple[Lease, ...], now: float) -> View:
    return View(
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
    """The machine has such devices, but not now."""

    exit_code = 1


def picked(knowledge: Knowledge, resources: Resources) -> tuple[Device, ...]:
    """The devices that a job with this need would be started on now."""
    view = next(iter(knowledge.views.current), None)
    if view is None:
        raise Impossible("no GPU is known here", "start an engine that finds them: stoker engine start")
    asking = Job(0, 0, Command(("true",)), JobSpec(resources), Waiting(knowledge.now), knowledge.now)
    waiting = WaitingJobs()
    waiting.add(asking)
    decided = plan(waiting, _slots(knowledge, view), view.snapshot, view.leases, _policy(knowledge), view.at)
    if decided.starts:
        return tuple(knowledge.views.devices[device_id] for device_id in decided.starts[0].devices)
    reason = decided.reason(asking)
    why = "nothing is free" if reason is None else sentence(reason, knowledge.clock, knowledge.store.shown_id)
    if isinstance(reason, NeverFits):
        raise Impossible(why, "see stoker gpus")
    raise NotFree(why, "stoker submit waits until there is a place")


def _slots(knowledge: Knowledge, view: View) -> list[Slot]:
    """What our jobs hold, as the engine that made the view knows it; without one, their leases tell."""
    if view.engine == QUEUE and not knowledge.views.lives:
        return []
    jobs = [job for job, engine in knowledge.active if engine == view.engine]
    return [
        Slot(slot_of(job.state.ref), job.id, resources_of(job), job.state.devices, caps=caps_of(job))
        for job in jobs
        if isinstance(job.state, Active)
    ]


def _policy(knowledge: Knowledge) -> Policy:
    settings = load_config(os.environ, None).engine
    drained = {
        device: (knowledge.settings[drained_key(device)] or {}).get("note", "drained")
        for device in knowledge.views.devices
        if drained_key(device) in knowledge.settings
    }
    return Policy(
        closed=drained,
        reserve=settings.reserve,
        busy=settings.busy,
        tolerance=settings.tolerance,
        quarantine=settings.quarantine,
        strangers=settings.strangers,
    )
