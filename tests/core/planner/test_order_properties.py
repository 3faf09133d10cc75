"""Properties of the fair order on any machine and for any queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import ceil, log2
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.core.device import Device
from stoker.core.job import Waiting, limit_of
from stoker.core.planner.order import HEAD_START_SECONDS, Order, rounded_work
from stoker.core.planner.plan import Plan
from stoker.core.planner.reasons import never_fits
from stoker.core.settings import Policy
from stoker.core.spec import Resources
from support.build import a_need, a_queue, declared, simulated
from support.world import World

QUIET = settings(max_examples=60, derandomize=True)
MINUTE, HOUR = 60.0, 3600.0
LONGEST = 2 * HOUR
FAIR = Policy(patience=0.0)

MACHINES = st.sampled_from([declared("0", "1", "2"), declared("0"), simulated(24, 24)])
NEEDS = st.sampled_from([a_need(1), a_need(2), a_need(1, gib=4), a_need(1, gib=7), a_need(1, gib=20)])
TIMES = st.sampled_from([30.0, 5 * MINUTE, 20 * MINUTE, HOUR, LONGEST])
SUBMISSIONS = st.lists(
    st.tuples(NEEDS, TIMES, st.sampled_from([0, 0, 0, 1]), st.booleans(), st.sampled_from(["", "a", "b"])),
    min_size=1,
    max_size=8,
)


@st.composite
def crowded_worlds(draw: st.DrawFn) -> World:
    """A machine on which jobs have just ended and others have just come, with more jobs than it can run."""
    world = World(draw(MACHINES), FAIR)
    submit_some(draw, world)
    for pause in draw(st.lists(st.sampled_from([10 * MINUTE, HOUR, LONGEST]), min_size=1, max_size=3)):
        world.turn()
        world.clock += pause
        while world.workers and min(worker.ends for worker in world.workers.values()) < world.clock:
            world.end_next()
        submit_some(draw, world)
    return world


def submit_some(draw: st.DrawFn, world: World) -> None:
    for need, run_time, priority, limited, kind in draw(SUBMISSIONS):
        world.submit(need, run_time, priority=priority, limited=limited, kind=kind)
        world.clock += 1.0


def order_now(world: World) -> Order:
    return Order(world.policy, world.clock, limit_of, Counter(slot.kind for slot in world.slots()))


class Passed(NamedTuple):
    """A job that starts in place of an older one of its priority: the work of both, and how often they waited that."""

    work: float
    ratio: float
    older_work: float
    older_ratio: float


def all_passed(world: World) -> Iterator[Passed]:
    """Every pair in which the older job would start if the younger one was not there."""
    decided, order = world.plan(), order_now(world)
    started = ids_of(decided)
    for start in decided.starts:
        younger = start.job
        instead = ids_of(world.plan(a_queue(*(job for job in world.jobs if job.id != younger.id))))
        for job in world.jobs:
            is_older = job.id < younger.id and job.spec.priority == younger.spec.priority
            if is_older and job.id in instead and job.id not in started:
                work, older_work = order.work(younger), order.work(job)
                waits = (
                    world.clock - younger.submitted + HEAD_START_SECONDS,
                    world.clock - job.submitted + HEAD_START_SECONDS,
                )
                yield Passed(work, waits[0] / work, older_work, waits[1] / older_work)
        order.started(younger)


def ids_of(decided: Plan) -> set[int]:
    return {start.job.id for start in decided.starts}


@settings(QUIET, max_examples=200)
@given(crowded_worlds())
def test_no_job_is_passed_by_one_that_takes_no_less_or_has_waited_less_for_what_it_takes(world: World) -> None:
    """Of two jobs that could start, the younger is first only if it is less work and has at least the other's ratio."""
    for passed in all_passed(world):
        assert passed.work < passed.older_work
        assert passed.ratio >= passed.older_ratio


@settings(QUIET, max_examples=100)
@given(crowded_worlds(), st.sampled_from([1.1, 3.0, 50.0]))
def test_a_longer_limit_never_starts_a_job_earlier(world: World, factor: float) -> None:
    """A job that does not start with its limit does not start with a longer one."""
    started = ids_of(world.plan())
    for job in world.jobs:
        if job.id in started or job.spec.limit is None:
            continue
        longer = replace(job, spec=replace(job.spec, limit=job.spec.limit * factor))
        others = [other for other in world.jobs if other.id != job.id]
        assert job.id not in ids_of(world.plan(a_queue(*others, longer)))


@QUIET
@given(crowded_worlds())
def test_the_moment_of_the_last_attempt_does_not_matter(world: World) -> None:
    """A queue in which all jobs came back just now gives the starts that it would have given without."""
    came_back = [replace(job, state=Waiting(world.clock)) for job in world.jobs]
    order = order_now(world)
    assert list(map(order.key, came_back)) == list(map(order.key, world.jobs))
    assert ids_of(world.plan(a_queue(*came_back))) == ids_of(world.plan())


