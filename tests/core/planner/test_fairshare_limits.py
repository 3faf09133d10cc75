"""Fair share in the plan: devices left to others, the published demand, and the user's limits."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from stoker.core.lease import Lease
from stoker.core.planner.fairshare import Demand, FairShare, OwnDemand, held_elsewhere, yield_reason
from stoker.core.planner.occupancy import Slot
from stoker.core.planner.plan import Plan, plan
from stoker.core.planner.reasons import Leased, MaxUse, MinFree, NeverFits, Yields
from stoker.core.settings import Policy
from support.build import a_job, a_lease, a_need, a_queue, a_reading, a_snapshot, declared, simulated, slot, where

GPUS = declared("0", "1", "2", "3")
ALICE = Yields("alice")


def decide(
    *needs: int,
    slots: Iterable[Slot] = (),
    leases: Iterable[Lease] = (),
    policy: Policy | None = None,
    fair_share: FairShare | None = None,
) -> Plan:
    """A plan on four GPUs for jobs with these numbers of GPUs."""
    jobs = [a_job(number, a_need(gpus), since=float(number)) for number, gpus in enumerate(needs, 1)]
    return plan(
        a_queue(*jobs),
        tuple(slots),
        a_snapshot(GPUS),
        tuple(leases),
        policy or Policy(),
        0.0,
        fair_share=fair_share or FairShare(shared=True),
    )


def why(decided: Plan, job: int, gpus: int = 1) -> object:
    """Why a job waits."""
    return decided.reason(a_job(job, a_need(gpus)))


class TestLeft:
    """Devices left to demands that go first."""

    def test_devices_left_to_others_are_not_used(self) -> None:
        """A job takes devices that no demand ahead wants; else it waits, and the reason names the user."""
        some = FairShare(left={"0": ALICE, "1": ALICE}, shared=True)
        assert where(decide(1, 1, fair_share=some)) == {1: "2", 2: "3"}
        everything = FairShare(left=dict.fromkeys("0123", ALICE), shared=True)
        assert why(decide(1, fair_share=everything), 1) == ALICE

    def test_own_devices_stay_in_use(self) -> None:
        """A device with a running attempt of ours is not left to others."""
        decided = decide(1, slots=[slot(9, "0", room=1)], fair_share=FairShare(left={"0": ALICE}, shared=True))
        assert where(decided) == {1: "1"}

    def test_overlapping_devices_are_left_together(self) -> None:
        """A slot of several GPUs is left when one of them is."""
        pair = (*declared("0"), GPUS[1].__class__("01", "0,1", "0,1", ("0", "1"), "declared"))
        jobs = a_queue(a_job(1))
        decided = plan(jobs, (), a_snapshot(pair), (), Policy(), 0.0, fair_share=FairShare(left={"0": ALICE}))
        assert where(decided) == {}

    def test_the_reason_says_why_a_demand_goes_first(self) -> None:
        """The reason distinguishes less usage, longer waiting, and an older engine of the same user."""
        mine = Demand(1, "me", usage=10.0, since=5.0)
        assert yield_reason(Demand(2, "alice", 3.0, 9.0), mine) == Yields("alice", "used less")
        assert yield_reason(Demand(2, "alice", 10.0, 1.0), mine) == Yields("alice", "waited longer")
        assert yield_reason(Demand(1, "me", 10.0, 1.0), mine) == Yields("", "waited longer")


class TestOwnDemand:
    """The demand that is published."""

    def test_no_demand_without_other_engines(self) -> None:
        """Without other engines no demand is computed."""
        assert decide(1, 1, 1, 1, 1, fair_share=FairShare()).own_demand is None

    def test_all_that_could_be_used(self) -> None:
        """Five more jobs than there is room for could use all four GPUs; one more could use one."""
        assert decide(*[1] * 9).own_demand == OwnDemand(5.0, 4, 1, ("0", "1", "2", "3"))
        assert decide(*[1] * 5).own_demand == OwnDemand(5.0, 1, 1, ("0", "1", "2", "3"))
        assert decide(*[1] * 4).own_demand is None

    def test_held_by_others(self) -> None:
        """A job that waits for a lease makes a demand for the devices it would use."""
        decided = decide(2, leases=[a_lease("0", "1", "2")])
        assert isinstance(why(decided, 1, 2), Leased)
        assert decided.own_demand == OwnDemand(1.0, 2, 2, ("0", "1", "2", "3"))

    def test_only_reasons_that_others_can_end(self) -> None:
        """Jobs that can never start, or wait for their user's own limits, make no demand."""
        assert decide(5).own_demand is None
        assert decide(1, slots=[slot(9, "0")], policy=Policy(max_running=1)).own_demand is None
        assert decide(1, slots=[slot(9, "0")], policy=Policy(max_use=1)).own_demand is None
        assert decide(0, leases=[a_lease("0", "1", "2", "3")]).own_demand is None

    def test_only_devices_that_would_be_taken(self) -> None:
        """Devices that the job may not use, or that have foreign processes, are not demanded."""
        devices = simulated(8, 8, 8)
        jobs = a_queue(a_job(1, a_need(allowed=("0", "1"))))
        seen = a_snapshot(devices, gpu0=a_reading(4, "bob"))
        decided = plan(jobs, (), seen, (a_lease("1"),), Policy(), 0.0, fair_share=FairShare(shared=True))
        assert decided.own_demand == OwnDemand(0.0, 1, 1, ("1",))

    def test_own_limits_bound_the_demand(self) -> None:
        """--max-use and --min-free limit the demand."""
        others = [a_lease("0", "1", "2")]
        decided = decide(*[1] * 9, leases=others, slots=[slot(9, "3")], policy=Policy(max_use=3))
        assert decided.own_demand
        assert decided.own_demand.gpus == 2
        decided = decide(*[1] * 9, leases=[a_lease("0", "1", "2", "3")], policy=Policy(min_free=3))
        assert decided.own_demand
        assert decided.own_demand.gpus == 1


