"""Choose GPUs that are free now, for programs that run outside of the queue."""

from __future__ import annotations

import os

from msgspec.structs import replace

from stoker.app.jobs.config import load_config
from stoker.app.jobs.dry_run import slots_of
from stoker.app.views.facts import QueueFacts
from stoker.core.device import Device
from stoker.core.errors import Impossible, StokerError
from stoker.core.job import Job, Waiting
from stoker.core.planner.plan import plan
from stoker.core.planner.queue import WaitingJobs
from stoker.core.planner.reasons import NeverFits
from stoker.core.settings import policy_of
from stoker.core.spec import Command, JobSpec, Resources
from stoker.store.engine_lock import QUEUE
from stoker.store.queries import with_user_settings


class NotFree(StokerError):
    """The machine has such devices, but they are not free."""

    exit_code = 1


def pick_devices(facts: QueueFacts, resources: Resources) -> tuple[Device, ...]:
    """The devices on which a job with these resources would be started now, whatever limits the user has."""
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
    decided = plan(waiting, slots, status.snapshot, status.leases, policy, status.at)
    if decided.starts:
        return tuple(facts.devices[device_id] for device_id in decided.starts[0].devices)
    reason = decided.reason(asking)
    why = "no free GPU" if reason is None else facts.sentence(reason)
    if isinstance(reason, NeverFits):
        raise Impossible(why, "see stoker gpus")
    raise NotFree(why, "submit instead, to wait for a free GPU: stoker submit")
