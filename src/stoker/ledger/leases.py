"""The file format of leases, and whether a new one is compatible with them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from stoker.core.errors import UsageError
from stoker.core.lease import OURS, Claim, Lease, compatible
from stoker.ledger.files import (
    LARGEST,
    MOST_GPUS,
    InvalidFile,
    Moment,
    Process,
    owner_name,
    purpose,
    within_limit,
)

KIND = "lease"


class _WrittenClaim(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    # A negative number would add memory that does not exist.
    memory: Annotated[int, Meta(ge=0, le=LARGEST)] | None = None
    share: Annotated[int, Meta(ge=1, le=LARGEST)] = 1
    load: Annotated[int, Meta(ge=0, le=LARGEST)] = 0
    mps: bool = False


class _Written(Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    claims: Annotated[tuple[_WrittenClaim, ...], Meta(max_length=MOST_GPUS)]
    pid: Process
    what: str
    since: Moment


_decoder = msgspec.json.Decoder(_Written)


def encoded(lease: Lease) -> bytes:
    """The contents of the file; an error where readers would refuse it."""
    claims = tuple(_written(claim) for claim in lease.claims)
    try:
        contents = msgspec.json.encode(_Written(1, claims, lease.pid, lease.what, lease.since))
        # Read back, because a lease that readers refuse would protect nothing.
        decoded(within_limit(contents), 0)
    except (UnicodeEncodeError, InvalidFile) as error:
        names = purpose(", ".join(claim.name for claim in claims))
        raise UsageError(f"these devices cannot be leased: {names}", "use fewer or plainer names") from error
    return contents


def decoded(contents: bytes, uid: int) -> Lease:
    """The lease in a file. `uid` is the owner of the file."""
    try:
        written = _decoder.decode(contents)
    except ValueError as error:
        raise InvalidFile(f"its contents are not a lease ({error})") from error
    owner = owner_name(uid)
    server = OURS if uid == os.geteuid() else owner
    claims = tuple(_read(claim, server) for claim in written.claims)
    return Lease(claims, owner, written.pid, purpose(written.what), written.since)


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


def _written(claim: Claim) -> _WrittenClaim:
    return _WrittenClaim(claim.name, claim.memory, claim.share, claim.load, bool(claim.mps))


def _read(claim: _WrittenClaim, server: str) -> Claim:
    """The MPS server is always that of the file's owner: a lease cannot name another user's."""
    return Claim(claim.name, claim.memory, claim.share, claim.load, server if claim.mps else "")
