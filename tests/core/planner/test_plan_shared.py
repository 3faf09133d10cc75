"""Jobs on one GPU: what is set aside for each, who may join them, and what becomes of one that company harmed."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stoker.core.device import Reading, Snapshot
from stoker.core.job import Assigned, Ended, Exited, Job, Started, Waiting, advance, needs_exclusive
from stoker.core.learning import Learnt, observe_use
from stoker.core.lease import OURS, Claim, Lease, compatible
from stoker.core.planner.occupancy import Slot
from stoker.core.planner.plan import Plan, plan
from stoker.core.planner.policy import Policy
from stoker.core.planner.queue import Shape, resolved, shape_of
from stoker.core.planner.reasons import Crowded, MemoryShort, TooBusy
from stoker.core.spec import Resources, amount_on
from support.build import GIB, a_job, a_queue, simulated

AUTO = Resources(auto=True)
FAILED = Exited(1, 1, 0, 9.0)


def learnt(peak: int, load: int | None = None) -> Learnt:
    """One run of such work, on the GPUs that the tests have."""
    return observe_use(Learnt(), simulated(24)[0].model, peak=peak, load=load)


def decided(jobs: list[Job], slots: list[Slot], known: Learnt, sizes: tuple[int, ...] = (24,), busy: int = 120) -> Plan:
    """The plan on idle GPUs of these sizes, where all work is of one kind that is known so well."""
    devices = simulated(*sizes)
    snapshot = Snapshot(0.0, devices, {device.id: Reading(used=0) for device in devices})
    weighed = Policy(busy=busy)
    return plan(
        a_queue(*jobs),
        slots,
        snapshot,
        [],
        weighed,
        0.0,
        estimate=lambda shape: resolved(shape, known, weighed.margin),
    )


def kindred(number: int, resources: Resources = AUTO, **more: int) -> Job:
    """A job of a kind that may share."""
    return msgspec.structs.replace(a_job(number, resources), kind="vit", **more)


def test_work_that_is_not_known_has_its_gpu_to_itself() -> None:
    """One on each GPU; the others wait for what these will show."""
    plan = decided([kindred(1), kindred(2), kindred(3)], [], Learnt(), (24, 24))
    assert [start.devices for start in plan.starts] == [("0",), ("1",)]
    assert isinstance(plan.reason(kindred(3)), Crowded)


def test_known_work_is_put_together() -> None:
    """As many as fit with margin and reserve: 3 x 6.9G of 24G, and the fourth waits."""
    plan = decided([kindred(number) for number in range(1, 5)], [], learnt(6 * GIB))
    assert [start.job.id for start in plan.starts] == [1, 2, 3]
    assert isinstance(plan.reason(kindred(4)), MemoryShort)


def test_the_tightest_gap_is_taken() -> None:
    """A small job goes where it leaves a large gap alone."""
    held = [Slot("k", 9, Resources(memory=20 * GIB), ("1",))]
    (start,) = decided([kindred(1, Resources(memory=2 * GIB))], held, Learnt(), (24, 24)).starts
    assert start.devices == ("1",)


def test_a_busy_gpu_takes_nobody_else() -> None:
    """Memory is there, but together they would be slower than one after the other."""
    plan = decided([kindred(1), kindred(2)], [], learnt(2 * GIB, load=90))
    assert [start.job.id for start in plan.starts] == [1]
    assert plan.reason(kindred(2)) == TooBusy("0", 180, 120)
    assert len(decided([kindred(1), kindred(2)], [], learnt(2 * GIB, load=90), busy=200).starts) == 2


def test_a_busy_job_may_run_alone() -> None:
    """The bound is on company, not on work."""
    assert decided([kindred(1)], [], learnt(2 * GIB, load=100), busy=50).starts


def test_what_would_fill_the_card_runs_alone() -> None:
    """A learnt peak with its margin may be more than the card has, and yet the job has run on it."""
    plan = decided([kindred(1), kindred(2)], [], learnt(23 * GIB))
    assert [start.job.id for start in plan.starts] == [1]


def test_wide_jobs_set_memory_aside_on_each_gpu() -> None:
    """Another one fits beside it on both, a third does not."""
    wide = Resources(gpus=2, memory=10 * GIB)
    plan = decided([kindred(number, wide) for number in (1, 2, 3)], [], Learnt(), (24, 24))
    assert [start.job.id for start in plan.starts] == [1, 2]


def test_what_a_job_is_known_to_need_counts() -> None:
    """After an end for want of memory it is given more than was declared, and at last a GPU of its own."""
    resources = Resources(memory=2 * GIB)
    (start,) = decided([kindred(1, resources, floor=9 * GIB)], [], Learnt()).starts
    assert amount_on(start.resources, simulated(24)[0]) == 9 * GIB
    (start,) = decided([kindred(1, resources, floor=9 * GIB, shared_failures=2)], [], Learnt()).starts
    assert amount_on(start.resources, simulated(24)[0]) is None


def test_a_card_that_is_too_small_for_what_is_needed_at_least_is_had_whole() -> None:
    """The job may yet fit there alone; it is not refused for what a guess says."""
    (start,) = decided([kindred(1, Resources(memory=2 * GIB), floor=30 * GIB)], [], Learnt()).starts
    assert amount_on(start.resources, simulated(24)[0]) is None


def test_whole_cards_stay_whole() -> None:
    """Whatever an attempt of it showed, a job that wants no company gets none."""
    assert resolved(Shape(Resources(), 0, floor=GIB), Learnt(), 15) == Resources()


@pytest.mark.parametrize(
    ("wanted", "held", "fits"),
    [
        ("", "", True),
        (OURS, OURS, True),
        (OURS, "", False),
        ("", OURS, False),
        (OURS, "bob", False),
        ("", "bob", False),
    ],
)
def test_clients_of_a_server_suffer_nobody_else(wanted: str, held: str, fits: bool) -> None:
    """One MPS server serves one user, and computes for its clients alone."""
    assert compatible(Claim("0", 1, 9, mps=wanted), [Claim("0", 1, 9, mps=held)], 24) == fits


def run(job: Job, event: Exited, resources: Resources | None = None) -> Job:
    """The job after an attempt that ended so."""
    job = advance(job, Assigned("k", ("0",), "1.log", 1.0, resources=resources))
    job = advance(job, Started(job.attempts, 2.0))
    return advance(job, msgspec.structs.replace(event, attempt=job.attempts))


def short(*, shared: bool, floor: int = 0) -> Exited:
    """An end for want of memory."""
    return msgspec.structs.replace(FAILED, cause="oom", shared=shared, floor=floor)


def test_company_costs_no_retry() -> None:
    """Queued again with more set aside, then alone, then over: in all three attempts, and no failure is counted."""
    job = run(kindred(1), short(shared=True, floor=3 * GIB))
    assert (job.state, job.failures, job.shared_failures, job.floor) == (Waiting(9.0), 0, 1, 3 * GIB)
    assert not needs_exclusive(job)
    job = run(job, short(shared=True, floor=2 * GIB))
    assert (job.failures, job.shared_failures, job.floor) == (0, 2, 3 * GIB)
    assert needs_exclusive(job)
    job = run(job, short(shared=False))
    assert isinstance(job.state, Ended)
    assert (job.state.result, job.failures, job.attempts) == ("oom", 1, 3)


def test_a_gpu_of_its_own_that_is_too_small_is_the_end() -> None:
    """There is nothing more to give, so nothing is tried again, unless somebody wants just that."""
    spec = msgspec.structs.replace(a_job(1).spec, retries=3)
    job = run(msgspec.structs.replace(a_job(1), spec=spec), short(shared=False))
    assert isinstance(job.state, Ended)
    stubborn = msgspec.structs.replace(spec, retry_on=("oom",))
    assert isinstance(run(msgspec.structs.replace(a_job(1), spec=stubborn), short(shared=False)).state, Waiting)


def test_a_fault_of_another_client_costs_nothing_once() -> None:
    """Whoever failed beside others under MPS runs alone next; if it fails again, that is its own doing."""
    fault = msgspec.structs.replace(FAILED, cause="fault", shared=True)
    job = run(kindred(1), fault)
    assert (job.state, job.failures) == (Waiting(9.0), 0)
    assert needs_exclusive(job)
    job = run(job, msgspec.structs.replace(fault, shared=False))
    assert isinstance(job.state, Ended)
    assert (job.state.result, job.failures) == ("failed", 1)


@example(ends=[("fault", True, 0)] * 12)
@example(ends=[("oom", True, 0), ("oom", True, 0), ("fault", True, 0), ("oom", True, 0)])
@given(st.lists(st.tuples(st.sampled_from(["", "oom", "fault"]), st.booleans(), st.integers(0, 2**36)), max_size=12))
def test_no_job_goes_round_for_ever(ends: list[tuple[str, bool, int]]) -> None:
    """However it fails, a job without retries is over after a few attempts."""
    job = kindred(1)
    for cause, shared, floor in ends:
        if isinstance(job.state, Ended):
            break
        job = run(job, msgspec.structs.replace(FAILED, cause=cause, shared=shared, floor=floor))
    assert job.attempts <= 4
    assert len(ends) < 4 or isinstance(job.state, Ended)


def test_kinds_are_planned_apart() -> None:
    """Jobs that ask for the same but are different work may have different needs."""
    assert shape_of(kindred(1)) != shape_of(msgspec.structs.replace(kindred(2), kind="bert"))
    assert shape_of(kindred(1)) == shape_of(kindred(2))


def test_others_load_counts_too() -> None:
    """What another engine's lease says of load keeps ours away."""
    devices = simulated(24)
    snapshot = Snapshot(0.0, devices, {devices[0].id: Reading(used=GIB)})
    lease = Lease((Claim(devices[0].claims[0], 2 * GIB, 99, load=80),), "bob", 7, "train", 0.0)
    known = learnt(2 * GIB, load=60)
    busy = plan(
        a_queue(kindred(1)), [], snapshot, [lease], Policy(), 0.0, estimate=lambda shape: resolved(shape, known, 15)
    )
    assert not busy.starts


def test_who_holds_more_than_was_set_aside_is_believed_to_do_so_again() -> None:
    """What is left is counted with the peak that was seen, though the neighbour has not yet taken all of its part."""
    devices = simulated(24)
    snapshot = Snapshot(0.0, devices, {devices[0].id: Reading(used=13 * GIB)})
    slots = [
        Slot("k", 8, Resources(memory=2 * GIB), ("0",), peak=12 * GIB),
        Slot("l", 9, Resources(memory=11 * GIB), ("0",)),
    ]
    assert not plan(a_queue(kindred(1, Resources(memory=2 * GIB))), slots, snapshot, [], Policy(), 0.0).starts
