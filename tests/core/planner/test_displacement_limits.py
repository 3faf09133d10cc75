"""No job gives way to one that would then not start, and a search in vain costs little."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from stoker.core.job import Job, limit_of
from stoker.core.planner import displacement
from stoker.core.planner import plan as plan_module
from stoker.core.planner.displacement import MOST_REFUSALS, RECHECK_SECONDS, Handover
from stoker.core.planner.fairshare import NO_OTHER_ENGINES, FairShare
from stoker.core.planner.lanes import Lanes
from stoker.core.planner.occupancy import Occupancy, Preemption, Slot
from stoker.core.planner.order import Order
from stoker.core.planner.plan import Plan, nothing_learnt, plan
from stoker.core.planner.queue import WaitingJobs
from stoker.core.settings import Policy
from stoker.core.spec import JobSpec, Resources
from support.build import a_job, a_lease, a_need, a_queue, a_reading, a_snapshot, simulated

HOUR = 3600.0
NOW = 100 * HOUR
LONG = Preemption("save", remaining=50 * HOUR)


def running(job_id: int, *devices: str, resources: Resources | None = None, gives_way: bool = True) -> Slot:
    needed = resources or Resources(gpus=len(devices))
    return Slot(f"k{job_id}", job_id, needed, devices, since=NOW - HOUR, preemption=LONG if gives_way else None)


def waiting(job_id: int, gpus: int = 1, *, group: str = "", limit: float = HOUR) -> Job:
    spec = JobSpec(resources=Resources(gpus), limit=limit, group=group)
    return a_job(job_id, spec=spec, since=NOW)


def planned(
    jobs: list[Job],
    slots: list[Slot],
    gpus: int,
    *,
    policy: Policy | None = None,
    handovers: tuple[Handover, ...] = (),
    fair_share: FairShare = NO_OTHER_ENGINES,
) -> Plan:
    snapshot = a_snapshot(simulated(*[24] * gpus), at=NOW)
    return plan(a_queue(*jobs), slots, snapshot, (), policy or Policy(), NOW, {}, fair_share, handovers=handovers)


def victims(decided: Plan) -> dict[int, tuple[int, ...]]:
    return {displacement.for_job: displacement.victims for displacement in decided.displacements}


@pytest.mark.parametrize(
    ("max_use", "gpus", "expected"), [(2, 2, {}), (3, 2, {9: (1,)}), (2, 1, {9: (1,)}), (1, 2, {})]
)
def test_max_use_counts_what_the_job_would_have(max_use: int, gpus: int, expected: dict[int, tuple[int, ...]]) -> None:
    """A pair needs a free GPU beside that of its victim: together with the job that stays, that may be too many."""
    slots = [running(1, "0"), running(2, "1", gives_way=False)]
    machine = 3 if gpus == 2 else 2
    assert victims(planned([waiting(9, gpus)], slots, machine, policy=Policy(max_use=max_use))) == expected


def test_max_use_counts_what_other_engines_of_the_user_hold() -> None:
    """The limit is one of the user, not of the engine."""
    share = FairShare(elsewhere=frozenset({"gpu-elsewhere"}))
    slots = [running(1, "0")]
    assert victims(planned([waiting(9)], slots, 1, policy=Policy(max_use=1))) == {9: (1,)}
    assert victims(planned([waiting(9)], slots, 1, policy=Policy(max_use=1), fair_share=share)) == {}


@pytest.mark.parametrize(("min_free", "expected"), [(0, {9: (1,)}), (1, {})])
def test_min_free_counts_what_stays_free(min_free: int, expected: dict[int, tuple[int, ...]]) -> None:
    """A pair takes the free GPU beside that of its victim, which may have to stay free."""
    slots = [running(1, "0"), running(2, "1", gives_way=False)]
    assert victims(planned([waiting(9, 2)], slots, 3, policy=Policy(min_free=min_free))) == expected


def test_no_more_jobs_profit_than_their_group_may_run() -> None:
    """With room for one job of the group, one victim leaves, and none while devices are kept for a job of it."""
    policy = Policy(limits={"group a": 1})
    slots = [running(1, "0"), running(2, "1")]
    first, second, other = waiting(8, group="a"), waiting(9, group="a"), waiting(10)
    assert victims(planned([first, second], slots, 2, policy=policy)) == {8: (1,)}
    leaving = [replace(slots[0], preemption=None), slots[1]]
    handed = (Handover(8, ("0",)),)
    assert victims(planned([first, second], leaving, 2, policy=policy, handovers=handed)) == {}
    assert victims(planned([first, second, other], leaving, 2, policy=policy, handovers=handed)) == {10: (2,)}


def test_no_job_gives_way_where_another_user_holds_part_of_the_device() -> None:
    """What the victim leaves is not enough, and that of the other user does not end with it."""
    lease = a_lease("0", gib=4)
    snapshot = a_snapshot(simulated(24), at=NOW)
    shared = running(1, "0", resources=a_need(1, gib=12))
    for need, expected in ((a_need(1), {}), (a_need(1, gib=12), {9: (1,)})):
        job = a_job(9, need, limit=HOUR, since=NOW)
        assert victims(plan(a_queue(job), [shared], snapshot, [lease], Policy(), NOW)) == expected


def test_what_a_victim_uses_is_its_own() -> None:
    """Of two jobs that share a measured device only the one in the way leaves, though both use what they reserve."""
    slots = [running(1, "0", resources=a_need(1, gib=4)), running(2, "0", resources=a_need(1, gib=14))]
    snapshot = a_snapshot(simulated(24), at=NOW, gpu0=a_reading(18, "me", "me"))
    job = a_job(9, a_need(1, gib=12), limit=HOUR, since=NOW)
    assert victims(plan(a_queue(job), slots, snapshot, (), Policy(), NOW)) == {9: (2,)}


class Counting:
    """Counts what plans do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        for module, name in ((plan_module, "Occupancy"), (displacement, "reserve")):
            monkeypatch.setattr(module, name, self._counted(name, getattr(module, name)))

    def _counted(self, name: str, wrapped: Any) -> Any:
        def counted(*args: Any, **options: Any) -> Any:
            self.counts[name] += 1
            return wrapped(*args, **options)

        return counted


