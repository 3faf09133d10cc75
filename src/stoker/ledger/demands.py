"""The file format of demands: what a waiting engine publishes to all others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from stoker.core.errors import UsageError
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

KIND = "demand"


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


class _Written(Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    # A negative usage would come before users who have used nothing.
    usage: Annotated[float, Meta(ge=0, le=LARGEST)]
    since: Moment
    gpus: _Count
    pid: Process
    what: str
    claims: Annotated[tuple[str, ...], Meta(max_length=MOST_GPUS)] = ()
    least: _Count = 1


_decoder = msgspec.json.Decoder(_Written)


def encoded(demand: Demand) -> bytes:
    """The contents of the file; an error where readers would refuse it."""
    written = _Written(1, demand.usage, demand.since, demand.gpus, demand.pid, demand.what, demand.claims, demand.least)
    try:
        contents = within_limit(msgspec.json.encode(written))
        decoded(contents, demand.uid)
    except (UnicodeEncodeError, InvalidFile) as error:
        raise UsageError(
            f"this demand cannot be registered: {purpose(str(demand))}", "use fewer or plainer names"
        ) from error
    return contents


def decoded(contents: bytes, uid: int) -> Demand:
    """The demand in a file. `uid` is the owner of the file."""
    try:
        written = _decoder.decode(contents)
    except ValueError as error:
        raise InvalidFile(f"its contents are not a demand ({error})") from error
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
    )
