"""The fair order between users, and devices left to demands that go first."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.planner.fairshare import (
    GATHER_SECONDS,
    GRAIN_GPU_SECONDS,
    HALF_LIFE_SECONDS,
    NO_OFFERS,
    REOFFER_SECONDS,
    YIELD_SECONDS,
    Demand,
    decayed,
    demands_ahead,
    fair_order,
    usage_of,
    yield_devices,
)
from support.sharing import Machine, Waiter


def demand(uid: int = 1, usage: float = 0.0, since: float = 0.0, **more: object) -> Demand:
    """A demand of a user."""
    return Demand(uid, f"user {uid}", usage, since, **more)  # type: ignore[arg-type]


moments = st.floats(0, 1e6)
demands = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.builds(
        demand, st.integers(1, 4), st.sampled_from([0.0, 0.4, 1.2, 5.0, 1e300]), st.sampled_from([0.0, 1.0, 2.0])
    ),
    min_size=1,
)
runs = st.lists(st.tuples(st.integers(0, 8), moments, moments).map(lambda run: (run[0], *sorted(run[1:]))))


class TestUsage:
    """Usage of a user."""

    def test_counts_half_after_the_half_life(self) -> None:
        """Usage counts half after one half-life, a quarter after two; a clock that runs backwards does not raise it."""
        assert decayed(8.0, HALF_LIFE_SECONDS) == pytest.approx(4.0)
        assert decayed(8.0, 20.0, half_life=10.0) == pytest.approx(2.0)
        assert decayed(8.0, -100.0) == 8.0

    def test_recent_runs_count_in_full(self) -> None:
        """Running and just ended runs count as GPUs times seconds."""
        assert usage_of([(2, 0.0, 10.0), (1, 5.0, None), (0, 0.0, 10.0)], 10.0) == pytest.approx(25.0, rel=0.01)

    def test_nothing_is_counted_before_it_happens(self) -> None:
        """A run that begins or ends in the future, by another clock, counts up to now."""
        assert usage_of([(1, 0.0, 99.0)], 10.0) == usage_of([(1, 0.0, None)], 10.0)
        assert usage_of([(1, 50.0, 99.0), (1, 50.0, None)], 10.0) == 0.0

    @given(runs, st.floats(1e6, 2e6), st.floats(0, 1e5))
    def test_ages_as_a_whole(self, runs: list[tuple[int, float, float]], now: float, later: float) -> None:
        """The usage of ended runs decays as a whole, so it may be kept as one number."""
        aged = decayed(usage_of(runs, now), later)
        assert usage_of(runs, now + later) == pytest.approx(aged, rel=1e-3, abs=1e-9)

    @given(runs, moments)
    def test_never_more_than_it_was(self, runs: list[tuple[int, float, float]], now: float) -> None:
        """Usage is never negative and never exceeds the GPU-seconds of the runs."""
        had = sum(gpus * (ended - began) for gpus, began, ended in runs)
        assert 0.0 <= usage_of(runs, now) <= had * 1.001 + 1e-6


class TestOrder:
    """The order of demands."""

    def test_least_usage_goes_first(self) -> None:
        """A user with less usage goes before one who has waited longer."""
        assert fair_order({"a": demand(1, usage=50.0, since=0.0), "b": demand(2, usage=3.0, since=9.0)}) == ["b", "a"]

    def test_equals_go_by_age(self) -> None:
        """Users whose usage differs by less than the grain go by waiting time."""
        first, second = (
            demand(1, usage=0.9 * GRAIN_GPU_SECONDS, since=0.0),
            demand(2, usage=0.1 * GRAIN_GPU_SECONDS, since=9.0),
        )
        assert fair_order({"b": second, "a": first}) == ["a", "b"]

    def test_engines_of_one_user_go_by_age(self) -> None:
        """Engines of one user go by age, whatever usage each of them knows."""
        older, newer = demand(1, usage=50.0, since=0.0), demand(1, usage=0.0, since=1.0)
        assert fair_order({"a": newer, "b": older}) == ["b", "a"]

    def test_the_largest_usage_of_a_user_counts(self) -> None:
        """The largest usage that any engine of a user publishes counts."""
        engines = {"a": demand(1, usage=50.0), "b": demand(1, usage=0.0), "c": demand(2, usage=10.0, since=9.0)}
        assert fair_order(engines)[0] == "c"

    @given(demands)
    def test_all_engines_compute_the_same_order(self, demands: dict[str, Demand]) -> None:
        """From the same demands every engine computes the same order."""
        ahead = {
            name: {each for each, _ in demands_ahead({k: v for k, v in demands.items() if k != name}, name, mine)}
            for name, mine in demands.items()
        }
        for name in demands:
            for other in demands:
                assert name == other or (name in ahead[other]) != (other in ahead[name])
        assert sorted(len(each) for each in ahead.values()) == list(range(len(demands)))


class TestYielding:
    """Devices left to the demands ahead."""

    def test_as_many_as_they_demand(self) -> None:
        """Each demand ahead gets as many devices as it asks for; the most preferred ones remain ours."""
        ahead = [("a", demand(1, gpus=1)), ("b", demand(2, gpus=2))]
        assert set(yield_devices(ahead, ["0", "1", "2", "3"], NO_OFFERS, 0.0).left) == {"1", "2", "3"}

    def test_only_devices_that_they_would_take(self) -> None:
        """Devices that no demand ahead could use remain ours."""
        step = yield_devices([("a", demand(1, gpus=8, claims=("1", "7")))], ["0", "1", "2"], NO_OFFERS, 0.0)
        assert {device: each.owner for device, each in step.left.items()} == {"1": "user 1"}

    def test_no_demand_ahead(self) -> None:
        """The first demand yields to no other."""
        step = yield_devices([], ["0"], {("gone", "0"): 0.0}, 1.0)
        assert (step.left, step.offers) == ({}, {})

    def test_a_device_that_is_not_taken_is_ours(self) -> None:
        """A device that is not taken in time is ours for a while; then it is offered again."""
        ahead = [("stuck", demand(1))]
        step = yield_devices(ahead, ["0"], NO_OFFERS, 0.0)
        step = yield_devices(ahead, ["0"], step.offers, YIELD_SECONDS)
        assert list(step.left) == ["0"]
        step = yield_devices(ahead, ["0"], step.offers, YIELD_SECONDS + 0.1)
        assert step.left == {}
        step = yield_devices(ahead, [], step.offers, YIELD_SECONDS + 10)  # taken by me
        step = yield_devices(ahead, ["0"], step.offers, YIELD_SECONDS + 20)
        assert step.left == {}
        step = yield_devices(ahead, ["0"], step.offers, YIELD_SECONDS + REOFFER_SECONDS + 1)
        step = yield_devices(ahead, ["0"], step.offers, YIELD_SECONDS + REOFFER_SECONDS + 2)
        assert list(step.left) == ["0"]

    def test_a_device_that_was_taken_is_offered_again(self) -> None:
        """A device that was held in between starts a new offer."""
        ahead = [("a", demand(1))]
        step = yield_devices(ahead, ["0"], NO_OFFERS, 0.0)
        step = yield_devices(ahead, [], step.offers, 1.0)
        step = yield_devices(ahead, ["0"], step.offers, YIELD_SECONDS + 1)
        step = yield_devices(ahead, ["0"], step.offers, YIELD_SECONDS + 2)
        assert list(step.left) == ["0"]

    def test_next_in_line_gets_what_the_first_does_not_take(self) -> None:
        """A device that the first does not take is left to the next demand ahead."""
        ahead = [("stuck", demand(1)), ("b", demand(2))]
        step = yield_devices(ahead, ["0"], NO_OFFERS, 0.0)
        assert step.left["0"].uid == 1
        assert yield_devices(ahead, ["0"], step.offers, YIELD_SECONDS + 0.1).left["0"].uid == 2

    def test_several_at_once_take_longer(self) -> None:
        """A demand for several devices at once has more time, but not unlimited time."""
        ahead = [("wide", demand(1, gpus=2, least=2))]
        step = yield_devices(ahead, ["0"], NO_OFFERS, 0.0)
        assert list(yield_devices(ahead, ["0", "1"], step.offers, YIELD_SECONDS * 2).left) == ["1", "0"]
        assert list(yield_devices(ahead, ["0", "1"], step.offers, GATHER_SECONDS + 1).left) == ["1"]

    @given(demands, st.lists(st.sampled_from("01234567"), unique=True))
    def test_never_do_all_engines_yield(self, demands: dict[str, Demand], free: list[str]) -> None:
        """For any demands the first in the order yields to no other, so a free device is always taken."""
        first = fair_order(demands)[0]
        others = {name: each for name, each in demands.items() if name != first}
        assert yield_devices(demands_ahead(others, first, demands[first]), free, NO_OFFERS, 0.0).left == {}


def waiters(random: Random, count: int, jobs: int) -> list[Waiter]:
    """Users whose jobs differ in length by up to ten times, and whose demand differs by up to four times."""
    longest = [random.choice([0.2, 0.5, 1.0, 2.0]) for _ in range(count)]
    return [
        Waiter(uid, [random.uniform(0.1, 1.0) * longest[uid] for _ in range(jobs * random.randint(1, 4))])
        for uid in range(count)
    ]


class TestOverTime:
    """The shares of users after many jobs."""

    @settings(max_examples=15, derandomize=True)
    @given(st.integers(0, 2**32), st.integers(2, 5), st.integers(1, 6))
    def test_all_users_get_an_equal_share(self, seed: int, count: int, devices: int) -> None:
        """While all users wait, each gets within 20 % of an equal share, however long the jobs are."""
        random = Random(seed)
        machine = Machine(waiters(random, count, jobs=300), devices, random)
        machine.run(2.0)
        began = machine.now
        machine.run_while_all_wait()
        served = [waiter.served(began, machine.now) for waiter in machine.waiters]
        equal = sum(served) / count
        assert all(abs(each - equal) <= 0.2 * equal for each in served), served

    def test_idle_share_is_used(self) -> None:
        """When one user has no more jobs, the others share the whole machine equally."""
        random = Random(1)
        lengths = [random.uniform(0.2, 0.4) for _ in range(2000)]
        machine = Machine([Waiter(1, lengths[:50]), Waiter(2, list(lengths)), Waiter(3, list(lengths))], 4, random)
        machine.run_while_all_wait()
        began = machine.now + 5.0
        machine.run(60.0)
        served = [waiter.served(began, machine.now) for waiter in machine.waiters]
        assert served[0] == 0.0
        assert served[1] == pytest.approx(served[2], rel=0.1)
        assert sum(served) > 0.5 * 4 * (machine.now - began)

    def test_stuck_engine_costs_little(self) -> None:
        """A stuck engine that stays ahead and takes nothing costs the others at most a tenth of the machine."""
        random = Random(2)
        machine = Machine([Waiter(1, [0.3] * 9), Waiter(2, [0.3] * 9000), Waiter(3, [0.3] * 9000)], 4, random)
        stuck, *_ = machine.waiters
        machine.told[stuck.name] = stuck.demand(0.0, 4)
        stuck.stuck = True
        machine.run(130.0)
        exclusive = Machine([Waiter(2, [0.3] * 9000), Waiter(3, [0.3] * 9000)], 4, random)
        exclusive.run(130.0)
        served, possible = (sum(each.served(0.0, 130.0) for each in one.waiters) for one in (machine, exclusive))
        assert served > 0.85 * possible
