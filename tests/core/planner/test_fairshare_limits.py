"""Consideration for others in the plan: what is left to them, what they are told, how much is too much."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from stoker.core.lease import Lease
from stoker.core.planner.fairshare import Demand, FairShare, OwnDemand, held_elsewhere, yield_reason
from stoker.core.planner.occupancy import Slot
from stoker.core.planner.plan import Plan, plan
from stoker.core.planner.policy import Policy
from stoker.core.planner.reasons import Leased, MaxUse, MinFree, NeverFits, Yields
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
    """A plan on four GPUs for jobs that need so many of them each."""
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


class TestLeaving:
    """Devices that are left to somebody who goes first."""

    def test_what_is_left_is_not_taken(self) -> None:
        """A job takes what nobody ahead wants, and waits with a word for whom when there is nothing else."""
        some = FairShare(left={"0": ALICE, "1": ALICE}, shared=True)
        assert where(decide(1, 1, fair_share=some)) == {1: "2", 2: "3"}
        everything = FairShare(left=dict.fromkeys("0123", ALICE), shared=True)
        assert why(decide(1, fair_share=everything), 1) == ALICE

    def test_own_devices_stay_in_use(self) -> None:
        """A device that an attempt of ours is on is not closed to it by what is left to others."""
        decided = decide(1, slots=[slot(9, "0", room=1)], fair_share=FairShare(left={"0": ALICE}, shared=True))
        assert where(decided) == {1: "1"}

    def test_overlapping_devices_are_left_together(self) -> None:
        """A slot of several GPUs is left when one of them is."""
        pair = (*declared("0"), GPUS[1].__class__("01", "0,1", "0,1", ("0", "1"), "declared"))
        jobs = a_queue(a_job(1))
        decided = plan(jobs, (), a_snapshot(pair), (), Policy(), 0.0, fair_share=FairShare(left={"0": ALICE}))
        assert where(decided) == {}

    def test_words_say_why_somebody_goes_first(self) -> None:
        """Who has used less, who has waited longer, and an older engine of one's own are told apart."""
        mine = Demand(1, "me", usage=10.0, since=5.0)
        assert yield_reason(Demand(2, "alice", 3.0, 9.0), mine) == Yields("alice", "used less")
        assert yield_reason(Demand(2, "alice", 10.0, 1.0), mine) == Yields("alice", "waited longer")
        assert yield_reason(Demand(1, "me", 10.0, 1.0), mine) == Yields("", "waited longer")


class TestLonging:
    """What others are told."""

    def test_nobody_is_told_when_nobody_is_there(self) -> None:
        """Without company nothing is worked out."""
        assert decide(1, 1, 1, 1, 1, fair_share=FairShare()).own_demand is None

    def test_all_that_could_be_used(self) -> None:
        """Five more jobs than there is room for could use all four GPUs; one more could use one."""
        assert decide(*[1] * 9).own_demand == OwnDemand(5.0, 4, 1, ("0", "1", "2", "3"))
        assert decide(*[1] * 5).own_demand == OwnDemand(5.0, 1, 1, ("0", "1", "2", "3"))
        assert decide(*[1] * 4).own_demand is None

    def test_held_by_others(self) -> None:
        """A job that waits for somebody's lease is told with the devices it would take."""
        decided = decide(2, leases=[a_lease("0", "1", "2")])
        assert isinstance(why(decided, 1, 2), Leased)
        assert decided.own_demand == OwnDemand(1.0, 2, 2, ("0", "1", "2", "3"))

    def test_only_what_would_help(self) -> None:
        """Jobs that can never start, or wait for their own user's limits, are nobody else's concern."""
        assert decide(5).own_demand is None
        assert decide(1, slots=[slot(9, "0")], policy=Policy(max_running=1)).own_demand is None
        assert decide(1, slots=[slot(9, "0")], policy=Policy(max_use=1)).own_demand is None
        assert decide(0, leases=[a_lease("0", "1", "2", "3")]).own_demand is None

    def test_only_devices_that_would_be_taken(self) -> None:
        """Devices that the job may not use, and those that a stranger is on, are not asked for."""
        devices = simulated(8, 8, 8)
        jobs = a_queue(a_job(1, a_need(allowed=("0", "1"))))
        seen = a_snapshot(devices, gpu0=a_reading(4, "bob"))
        decided = plan(jobs, (), seen, (a_lease("1"),), Policy(), 0.0, fair_share=FairShare(shared=True))
        assert decided.own_demand == OwnDemand(0.0, 1, 1, ("1",))

    def test_no_more_than_one_allows_oneself(self) -> None:
        """The courtesy limits bound what is asked for."""
        others = [a_lease("0", "1", "2")]
        decided = decide(*[1] * 9, leases=others, slots=[slot(9, "3")], policy=Policy(max_use=3))
        assert decided.own_demand
        assert decided.own_demand.gpus == 2
        decided = decide(*[1] * 9, leases=[a_lease("0", "1", "2", "3")], policy=Policy(min_free=3))
        assert decided.own_demand
        assert decided.own_demand.gpus == 1


class TestModesty:
    """How much of the machine a user wants to have at most."""

    def test_at_most_so_many(self) -> None:
        """With max_use no more GPUs are taken, those of running attempts counted."""
        decided = decide(1, 1, 1, slots=[slot(9, "0")], policy=Policy(max_use=2))
        assert where(decided) == {1: "1"}
        assert why(decided, 2) == MaxUse(2)

    def test_other_engines_of_the_user_count(self) -> None:
        """What the user's other engines hold counts, and what others hold does not."""
        leases = [a_lease("0", owner="me"), a_lease("1", owner="alice")]
        fair_share = FairShare(elsewhere=held_elsewhere(leases, "me"), shared=True)
        decided = decide(1, 1, leases=leases, policy=Policy(max_use=2), fair_share=fair_share)
        assert where(decided) == {1: "2"}

    def test_some_stay_free(self) -> None:
        """With min_free the last free GPUs are left, however many others use."""
        decided = decide(1, 1, 1, leases=[a_lease("0")], policy=Policy(min_free=2))
        assert where(decided) == {1: "1"}
        assert why(decided, 2) == MinFree(2)

    def test_smaller_jobs_do_not_pass(self) -> None:
        """A job too wide for what is left of the limit is not starved by narrow ones behind it."""
        decided = decide(2, 1, slots=[slot(9, "0")], policy=Policy(max_use=2))
        assert where(decided) == {}
        assert (why(decided, 1, 2), why(decided, 2)) == (MaxUse(2), MaxUse(2))

    def test_too_wide_for_ever(self) -> None:
        """A job that the limits can never let start says so, and holds nobody up."""
        decided = decide(3, 1, policy=Policy(max_use=2))
        assert where(decided) == {2: "0"}
        assert why(decided, 1, 3) == NeverFits("needs 3 GPUs; --max-use allows 2")
        decided = decide(3, 1, policy=Policy(min_free=2))
        assert where(decided) == {2: "0"}
        assert why(decided, 1, 3) == NeverFits("needs 3 of 4 GPUs; --min-free keeps 2 free")

    def test_sharing_a_gpu_takes_no_more(self) -> None:
        """A second job on a GPU that is in use already is within the limit."""
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
        """No plan takes more than the one limit, or leaves less than the other."""
        leases = [a_lease(*sorted(taken))] if taken else []
        decided = decide(*needs, leases=leases, policy=Policy(max_use=most, min_free=free))
        used = " ".join(where(decided).values()).split()
        assert len(used) <= most
        assert not used or 4 - len(taken) - len(used) >= free
