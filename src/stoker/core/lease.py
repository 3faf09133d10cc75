"""What a lease says: who holds which devices, and how much of them."""

from __future__ import annotations

from msgspec import Struct

OURS = "ours"


class Claim(Struct, frozen=True):
    """A part of one device that somebody holds."""

    name: str
    """The device's name in the ledger: its UUID, or a word that users agreed on."""
    memory: int | None = None
    """Bytes reserved; None is all of it."""
    share: int = 1
    """How many leases the holder suffers on the device, its own among them; 1 is alone."""
    load: int = 0
    """Percent of the device that it keeps busy, as far as that is known."""
    mps: str = ""
    """Whose MPS server it is a client of: OURS, the name of another user, or nobody's."""


class Lease(Struct, frozen=True):
    """One live lease as every reader of the ledger sees it."""

    claims: tuple[Claim, ...]
    owner: str
    """The user's name, from the owner of the file and never from its contents."""
    pid: int
    what: str
    since: float


def compatible(wanted: Claim, held: list[Claim], capacity: int | None = None) -> bool:
    """Whether a claim may stand beside those already held on the same device.

    Everybody's wish on company counts: as many as the least patient of them suffers. Where memory is
    reserved by all, the sum must also fit into the capacity. Clients of an MPS server suffer nobody else.
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
