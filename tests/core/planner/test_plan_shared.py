"""Jobs that share a GPU: reservations, who may share, and what happens after failures with co-tenants."""

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
from stoker.core.planner.queue import JobKind, job_kind_of, resolved
from stoker.core.planner.reasons import Crowded, MemoryShort, TooBusy
from stoker.core.settings import Policy
from stoker.core.spec import Resources, amount_on
from support.build import GIB, a_job, a_queue, simulated

AUTO = Resources(auto=True)
FAILED = Exited(1, 1, 0, 9.0)


def learnt(peak: int, load: int | None = None) -> Learnt:
    """One run of such work on the GPUs of the tests."""
    return observe_use(Learnt(), simulated(24)[0].model, peak=peak, load=load)


def decided(jobs: list[Job], slots: list[Slot], known: Learnt, sizes: tuple[int, ...] = (24,), busy: int = 120) -> Plan:
    """The plan on idle GPUs of these sizes for work with this history."""
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
        estimate=lambda job_kind: resolved(job_kind, known, weighed.margin),
    )


def kindred(number: int, resources: Resources = AUTO, **more: int) -> Job:
    """A job of a kind that may share."""
    return msgspec.structs.replace(a_job(number, resources), kind="vit", **more)


def test_unknown_work_runs_exclusively() -> None:
    """One job per GPU; the others wait for its measurement."""
    plan = decided([kindred(1), kindred(2), kindred(3)], [], Learnt(), (24, 24))
    assert [start.devices for start in plan.starts] == [("0",), ("1",)]
    assert isinstance(plan.reason(kindred(3)), Crowded)


def test_known_work_shares() -> None:
    """As many as fit with margin and reserve: 3 x 6.9G of 24G, and the fourth waits."""
    plan = decided([kindred(number) for number in range(1, 5)], [], learnt(6 * GIB))
    assert [start.job.id for start in plan.starts] == [1, 2, 3]
    assert isinstance(plan.reason(kindred(4)), MemoryShort)


def test_the_least_busy_device_is_taken_and_then_the_tightest_gap() -> None:
    """An empty device before a shared one; of shared ones the least busy, and of equals the one with least room."""
    small = kindred(1, Resources(memory=2 * GIB))
    full, half, busy = (
        Slot("k", 9, Resources(memory=20 * GIB), ("1",)),
        Slot("l", 8, Resources(memory=10 * GIB), ("0",)),
        Slot("m", 7, Resources(memory=20 * GIB, loads=((simulated(24)[0].model, 60),)), ("1",)),
    )
    for held, device in (([full], "0"), ([full, half], "1"), ([busy, half], "0")):
        (start,) = decided([small], held, Learnt(), (24, 24)).starts
        assert start.devices == (device,)


def test_a_busy_gpu_takes_no_other_job() -> None:
    """There is enough memory, but the loads together exceed the bound."""
    plan = decided([kindred(1), kindred(2)], [], learnt(2 * GIB, load=90))
    assert [start.job.id for start in plan.starts] == [1]
    assert plan.reason(kindred(2)) == TooBusy("0", 180, 120)
    assert len(decided([kindred(1), kindred(2)], [], learnt(2 * GIB, load=90), busy=200).starts) == 2


def test_a_busy_job_may_run_exclusively() -> None:
    """The load bound applies only to shared GPUs."""
    assert decided([kindred(1)], [], learnt(2 * GIB, load=100), busy=50).starts


def test_a_job_that_would_fill_the_gpu_runs_exclusively() -> None:
    """Where the learnt peak plus margin exceeds the GPU, the job runs exclusively."""
    plan = decided([kindred(1), kindred(2)], [], learnt(23 * GIB))
    assert [start.job.id for start in plan.starts] == [1]


def test_wide_jobs_reserve_memory_on_each_gpu() -> None:
    """A second job fits beside it on both GPUs, a third does not."""
    wide = Resources(gpus=2, memory=10 * GIB)
    plan = decided([kindred(number, wide) for number in (1, 2, 3)], [], Learnt(), (24, 24))
    assert [start.job.id for start in plan.starts] == [1, 2]


def test_the_floor_counts() -> None:
    """After an out-of-memory error more than declared is reserved, and finally an exclusive GPU."""
    resources = Resources(memory=2 * GIB)
    (start,) = decided([kindred(1, resources, floor=9 * GIB)], [], Learnt()).starts
    assert amount_on(start.resources, simulated(24)[0]) == 9 * GIB
    (start,) = decided([kindred(1, resources, floor=9 * GIB, shared_failures=2)], [], Learnt()).starts
    assert amount_on(start.resources, simulated(24)[0]) is None


