"""Wants as they are written in the ledger: what a waiting engine tells all others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from stoker.core.errors import UsageError
from stoker.core.planner.fairshare import Demand
from stoker.ledger.files import Odd, owner_name, purpose, within_limit

KIND = "want"
MOST_GPUS = 4096
"""More than any machine has; a larger number could only be a mistake or malice."""


class HeldDemand(Struct, frozen=True):
    """A want that this process holds, and the descriptor whose lock keeps it alive."""

    fd: int
    path: Path
    demand: Demand

    @property
    def name(self) -> str:
        """The name under which everybody sees the want."""
        return self.path.name


_Count = Annotated[int, Meta(ge=1, le=MOST_GPUS)]


class _Written(Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    # A negative usage would go before those who have used nothing.
    usage: Annotated[float, Meta(ge=0)]
    since: float
    gpus: _Count
    pid: int
    what: str
    claims: tuple[str, ...] = ()
    least: _Count = 1


_decoder = msgspec.json.Decoder(_Written)


def encoded(demand: Demand) -> bytes:
    """The want as every reader will understand it; an error where one would not."""
    written = _Written(1, demand.usage, demand.since, demand.gpus, demand.pid, demand.what, demand.claims, demand.least)
    try:
        contents = within_limit(msgspec.json.encode(written))
        decoded(contents, demand.uid)
    except (UnicodeEncodeError, Odd) as error:
        raise UsageError(f"this cannot be wanted: {purpose(str(demand))}", "use fewer or plainer names") from error
    return contents


def decoded(contents: bytes, uid: int) -> Demand:
    """The want in a file; whose it is, is told by the file itself."""
    try:
        said = _decoder.decode(contents)
    except ValueError as error:
        raise Odd(f"its contents are not a want ({error})") from error
    return Demand(
        uid=uid,
        owner=owner_name(uid),
        usage=said.usage,
        since=said.since,
        gpus=said.gpus,
        least=said.least,
        claims=said.claims,
        pid=said.pid,
        what=purpose(said.what),
    )
