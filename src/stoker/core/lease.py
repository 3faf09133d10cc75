"""Leases: the devices, or parts of them, that an engine holds for all to see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from msgspec import Struct

OURS = "ours"


class Claim(Struct, frozen=True):
    """A device, or a part of one, that a lease holds."""

    name: str
    """The device's ledger name: its UUID, or a name that users agreed on."""
    memory: int | None = None
    """Bytes reserved; None is the whole device."""
    share: int = 1
    """How many leases the holder allows on the device, its own included; 1 is exclusive."""
    load: int = 0
    """Percent of the device that it keeps busy; 0 if unknown."""
    mps: str = ""
    """The MPS server it is a client of: OURS, the name of another user, or empty for none."""


class Lease(Struct, frozen=True):
    """One live lease in the ledger."""

    claims: tuple[Claim, ...]
    owner: str
    """The user's name, from the owner of the file, never from its contents."""
    pid: int
    """The engine that claimed it."""
    what: str
    since: float
    job: str = ""
    """The job that runs under it now, by its id in the queue of its user; empty if its engine does not tell."""
    process: int = 0
    """The first process of that job; 0 if unknown."""
    until: float | None = None
    """When that job ends at the latest; None if it has no limit."""
    expected: float | None = None
    """When it will probably end; None if its engine does not expect that before the limit."""


def compatible(wanted: Claim, held: list[Claim], capacity: int | None = None) -> bool:
    """Whether a claim is compatible with those already held on the same device.

    The smallest share of all claims limits their number. Where all reserve memory, the sum must also fit into the
    capacity. Clients of an MPS server share only with clients of the same server.
    """
    if not held:
        return True
    if any(claim.mps != wanted.mps for claim in held):
        return False
    if len(held) + 1 > min(claim.share for claim in [wanted, *held]):
        return False
    if capacity is None:
        return True
    reserved = [claim.memory for claim in [wanted, *held]]
    return all(memory is None for memory in reserved) or sum(memory or 0 for memory in reserved) <= capacity


def fits(claims: Iterable[Claim], leases: Iterable[Lease], capacities: Mapping[str, int | None]) -> bool:
    """Whether all the claims are compatible with the leases."""
    held: defaultdict[str, list[Claim]] = defaultdict(list)
    for lease in leases:
        for claim in lease.claims:
            held[claim.name].append(claim)
    for claim in claims:
        if not compatible(claim, held[claim.name], capacities.get(claim.name)):
            return False
        held[claim.name].append(claim)
    return True
