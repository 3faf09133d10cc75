"""The reservation of the first blocked job: later jobs may pass it, but never starve it."""

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
    """The devices that a blocked job can have first."""

    job: int
    gpus: int
    since: float
    """Since when the job waits."""
    devices: tuple[str, ...]
    claims: frozenset[str]
    """All ledger names of the devices: a device that shares a name with them is reserved, too."""
    moment: float | None
    """When the last of the devices will be open, where known or guessed."""
    sure: bool = True
    """Whether limits and history tell the moment; else it is a guess."""
    resources: Resources = Resources()
    """What the job will use of them."""


def reserve(job: Job, resources: Resources, occupancy: Occupancy) -> Reservation | None:
    """The devices that will be open first for a job; None where our own ends do not free enough."""
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
    """Whether a later job may share a reserved device however long it takes: there is room for both.

    Where the moment is a guess, only for a limited time, since each new guess may be wrong again.
    """
    if reservation.moment is None or device.id not in reservation.devices:
        return False
    waited = occupancy.now - reservation.since
    if not reservation.sure and waited > policy.lenience * reservation.gpus:
        return False
    return occupancy.fit_both(device, resources, reservation.resources, reservation.moment)


def may_pass(seconds: float | None, reservation: Reservation, policy: Policy, now: float) -> bool:
    """Whether a later job of this duration may use a reserved device: it ends in time, or patience lasts.

    Where the moment of the reservation is a guess, a job of unknown duration may pass, too; but only for a limited
    time, since each new guess may be wrong again.
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
    """Since when a job waits; its submission where the state does not tell."""
    return job.state.since if isinstance(job.state, Waiting) else job.submitted