class TestLimits:
    """The limits --max-use and --min-free."""

    def test_max_use(self) -> None:
        """max_use limits the GPUs in use, including those of running attempts."""
        decided = decide(1, 1, 1, slots=[slot(9, "0")], policy=Policy(max_use=2))
        assert where(decided) == {1: "1"}
        assert why(decided, 2) == MaxUse(2)

    def test_other_engines_of_the_user_count(self) -> None:
        """GPUs of the user's other engines count, those of other users do not."""
        leases = [a_lease("0", owner="me"), a_lease("1", owner="alice")]
        fair_share = FairShare(elsewhere=held_elsewhere(leases, "me"), shared=True)
        decided = decide(1, 1, leases=leases, policy=Policy(max_use=2), fair_share=fair_share)
        assert where(decided) == {1: "2"}

    def test_min_free(self) -> None:
        """min_free leaves that many free GPUs, however many are in use."""
        decided = decide(1, 1, 1, leases=[a_lease("0")], policy=Policy(min_free=2))
        assert where(decided) == {1: "1"}
        assert why(decided, 2) == MinFree(2)

    def test_smaller_jobs_do_not_pass(self) -> None:
        """A job too wide for the rest of the limit is not starved by narrow ones behind it."""
        decided = decide(2, 1, slots=[slot(9, "0")], policy=Policy(order="age", max_use=2))
        assert where(decided) == {}
        assert (why(decided, 1, 2), why(decided, 2)) == (MaxUse(2), MaxUse(2))

    def test_never_within_limits(self) -> None:
        """A job that can never start within the limits says so, and blocks no other job."""
        decided = decide(3, 1, policy=Policy(max_use=2))
        assert where(decided) == {2: "0"}
        assert why(decided, 1, 3) == NeverFits("needs 3 GPUs; --max-use allows 2")
        decided = decide(3, 1, policy=Policy(min_free=2))
        assert where(decided) == {2: "0"}
        assert why(decided, 1, 3) == NeverFits("needs 3 of 4 GPUs; --min-free keeps 2 free")

    def test_sharing_a_gpu_is_within_the_limit(self) -> None:
        """A second job on a GPU that is already in use is within the limit."""
        devices = simulated(24, 24)
        jobs = a_queue(a_job(1, a_need(gib=4)), a_job(2, a_need(gib=4)))
        decided = plan(jobs, (), a_snapshot(devices), (), Policy(max_use=1), 0.0)
        assert where(decided) == {1: "0", 2: "0"}

    @given(
        st.lists(st.integers(1, 4), max_size=8),
        st.integers(1, 4),
        st.integers(0, 3),
        st.sets(st.sampled_from("0123")),
    )
    def test_limits_hold_whatever_waits(self, needs: list[int], most: int, free: int, taken: set[str]) -> None:
        """No plan exceeds max_use or leaves less than min_free."""
        leases = [a_lease(*sorted(taken))] if taken else []
        decided = decide(*needs, leases=leases, policy=Policy(max_use=most, min_free=free))
        used = " ".join(where(decided).values()).split()
        assert len(used) <= most
        assert not used or 4 - len(taken) - len(used) >= free
