"""What the machine has for each need while one plan is being made, worked out once until a start changes it."""

from __future__ import annotations

from stoker.core.blocked import why_blocked
from stoker.core.courtesy import never_modest
from stoker.core.device import Snapshot
from stoker.core.fit import Offer, never_fits, preference, suits
from stoker.core.job import Job
from stoker.core.occupancy import Occupancy
from stoker.core.policy import Policy
from stoker.core.reasons import NeverFits, Reason
from stoker.core.reservation import Reservation, reserve
from stoker.core.terms import Need


class Prospects:
    """Answers about needs. Jobs of many shapes have few needs, since priorities and limits make shapes too."""

    def __init__(self, occupancy: Occupancy, snapshot: Snapshot, policy: Policy) -> None:
        self._occupancy = occupancy
        self._policy = policy
        self._devices = snapshot.devices
        self._absence = "" if snapshot.devices else snapshot.note
        """Why there is no device at all, where somebody knows."""
        self._never: dict[Need, NeverFits | None] = {}
        self._offers: dict[Need, list[Offer]] = {}
        self._blocked: dict[Need, Reason] = {}
        self._unreserved: set[Need] = set()

    def hold(self, job_id: int, need: Need, device_ids: tuple[str, ...], until: float) -> None:
        """Note that a job gets these devices, which may change what there is for all others."""
        self._occupancy.hold(job_id, need, device_ids, until)
        self._offers.clear()
        self._blocked.clear()
        self._unreserved.clear()

    def never(self, need: Need) -> NeverFits | None:
        """Why the need can never be met, None where it can."""
        if need not in self._never:
            sentence = never_fits(need, self._devices) or never_modest(need.gpus, self._devices, self._policy)
            self._never[need] = NeverFits(self._absence or sentence) if sentence else None
        return self._never[need]

    def offers(self, need: Need) -> list[Offer]:
        """The devices that are open for the need."""
        offers = self._offers.get(need)
        if offers is None:
            offers = self._offers[need] = self._find_offers(need)
        return offers

    def why_blocked(self, need: Need) -> Reason:
        """What keeps the need waiting."""
        reason = self._blocked.get(need)
        if reason is None:
            reason = self._blocked[need] = why_blocked(need, self._occupancy)
        return reason

    def reserve(self, job: Job, need: Need) -> Reservation | None:
        """The devices that will be open first for a job; whether there are any is a matter of its need alone."""
        if need in self._unreserved:
            return None
        reservation = reserve(job, need, self._occupancy)
        if reservation is None:
            self._unreserved.add(need)
        return reservation

    def _find_offers(self, need: Need) -> list[Offer]:
        offers = []
        for view in self._occupancy.views:
            if suits(view.device, need) and (fit := self._occupancy.fit(view, need)) is not None:
                offers.append(Offer((preference(view.device, need), fit), view.order, view.device))
        return offers
