"""Cached answers about resources are those of the functions, and computed once."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.device import Device, Snapshot
from stoker.core.lease import Lease
from stoker.core.planner.occupancy import NOW, DeviceView, Occupancy
from stoker.core.planner.placement import PlacementCache, reserve, why_blocked
from stoker.core.planner.reasons import NeverFits, never_fits
from stoker.core.settings import Policy
from stoker.core.spec import Resources
from support.build import a_job, a_lease, a_need, a_snapshot, declared, simulated, slot

WORDS = st.lists(st.sampled_from("0123"), min_size=1, max_size=5).map(lambda words: declared(*words))
SIZES = st.lists(st.sampled_from([8, 24]), min_size=1, max_size=4).map(lambda sizes: simulated(*sizes))
IDS = st.lists(st.sampled_from("01234"), max_size=2, unique=True)
NEEDS = st.builds(a_need, st.integers(1, 3), st.sampled_from([None, 2, 5, 12, 30]), IDS, IDS)
LEASES = st.lists(st.builds(a_lease, st.sampled_from("0123"), gib=st.sampled_from([None, 4])), max_size=1)
STARTS = st.lists(st.tuples(NEEDS, st.sampled_from("0123"), st.sampled_from([5.0, 50.0])), max_size=4)


class CountingOccupancy(Occupancy):
    """Counts calls of fit()."""

    looks = 0

    def fit(self, view: DeviceView, resources: Resources, at: float = NOW) -> int | None:
        """Count the call."""
        self.looks += 1
        return super().fit(view, resources, at)


def occupied(snapshot: Snapshot, leases: Sequence[Lease] = ()) -> CountingOccupancy:
    """A machine with leases of others and no attempts of ours."""
    return CountingOccupancy((), snapshot, leases, policy=Policy(), now=10.0, freed={})


def check(
    placement_cache: PlacementCache, occupancy: Occupancy, resources: Resources, devices: Sequence[Device]
) -> None:
    """All answers equal those of the functions."""
    job, never = a_job(1, resources), never_fits(resources, devices)
    fresh = PlacementCache(occupancy, Snapshot(10.0, tuple(devices)), Policy())
    assert placement_cache.never(resources) == (NeverFits(never) if never else None)
    assert placement_cache.offers(resources) == fresh.offers(resources)
    if never is None:
        assert placement_cache.why_blocked(resources) == why_blocked(resources, occupancy)
        assert placement_cache.reserve(job, resources) == reserve(job, resources, occupancy)


@settings(max_examples=60, derandomize=True)
@given(WORDS | SIZES, LEASES, st.lists(NEEDS, min_size=1, max_size=4), STARTS)
def test_cached_answers_are_correct(
    devices: tuple[Device, ...], leases: list[Lease], needs: list[Resources], starts: list[tuple[Resources, str, float]]
) -> None:
    """Answers are correct after any starts."""
    occupancy = occupied(a_snapshot(devices, at=10.0), leases)
    placement_cache = PlacementCache(occupancy, Snapshot(10.0, devices), Policy())
    for number, (resources, device, until) in enumerate(starts):
        for asked in needs * 2:
            check(placement_cache, occupancy, asked, devices)
        placement_cache.assign(100 + number, resources, (device,), until)
    for asked in needs * 2:
        check(placement_cache, occupancy, asked, devices)


def test_resources_are_examined_once() -> None:
    """A thousand kinds with the same resources cost as much as one."""
    snapshot = a_snapshot(simulated(24, 24), at=10.0)
    occupancy = occupied(snapshot, [a_lease("0", "1")])
    placement_cache, job = PlacementCache(occupancy, snapshot, Policy()), a_job(1, a_need())
    looks = []
    for _ in range(1000):
        placement_cache.never(job.spec.resources)
        placement_cache.offers(job.spec.resources)
        placement_cache.why_blocked(job.spec.resources)
        assert placement_cache.reserve(job, job.spec.resources) is None
        looks.append(occupancy.looks)
    assert looks[-1] == looks[0]


def test_a_start_is_seen() -> None:
    """A device that a job got is not offered again."""
    snapshot = a_snapshot(declared("0", "1"))
    placement_cache = PlacementCache(occupied(snapshot), snapshot, Policy())
    assert [offer.device.id for offer in placement_cache.offers(Resources())] == ["0", "1"]
    placement_cache.assign(7, Resources(), slot(7, "0").devices, 20.0)
    assert [offer.device.id for offer in placement_cache.offers(Resources())] == ["1"]
