"""The file format of notices: an engine tells all users which jobs run under its leases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from stoker.core.lease import Lease
from stoker.ledger.files import LARGEST, InvalidFile, Moment, Process, owner_name, within_limit

KIND = "jobs"
MOST_LEASES = 400
"""Leases that one notice tells of: more would not fit into the size that readers accept."""


class LeaseJob(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The job that runs under a lease now. Nothing tells its name or command."""

    job: Annotated[str, Meta(pattern=r"^[0-9]{1,18}(\.[0-9]{1,18})?\Z")]
    """Its id in the queue of its user: any other text makes the file void, so that none reaches a screen."""
    pid: Process = 0
    """Its first process; 0 if that is not known yet."""
    until: Moment | None = None
    """When it ends at the latest, if it has a limit."""


class LedgerNotice(Struct, frozen=True, forbid_unknown_fields=True):
    """The jobs of one engine."""

    version: Literal[1] = 1
    waiting: Annotated[int, Meta(ge=0, le=LARGEST)] = 0
    """How many jobs wait for their turn, whether they could start now or not."""
    leases: Annotated[dict[str, LeaseJob], Meta(max_length=MOST_LEASES)] = {}
    """By the names of its leases."""


class HeldNotice(Struct, frozen=True):
    """A notice of this process. The lock of its descriptor keeps it alive."""

    fd: int
    path: Path
    notice: LedgerNotice


_decoder = msgspec.json.Decoder(LedgerNotice)


def encoded(notice: LedgerNotice) -> bytes:
    return within_limit(msgspec.json.encode(notice))


def decoded(contents: bytes, uid: int) -> tuple[int, LedgerNotice]:
    """The notice in a file and its owner: it can say nothing of leases of other users."""
    try:
        return uid, _decoder.decode(contents)
    except ValueError as error:
        raise InvalidFile(f"its contents are not a notice ({error})") from error


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


def _explained(lease: Lease, job: LeaseJob | None) -> Lease:
    return lease if job is None else replace(lease, job=job.job, process=job.pid, until=job.until)
