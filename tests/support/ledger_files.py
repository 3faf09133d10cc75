"""Leases good and bad: what the tests of the ledger claim, plant and expect."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st

from stoker.core.lease import Claim
from stoker.ledger import HeldLease, Ledger
from stoker.ledger.files import MOST_BYTES

GOOD = '{"version":1,"claims":[{"name":"A"}],"pid":1,"what":"work","since":1.0}'
BAD = {
    "empty": "",
    "broken": "{",
    "list": "[]",
    "null": "null",
    "deep": "[" * 60_000,
    "cut": GOOD[:-1],
    "doubled": GOOD + GOOD,
    "newer version": GOOD.replace('"version":1', '"version":2'),
    "text as number": GOOD.replace('"pid":1', '"pid":"1"'),
    "unknown field": GOOD.replace('"pid":1', '"pid":1,"owner":"root"'),
    "huge number": GOOD.replace('"pid":1', f'"pid":{"9" * 5000}'),
    "infinite": GOOD.replace('"since":1.0', '"since":1e999'),
    "far date": GOOD.replace('"since":1.0', '"since":1e300'),
    "year 10000": GOOD.replace('"since":1.0', '"since":253402300900'),
    "before 1970": GOOD.replace('"since":1.0', '"since":-1.0'),
    "no process": GOOD.replace('"pid":1', '"pid":4194305'),
    "endless memory": GOOD.replace('{"name":"A"}', '{"name":"A","memory":9223372036854775808}'),
    "too many claims": GOOD.replace('{"name":"A"}', ",".join(['{"name":"A"}'] * 4097)),
    "negative memory": GOOD.replace('{"name":"A"}', '{"name":"A","memory":-5}'),
    "no share": GOOD.replace('{"name":"A"}', '{"name":"A","share":0}'),
    "claim without fields": GOOD.replace('{"name":"A"}', '"A"'),
    "too large": GOOD.replace("work", "w" * MOST_BYTES),
}

ROOM = {"A": 12}
"""Bytes of the devices in the steps; B is one whose memory nobody knows."""

_claims = st.builds(Claim, st.sampled_from("AB"), st.none() | st.integers(0, 10), st.integers(1, 3))
_wanted = st.lists(_claims, min_size=1, max_size=2, unique_by=lambda claim: claim.name).map(tuple)
steps = st.lists(st.integers(0, 5) | _wanted, max_size=15)
"""Claims to make, and places in the list of held leases to release."""


def promises_hold(standing: list[Claim], wanted: Claim) -> bool:
    """Whether nobody on the wanted device would get more company, or less memory, than he agreed to."""
    together = [*(claim for claim in standing if claim.name == wanted.name), wanted]
    if len(together) == 1:
        return True
    shared = all(len(together) <= claim.share for claim in together)
    room = ROOM.get(wanted.name)
    return shared and (room is None or sum(claim.memory or 0 for claim in together) <= room)


@contextmanager
def taken(ledger: Ledger, *devices: str) -> Iterator[HeldLease]:
    """A lease on whole devices, which must be granted and is released at the end."""
    held = ledger.claim(tuple(map(Claim, devices)), "work", 1.0)
    assert held
    yield held
    ledger.release(held)


def is_free(ledger: Ledger, *claims: Claim) -> bool:
    """Whether the claims (a whole device A if there are none) would be granted together now."""
    held = ledger.claim(claims or (Claim("A"),), "trial", 1.0)
    if held:
        ledger.release(held)
    return held is not None


def lease_name(uid: int | None = None) -> str:
    """A name such as the ledger itself would give."""
    return f"{os.geteuid() if uid is None else uid}.{secrets.token_hex(8)}.lease"


@contextmanager
def planted(ledger: Ledger, name: str, contents: bytes) -> Iterator[Path]:
    """A file in the ledger that somebody keeps locked."""
    path = ledger.path / name
    with path.open("wb", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(contents)
        yield path
