"""Which devices a job gets, what a blocked job reserves, and which jobs are prefetched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heapreplace
from math import inf
from typing import NamedTuple

from msgspec import Struct

from stoker.core.device import Device
from stoker.core.job import Job, Waiting
from stoker.core.planner.occupancy import NOW, Occupancy, Slot
from stoker.core.planner.queue import Cap
from stoker.core.planner.reasons import Drained, Unusable
from stoker.core.settings import Policy
from stoker.core.spec import Resources, suits
from stoker.core.units import count_text, size_text


class DeviceOffer(NamedTuple):
    """A device that a job could have. Smaller rank, then smaller order, is better; orders are unique."""

    rank: tuple[float, ...]
    order: int
    device: Device


def preference(device: Device, resources: Resources) -> int:
    """The rank of a device among the required and preferred ones; all others come after them."""
    wanted = resources.required + resources.preferred
    return wanted.index(device.id) if device.id in wanted else len(wanted)


def choose(offers: list[DeviceOffer], count: int, required: Sequence[str] = ()) -> tuple[Device, ...] | None:
    """The best `count` devices without a common claim: the required ones, and near each other among equals."""
    if len(offers) < count or (required and not {offer.device.id for offer in offers}.issuperset(required)):
        return None
    if count == 1:
        return (min(offers).device,)
    offers = sorted(offers)
    equals = [offer for offer in offers if offer.rank == offers[0].rank]
    seeds = equals if any(offer.device.near for offer in equals) else equals[:1]
    sets = [*(_grow(seed, offers, count) for seed in seeds), _most(offers, count)]
    best = min((chosen for chosen in sets if len(chosen) == count), key=_badness, default=None)
    return tuple(offer.device for offer in sorted(best)) if best else None


def most_at_once(devices: Iterable[Device]) -> int:
    """How many of the devices one job could hold at once."""
    offers = [DeviceOffer((), order, device) for order, device in enumerate(devices)]
    return len(_most(offers, len(offers)))


def never_fits(resources: Resources, devices: Sequence[Device]) -> str | None:
    """Why these devices can never meet the resources, in one sentence; None when they can."""
    allowed = [device for device in devices if not resources.allowed or device.id in resources.allowed]
    suited = [device for device in allowed if suits(device, resources)]
    there = {device.id for device in suited}.issuperset(resources.required)
    if there and (resources.gpus <= min(1, len(suited)) or most_at_once(suited) >= resources.gpus):
        return None
    ids = {device.id for device in devices}
    if unknown := [name for name in resources.allowed + resources.required if name not in ids]:
        return f"no device {', '.join(unknown)}; known devices: {_labels(devices)}"
    if allowed and not any(resources.model in device.model.lower() for device in allowed):
        models = sorted({device.model for device in allowed if device.model})
        return f"needs a GPU of type {resources.model!r}; available: {', '.join(models) or 'none of known type'}"
    if allowed and not suited:
        largest = max(device.memory or 0 for device in allowed)
        return f"needs {size_text(resources.memory)} on a GPU; the largest has {size_text(largest)}"
    return _too_few(resources, most_at_once(suited))


def _too_few(resources: Resources, there: int) -> str:
    size = f" of {size_text(resources.memory)}" if resources.memory is not None else ""
    has = "is allowed" if there == 1 else "are allowed"
    where = f"{there or 'none'} {has}" if resources.allowed else f"this machine has {there or 'none'}"
    return f"needs {count_text(resources.gpus, 'GPU')}{size}; {where}"


def _labels(devices: Sequence[Device]) -> str:
    return ", ".join(dict.fromkeys(device.label for device in devices)) or "none"


def _most(offers: Sequence[DeviceOffer], count: int) -> list[DeviceOffer]:
    """Devices with fewest claims first, since a slot of several GPUs competes with single ones."""
    fewest_claims_first = sorted(offers, key=lambda offer: (len(offer.device.claims), offer))
    chosen: list[DeviceOffer] = []
    claimed: set[str] = set()
    for offer in fewest_claims_first:
        if len(chosen) < count and claimed.isdisjoint(offer.device.claims):
            chosen.append(offer)
            claimed.update(offer.device.claims)
    return chosen


def _grow(seed: DeviceOffer, offers: Sequence[DeviceOffer], count: int) -> list[DeviceOffer]:
    """Add the best remaining offer to the seed until there are enough, or none is left that fits."""
    chosen = [seed]
    left = list(offers)
    while len(chosen) < count:
        newest = chosen[-1]
        left = [offer for offer in left if offer is not newest and _apart(offer.device, newest.device)]
        if not left:
            break
        chosen.append(min(left, key=lambda offer: (offer.rank, _distance(offer, chosen), offer.order)))
    return chosen


def _apart(device: Device, other: Device) -> bool:
    return not any(claim in other.claims for claim in device.claims)


def _badness(chosen: list[DeviceOffer]) -> tuple[list[tuple[float, ...]], int]:
    return sorted(offer.rank for offer in chosen), sum(_distance(offer, chosen) for offer in chosen)


def _distance(offer: DeviceOffer, others: Sequence[DeviceOffer]) -> int:
    near = offer.device.near
    return sum(near.index(other.device.id) if other.device.id in near else len(near) for other in others)


class Prefetch:
    """Distributes jobs evenly behind running attempts, and none on a device that an earlier job waits for.

    That keeps the order of the queue: a prefetched job gets the device before any other job can.
    """

    def __init__(self, slots: Sequence[Slot], occupancy: Occupancy) -> None:
        self._occupancy = occupancy
        self._wanted: set[str] = set()
        self._roomy: dict[tuple[Resources, tuple[Cap, ...]], list[tuple[int, float, int, Slot]]] = {}
        sound = {view.device.id for view in occupancy.views if not isinstance(view.closed, Unusable | Drained)}
        for index, slot in enumerate(slots):
            if slot.room > 0 and sound.issuperset(slot.devices):
                since = inf if slot.since is None else slot.since
                self._roomy.setdefault((slot.resources, slot.caps), []).append((-slot.room, since, index, slot))
        for line in self._roomy.values():
            heapify(line)

    def take(self, resources: Resources, caps: tuple[Cap, ...]) -> Slot | None:
        """The slot with the most room among those that run the same resources, and of equals the one that runs longest.

        Where attempts take about the same time, slots so get jobs in the order in which they become free.
        A prefetched attempt counts towards the same limits and runs after the other, so no limit is exceeded.
        """
        line = self._roomy.get((resources, caps), [])
        while line and not self._wanted.isdisjoint(line[0][-1].devices):
            heappop(line)
        if not line:
            return None
        minus_room, since, index, slot = line[0]
        if minus_room == -1:
            heappop(line)
        else:
            heapreplace(line, (minus_room + 1, since, index, slot))
        return slot

    def close_all(self) -> None:
        """Keep later jobs from every slot."""
        self._roomy.clear()

    def close(self, resources: Resources) -> None:
        """Keep later jobs from every device that a job with these resources waits for."""
        if resources.gpus:
            self._wanted.update(view.device.id for view in self._occupancy.views if suits(view.device, resources))


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
    """When the last of the devices will be open, if known or guessed."""
    sure: bool = True
    """Whether limits and history tell the moment; else it is a guess."""
    resources: Resources = Resources()
    """The resources that the job will use on them."""


def reserve(job: Job, resources: Resources, occupancy: Occupancy) -> Reservation | None:
    """The devices that will be open first for a job; None where our own ends do not free enough."""
    offers: list[DeviceOffer] = []
    moments: dict[str, float] = {}
    unsure: set[str] = set()
    for view in occupancy.views:
        if suits(view.device, resources) and (ready := occupancy.ready(view, resources)) is not None:
            moments[view.device.id] = ready
            if not all(holding.sure for holding in occupancy.holdings(view)):
                unsure.add(view.device.id)
            first = NOW if view.device.id in resources.required else ready
            offers.append(DeviceOffer((first, preference(view.device, resources)), view.order, view.device))
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
    """Since when a job waits; its submission if the state does not tell."""
    return job.state.since if isinstance(job.state, Waiting) else job.submitted
