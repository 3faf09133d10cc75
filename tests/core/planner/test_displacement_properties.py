"""Properties of giving way on any machine and for any queue."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.core.device import Device
from stoker.core.job import Job
from stoker.core.planner.displacement import MOST_PREEMPTIONS, Displacement, Handover
from stoker.core.planner.occupancy import Occupancy, Preemption, Slot
from stoker.core.planner.plan import Plan, plan
from stoker.core.planner.queue import WaitingJobs
from stoker.core.planner.reasons import never_fits
from stoker.core.settings import Policy
from stoker.core.spec import Resources
from support.build import a_need, a_snapshot, declared, simulated
from support.world import Worker, World

QUIET = settings(max_examples=40, derandomize=True, deadline=None)
SWITCH = 10.0
LEAST_RUN = 300.0
"""Seconds that a job runs before it gives way for the first time, with so cheap a switch."""
Mode = Literal["save", "restart"] | None

MACHINES = st.sampled_from([simulated(24), simulated(24, 24), simulated(8, 24, 24, 24), declared("0", "0", "1", "2")])
NEEDS = st.builds(a_need, st.integers(1, 4), st.sampled_from([None, None, 5, 12]))
MODES: st.SearchStrategy[Mode] = st.sampled_from(["save", "save", "restart", None])
RUN_TIMES = st.sampled_from([40000.0, 3000.0, 400.0, 60.0])
FIRST = st.lists(
    st.tuples(
        st.builds(a_need, st.just(1), st.sampled_from([None, 12])),
        st.just(40000.0),
        MODES,
        st.just(0),
        st.booleans(),
        st.just(0.0),
    ),
    min_size=2,
    max_size=4,
)
LATER = st.lists(
    st.tuples(
        NEEDS, RUN_TIMES, MODES, st.integers(0, 1), st.booleans(), st.sampled_from([600.0, 2000.0, 5000.0, 9000.0])
    ),
    min_size=1,
    max_size=12,
)
JOBS = st.builds(lambda first, later: [*first, *later], FIRST, LATER)
POLICIES = st.builds(
    Policy,
    max_running=st.none() | st.integers(4, 6),
    order=st.sampled_from(["fair", "age", "shortest"]),
    unknown=st.just(100.0),
)


@dataclass
class GivingWorld(World):
    """A machine on which some jobs give way."""

    modes: dict[int, Mode] = field(default_factory=dict)
    done: Counter[int] = field(default_factory=Counter)
    times: Counter[int] = field(default_factory=Counter)
    leaving: dict[int, Displacement] = field(default_factory=dict)
    handovers: tuple[Handover, ...] = ()
    all_jobs: dict[int, Job] = field(default_factory=dict)

    def add(self, resources: Resources, run_time: float, mode: Mode, *, priority: int, limited: bool) -> Job:
        job = self.submit(resources, run_time, priority=priority, limited=limited)
        self.modes[job.id] = mode
        self.all_jobs[job.id] = job
        return job

    def plan(self, waiting: WaitingJobs | None = None) -> Plan:
        snapshot = a_snapshot(self.devices, at=self.clock + 0.5)
        queue = self.waiting if waiting is None else waiting
        return plan(queue, self.slots(), snapshot, (), self.policy, self.clock, self.freed, handovers=self.handovers)

    def _slot(self, worker: Worker) -> Slot:
        job = worker.jobs[0]
        mode = self.modes[job.id]
        if mode is None or job.id in self.leaving:
            return super()._slot(worker)
        times, done = self.times[job.id], float(self.done[job.id])
        given = Preemption(mode, job.spec.priority, times, done, save=SWITCH, start=0.0)
        return replace(super()._slot(worker), preemption=given)

    def turn(self) -> Plan:
        """Plan, and do it; jobs that give way need some time to leave."""
        decided = super().turn()
        self.handovers = decided.handovers
        for displacement in decided.displacements:
            for worker in self.workers.values():
                job_id = worker.jobs[0].id
                if job_id in displacement.victims:
                    self._ask(worker, job_id, displacement)
        return decided

    def _ask(self, worker: Worker, job_id: int, displacement: Displacement) -> None:
        """Let a job save its state and leave, unless it ends meanwhile."""
        if self.clock + SWITCH < worker.ends:
            self.leaving[job_id] = displacement
            if self.modes[job_id] == "save":
                self.run_times[job_id] -= self.clock - worker.since
                self.done[job_id] += round(self.clock - worker.since)
            worker.ends = self.clock + SWITCH

    def end_next(self) -> None:
        """Move the clock to the next end of a run; a job that gave way waits again."""
        worker = min(self.workers.values(), key=lambda worker: (worker.ends, worker.name))
        job = worker.jobs[0]
        super().end_next()
        if self.leaving.pop(job.id, None):
            self.times[job.id] += 1
            self.waiting.add(job)

    def step(self, until: float, look_again: float | None) -> None:
        """Move the clock to the next end, to the next look, or that far, whichever comes first."""
        ends = min((worker.ends for worker in self.workers.values()), default=until)
        moment = min(until, ends, until if look_again is None else look_again)
        if moment == ends and self.workers:
            self.end_next()
        else:
            assert moment > self.clock
            self.clock = moment


def played(world: GivingWorld, jobs: list[tuple[Resources, float, Mode, int, bool, float]]) -> list[Plan]:
    """All plans until no job is left that can run, each of them checked."""
    plans: list[Plan] = []
    arrivals = sorted(jobs, key=lambda job: job[-1], reverse=True)
    while True:
        while arrivals and arrivals[-1][-1] <= world.clock:
            resources, run_time, mode, priority, limited, _ = arrivals.pop()
            world.add(resources, run_time, mode, priority=priority, limited=limited)
        slots, handovers = world.slots(), world.handovers
        asked = set(world.leaving)
        decided = world.turn()
        check(world, decided, slots, handovers, asked)
        plans.append(decided)
        assert len(plans) < 5000
        if not world.workers and not arrivals:
            return plans
        world.step(arrivals[-1][-1] if arrivals else float("inf"), decided.look_again)


def check(
    world: GivingWorld, decided: Plan, slots: list[Slot], handovers: tuple[Handover, ...], asked: set[int]
) -> None:
    """Whom a plan asks to give way, and for whom."""
    running = {slot.job: slot for slot in slots}
    victims = [job_id for displacement in decided.displacements for job_id in displacement.victims]
    profiting = [displacement.for_job for displacement in decided.displacements]
    served = {handover.job for handover in handovers} | {start.job.id for start in decided.starts}
    assert len(victims) == len(set(victims))
    assert len(profiting) == len(set(profiting))
    assert served.isdisjoint(profiting)
    for displacement in decided.displacements:
        assert displacement.saving > 0
        for victim in displacement.victims:
            assert world.modes[victim] is not None
            assert victim not in asked
            assert world.times[victim] < MOST_PREEMPTIONS
            since = running[victim].since
            assert since is not None
            assert world.clock - since >= LEAST_RUN * 2 ** world.times[victim]
            job = world.all_jobs[displacement.for_job]
            assert job.spec.priority >= world.all_jobs[victim].spec.priority
    if decided.displacements:
        check_need(world, decided, slots)
    kept = {device_id: handover.job for handover in decided.handovers for device_id in handover.devices}
    for start in decided.starts:
        assert kept.keys().isdisjoint(start.devices)


def check_need(world: GivingWorld, decided: Plan, slots: list[Slot]) -> None:
    """The waiting job fits once all victims are gone, and not before."""
    displacement = decided.displacements[0]
    resources = world.all_jobs[displacement.for_job].spec.resources
    started = [Slot("", start.job.id, start.resources, start.devices) for start in decided.starts]

    def fits_without(gone: set[int]) -> bool:
        staying = [slot for slot in (*slots, *started) if slot.job not in gone]
        snapshot = a_snapshot(world.devices, at=world.clock + 0.5)
        occupancy = Occupancy(staying, snapshot, (), policy=world.policy, now=world.clock, freed=world.freed)
        return occupancy.are_open(displacement.devices, resources)

    assert fits_without(set(displacement.victims))
    for victim in displacement.victims:
        assert not fits_without(set(displacement.victims) - {victim})


@QUIET
@given(MACHINES, POLICIES, JOBS)
def test_every_job_ends_and_gives_way_at_most_four_times(
    devices: tuple[Device, ...], policy: Policy, jobs: list[tuple[Resources, float, Mode, int, bool, float]]
) -> None:
    """Whatever waits and runs: no job is lost, and none is stopped for ever."""
    world = GivingWorld(devices, policy)
    played(world, jobs)
    assert all(never_fits(job.spec.resources, devices) for job in world.jobs)
    assert max(world.times.values(), default=0) <= MOST_PREEMPTIONS


@QUIET
@given(MACHINES, POLICIES, JOBS)
def test_giving_way_changes_no_start_of_the_same_plan(
    devices: tuple[Device, ...], policy: Policy, jobs: list[tuple[Resources, float, Mode, int, bool, float]]
) -> None:
    """Starts, reasons and reservation are those of a queue in which no job gives way."""
    world = GivingWorld(devices, policy)
    for resources, run_time, mode, priority, limited, _ in jobs:
        world.add(resources, run_time, mode, priority=priority, limited=limited)
    for moment in (0.0, 1000.0, 5000.0):
        world.clock = moment
        decided = world.plan()
        modes, world.modes = world.modes, dict.fromkeys(world.modes)
        plain = world.plan()
        world.modes = modes
        assert (decided.starts, decided.waits, decided.reserved) == (plain.starts, plain.waits, plain.reserved)
        assert not plain.displacements
        assert plain.look_again is None
        world.turn()


@settings(QUIET, max_examples=20)
@given(
    st.sampled_from([simulated(24), simulated(24, 24)]),
    st.lists(st.tuples(st.sampled_from([30.0, 200.0, 600.0]), st.booleans()), min_size=1, max_size=6),
    st.sampled_from([3000.0, 20000.0]),
)
def test_a_long_job_ends_among_short_ones_that_never_stop_coming(
    devices: tuple[Device, ...], stream: list[tuple[float, bool]], run_time: float
) -> None:
    """It waits no longer than the oldest job does each time, and loses at most so many switches."""
    world = GivingWorld(devices, Policy(order="age"))
    long = world.add(a_need(1), run_time, "save", priority=0, limited=True)
    bound = run_time + (1 + MOST_PREEMPTIONS) * (600.0 + SWITCH)
    while world.run_times[long.id] and (long.id in world.waiting or _runs(world, long.id)):
        while len(world.waiting) < 4:
            seconds, limited = stream[len(world.run_times) % len(stream)]
            world.add(a_need(1), seconds, None, priority=0, limited=limited)
        look_again = world.turn().look_again
        world.step(float("inf"), look_again)
        assert world.clock <= bound
    assert world.times[long.id] <= MOST_PREEMPTIONS


@settings(QUIET, max_examples=20)
@given(
    st.lists(st.tuples(st.sampled_from([30.0, 200.0, 600.0]), st.booleans()), min_size=1, max_size=6),
    st.sampled_from([600.0, 3000.0]),
    st.sampled_from(["age", "fair"]),
    st.sampled_from(["save", "restart"]),
)
def test_a_wide_job_starts_though_others_give_way_to_short_ones(
    stream: list[tuple[float, bool]], run_time: float, order: Literal["age", "fair"], mode: Mode
) -> None:
    """Those that give way return, and short jobs never stop coming; but the wide job does not wait for ever."""
    devices = simulated(24, 24)
    world = GivingWorld(devices, Policy(order=order, overdue=20000.0))
    longs = [world.add(a_need(1), 5000.0, mode, priority=0, limited=True) for _ in devices]
    world.turn()
    wide = world.add(a_need(2), run_time, None, priority=0, limited=True)
    restarts = MOST_PREEMPTIONS * 5000.0 * (mode == "restart")
    bound = 20000.0 + len(longs) * (5000.0 + restarts) + 2 * MOST_PREEMPTIONS * (600.0 + SWITCH)
    while wide.id in world.waiting:
        while len(world.waiting) < 4:
            seconds, limited = stream[len(world.run_times) % len(stream)]
            world.add(a_need(1), seconds, None, priority=0, limited=limited)
        world.step(float("inf"), world.turn().look_again)
        assert world.clock <= bound


def _runs(world: GivingWorld, job_id: int) -> bool:
    return any(worker.jobs[0].id == job_id for worker in world.workers.values())
