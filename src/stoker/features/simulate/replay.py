"""Choose the jobs of a trace, and replay them by a policy: a virtual machine runs them through the planner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from random import Random

from msgspec import Struct, structs

from stoker.core.device import Device, Reading, Snapshot
from stoker.core.errors import UsageError
from stoker.core.job import Assigned, Ended, Exited, GivingWay, Job, Started, Waiting, advance
from stoker.core.learning import Learnt, expected_seconds, observe, observe_use, remaining_seconds
from stoker.core.logs.oom import OutOfMemory, floor_after, is_own_fault
from stoker.core.planner.displacement import Handover, unknown_rest
from stoker.core.planner.fairshare import NO_OTHER_ENGINES
from stoker.core.planner.lanes import Lanes
from stoker.core.planner.occupancy import Preemption, Slot
from stoker.core.planner.plan import Start, plan
from stoker.core.planner.queue import JobKind, WaitingJobs, job_kind_of, resolved
from stoker.core.spec import Command, JobSpec, Resources, amount_on
from stoker.core.units import count_text, device_sizes, size_text
from stoker.features.simulate.policies import (
    DEFAULT_SWITCH,
    REFERENCES,
    RULES,
    Rules,
    Speeds,
    by_pairs,
    shortest_remaining_first,
)
from stoker.features.simulate.trace import read_models
from stoker.features.simulate.workload import (
    BUILT_IN,
    YOUNG_SHARE,
    Life,
    Models,
    ReplayOutcome,
    Stay,
    TraceJob,
    Work,
    capped,
    draw,
    extract,
    offered_load,
    paced,
    ripens_after,
    with_sessions,
)

MOST_GPUS = 1024
DEFAULT_GPUS = "8x40G"
FEW_JOBS = 20
"""Fewer jobs than this say little about an order."""
LEAST_SPEED = 0.01
"""However many jobs share a GPU, each makes some progress."""
CLOSE_SECONDS = 1e-6
"""Events that lie nearer together than this happen at the same time."""
MODEL = "virtual"
GOLDEN_RATIO = 0.6180339887
"""Multiples of it, without their whole part, are spread evenly: by them a share of the jobs is chosen."""
_COMMAND = Command(("train",))
_NOTHING = Learnt()
_NEVER_FREED: Mapping[str, float] = {}


class ReplayOptions(Struct, frozen=True):
    """The jobs to replay, and how."""

    source: str
    """Where the jobs come from, for the report."""
    gpus: str = ""
    """The machine; empty is the one that the jobs had, as far as they tell."""
    first: int = 0
    count: int | None = None
    longest: float | None = None
    """Seconds to which durations are capped."""
    rho: float | None = None
    """The offered load as a share of the machine; None leaves arrivals as they are."""
    seed: int = 0
    models: Path | None = None
    oracle: bool = False
    sessions: float = 0.0
    """Sessions per day that are added."""


class ReplaySetup(Struct, frozen=True):
    """A machine, and the jobs that arrive at it."""

    gpus: str
    """The machine as a user would write it."""
    sizes: Sequence[int]
    """The bytes of each GPU."""
    works: Sequence[Work]
    models: Models
    offered: float
    notes: Sequence[str]
    """Which jobs were left out and what is assumed, in words."""


def prepare(rows: Sequence[TraceJob], options: ReplayOptions) -> ReplaySetup:
    """Choose the jobs and draw what the trace does not say; refuse options that cannot be met."""
    if options.rho is not None and not options.rho > 0:  # nor nan, which no range keeps out
        raise UsageError(f"--rho {options.rho} is not a load", "write it as --rho 0.9")
    gpus = options.gpus or machine_of(rows)
    sizes = device_sizes(gpus)
    if len(sizes) > MOST_GPUS:
        raise UsageError(f"--gpus {gpus} are {len(sizes):,} GPUs", f"the limit is {MOST_GPUS}")
    chosen, notes = _runnable(_slice(rows, options), gpus, sizes)
    if options.rho is not None:
        chosen = paced(chosen, len(sizes), options.rho)
    notes += _doubts(chosen)
    models = read_models(options.models) if options.models else BUILT_IN
    random = Random(options.seed)  # noqa: S311 - not a secret
    chosen = with_sessions(chosen, options.sessions, random)
    works = draw(chosen, models, min(sizes), random)
    return ReplaySetup(gpus, sizes, works, models, offered_load(chosen, len(sizes)), notes)


def machine_of(rows: Sequence[TraceJob]) -> str:
    """As many GPUs as the jobs had, if the trace tells; their memory is assumed."""
    names = {name for row in rows for name in row.devices}
    if not names:
        return DEFAULT_GPUS
    return f"{min(MOST_GPUS, max(len(names), *(row.gpus for row in rows)))}x40G"


def _doubts(rows: Sequence[TraceJob]) -> list[str]:
    """The notes that make the figures of a history less certain."""
    doubts = []
    if len(rows) < FEW_JOBS:
        doubts.append(f"only {count_text(len(rows), 'job')}: the results are not significant")
    unknown = sum(row.memory is None for row in rows)
    if unknown and any(row.devices for row in rows):
        doubts.append(f"the memory of {count_text(unknown, 'job')} was not measured and is assumed")
    return doubts


def _slice(rows: Sequence[TraceJob], options: ReplayOptions) -> list[TraceJob]:
    chosen = extract(rows, options.first, options.count)
    if not chosen:
        message = f"no job of {options.source} is selected: it has {count_text(len(rows), 'job')}"
        raise UsageError(message, f"--from counts from 0; it was {options.first}")
    return capped(chosen, options.longest) if options.longest else chosen


def _runnable(rows: Sequence[TraceJob], gpus: str, sizes: Sequence[int]) -> tuple[list[TraceJob], list[str]]:
    """The jobs that the machine can run, and a sentence on the others."""
    obstacles: dict[str, Callable[[TraceJob], bool]] = {
        "no GPU needed": lambda row: row.gpus == 0,
        "no time taken": lambda row: row.seconds == 0,
        f"more than {count_text(len(sizes), 'GPU')} needed": lambda row: row.gpus > len(sizes),
        f"more than {size_text(min(sizes))} on a GPU needed": lambda row: (row.memory or 0) > min(sizes),
    }
    left, notes = list(rows), []
    for words, is_met in obstacles.items():
        kept = [row for row in left if not is_met(row)]
        if len(kept) < len(left):
            notes.append(f"{count_text(len(left) - len(kept), 'job')} left out: {words}")
        left = kept
    if not left:
        message = f"none of {count_text(len(rows), 'job')} can run on {gpus} ({'; '.join(notes)})"
        raise UsageError(message, "give a larger machine with --gpus, or other jobs with --from")
    return extract(left), notes


def outcome_of(
    policy: str, setup: ReplaySetup, *, oracle: bool, preemptible: float = 0.0, switch: float = DEFAULT_SWITCH
) -> ReplayOutcome:
    """Replay the jobs by one policy, with a share of them that gives way."""
    if policy in REFERENCES:
        return shortest_remaining_first(setup.works, len(setup.sizes), REFERENCES[policy])
    exact = oracle or RULES[policy].exact
    rules = structs.replace(RULES[policy], exact=exact, preemptible=preemptible, switch=switch)
    return replay(setup.works, virtual_devices(setup.sizes), rules, by_pairs(setup.models.pairs))


# -- the virtual machine -----------------------------------------------------------------------------


def virtual_devices(sizes: Sequence[int]) -> list[Device]:
    """One GPU for each size in bytes."""
    names = [str(number) for number in range(len(sizes))]
    return [
        Device(name, name, name, (name,), "simulated", model=MODEL, memory=size)
        for name, size in zip(names, sizes, strict=True)
    ]


def replay(works: Sequence[Work], devices: Sequence[Device], rules: Rules, speeds: Speeds) -> ReplayOutcome:
    return _Machine(works, devices, rules, speeds).play()


class SimulatedRun:
    """An attempt that runs. Its progress is updated only when its speed changes."""

    __slots__ = (
        "devices", "held", "job", "leaves_at", "left", "left_when_ripe", "resources", "shared", "since", "speed",
        "started", "until", "work",
    )  # fmt: skip

    def __init__(self, work: Work, job: Job, start: Start, now: float, *, seconds: float | None, left: float) -> None:
        """`seconds` is the duration that the planner expects, `left` what it takes alone."""
        self.work = work
        self.job = job
        self.devices = start.devices
        self.resources = start.resources
        self.started = now
        self.until = None if seconds is None else now + seconds
        self.shared = False
        """Whether another job was on its devices at any time."""
        self.held = int(YOUNG_SHARE * work.peak)
        """Bytes on each device."""
        self.speed = 1.0
        self.since = now
        self.left = left
        """Seconds that it would take alone, from `since` on."""
        self.left_when_ripe = left - min(left, ripens_after(work))
        """The same at the moment when it takes all its memory; 0 once it has."""
        self.leaves_at: float | None = None
        """When it will have saved its state to give way; None if it was not asked to."""

    @property
    def due(self) -> float:
        """When it grows, ends or leaves, if its speed stays."""
        if self.leaves_at is not None:
            return self.leaves_at
        return self.since + max(0.0, self.left - self.left_when_ripe) / self.speed

    @property
    def wanted(self) -> int:
        """Bytes on each device when it has taken all."""
        return int(self.work.peak * self.work.swell) if self.shared else self.work.peak

    def proceed(self, now: float) -> None:
        self.left -= (now - self.since) * self.speed
        self.since = now

    def change_speed(self, speed: float, now: float) -> None:
        if speed != self.speed:
            self.proceed(now)
            self.speed = speed

    def ripen(self) -> None:
        self.held = self.wanted
        self.left_when_ripe = 0.0


class _Machine:
    """Devices, a clock, and the jobs that wait and run."""

    def __init__(self, works: Sequence[Work], devices: Sequence[Device], rules: Rules, speeds: Speeds) -> None:
        self._arrivals = sorted(works, key=lambda work: (-work.arrival, -work.id))
        self._works = {work.id: work for work in works}
        self._devices = {device.id: device for device in devices}
        self._rules = rules
        self._speeds = speeds
        self._now = 0.0
        self._waiting = WaitingJobs()
        self._lanes = Lanes(self._waiting, self._estimate)
        self._runs: dict[int, SimulatedRun] = {}
        self._on: dict[str, list[SimulatedRun]] = {device.id: [] for device in devices}
        self._learnt: dict[str, Learnt] = {}
        self._spec: dict[tuple[int, bool], JobSpec] = {}
        self._lives = {
            work.id: Life(work.id, work.arrival, work.gpus, work.seconds, session=work.session) for work in works
        }
        self._stays: list[Stay] = []
        self._changed = dict.fromkeys(self._devices, 0.0)
        self._busy = self._shared = 0.0
        self._plans = 0
        self._look_again = inf
        self._handovers: Sequence[Handover] = ()
        self._left: dict[int, float] = {}
        """Seconds that jobs that gave way would take alone."""
        self._done: dict[int, float] = {}
        """Seconds that they have worked."""

    def play(self) -> ReplayOutcome:
        while self._arrivals or self._runs:
            arrival = self._arrivals[-1].arrival if self._arrivals else inf
            self._now = max(self._now, min([arrival, self._look_again, *(run.due for run in self._runs.values())]))
            may_start = self._arrive()
            if self._update_runs() or may_start or self._look_again <= self._now:
                self._plan()
        lives = [self._lives[job_id] for job_id in sorted(self._lives)]
        return ReplayOutcome(lives, self._stays, len(self._devices), self._busy, self._shared, self._plans)

    # -- arrivals

    def _arrive(self) -> bool:
        """Queue the jobs that arrive now; returns whether any of them could start."""
        may_start = False
        while self._arrivals and self._arrivals[-1].arrival <= self._now:
            job = self._job(self._arrivals.pop())
            may_start = may_start or self._waiting.group(job_kind_of(job)) is None  # else an equal one waits already
            self._waiting.add(job)
        return may_start

    def _job(self, work: Work) -> Job:
        packing = self._rules.packing
        spec = self._spec.get((work.gpus, work.session))
        if spec is None:
            spec = JobSpec(resources=Resources(work.gpus, auto=packing), urgent=work.session)
            self._spec[work.gpus, work.session] = spec
        kind = work.kind
        return Job(work.id, 1, _COMMAND, spec, Waiting(work.arrival), work.arrival, kind=kind)

    # -- growth and ends

    def _update_runs(self) -> bool:
        """Let runs grow and end that are due; returns whether anything was freed."""
        freed = False
        for run in [run for run in self._runs.values() if run.due <= self._now + CLOSE_SECONDS]:
            run.proceed(self._now)
            if run.leaves_at is not None:
                self._requeue(run)
            elif not run.left_when_ripe:
                self._finish(run)
            elif self._is_short(run):
                self._run_out(run)
            else:
                run.ripen()
                continue
            freed = True
        return freed

    def _is_short(self, run: SimulatedRun) -> bool:
        """Whether one of its devices lacks the memory that it now takes."""
        return any(
            sum(other.held for other in self._on[device_id] if other is not run) + run.wanted
            > (self._devices[device_id].memory or 0)
            for device_id in run.devices
        )

    def _run_out(self, run: SimulatedRun) -> None:
        """End it for lack of memory, and requeue it as the engine does."""
        oom = OutOfMemory("torch", run.wanted - run.held, run.held, None, None, (), capped=False, text="")
        amounts = [amount_on(run.resources, self._devices[device_id]) for device_id in run.devices]
        reserved = min((amount for amount in amounts if amount is not None), default=None)
        floor = floor_after(oom, reserved, None) if is_own_fault(oom, reserved) else 0
        exited = Exited(run.job.attempts, 1, 0, self._now, cause="oom", shared=run.shared, floor=floor)
        job = advance(run.job, exited)
        self._vacate(run)
        self._lives[job.id].shared_failures += 1
        if not isinstance(job.state, Ended):
            self._waiting.add(job)

    def _requeue(self, run: SimulatedRun) -> None:
        """Let it leave with its state saved."""
        self._vacate(run)
        self._left[run.work.id] = run.left + self._rules.switch
        self._done[run.work.id] = self._worked(run) - self._rules.switch
        self._lives[run.work.id].preemptions += 1
        state, kept = Waiting(self._now, gave_way=GivingWay(self._now)), self._done[run.work.id]
        self._waiting.add(structs.replace(run.job, state=state, kept_seconds=kept))

    def _worked(self, run: SimulatedRun) -> float:
        """Seconds of work of the job, in all of its attempts."""
        before = self._done.get(run.work.id)
        ran = self._now - run.started
        return ran if before is None else before + max(0.0, ran - self._rules.switch)

    def _finish(self, run: SimulatedRun) -> None:
        seconds = self._worked(run)
        self._vacate(run)
        self._lives[run.work.id].end = self._now
        kind = run.work.kind
        learnt = observe(self._learnt.get(kind, _NOTHING), seconds)
        load = None if run.shared else run.work.load
        self._learnt[kind] = observe_use(learnt, MODEL, peak=run.held, load=load)
        self._lanes.learnt(kind)

    def _vacate(self, run: SimulatedRun) -> None:
        del self._runs[run.work.id]
        for device_id in run.devices:
            self._account(device_id)
            self._on[device_id].remove(run)
            self._stays.append(Stay(device_id, run.work.id, run.started, self._now))
        self._update_speeds(run.devices)

    # -- plans

    def _plan(self) -> None:
        self._plans += 1
        slots = [
            Slot(
                "",
                run.work.id,
                run.resources,
                run.devices,
                run.until,
                since=run.started,
                kind=run.job.kind,
                preemption=self._preemption(run),
            )
            for run in self._runs.values()
        ]
        readings = {device_id: Reading(used=sum(run.held for run in runs)) for device_id, runs in self._on.items()}
        seen, policy = Snapshot(self._now, tuple(self._devices.values()), readings), self._rules.policy
        history = self._expects, self._estimate, self._lanes
        decided = plan(
            self._waiting,
            slots,
            seen,
            (),
            policy,
            self._now,
            _NEVER_FREED,
            NO_OTHER_ENGINES,
            *history,
            handovers=self._handovers,
        )
        for start in decided.starts:
            self._start(start)
        self._handovers = decided.handovers
        self._look_again = inf if decided.look_again is None else decided.look_again
        for job_id in [job_id for displacement in decided.displacements for job_id in displacement.victims]:
            run = self._runs[job_id]
            run.change_speed(0.0, self._now)
            run.leaves_at = self._now + self._rules.switch

    def _preemption(self, run: SimulatedRun) -> Preemption | None:
        """How a run gives way; None if it does not."""
        rules, job_id = self._rules, run.work.id
        if run.work.session or run.leaves_at is not None or job_id * GOLDEN_RATIO % 1 >= rules.preemptible:
            return None
        done = self._worked(run)
        learnt = self._learnt.get(run.work.kind, _NOTHING)
        left = run.left / run.speed - (self._now - run.since)
        remaining = left if rules.exact else remaining_seconds(learnt, done)
        times = self._lives[job_id].preemptions
        return Preemption("save", 0, times, self._done.get(job_id, 0.0), remaining, rules.switch, rules.switch)

    def _expects(self, job: Job) -> float | None:
        work = self._works[job.id]
        if self._rules.exact:
            return self._left.get(job.id, work.seconds)
        learnt = self._learnt.get(work.kind, _NOTHING)
        done = self._done.get(job.id)
        if done is None:
            return expected_seconds(learnt)
        remaining = remaining_seconds(learnt, done)
        return unknown_rest(done, self._rules.policy.unknown) if remaining is None else remaining

    def _estimate(self, job_kind: JobKind) -> Resources:
        return resolved(job_kind, self._learnt.get(job_kind.kind, _NOTHING), self._rules.policy.margin)

    def _start(self, start: Start) -> None:
        job = start.job
        self._waiting.remove(job.id)
        assigned = advance(job, Assigned("", start.devices, "", self._now, resources=start.resources))
        started = advance(assigned, Started(assigned.attempts, self._now))
        run = self._runs[job.id] = SimulatedRun(
            self._works[job.id],
            started,
            start,
            self._now,
            seconds=self._expects(job),
            left=self._left.get(job.id, self._works[job.id].seconds),
        )
        life = self._lives[job.id]
        life.start = self._now if life.start is None else life.start
        for device_id in run.devices:
            self._account(device_id)
            self._on[device_id].append(run)
        self._update_speeds(run.devices)

    # -- co-tenants

    def _update_speeds(self, device_ids: Sequence[str]) -> None:
        """Update the speed of every run on these devices."""
        for run in {run.work.id: run for device_id in device_ids for run in self._on[device_id]}.values():
            run.shared = run.shared or any(len(self._on[device_id]) > 1 for device_id in run.devices)
            if run.leaves_at is not None:
                continue
            together = [[other.work for other in self._on[device_id]] for device_id in run.devices]
            speeds = [self._speeds(run.work, works) if len(works) > 1 else 1.0 for works in together]
            run.change_speed(max(LEAST_SPEED, min(speeds)), self._now)

    def _account(self, device_id: str) -> None:
        """Count the use of a device until now, before that changes."""
        members = len(self._on[device_id])
        seconds = self._now - self._changed[device_id]
        self._changed[device_id] = self._now
        self._busy += seconds if members else 0.0
        self._shared += seconds if members > 1 else 0.0
