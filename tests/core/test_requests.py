"""Requests about several jobs at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.core.requests import Cancel, Hold, Release, Request, merged, split

REQUESTS = st.lists(
    st.builds(
        lambda kind, job: kind(job),
        st.sampled_from([Hold, Release, Cancel, lambda job: Cancel(job, grace=1.0)]),
        st.integers(1, 6),
    )
)


def one_by_one(requests: list[Request]) -> list[Request]:
    return [
        replace(several, job=several.job + place, count=1) for several in requests for place in range(several.count)
    ]


def test_neighbours_become_one() -> None:
    """Those that differ only in the job, if their ids follow each other."""
    requests: list[Request] = [Hold(3), Hold(4), Hold(5), Hold(7), Release(8), Hold(9), Hold(10, "why")]
    assert list(merged(requests)) == [Hold(3, count=3), Hold(7), Release(8), Hold(9), Hold(10, "why")]


@given(REQUESTS)
def test_merging_keeps_all_requests_in_order(requests: list[Request]) -> None:
    """One by one they are what they were."""
    assert one_by_one(list(merged(requests))) == requests


@given(st.integers(1, 9), st.integers(1, 9))
def test_a_part_and_its_rest(count: int, most: int) -> None:
    """Together they are about the same jobs; the part is never too large."""
    request = Cancel(4, "why", count=count)
    part, rest = split(request, most)
    assert part.count <= most
    assert one_by_one([part, *([rest] if rest else [])]) == one_by_one([request])