def test_a_gpu_smaller_than_the_floor_is_used_exclusively() -> None:
    """The job may fit there exclusively, so it is not refused."""
    (start,) = decided([kindred(1, Resources(memory=2 * GIB), floor=30 * GIB)], [], Learnt()).starts
    assert amount_on(start.resources, simulated(24)[0]) is None


def test_exclusive_jobs_stay_exclusive() -> None:
    """An exclusive job stays exclusive."""
    assert resolved(JobKind(Resources(), 0, floor=GIB), Learnt(), 15) == Resources()


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
def test_mps_clients_share_only_with_clients(wanted: str, held: str, fits: bool) -> None:
    """Clients of an MPS server share only with clients of the same server."""
    assert compatible(Claim("0", 1, 9, mps=wanted), [Claim("0", 1, 9, mps=held)], 24) == fits


def run(job: Job, event: Exited, resources: Resources | None = None) -> Job:
    """The job after an attempt with this end."""
    job = advance(job, Assigned("k", ("0",), "1.log", 1.0, resources=resources))
    job = advance(job, Started(job.attempts, 2.0))
    return advance(job, msgspec.structs.replace(event, attempt=job.attempts))


def short(*, shared: bool, floor: int = 0) -> Exited:
    """An end with an out-of-memory error."""
    return msgspec.structs.replace(FAILED, cause="oom", shared=shared, floor=floor)


def test_co_tenants_cost_no_retry() -> None:
    """Requeued with more memory, then exclusively, then ended: three attempts, and no retry is spent."""
    job = run(kindred(1), short(shared=True, floor=3 * GIB))
    assert (job.state, job.failures, job.shared_failures, job.floor) == (Waiting(9.0), 0, 1, 3 * GIB)
    assert not needs_exclusive(job)
    job = run(job, short(shared=True, floor=2 * GIB))
    assert (job.failures, job.shared_failures, job.floor) == (0, 2, 3 * GIB)
    assert needs_exclusive(job)
    job = run(job, short(shared=False))
    assert isinstance(job.state, Ended)
    assert (job.state.result, job.failures, job.attempts) == ("oom", 1, 3)


def test_out_of_memory_on_an_exclusive_gpu_ends_the_job() -> None:
    """Out of memory on an exclusive GPU is not retried, unless retry_on asks for it."""
    spec = msgspec.structs.replace(a_job(1).spec, retries=3)
    job = run(msgspec.structs.replace(a_job(1), spec=spec), short(shared=False))
    assert isinstance(job.state, Ended)
    stubborn = msgspec.structs.replace(spec, retry_on=("oom",))
    assert isinstance(run(msgspec.structs.replace(a_job(1), spec=stubborn), short(shared=False)).state, Waiting)


def test_a_fault_of_another_client_costs_nothing_once() -> None:
    """After a fault with co-tenants under MPS a job runs exclusively; a second fault counts as a failure."""
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
def test_no_job_is_requeued_for_ever(ends: list[tuple[str, bool, int]]) -> None:
    """A job without retries ends after a few attempts, however it fails."""
    job = kindred(1)
    for cause, shared, floor in ends:
        if isinstance(job.state, Ended):
            break
        job = run(job, msgspec.structs.replace(FAILED, cause=cause, shared=shared, floor=floor))
    assert job.attempts <= 4
    assert len(ends) < 4 or isinstance(job.state, Ended)


def test_kinds_are_planned_apart() -> None:
    """Jobs with equal requests but different history are separate groups."""
    assert job_kind_of(kindred(1)) != job_kind_of(msgspec.structs.replace(kindred(2), kind="bert"))
    assert job_kind_of(kindred(1)) == job_kind_of(kindred(2))


def test_others_load_counts_too() -> None:
    """The load in the leases of other engines counts."""
    devices = simulated(24)
    snapshot = Snapshot(0.0, devices, {devices[0].id: Reading(used=GIB)})
    lease = Lease((Claim(devices[0].claims[0], 2 * GIB, 99, load=100),), "bob", 7, "train", 0.0)
    known = learnt(2 * GIB, load=80)
    busy = plan(
        a_queue(kindred(1)),
        [],
        snapshot,
        [lease],
        Policy(),
        0.0,
        estimate=lambda job_kind: resolved(job_kind, known, 15),
    )
    assert not busy.starts


def test_a_peak_beyond_the_reservation_counts() -> None:
    """A measured peak beyond the reservation counts as used."""
    devices = simulated(24)
    snapshot = Snapshot(0.0, devices, {devices[0].id: Reading(used=13 * GIB)})
    slots = [
        Slot("k", 8, Resources(memory=2 * GIB), ("0",), peak=12 * GIB),
        Slot("l", 9, Resources(memory=11 * GIB), ("0",)),
    ]
    assert not plan(a_queue(kindred(1, Resources(memory=2 * GIB))), slots, snapshot, [], Policy(), 0.0).starts
