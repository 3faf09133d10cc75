"""The files of the ledger: leases, demands and notices of engines."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from stoker.core.errors import UsageError
from stoker.core.lease import OURS, Claim, Lease
from stoker.core.planner.fairshare import Demand
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

LEASE, DEMAND, NOTICE = "lease", "demand", "jobs"
"""How names of files end."""
MOST_LEASES = 400
"""Leases that one notice tells of: more would not fit into the size that readers accept."""
Written = TypeVar("Written")


def _contents(written: Struct, decode: Callable[[bytes, int], object], problem: str) -> bytes:
    """The contents of a file, read back: one that readers refuse would protect nothing."""
    try:
        contents = within_limit(msgspec.json.encode(written))
        decode(contents, 0)
    except (UnicodeEncodeError, InvalidFile) as error:
        raise UsageError(problem, "use fewer or plainer names") from error
    return contents


def decoded(decoder: Decoder[Written], contents: bytes, kind: str) -> Written:
    """The contents of a file of any user; `kind` names what they should be."""
    try:
        return decoder.decode(contents)
    except ValueError as error:
        raise InvalidFile(f"its contents are not {kind} ({error})") from error


# -- leases ----------------------------------------------------------------------------------------


class _WrittenClaim(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    # A negative number would add memory that does not exist.
    memory: Annotated[int, Meta(ge=0, le=LARGEST)] | None = None
    share: Annotated[int, Meta(ge=1, le=LARGEST)] = 1
    load: Annotated[int, Meta(ge=0, le=LARGEST)] = 0
    mps: bool = False


class _WrittenLease(Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    claims: Annotated[tuple[_WrittenClaim, ...], Meta(max_length=MOST_GPUS)]
    pid: Process
    what: str
    since: Moment


_leases = Decoder(_WrittenLease)


def encode_lease(lease: Lease) -> bytes:
    """The contents of the file; an error where readers would refuse it."""
    claims = tuple(
        _WrittenClaim(claim.name, claim.memory, claim.share, claim.load, bool(claim.mps)) for claim in lease.claims
    )
    names = purpose(", ".join(claim.name for claim in claims))
    written = _WrittenLease(1, claims, lease.pid, lease.what, lease.since)
    return _contents(written, decode_lease, f"these devices cannot be leased: {names}")


def decode_lease(contents: bytes, uid: int) -> Lease:
    """The lease in a file. `uid` is the owner of the file."""
    written = decoded(_leases, contents, "a lease")
    owner = owner_name(uid)
    # The MPS server is always that of the file's owner: a lease cannot name another user's.
    server = OURS if uid == os.geteuid() else owner
    claims = tuple(
        Claim(claim.name, claim.memory, claim.share, claim.load, server if claim.mps else "")
        for claim in written.claims
    )
    return Lease(claims, owner, written.pid, purpose(written.what), written.since)


# -- demands ---------------------------------------------------------------------------------------


class HeldDemand(Struct, frozen=True):
    """A demand of this process. The lock of its descriptor keeps it alive."""

    fd: int
    path: Path
    demand: Demand

    @property
    def name(self) -> str:
        """The file name, which identifies the demand."""
        return self.path.name


_Count = Annotated[int, Meta(ge=1, le=MOST_GPUS)]


class _WrittenDemand(Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    # A negative usage would come before users who have used nothing.
    usage: Annotated[float, Meta(ge=0, le=LARGEST)]
    since: Moment
    gpus: _Count
    pid: Process
    what: str
    claims: Annotated[tuple[str, ...], Meta(max_length=MOST_GPUS)] = ()
    least: _Count = 1
    urgent: bool = False


_demands = Decoder(_WrittenDemand)


def encode_demand(demand: Demand) -> bytes:
    """The contents of the file; an error where readers would refuse it."""
    written = _WrittenDemand(
        1, demand.usage, demand.since, demand.gpus, demand.pid, demand.what, demand.claims, demand.least, demand.urgent
    )
    return _contents(written, decode_demand, f"this demand cannot be registered: {purpose(str(demand))}")


def decode_demand(contents: bytes, uid: int) -> Demand:
    """The demand in a file. `uid` is the owner of the file."""
    written = decoded(_demands, contents, "a demand")
    return Demand(
        uid=uid,
        owner=owner_name(uid),
        usage=written.usage,
        since=written.since,
        gpus=written.gpus,
        least=written.least,
        claims=written.claims,
        pid=written.pid,
        what=purpose(written.what),
        urgent=written.urgent,
    )


# -- notices ---------------------------------------------------------------------------------------


JobId = Annotated[str, Meta(pattern=r"^[0-9]{1,18}(\.[0-9]{1,18})?\Z")]
"""An id in the queue of its user: any other text makes the file void, so that none reaches a screen."""


class LeaseJob(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The job that runs under a lease now. Nothing tells its name or command."""

    job: JobId
    pid: Process = 0
    """Its first process; 0 if that is not known yet."""
    until: Moment | None = None
    """When it ends at the latest, if it has a limit."""
    expected: Moment | None = None
    """When it will probably end, if its engine expects that before the limit."""


class LedgerNotice(Struct, frozen=True, forbid_unknown_fields=True):
    """The jobs of one engine."""

    version: Literal[1] = 1
    program: Annotated[str, Meta(pattern=r"^[0-9A-Za-z.+-]{0,40}\Z")] = ""
    """The version of Stoker that the engine runs."""
    waiting: Annotated[int, Meta(ge=0, le=LARGEST)] = 0
    """How many jobs wait for their turn, whether they could start now or not."""
    leases: Annotated[dict[str, LeaseJob], Meta(max_length=MOST_LEASES)] = {}
    """By the names of its leases."""


class HeldNotice(Struct, frozen=True):
    """A notice of this process. The lock of its descriptor keeps it alive."""

    fd: int
    path: Path
    notice: LedgerNotice


_notices = Decoder(LedgerNotice)


def encode_notice(notice: LedgerNotice) -> bytes:
    return within_limit(msgspec.json.encode(notice))


def decode_notice(contents: bytes, uid: int) -> tuple[int, LedgerNotice]:
    """The notice in a file and its owner: it can say nothing of leases of other users."""
    return uid, decoded(_notices, contents, "a notice")


def explained(leases: Mapping[str, Lease], notices: Iterable[tuple[int, LedgerNotice]]) -> dict[str, Lease]:
    """The leases with what their engines tell of them."""
    jobs = {name: job for uid, notice in notices for name, job in notice.leases.items() if name.startswith(f"{uid}.")}
    return {name: _explained(lease, jobs.get(name)) for name, lease in leases.items()} if jobs else dict(leases)


def waiting_jobs(notices: Iterable[tuple[int, LedgerNotice]]) -> Counter[str]:
    """How many jobs of each user wait."""
    waiting: Counter[str] = Counter()
    for uid, notice in notices:
        waiting[owner_name(uid)] += notice.waiting
    return waiting


def programs(notices: Iterable[tuple[int, LedgerNotice]]) -> dict[str, frozenset[str]]:
    """The versions of Stoker that the engines of each user run; empty for one that does not tell."""
    names_by_user: dict[str, set[str]] = {}
    for uid, notice in notices:
        names_by_user.setdefault(owner_name(uid), set()).add(notice.program)
    return {owner: frozenset(versions) for owner, versions in names_by_user.items()}


def _explained(lease: Lease, job: LeaseJob | None) -> Lease:
    return (
        lease if job is None else replace(lease, job=job.job, process=job.pid, until=job.until, expected=job.expected)
    )
