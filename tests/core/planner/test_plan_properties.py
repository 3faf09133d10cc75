"""Properties of the plan on any machine and for any queue."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.device import Device
from stoker.core.job import Job, limit_of
from stoker.core.lease import Lease
from stoker.core.planner.order import Order
from stoker.core.planner.plan import Plan
from stoker.core.planner.reasons import never_fits
from stoker.core.settings import Policy
from stoker.core.spec import Resources
from support.build import a_lease, a_need, a_queue, declared, simulated
from support.world import World

QUIET = settings(max_examples=40, derandomize=True)
LONGEST = 20.0
PATIENCE = 15.0

WORDS = st.lists(st.sampled_from("0123"), min_size=1, max_size=6).map(lambda words: declared(*words))
SIZES = st.lists(st.sampled_from([8, 24]), min_size=1, max_size=5).map(lambda sizes: simulated(*sizes))
MACHINES = WORDS | SIZES
IDS = st.lists(st.sampled_from("01234"), max_size=2, unique=True)
NEEDS = st.builds(a_need, st.integers(0, 3), st.sampled_from([None, 2, 5, 8, 12]), IDS, IDS)
POLICIES = st.builds(
    Policy,
    max_running=st.none() | st.integers(1, 6),
    order=st.sampled_from(["fair", "age", "shortest"]),
    patience=st.just(PATIENCE),
    newest_first=st.booleans(),
)
LEASES = st.lists(
    st.builds(a_lease, st.sampled_from("0123"), gib=st.sampled_from([None, 4]), share=st.integers(1, 2)),
    max_size=1,
)
TIMES = st.integers(1, int(LONGEST)).map(float)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A machine after some submissions, starts and ends."""
    leases: list[Lease] = draw(LEASES)
    world = World(draw(MACHINES), draw(POLICIES), room=draw(st.integers(0, 2)), leases=leases)
    needs = draw(st.lists(NEEDS, min_size=1, max_size=4))
    for _ in range(draw(st.integers(0, 3))):
        submit_some(draw, world, needs)
        world.turn()
        check_claims(world)
        for _ in range(draw(st.integers(0, len(world.workers)))):
            world.end_next()
    submit_some(draw, world, needs)
    return world


def submit_some(draw: st.DrawFn, world: World, needs: list[Resources]) -> None:
    """Queue up to eight jobs of a few kinds."""
    submission = st.tuples(st.sampled_from(needs), TIMES, st.integers(0, 1), st.booleans())
    for resources, run_time, priority, limited in draw(st.lists(submission, min_size=1, max_size=8)):
        world.submit(resources, run_time, priority=priority, limited=limited)


def in_order(world: World) -> list[Job]:
    """All waiting jobs in the order of the plan."""
    order = Order(world.policy, world.clock, limit_of, {})
    return sorted(world.jobs, key=lambda job: (-job.spec.priority, order.key(job), job.id))


def open_starts(decided: Plan) -> dict[int, tuple[str, ...]]:
    """Job -> devices, without prefetched jobs."""
    return {start.job.id: start.devices for start in decided.starts if not start.behind}


def check_claims(world: World) -> None:
    """All claims are compatible, and no more memory is reserved than exists."""
    memory = {name: device.memory for device in world.devices for name in device.claims}
    for name, held in world.claims().items():
        assert len(held) <= min(claim.share for claim in held)
        if len(held) > 1 and (size := memory.get(name)) is not None:
            reserved = [claim.memory for claim in held]
            assert None not in reserved
            assert sum(filter(None, reserved)) + world.policy.reserve <= size


@QUIET
@given(worlds())
def test_no_device_is_given_twice_and_none_beyond_its_memory(world: World) -> None:
    """After any plan all claims are compatible."""
    world.turn()
    check_claims(world)
    whole = [
        device
        for worker in world.workers.values()
        for device in worker.devices
        if worker.jobs[0].spec.resources.memory is None
    ]
    assert len(whole) == len(set(whole))


@QUIET
@given(worlds())
def test_a_job_gets_what_it_asked_for(world: World) -> None:
    """The right number of devices, allowed ones only, no two with a claim in common."""
    by_id = {device.id: device for device in world.devices}
    for start in world.plan().starts:
        resources = start.job.spec.resources
        claims = [claim for device_id in start.devices for claim in by_id[device_id].claims]
        assert len(start.devices) == resources.gpus
        assert len(claims) == len(set(claims))
        assert not resources.allowed or set(start.devices) <= set(resources.allowed)


@QUIET
@given(worlds())
def test_every_waiting_job_has_a_reason_and_no_started_one(world: World) -> None:
    """Start or reason: never both, never neither."""
    decided = world.plan()
    started = {start.job.id for start in decided.starts}
    assert len(started) == len(decided.starts)
    for job in in_order(world):
        assert (decided.reason(job) is None) == (job.id in started)
    wants = {(job.spec.resources, job.spec.priority) for job in in_order(world) if job.id not in started}
    assert {wants[:2] for wants, _ in decided.waits.items()} == wants


@QUIET
@given(worlds(), st.randoms(use_true_random=False))
def test_equal_input_gives_an_equal_plan(world: World, random: Random) -> None:
    """The order in which jobs were added does not matter."""
    jobs = in_order(world)
    random.shuffle(jobs)
    assert world.plan(a_queue(*jobs)) == world.plan()


