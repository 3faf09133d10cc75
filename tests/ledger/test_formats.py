"""The file formats of leases and demands stay the same: users of one machine may run different versions of Stoker."""

from __future__ import annotations

import os

import pytest

from stoker.core.lease import OURS, Claim, Lease
from stoker.core.planner.fairshare import Demand
from stoker.ledger.files import owner_name
from stoker.ledger.formats import DEMAND, LEASE, NOTICE, decode_demand, decode_lease, encode_demand, encode_lease

ME = owner_name(os.geteuid())
LEASES = [
    (
        b'{"version":1,"claims":[{"name":"GPU-1"}],"pid":4711,"what":"","since":1700000000.0}',
        Lease((Claim("GPU-1"),), ME, 4711, "", 1700000000.0),
    ),
    (
        b'{"version":1,"claims":[{"name":"GPU-1"},{"name":"GPU-2","memory":6442450944,"share":1048576,"load":40,'
        b'"mps":true},{"name":"slot \xc3\xa9","share":3}],"pid":4711,"what":"train.py --lr 1e-3",'
        b'"since":1700000000.25}',
        Lease(
            (Claim("GPU-1"), Claim("GPU-2", 6 << 30, 1 << 20, 40, OURS), Claim("slot é", None, 3)),
            *(ME, 4711, "train.py --lr 1e-3", 1700000000.25),
        ),
    ),
]
"""Bytes that version 0.1.0 wrote, and what they mean."""


DEMANDS = [
    (
        b'{"version":1,"usage":0.0,"since":1.0,"gpus":1,"pid":0,"what":"","claims":[],"least":1,"urgent":false}',
        Demand(uid=os.geteuid(), owner=ME, usage=0.0, since=1.0),
    ),
    (
        b'{"version":1,"usage":12.5,"since":1700000000.25,"gpus":4,"pid":4711,"what":"sweep",'
        b'"claims":["GPU-1","GPU-2"],"least":2,"urgent":false}',
        Demand(
            *(os.geteuid(), ME, 12.5, 1700000000.25),
            gpus=4,
            least=2,
            claims=("GPU-1", "GPU-2"),
            pid=4711,
            what="sweep",
        ),
    ),
]


@pytest.mark.parametrize(("written", "lease"), LEASES)
def test_leases(written: bytes, lease: Lease) -> None:
    """A lease is written byte for byte as before, and an older one is read."""
    assert encode_lease(lease) == written
    assert decode_lease(written, os.geteuid()) == lease


@pytest.mark.parametrize(("written", "demand"), DEMANDS)
def test_demands(written: bytes, demand: Demand) -> None:
    assert encode_demand(demand) == written
    assert decode_demand(written, os.geteuid()) == demand


def test_ends_of_file_names() -> None:
    assert (LEASE, DEMAND, NOTICE) == ("lease", "demand", "jobs")
