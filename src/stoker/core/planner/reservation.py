"""Devices held for the first job that cannot start, so that those behind it may pass but never starve it."""

from __future__ import annotations

from math import inf

from msgspec import Struct

from stoker.core.device import Device
from stoker.core.job import Job, Waiting
from stoker.core.planner.occupancy import NOW, Occupancy
from stoker.core.planner.placement import Offer, choose, preference, suits
from stoker.core.planner.policy import Policy
from stoker.core.spec import Resources


class Reservation(Struct, frozen=True):
    """The devices that a blocked job will have soonest."""

    job: int
    gpus: int
    since: float
    """Since when the job waits."""
    devices: tuple[str, ...]
    claims: frozenset[str]
    """All names of the devices in the ledger: another device that has one of them is in the way too."""
    moment: float | None
    """When the last of the devices will be open, where that can be told or guessed."""
    sure: bool = True
    """Whether limits and experience tell the moment."""
    resources: Resources = Resources()
    """What the job will take of them."""


def reserve(job: Job, resources: Resources, occupancy: Occupancy) -> Reservation | None:
    """The devices that will be open first for a job, if those that only we hold are enough for it."""
    offers: list[Offer] = []
    moments: dict[str, float] = {}
    unsure: set[str] = set()
    for view in occupancy.views:
        if suits(view.device, resources) and (ready := occupancy.ready(view, resources)) is not None:
            moments[view.device.id] = ready
            if not all(holding.sure for holding in occupancy.holdings(view)):
                unsure.add(view.device.id)
            first = NOW if view.device.id in resources.required else ready
            offers.append(Offer((first, preference(view.device, resources)), view.order, view.device))
    devices = choose(offers, resources.gpus, resources.required)
    if devices is None:
        return None
    last = max(moments[device.id] for device in devices)
    return Reservation(
        job=job.id,
        gpus=resources.gpus,
        since=waiting_since(job),
        devices=tuple(device.id for device in devices),
        claims=frozenset(claim for device in devices for claim in device.claims),
        moment=None if last == inf else max(last, occupancy.now),
        sure=unsure.isdisjoint(device.id for device in devices),
        resources=resources,
    )


def leaves_room(
    device: Device, resources: Resources, reservation: Reservation, occupancy: Occupancy, *, policy: Policy
) -> bool:
    """Whether a later job may share a reserved device however long it takes: there will be enough for both.

    Guesses may go wrong each time anew, and so are not believed for ever.
    """
    if reservation.moment is None or device.id not in reservation.devices:
        return False
    waited = occupancy.now - reservation.since
    if not reservation.sure and waited > policy.lenience * reservation.gpus:
        return False
    return occupancy.fit_both(device, resources, reservation.resources, reservation.moment)


def may_pass(seconds: float | None, reservation: Reservation, policy: Policy, now: float) -> bool:
    """Whether a later job that takes so long may use a reserved device: it ends in time, or patience lasts.

    Where the moment is a guess the job may be one that guesses about, too; but not for ever, since guesses may go wrong
    each time anew.
    """
    if not reservation.sure:
        waited = now - reservation.since
        if waited < policy.patience:
            return True
        if waited > policy.lenience * reservation.gpus:
            return False
        seconds = policy.unknown if seconds is None else seconds
    return seconds is not None and reservation.moment is not None and now + seconds <= reservation.moment


def waiting_since(job: Job) -> float:
    """Since when a job waits; the moment of its submission where its state no longer tells."""
    return job.state.since if isinstance(job.state, Waiting) else job.submitted
