"""Picks free devices as the plan would for a job, for commands that are run outside the queue."""

from __future__ import annotations

import os

from stoker.cli.screens.knowledge import Knowledge
from stoker.config import load_config
from stoker.core.device import Device
from stoker.core.errors import Impossible, StokerError
from stoker.core.job import Active, Job, Waiting, need_of
from stoker.core.occupancy import Slot
from stoker.core.plan import plan
from stoker.core.policy import Policy
from stoker.core.reasons import NeverFits, sentence
from stoker.core.terms import Command, Need, Terms
from stoker.core.waiting import WaitingJobs, caps_of
from stoker.mail import drained_key
from stoker.presence import QUEUE
from stoker.published import View


class NotFree(StokerError):
    """The machine has such devices, but not now."""

    exit_code = 1


def picked(knowledge: Knowledge, need: Need) -> tuple[Device, ...]:
    """The devices that a job with this need would be started on now."""
    view = next(iter(knowledge.views.current), None)
    if view is None:
        raise Impossible("no GPU is known here", "start an engine that finds them: stoker engine start")
    asking = Job(0, 0, Command(("true",)), Terms(need), Waiting(knowledge.now), knowledge.now)
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
        Slot(job.state.keeper, job.id, need_of(job), job.state.devices, caps=caps_of(job))
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