def replanned(waiting_jobs: WaitingJobs, slots: list[Slot], lanes: Lanes, now: float) -> Plan:
    snapshot = a_snapshot(simulated(*[24] * len(slots)), at=now)
    share = NO_OTHER_ENGINES
    return plan(waiting_jobs, slots, snapshot, (), Policy(), now, {}, share, limit_of, nothing_learnt, lanes)


def test_an_engine_whose_jobs_only_wait_does_not_search_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a minute, and at once when a job comes that may profit or a running one goes."""
    queue = a_queue(*[waiting(job_id, limit=40 * HOUR) for job_id in range(100, 400)])
    slots, lanes = [running(number, str(number)) for number in range(8)], Lanes(queue, nothing_learnt)
    preemption = Preemption("save", times=2, remaining=90 * HOUR)
    slots = [replace(slot, since=NOW - 20 * HOUR, preemption=preemption) for slot in slots]
    done = Counting(monkeypatch).counts
    decided = [replanned(queue, slots, lanes, NOW + second) for second in range(round(RECHECK_SECONDS))]
    assert all(one.look_again == NOW + RECHECK_SECONDS for one in decided[1:])
    assert done["Occupancy"] <= len(decided) + 2
    assert done["reserve"] <= 2
    replanned(queue, slots[:-1], lanes, NOW + 61)
    queue.add(waiting(500, limit=60.0))
    lanes.refresh(Order(Policy(), NOW, limit_of, Counter()), queue.take_touched())  # as for a list of the queue
    assert victims(replanned(queue, slots, lanes, NOW + 62)).keys() == {500}


def test_a_plan_searches_in_vain_only_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many kinds of resources wait."""
    needs = [a_need(1, gib=10 + number / 100) for number in range(300)]
    jobs = [a_job(100 + number, need, limit=HOUR, since=NOW) for number, need in enumerate(needs)]
    stays = running(1, "0", resources=a_need(1, gib=20), gives_way=False)
    small = running(2, "0", resources=a_need(1, gib=2))
    done = Counting(monkeypatch).counts
    assert planned(jobs, [stays, small], 1).displacements == ()
    assert done["reserve"] <= MOST_REFUSALS


def test_work_is_compared_before_the_machine_is_viewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no victim has enough work left, a plan builds no further view of the machine."""
    slots = [running(number, str(number)) for number in range(8)]
    done = Counting(monkeypatch).counts
    planned([waiting(100 + number, limit=26 * HOUR + number) for number in range(50)], slots, 8)
    assert done["Occupancy"] == 1


def test_devices_of_jobs_that_leave_count_as_free() -> None:
    """For the limits of the user, before they have left."""
    occupancy = Occupancy(
        [running(1, "0")], a_snapshot(simulated(24, 24), at=NOW), (), policy=Policy(), now=NOW, freed={}
    )
    assert occupancy.names_in_use() == {"0"}
    assert occupancy.names_in_use({1}) == set()
    assert occupancy.untouched() == {"1"}
    assert occupancy.untouched({1}) == {"0", "1"}
