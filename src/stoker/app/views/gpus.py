"""Build the list of GPUs, and choose some that are free now."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from stoker import __version__
from stoker.app.jobs.config import load_config
from stoker.app.jobs.local_time import to_datetime
from stoker.app.views.engines import EngineStatuses, read_statuses
from stoker.app.views.facts import QueueFacts, read_facts
from stoker.app.views.model import DeviceLine
from stoker.app.views.status import device_lines
from stoker.core.booking import Booking, of_others
from stoker.core.device import Device, Snapshot, with_drains
from stoker.core.errors import Impossible, StokerError
from stoker.core.job import Job, Waiting
from stoker.core.lease import Lease
from stoker.core.planner.queue import WaitingJobs
from stoker.core.planner.reasons import NeverFits
from stoker.core.settings import policy_of
from stoker.core.spec import Command, JobSpec, Resources
from stoker.devices.interface import Devices
from stoker.store.engine_lock import QUEUE
from stoker.store.paths import Paths, host_name
from stoker.store.queries import with_user_settings
from stoker.store.status_file import EngineStatus

SCHEMA = "stoker.gpus/1"
_YOUNG_SECONDS = 1.0
"""Seconds after which a snapshot is old, so that another is requested."""


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
def known_devices(paths: Paths) -> Iterator[QueueFacts]:
    """Facts about devices now; without an engine, the driver is asked."""
    now = time.time()
    statuses = read_statuses(paths, now)
    if not statuses.lives and not statuses.runs:
        statuses = EngineStatuses(probed(paths, statuses, now), lives=False)
    with read_facts(paths, statuses) as facts:
        yield facts


def gpus_of(facts: QueueFacts, picked: Sequence[str] = ()) -> Gpus:
    statuses = facts.statuses
    return Gpus(
        schema=SCHEMA,
        at=to_datetime(facts.now),
        host=host_name(),
        simulated=facts.simulated,
        engine_running=statuses.lives,
        devices=device_lines(facts),
        picked=list(picked),
        notes=list(dict.fromkeys(status.note for status in statuses.current if status.note)),
    )


class DeviceProbe:
    """Asks the driver what an engine would see if it ran; keeps the driver's library open between two questions."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._devices: Devices | None = None

    def status(self, before: EngineStatus | None, now: float) -> EngineStatus | None:
        """Read the devices; return the status `before`, which the last engine left, if that cannot be found out."""
        self._devices = self._devices or self._opened(now)
        if self._devices is None:
            return before
        from stoker.app.views.summary import ledger_here

        view = ledger_here(self._paths).live()
        snapshot = with_drains(self._devices.snapshot(now, now - _YOUNG_SECONDS), view.drained)
        return _status(snapshot, tuple(view.leases.values()), now, tuple(view.bookings.values()))

    def close(self) -> None:
        if self._devices is not None:
            self._devices.close()
            self._devices = None

    def _opened(self, now: float) -> Devices | None:
        from stoker.devices.detect import detect, simulate

        if self._paths.is_simulated:
            spec = os.environ.get("STOKER_SIM")  # without it, it is not known how many there are
            return simulate(spec, str(self._paths.simulator), [], now) if spec else None
        named = load_config(os.environ, None).engine.devices
        return detect(named.split(",") if named else [], now)


def probed(paths: Paths, before: EngineStatuses, now: float) -> EngineStatus | None:
    """Look at the devices as an engine would that started now; return what the last one saw if that is impossible."""
    with contextlib.closing(DeviceProbe(paths)) as probe:
        try:
            return probe.status(before.queue, now)
        except Impossible as error:
            return _status(Snapshot(now, (), note=error.message), (), now)


def _status(
    snapshot: Snapshot, leases: tuple[Lease, ...], now: float, bookings: tuple[Booking, ...] = ()
) -> EngineStatus:
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
        bookings=bookings,
    )


# -- choosing free GPUs ------------------------------------------------------------------------


class NotFree(StokerError):
    """The machine has such devices, but they are not free."""

    exit_code = 1


def pick_devices(facts: QueueFacts, resources: Resources) -> tuple[Device, ...]:
    """The devices on which a job with these resources would be started now, whatever limits the user has."""
    from stoker.app.jobs.dry_run import slots_of  # a list of GPUs needs no plan
    from stoker.core.planner.plan import plan

    statuses, now = facts.statuses, facts.now
    status = next(iter(statuses.current), None)
    if status is None:
        raise Impossible("no GPU is known on this machine", "start the engine to detect GPUs: stoker engine start")
    asking = Job(0, 0, Command(("true",)), JobSpec(resources), Waiting(now), now)
    waiting = WaitingJobs()
    waiting.add(asking)
    # Without a living engine, the leases of the workers count instead.
    serves = status.engine != QUEUE or statuses.lives
    slots = slots_of([job for job, engine in facts.active if serves and engine == status.engine], now)
    policy = with_user_settings(policy_of(load_config(os.environ, None).engine, cores=1), facts.settings, QUEUE)
    policy = replace(policy, paused="", max_use=None, min_free=0)  # the GPUs are not for Stoker
    bookings = of_others(status.bookings, os.geteuid())
    decided = plan(waiting, slots, status.snapshot, status.leases, policy, status.at, bookings=bookings)
    if decided.starts:
        return tuple(facts.devices[device_id] for device_id in decided.starts[0].devices)
    reason = decided.reason(asking)
    why = "no free GPU" if reason is None else facts.sentence(reason)
    if isinstance(reason, NeverFits):
        raise Impossible(why, "see stoker gpus")
    raise NotFree(why, "submit instead, to wait for a free GPU: stoker submit")
