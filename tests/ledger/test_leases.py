"""The file format of leases stays the same: users of one machine may run different versions of Stoker."""

from __future__ import annotations

import os

import pytest

from stoker.core.lease import OURS, Claim, Lease
from stoker.ledger.files import owner_name
from stoker.ledger.leases import KIND, decoded, encoded

ME = owner_name(os.geteuid())
WRITTEN_BY_0_1 = [
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
"""Bytes that version 0.1.0 wrote before the modules were moved, and what they mean."""


@pytest.mark.parametrize(("written", "lease"), WRITTEN_BY_0_1)
def test_format(written: bytes, lease: Lease) -> None:
    """A lease is written byte for byte as before, and an older one is read."""
    assert encoded(lease) == written
    assert decoded(written, os.geteuid()) == lease


def test_file_names_end_with_lease() -> None:
    assert KIND == "lease"