@settings(QUIET, max_examples=30)
@given(MACHINES, SUBMISSIONS, st.integers(1, 3))
def test_the_limit_of_a_group_is_kept(
    devices: tuple[Device, ...], some: list[tuple[Resources, float, int, bool, str]], limit: int
) -> None:
    """Whatever the order: never more of a group run at once, and all of them run."""
    world = World(devices, replace(FAIR, limits={"group vision": limit}))
    for number, (need, run_time, priority, limited, kind) in enumerate(some * 2):
        world.submit(
            need, run_time, priority=priority, limited=limited, kind=kind, group="vision" if number % 3 else ""
        )
    world.turn()
    while world.workers:
        running = [worker.jobs[0].spec.group for worker in world.workers.values()]
        assert running.count("vision") <= limit
        world.end_next()
        world.turn()
    assert all(never_fits(job.spec.resources, devices) for job in world.jobs)


# -- no starvation -----------------------------------------------------------------------------------

WIDE = st.integers(2, 4).map(a_need)
STREAMS = st.lists(st.tuples(st.sampled_from([a_need(1), a_need(2)]), TIMES), min_size=1, max_size=6)
FOUR = declared("0", "1", "2", "3")
MOST_TURNS = 20_000


class Endless(NamedTuple):
    """Jobs with limits that never stop coming, in the place of each that starts."""

    world: World
    stream: list[tuple[Resources, float]]
    backlog: int

    def keep_busy(self) -> None:
        """Plan with new jobs, and let the next job end."""
        world = self.world
        while len(world.waiting) < self.backlog:
            need, run_time = self.stream[len(world.run_times) % len(self.stream)]
            world.submit(need, run_time, limited=True)
        world.turn()
        world.end_next()

    @property
    def least_work(self) -> float:
        return min(rounded_work(need.gpus * run_time) for need, run_time in self.stream)


def busy_machine(stream: list[tuple[Resources, float]], policy: Policy = FAIR, backlog: int = 8) -> Endless:
    endless = Endless(World(FOUR, policy), stream, backlog)
    for _ in range(6):
        endless.keep_busy()
    return endless


@settings(QUIET, max_examples=40)
@given(WIDE, TIMES, STREAMS)
def test_a_large_job_is_not_starved_by_small_ones(
    need: Resources, run_time: float, stream: list[tuple[Resources, float]]
) -> None:
    """Wide among narrow, long among short: it starts once it has waited longer for its work than any of them.

    From then on it has the reservation, and what runs ends.
    """
    endless = busy_machine(stream)
    world = endless.world
    large = world.submit(need, run_time, limited=True)
    ratio = rounded_work(need.gpus * run_time) / endless.least_work
    waited = 0.0
    for _ in range(MOST_TURNS):
        waited = max(waited, *(world.clock - job.submitted for job in world.jobs if job != large))
        endless.keep_busy()
        assert world.clock - large.submitted <= (waited + HEAD_START_SECONDS) * ratio + 2 * LONGEST
        if large.id in world.started_at:
            return
    pytest.fail("it never starts")


@settings(QUIET, max_examples=10)
@given(WIDE, TIMES, STREAMS)
def test_no_overload_delays_a_job_beyond_the_guard(
    need: Resources, run_time: float, stream: list[tuple[Resources, float]]
) -> None:
    """With ever more jobs than the machine can run, a job waits until it is overdue and those older have started."""
    guard = 4 * HOUR
    endless = busy_machine(stream, replace(FAIR, overdue=guard))
    world = endless.world
    older = len(world.waiting)
    large = world.submit(need, run_time, limited=True)
    while large.id not in world.started_at:
        assert world.clock - large.submitted <= guard + (older + 2) * LONGEST
        endless = endless._replace(backlog=endless.backlog + 2)
        endless.keep_busy()


# -- batches -----------------------------------------------------------------------------------------


@settings(QUIET, max_examples=30)
@given(st.integers(2, 9), st.integers(2, 4), st.sampled_from([MINUTE, 20 * MINUTE, HOUR]))
def test_batches_of_equal_jobs_share_the_machine(gpus: int, kinds: int, run_time: float) -> None:
    """Among batches that came at once, each has as many running jobs as any other, up to the rounding of work."""
    world = World(declared(*map(str, range(gpus))), FAIR)
    for kind in "abcd"[:kinds]:
        for _ in range(30):
            world.submit(a_need(1), run_time, limited=True, kind=kind)
    for _ in range(40):
        world.turn()
        running = Counter(worker.jobs[0].kind for worker in world.workers.values())
        shares = [running[kind] for kind in "abcd"[:kinds]]
        assert sum(shares) == gpus
        assert rounded_work(run_time * max(shares)) <= rounded_work(run_time * (min(shares) + 1))
        world.end_next()


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 7, 8])
def test_a_single_job_passes_a_sweep_that_runs(gpus: int) -> None:
    """As soon as it has waited a share of what the sweep's next job has: 1 / 2^ceil(log2(n + 1)) on n GPUs."""
    run_time, share = 1024.0, 2 ** ceil(log2(gpus + 1))
    for waited, first in ((0.99, "sweep"), (1.01, "single")):
        world = World(declared(*map(str, range(gpus + 1))), FAIR)
        for _ in range(gpus):
            world.submit(a_need(1), run_time, limited=True, kind="sweep")
        world.turn()
        sweep = world.submit(a_need(1), run_time, limited=True, kind="sweep")
        single = world.submit(a_need(1), run_time, limited=True, kind="single")
        world.clock += HOUR
        world.waiting.add(
            replace(single, submitted=world.clock - (waited * (HOUR + HEAD_START_SECONDS) / share - HEAD_START_SECONDS))
        )
        (start,) = world.plan().starts
        assert start.job.kind == first
        assert {sweep.id, single.id} > {start.job.id}
