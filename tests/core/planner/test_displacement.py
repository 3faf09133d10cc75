"""Which running jobs give way, when, and for whom."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stoker.core.job import GivingWay, Job, Waiting
from stoker.core.planner.displacement import MOST_PREEMPTIONS, Displacement, Handover
from stoker.core.planner.fairshare import FairShare
from stoker.core.planner.occupancy import Preemption, Slot
from stoker.core.planner.plan import Plan, plan
from stoker.core.planner.reasons import KeptFree, Yields
from stoker.core.settings import Policy
from stoker.core.spec import JobSpec, Resources
from support.build import a_job, a_need, a_queue, a_snapshot, simulated, where

HOUR = 3600.0
NOW = 100 * HOUR
LONG = Preemption("save", remaining=50 * HOUR)


def running(
    job_id: int,
    *devices: str,
    resources: Resources | None = None,
    preemption: Preemption | None = LONG,
    ran: float = HOUR,
) -> Slot:
    needed = resources or Resources(gpus=len(devices))
    return Slot(f"k{job_id}", job_id, needed, devices, since=NOW - ran, preemption=preemption)


def waiting(job_id: int, resources: Resources | None = None, *, limit: float | None = HOUR, priority: int = 0) -> Job:
    return a_job(job_id, resources, limit=limit, priority=priority, since=NOW)


def planned(
    jobs: list[Job],
    slots: list[Slot],
    *,
    gpus: int = 1,
    policy: Policy | None = None,
    handovers: tuple[Handover, ...] = (),
    fair_share: FairShare | None = None,
) -> Plan:
    policy = policy or Policy()
    snapshot = a_snapshot(simulated(*[24] * gpus), at=NOW)
    return plan(a_queue(*jobs), slots, snapshot, (), policy, NOW, {}, fair_share or FairShare(), handovers=handovers)


def victims(decided: Plan) -> dict[int, tuple[int, ...]]:
    return {displacement.for_job: displacement.victims for displacement in decided.displacements}


def test_a_long_job_gives_way_to_a_short_one() -> None:
    """The displacement names victim and devices, and the devices are kept for the job from then on."""
    decided = planned([waiting(2)], [running(1, "0")])
    assert victims(decided) == {2: (1,)}
    assert decided.displacements[0].devices == ("0",)
    assert decided.handovers == (Handover(2, ("0",)),)
    assert not decided.starts


@pytest.mark.parametrize(
    "slot",
    [
        running(1, "0", preemption=None),
        running(1, "0", ran=60.0),
        running(1, "0", preemption=Preemption("save", times=MOST_PREEMPTIONS, remaining=50 * HOUR), ran=90 * HOUR),
        running(1, "0", preemption=Preemption("save", times=2, remaining=50 * HOUR)),
        running(1, "0", preemption=Preemption("save", remaining=1.5 * HOUR)),
        running(1, "0", preemption=Preemption("save", remaining=5 * HOUR, save=4 * HOUR), ran=90 * HOUR),
        running(1, "0", preemption=Preemption("restart", remaining=50 * HOUR), ran=49 * HOUR),
        running(1, "0", preemption=Preemption("save", priority=1, remaining=50 * HOUR)),
        Slot("k1", 1, Resources(), ("0",), preemption=LONG),
    ],
    ids=["never", "just started", "often enough", "ran too little since the last time", "nearly done", "costly switch",
         "too much work lost", "of a higher priority", "not started yet"],
)  # fmt: skip
def test_some_jobs_do_not_give_way(slot: Slot) -> None:
    """A job that may not, or for which it is too early, too often or too costly, keeps its device."""
    decided = planned([waiting(2)], [slot])
    assert not decided.displacements
    assert not decided.handovers


def test_a_job_that_loses_little_gives_way_though_it_starts_from_the_beginning() -> None:
    """What it has done since its last start counts as the cost, unless less is known to be lost."""
    assert planned([waiting(2)], [running(1, "0", preemption=Preemption("restart", remaining=50 * HOUR))]).displacements
    late = Preemption("restart", remaining=50 * HOUR, unsaved=HOUR)
    assert planned([waiting(2)], [running(1, "0", preemption=late, ran=49 * HOUR)]).displacements


def test_a_job_of_unknown_duration_needs_as_long_as_it_has_run() -> None:
    """A short job passes it once it has run long enough."""
    unknown = Preemption("save")
    assert not planned([waiting(2)], [running(1, "0", preemption=unknown, ran=1.5 * HOUR)]).displacements
    assert planned([waiting(2)], [running(1, "0", preemption=unknown, ran=3 * HOUR)]).displacements
    assert planned(
        [waiting(2)], [running(1, "0", preemption=Preemption("save", done=2 * HOUR), ran=HOUR)]
    ).displacements


def test_the_second_time_more_jobs_must_have_waited() -> None:
    """Those that would profit pay by their waiting time; a job that is sure to be short does not."""
    again = [running(1, "0", preemption=Preemption("save", times=1, remaining=10 * HOUR))]
    waited = [replace(waiting(number), state=Waiting(NOW - HOUR)) for number in range(2, 10)]
    assert victims(planned(waited, again)) == {2: (1,)}
    assert victims(planned(waited[:7], again)) == {}
    assert victims(planned([waiting(2, limit=600.0)], again)) == {2: (1,)}


def test_a_job_that_gave_way_does_not_return_at_once() -> None:
    """Its waiting time counts anew, and it hides no job of its kind that is younger."""
    left = replace(waiting(1), state=Waiting(NOW, gave_way=GivingWay(NOW)), submitted=NOW - 50 * HOUR)
    younger = replace(waiting(2), state=Waiting(NOW - HOUR), submitted=NOW - HOUR)
    assert where(planned([left, younger], [])) == {2: "0"}
    assert where(planned([left, younger], [], policy=Policy(overdue=40 * HOUR))) == {1: "0"}
    assert where(planned([left, younger], [], policy=Policy(order="age"))) == {1: "0"}


def test_the_plan_says_when_to_look_again() -> None:
    """At the moment from which a job may give way; never if none does or nothing waits."""
    early = running(1, "0", ran=60.0)
    again = planned([waiting(2)], [early]).look_again
    assert again == NOW - 60.0 + 1200.0
    assert planned([], [early]).look_again is None
    assert planned([waiting(2)], [running(1, "0", preemption=None)]).look_again is None
    assert (planned([waiting(2, limit=40 * HOUR)], [running(1, "0")]).look_again or 0.0) > NOW


def test_no_more_jobs_give_way_than_are_needed() -> None:
    """Free devices count; then the jobs with the most work left leave."""
    more = Preemption("save", remaining=80 * HOUR)
    slots = [running(1, "0"), running(2, "1", preemption=more), running(3, "2")]
    assert victims(planned([waiting(9, a_need(1))], slots, gpus=3)) == {9: (2,)}
    assert victims(planned([waiting(9, a_need(2))], slots, gpus=4)) == {9: (2,)}
    assert victims(planned([waiting(9, a_need(3))], slots, gpus=4)) == {9: (1, 2)}
    assert victims(planned([waiting(9, a_need(4))], slots, gpus=3)) == {}


def test_a_job_on_several_devices_leaves_all_of_them() -> None:
    """One victim serves several waiting jobs: the other devices go to them when they are free."""
    decided = planned([waiting(8), waiting(9)], [running(1, "0", "1")], gpus=2)
    assert victims(decided) == {8: (1,)}
    later = planned([waiting(8), waiting(9)], [], gpus=2, handovers=decided.handovers)
    assert where(later) == {8: "0", 9: "1"}


def test_of_jobs_that_share_a_device_only_those_leave_that_are_in_the_way() -> None:
    """Memory decides; a job that shares with one that never gives way cannot have the whole device."""
    large, small = running(1, "0", resources=a_need(1, gib=14)), running(2, "0", resources=a_need(1, gib=4))
    assert victims(planned([waiting(9, a_need(1, gib=12))], [small, large])) == {9: (1,)}
    assert victims(planned([waiting(9, a_need(1))], [small, large])) == {9: (1, 2)}
    stays = running(2, "0", resources=a_need(1, gib=4), preemption=None)
    assert victims(planned([waiting(9, a_need(1, gib=12))], [stays, large])) == {9: (1,)}
    assert victims(planned([waiting(9, a_need(1))], [stays, large])) == {}


def test_a_device_that_is_being_freed_is_kept() -> None:
    """No other job gets it, no second displacement serves the same job, and the right one starts."""
    handovers = (Handover(5, ("0",)),)
    leaving = [running(1, "0", preemption=None), running(2, "1")]
    decided = planned([waiting(5)], leaving, gpus=2, handovers=handovers)
    assert decided.displacements == ()
    assert decided.handovers == handovers
    older, chosen = waiting(4), waiting(5)
    free = planned([older, chosen], [running(2, "1", preemption=None)], gpus=2, handovers=handovers)
    assert where(free) == {5: "0"}
    assert free.handovers == ()


def test_the_reason_names_the_job_that_devices_are_kept_for() -> None:
    """While the second device of a pair is still in use, the first is kept free."""
    pair, single = waiting(5, a_need(2)), waiting(4)
    slots = [running(1, "1", preemption=None)]
    decided = planned([single, pair], slots, gpus=2, handovers=(Handover(5, ("0", "1")),))
    assert decided.starts == ()
    assert decided.reason(single) == KeptFree(5, 1)


def test_a_job_that_may_pass_the_reservation_does_not_get_kept_devices() -> None:
    """The plan ends, though a short job is blocked only by devices that are kept for the job with the reservation."""
    pair, single = waiting(5, a_need(2), priority=1), waiting(6)
    slots = [replace(running(1, "1", preemption=None), until=NOW + 2 * HOUR)]
    decided = planned([pair, single], slots, gpus=2, handovers=(Handover(5, ("0", "1")),))
    assert decided.starts == ()
    assert decided.reserved is not None
    assert decided.reserved.job == 5
    assert decided.reason(single) == KeptFree(5, 1)


@pytest.mark.parametrize("there", [[], [waiting(4)]], ids=["nothing waits", "another job waits"])
def test_devices_are_not_kept_for_a_job_that_is_gone(there: list[Job]) -> None:
    """A cancelled or held job does not close devices."""
    decided = planned(there, [], handovers=(Handover(5, ("0",)),))
    assert decided.handovers == ()
    assert len(decided.starts) == len(there)


def test_short_jobs_profit_first() -> None:
    """A job that is sure to be short goes before one with less work that is not."""
    unsure = waiting(3, limit=None)
    policy = Policy(unknown=60.0)
    assert victims(planned([unsure, waiting(4, limit=600.0)], [running(1, "0")], policy=policy)) == {4: (1,)}
    assert victims(planned([unsure, waiting(4, limit=601.0)], [running(1, "0")], policy=policy)) == {3: (1,)}


@pytest.mark.parametrize(
    "policy",
    [Policy(paused="maintenance"), Policy(max_running=1), Policy(passing="never"), Policy(closed={"0": "drained"})],
    ids=["paused", "limit on running jobs", "strict order", "drained"],
)
def test_no_job_gives_way_if_that_would_not_help(policy: Policy) -> None:
    """What keeps the waiting job from starting is not the device."""
    assert planned([waiting(2)], [running(1, "0")], policy=policy).displacements == ()


def test_no_job_gives_way_while_devices_are_left_to_others() -> None:
    """The device might go to the other user."""
    left = FairShare(left={"1": Yields("bob")})
    assert planned([waiting(2)], [running(1, "0")], gpus=2, fair_share=left).displacements == ()


def test_several_jobs_displace_in_one_plan() -> None:
    """Each has its own victims."""
    decided = planned([waiting(8), waiting(9)], [running(1, "0"), running(2, "1")], gpus=2)
    assert victims(decided) == {8: (1,), 9: (2,)}
    assert all(
        isinstance(displacement, Displacement) and displacement.saving > 0 for displacement in decided.displacements
    )


def urgent(job_id: int, *, priority: int = 0) -> Job:
    return a_job(job_id, spec=JobSpec(urgent=True, limit=20 * HOUR, priority=priority), since=NOW)


def test_an_urgent_job_needs_not_be_short() -> None:
    """It gets the devices of a job with less work left, however many others wait before it; no other job does."""
    slot = running(1, "0", preemption=Preemption("save", remaining=HOUR))
    others = [waiting(job_id, limit=20 * HOUR) for job_id in range(2, 50)]
    assert victims(planned([*others, urgent(50)], [slot])) == {50: (1,)}
    assert victims(planned(others, [slot])) == {}


@pytest.mark.parametrize(
    "slot",
    [
        running(1, "0", preemption=None),
        running(1, "0", ran=10.0),
        running(1, "0", preemption=Preemption("save", times=MOST_PREEMPTIONS, remaining=50 * HOUR), ran=90 * HOUR),
        running(1, "0", preemption=Preemption("save", priority=1, remaining=50 * HOUR)),
    ],
    ids=["not preemptible", "just started", "often before", "more important"],
)
def test_whom_an_urgent_job_does_not_displace(slot: Slot) -> None:
    """The bounds that keep jobs from starving hold for it, too."""
    assert victims(planned([urgent(2)], [slot])) == {}
