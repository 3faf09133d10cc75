"""Lanes: the plan over lanes is the plan over single jobs, and costs the same for any number of kinds."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.core.job import Job
from stoker.core.learning import Learnt, Runs
from stoker.core.planner.fairshare import NO_OTHER_ENGINES
from stoker.core.planner.lanes import LaneKey, Lanes
from stoker.core.planner.occupancy import DeviceView, Occupancy, Slot
from stoker.core.planner.order import Order
from stoker.core.planner.placement import PlacementCache
from stoker.core.planner.plan import BACKFILL_DEPTH, Plan, Start, _Planner, plan
from stoker.core.planner.queue import JobKind, WaitingJobs, job_kind_of, resolved
from stoker.core.planner.reasons import KeptFree
from stoker.core.settings import Policy
from stoker.core.spec import Resources
from support.build import GIB, a_job, a_need, a_queue, a_snapshot, simulated

NOW = 100_000.0
CARDS = simulated(24, 24, 16)
MODEL = CARDS[0].model
KINDS = {
    "new": Learnt(),
    "small": Learnt((100.0,), {MODEL: Runs((2 * GIB,), (20,))}),
    "alike": Learnt((100.0,), {MODEL: Runs((2 * GIB,), (20,))}),
    "third": Learnt((100.0,), {MODEL: Runs((2 * GIB,), (20,))}),
    "large": Learnt((1850.0,), {MODEL: Runs((15 * GIB,), (90,))}),
    "busy": Learnt((700.0,), {MODEL: Runs((4 * GIB,), (95,))}),
}
NEEDS = [Resources(), a_need(2), Resources(auto=True), a_need(gib=6), a_need(gib=18), a_need(allowed=["1"]), a_need(9)]


def estimate(job_kind: JobKind) -> Resources:
    return resolved(job_kind, KINDS.get(job_kind.kind, Learnt()), 15)


def expects(job: Job) -> float | None:
    known = KINDS.get(job.kind, Learnt()).seconds
    return job.spec.limit or (known[0] if known else None)


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    """Up to twelve jobs in the order of their submission."""
    some = draw(
        st.lists(
            st.tuples(
                st.sampled_from(NEEDS),
                st.sampled_from(sorted(KINDS)),
                st.sampled_from([None, 64.0, 800.0, 1500.0, 2000.0]),
                st.integers(0, 1),
                st.sampled_from([1.0, 600.0, 7200.0]),
            ),
            min_size=1,
            max_size=12,
        )
    )
    ages = sorted((age for *_, age in some), reverse=True)
    return [
        replace(a_job(number, need, limit=limit, priority=priority), kind=kind, submitted=NOW - age)
        for number, ((need, kind, limit, priority, _), age) in enumerate(zip(some, ages, strict=True), 1)
    ]


SLOTS = st.lists(
    st.tuples(
        st.sampled_from([Resources(), a_need(gib=10)]),
        st.sampled_from("012"),
        st.sampled_from(sorted(KINDS)),
        st.sampled_from([None, NOW + 300, NOW + 1700]),
    ),
    max_size=2,
    unique_by=lambda one: one[1],
).map(
    lambda some: [
        Slot(f"w{number}", 100 + number, need, (device,), until, since=NOW - 60, kind=kind)
        for number, (need, device, kind, until) in enumerate(some)
    ]
)
POLICIES = st.builds(
    Policy,
    order=st.sampled_from(["fair", "age", "shortest"]),
    passing=st.sampled_from(["reserved", "freely", "never"]),
    max_running=st.none() | st.integers(0, 3),
    max_use=st.none() | st.integers(1, 2),
    patience=st.just(0.0),
)


def one_by_one(waiting: list[Job], slots: list[Slot], policy: Policy) -> list[Start]:
    """The plan without lanes: of all jobs the first in order is tried, again and again."""
    occupancy = Occupancy(slots, a_snapshot(CARDS, NOW), [], policy=policy, now=NOW, freed={})
    order = Order(policy, NOW, expects, Counter(slot.kind for slot in slots))
    placement_cache = PlacementCache(occupancy, a_snapshot(CARDS, NOW), policy)
    lanes = Lanes(WaitingJobs(), estimate)
    planner = _Planner(
        occupancy, placement_cache, slots, lanes=lanes, order=order, policy=policy, fair_share=NO_OTHER_ENGINES
    )
    left = list(waiting)
    while left:
        job = min(left, key=lambda job: (-job.spec.priority, order.key(job), job.id))
        left.remove(job)
        job_kind = job_kind_of(job)
        outcome = planner.start_now(job, LaneKey(job_kind.priority, job_kind.caps, order.work(job), estimate(job_kind)))
        if isinstance(outcome, Start):
            planner.starts.append(outcome)
            order.started(job)
    return planner.starts


def planned(waiting: WaitingJobs, slots: list[Slot], policy: Policy, lanes: Lanes | None = None) -> Plan:
    snapshot = a_snapshot(CARDS, NOW)
    return plan(waiting, slots, snapshot, [], policy, NOW, expects=expects, estimate=estimate, lanes=lanes)


@settings(max_examples=300, derandomize=True)
@given(jobs(), SLOTS, POLICIES)
def test_lanes_change_nothing(waiting: list[Job], slots: list[Slot], policy: Policy) -> None:
    """The same jobs start on the same devices as if each was tried by itself; all others have a reason."""
    decided = planned(a_queue(*waiting), slots, policy)
    assert list(decided.starts) == one_by_one(waiting, slots, policy)
    started = {start.job.id for start in decided.starts}
    assert all((decided.reason(job) is None) == (job.id in started) for job in waiting)


@settings(max_examples=100, derandomize=True)
@given(st.lists(st.sampled_from(["small", "alike", "third"]), min_size=3, max_size=8))
def test_lanes_change_nothing_among_kinds_that_share_one(kinds: list[str]) -> None:
    """A start makes the next job of its kind more work; that hides no job of another kind in the same lane."""
    waiting = [replace(a_job(number, since=NOW - 600), kind=kind) for number, kind in enumerate(kinds, 1)]
    assert list(planned(a_queue(*waiting), [], Policy()).starts) == one_by_one(waiting, [], Policy())


@settings(max_examples=100, derandomize=True)
@given(
    st.lists(st.sampled_from([None, 64.0, 800.0, 1500.0, 1900.0]), min_size=2, max_size=6),
    st.sampled_from(["fair", "age", "shortest"]),
    st.sampled_from([NOW + 90, NOW + 900, NOW + 1800, None]),
)
def test_lanes_change_nothing_behind_a_reservation(
    limits: list[float | None], order: Literal["fair", "age", "shortest"], until: float | None
) -> None:
    """Jobs of one lane take different times: each passes the blocked job if it ends early enough."""
    policy = Policy(order=order, patience=0.0)
    wide = a_job(1, a_need(3), priority=1)
    waiting = [wide, *(a_job(number, limit=limit, since=NOW - 60) for number, limit in enumerate(limits, 2))]
    running = [Slot("w0", 100, Resources(), ("0",), until, since=NOW - 60)]
    decided = planned(a_queue(*waiting), running, policy)
    assert list(decided.starts) == one_by_one(waiting, running, policy)


def test_a_long_lane_is_examined_to_a_limit() -> None:
    """Behind so many groups that are too long to pass, a shorter one waits; so the cost is bounded."""
    running = [Slot("w0", 1000, Resources(), ("0",), NOW + 600, since=NOW - 60)]
    wide = a_job(1, a_need(3), priority=1)
    short = a_job(900, limit=500.0)
    for groups, starts in ((BACKFILL_DEPTH - 1, [900]), (BACKFILL_DEPTH, [])):
        longer = [a_job(number + 2, limit=1000.0 + number) for number in range(groups)]
        decided = planned(a_queue(wide, *longer, short), running, Policy(order="age", patience=0.0))
        assert [start.job.id for start in decided.starts] == starts
        assert all(isinstance(decided.reason(job), KeptFree) for job in longer)


@settings(max_examples=200, derandomize=True)
@given(st.lists(jobs(), min_size=2, max_size=5), SLOTS, POLICIES, st.randoms(use_true_random=False))
def test_kept_lanes_are_those_made_anew(
    batches: list[list[Job]], slots: list[Slot], policy: Policy, random: Random
) -> None:
    """However jobs come, go and are learnt of, lanes that are kept give the plan of new ones."""
    waiting = WaitingJobs()
    known = dict(KINDS)
    lanes = Lanes(waiting, lambda job_kind: resolved(job_kind, known.get(job_kind.kind, Learnt()), 15))
    for number, batch in enumerate(batches):
        for job in batch:  # some are edited: another job takes the place of one with the same id
            waiting.add(replace(job, id=100 * random.randrange(max(1, number), number + 2) + job.id))
        for group in list(waiting.groups()):
            for job in list(group):
                if random.random() < 0.3:
                    waiting.remove(job.id)
        known["new"] = random.choice(list(KINDS.values()))
        lanes.learnt("new")
        running = slots[: random.randrange(3)]
        fresh = Lanes(waiting, lambda job_kind: resolved(job_kind, known.get(job_kind.kind, Learnt()), 15))
        order = Order(policy, NOW, expects, Counter(slot.kind for slot in running))
        fresh.refresh(order, [group.job_kind for group in waiting.groups()])
        kept = planned(waiting, running, policy, lanes)
        assert kept.starts == planned(waiting, running, policy, fresh).starts
        assert {lane.key: lane.size for lane in lanes} == {lane.key: lane.size for lane in fresh}
        for start in kept.starts:
            waiting.remove(start.job.id)


@pytest.mark.parametrize("known", [False, True])
def test_the_cost_does_not_grow_with_the_kinds(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full machine a plan examines as many devices for a thousand kinds as for ten."""
    looks: Counter[int] = Counter()
    fit = Occupancy.fit

    def counted(self: Occupancy, view: DeviceView, *more: object) -> int | None:
        looks[number] += 1
        return fit(self, view, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(Occupancy, "fit", counted)
    slots = [Slot(f"w{card.id}", 9000, Resources(), (card.id,), None, since=NOW - 60) for card in CARDS]
    for number in (10, 1000):
        random = Random(1)
        runs = {
            f"kind{one}": Learnt((300.0,), {MODEL: Runs((random.randrange(1, 20 * GIB),), (random.randrange(100),))})
            for one in range(number)
        }
        auto = Resources(auto=True)
        waiting = a_queue(*(replace(a_job(one + 1, auto), kind=f"kind{one}") for one in range(number)))
        lanes = Lanes(waiting, lambda job_kind: resolved(job_kind, runs[job_kind.kind] if known else Learnt(), 15))  # noqa: B023
        for _ in range(2):
            looks[number] = 0
            assert not planned(waiting, slots, Policy(), lanes).starts
    assert looks[1000] == looks[10]


def test_an_edited_job_changes_its_lane() -> None:
    """Whatever it was before and is now: it is in one lane, and starts."""
    waiting = WaitingJobs()
    lanes = Lanes(waiting, estimate)
    for gib in range(1, 24):
        waiting.add(a_job(1, a_need(gib=gib)))
        decided = planned(waiting, [], Policy(max_running=0), lanes)
        assert (decided.starts, [lane.size for lane in lanes]) == ((), [1])
    assert [start.job.id for start in planned(waiting, [], Policy(), lanes).starts] == [1]


@given(jobs())
def test_standings_are_in_the_order_of_the_plan(queued: list[Job]) -> None:
    """The first jobs by priority, key and age, with the figures that decide."""
    waiting, order = a_queue(*queued), Order(Policy(), NOW, expects, Counter())
    lanes = Lanes(waiting, estimate)
    lanes.refresh(order, waiting.take_touched())
    ranked = sorted(queued, key=lambda job: (-job.spec.priority, order.key(job), job.id))
    for most in (3, 99):
        assert [one.job for one in lanes.standings(order, most)] == [job.id for job in ranked][:most]


def test_an_array_stands_once() -> None:
    """Whatever its size, it costs one step, and tells how many of its tasks are left."""
    tasks = [replace(a_job(number), array=2, task=number - 2) for number in range(2, 30_002)]
    waiting = a_queue(a_job(1), *tasks, a_job(40_000))
    for gone in (2, 3, 500, 30_001):
        waiting.remove(gone)
    lanes, order = Lanes(waiting, estimate), Order(Policy(order="age"), NOW, expects, Counter())
    lanes.refresh(order, waiting.take_touched())
    assert [(one.job, one.tasks) for one in lanes.standings(order, 200)] == [(1, 1), (4, 29_996), (40_000, 1)]
    waiting.add(tasks[0])
    lanes.refresh(order, waiting.take_touched())
    assert [(one.job, one.tasks) for one in lanes.standings(order, 200)] == [(1, 1), (2, 29_997), (40_000, 1)]