@QUIET
@given(worlds())
def test_the_limit_on_running_jobs_is_kept(world: World) -> None:
    """Slots and starts together never exceed it, apart from prefetched jobs."""
    limit = world.policy.max_running
    starts = [start for start in world.plan().starts if not start.behind]
    assert limit is None or not starts or len(world.slots()) + len(starts) <= limit


@QUIET
@given(worlds(), st.data())
def test_later_jobs_change_nothing_for_earlier_ones(world: World, data: st.DataObject) -> None:
    """A job waits only because of the jobs before it."""
    jobs = in_order(world)
    earlier = jobs[: data.draw(st.integers(0, len(jobs)))]
    ids = {job.id for job in earlier}
    everybody = open_starts(world.plan())
    assert open_starts(world.plan(a_queue(*earlier))) == {
        job_id: devices for job_id, devices in everybody.items() if job_id in ids
    }


@QUIET
@given(worlds(), st.floats(0, 2 * PATIENCE))
def test_a_reservation_is_never_broken(world: World, later: float) -> None:
    """On reserved devices a later job starts only if it ends in time or patience lasts."""
    world.clock += later
    decided = world.plan()
    reserved = decided.reserved
    if reserved is None:
        return
    order = [job.id for job in in_order(world)]
    for start in decided.starts:
        is_later = order.index(start.job.id) > order.index(reserved.job)
        if not is_later or set(start.devices).isdisjoint(reserved.devices):
            continue
        assert not start.behind
        if reserved.moment is None:
            assert world.clock - reserved.since < PATIENCE
        elif reserved.sure or world.clock - reserved.since >= PATIENCE:
            assert start.job.spec.limit is not None
            assert world.clock + start.job.spec.limit <= reserved.moment


@QUIET
@given(worlds())
def test_every_job_that_can_run_does_run(world: World) -> None:
    """Without new jobs the queue empties, except for jobs that wait for others or never fit."""
    world.leases = ()
    world.turn()
    while world.workers:
        world.end_next()
        world.turn()
        check_claims(world)
    assert all(never_fits(job.spec.resources, world.devices) for job in in_order(world))


WIDE_NEEDS = st.builds(a_need, st.integers(2, 4)) | st.builds(a_need, st.integers(1, 4), st.sampled_from([15, 23]))
NARROW_NEEDS = st.sampled_from([a_need(1), a_need(1, gib=4), a_need(1, gib=11), a_need(2)])


@settings(QUIET, max_examples=30)
@given(
    st.sampled_from([simulated(24, 24, 24, 24), declared("0", "1", "2", "3")]),
    WIDE_NEEDS,
    st.lists(st.tuples(NARROW_NEEDS, TIMES, st.booleans()), min_size=1, max_size=12),
    st.integers(0, 1),
)
def test_a_wide_job_is_not_starved_by_narrow_ones(
    devices: tuple[Device, ...], resources: Resources, stream: list[tuple[Resources, float, bool]], room: int
) -> None:
    """Narrow jobs that never stop coming delay it by its patience and what is under way, and no more.

    Where some have limits and some have not, one with a limit may start beside the reservation and then promise an
    earlier end than the others do: that costs the wide job one more run at most.
    """
    world = World(devices, Policy(order="age", patience=PATIENCE), room=room)
    runs = 1 + room + (len({limited for _, _, limited in stream}) > 1)
    keep_busy(world, stream, turns=5)
    for job in in_order(world):
        world.waiting.remove(job.id)
    wide = world.submit(resources, 1.0)
    submitted = world.clock
    while wide.id not in world.started_at:
        assert world.clock <= submitted + PATIENCE + runs * LONGEST
        keep_busy(world, stream, turns=1)


@settings(QUIET, max_examples=30)
@given(
    st.sampled_from([simulated(24, 24, 24, 24), declared("0", "1", "2", "3")]),
    WIDE_NEEDS,
    st.lists(st.tuples(NARROW_NEEDS, TIMES, st.booleans()), min_size=1, max_size=12),
    TIMES,
)
def test_a_long_job_is_not_starved_by_short_ones(
    devices: tuple[Device, ...], resources: Resources, stream: list[tuple[Resources, float, bool]], run_time: float
) -> None:
    """With order "shortest", only jobs submitted within a job's own GPU-seconds delay it."""
    world = World(devices, Policy(patience=PATIENCE, order="shortest", unknown=LONGEST))
    keep_busy(world, stream, turns=5)
    for job in in_order(world):
        world.waiting.remove(job.id)
    wide = world.submit(resources, run_time, limited=True)
    submitted = world.clock
    backlog = 10 * 2 * LONGEST  # those that waited when it became its turn, one after the other
    while wide.id not in world.started_at:
        assert world.clock <= submitted + resources.gpus * run_time + backlog + PATIENCE + 2 * LONGEST
        keep_busy(world, stream, turns=1)


def keep_busy(world: World, stream: list[tuple[Resources, float, bool]], turns: int) -> None:
    """Run the machine while ten narrow jobs always wait."""
    for _ in range(turns):
        while len(world.waiting) < 10:
            resources, run_time, limited = stream[len(world.run_times) % len(stream)]
            world.submit(resources, run_time, limited=limited)
        world.turn()
        world.end_next()
