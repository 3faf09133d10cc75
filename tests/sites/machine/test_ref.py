"""The ref of an attempt: what the store keeps of worker, lease and log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.job import slot_of
from stoker.sites.machine.ref import WorkerRef, adopted_lease, lease_name, read_ref

WORDS = st.text("abcdef-0123456789", min_size=1, max_size=12).filter(lambda word: word != "-")


@given(st.builds(WorkerRef, WORDS, st.one_of(st.just(""), WORDS), st.integers(0, 2**60)))
def test_a_ref_can_be_read_again(ref: WorkerRef) -> None:
    """All three parts survive, and the first word is the slot."""
    assert read_ref(ref.text) == ref
    assert slot_of(ref.text) == ref.worker


@pytest.mark.parametrize("text", ["w1", "w1 -", "w1 - 0"])
def test_missing_parts_are_empty(text: str) -> None:
    """A ref may be only the name of a worker."""
    assert read_ref(text) == WorkerRef("w1")


def test_leases_in_ledgers_of_parent_jobs() -> None:
    """Only an engine inside the same parent job keeps the lease of an adopted job."""
    assert lease_name("/run/lock/stoker/0.ab.lease", "") == "0.ab.lease"
    nested = lease_name("/state/workers/w-1/ledger/0.ab.lease", "w-1")
    assert adopted_lease(nested, "w-1") == "0.ab.lease"
    assert adopted_lease(nested, "w-2") == adopted_lease(nested, "") == adopted_lease("0.ab.lease", "w-1") == ""
    assert adopted_lease("0.ab.lease", "") == "0.ab.lease"
    assert lease_name("", "w-1") == ""
