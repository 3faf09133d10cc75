"""The site that is a cluster under Slurm: hands jobs over directly or to pilots, and reads what nodes write."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path

from msgspec import Struct
from msgspec.structs import astuple

from stoker.core.device import Device, Snapshot
from stoker.core.job import Active, Job, Starting
from stoker.core.planner.forecast import Forecast
from stoker.core.planner.queue import ReasonKey, caps_of, job_kind_of
from stoker.core.planner.reasons import InCluster, OutOfResources, QueuePaused, Reason
from stoker.core.settings import ClusterSettings, Policy
from stoker.features.slurm.attempts import RETURNS_ALLOWED, Bundle, BundledAttempt, Reconciler, read_ref
from stoker.features.slurm.bundles import Caps, SlurmRoom, bundles, cap_names, offer_in_order
from stoker.features.slurm.commands import TAG, SlurmCommands, slurm_environment
from stoker.features.slurm.controller import Controller
from stoker.features.slurm.direct import Direct
from stoker.features.slurm.judge import first_node, is_suspended
from stoker.features.slurm.node_checks import NodeCheck, task_check
from stoker.features.slurm.orders import (
    ClusterContext,
    Orders,
    QueueDirectory,
    check_script,
    instance_of,
    node_script,
    pilot_script,
)
from stoker.features.slurm.pilot.handle import DelegatedAttempt, PilotHandle, is_pilot
from stoker.features.slurm.pilot.head import Pilots
from stoker.sites.interface import SiteContext, SiteStatus
from stoker.sites.prepared import obstacle_to
from stoker.store.engine_lock import engine_lives
from stoker.store.paths import Paths, identity_of

SUSPENDED = "suspended in Slurm, by an administrator or for another job"
REMOVE_INTERVAL = 0.02
"""Seconds between two turns while folders of bundles and pilots are removed, a part in each turn."""
DISK_PAUSE = 10.0
"""Seconds before files are written again after the shared directory refused them."""


class SlurmConfig(Struct, frozen=True):
    """The configuration of a cluster."""

    name: str
    settings: ClusterSettings
    user: str
    environment: Mapping[str, str]
    """For Slurm's commands."""

    def open(self, context: SiteContext) -> SlurmSite:
        files = context.paths.share(self.name, Path(self.settings.shared))
        return SlurmSite(self, context, files, SlurmCommands(self.environment, os.getuid(), context.jobs.clock))


def slurm_config(name: str, settings: ClusterSettings, user: str, environment: Mapping[str, str]) -> SlurmConfig:
    """The site of a cluster, for a process with this environment.

    What an allocation of Slurm's set in it, which the process may run in, would be options for sbatch.
    """
    foreign = ("SLURM_", "SBATCH_", "SQUEUE_", "SCANCEL_", "STOKER_")
    own = {key: value for key, value in environment.items() if key == "SLURM_CONF" or not key.startswith(foreign)}
    return SlurmConfig(name, settings, user, slurm_environment(settings, own))


class SlurmSite:
    """Runs jobs on the nodes of a cluster; a `Site`."""

    @property
    def cluster(self) -> str:
        return self._config.name

    def __init__(self, config: SlurmConfig, context: SiteContext, files: Paths, commands: SlurmCommands) -> None:
        """`files` is the directory of this queue on the shared one."""
        self._config = config
        self._context = context
        self._jobs = context.jobs
        self._settings = config.settings
        self._tag = f"{TAG}{identity_of(context.paths)}/"
        self._directory = QueueDirectory(files)
        self._reconciler = Reconciler(context.jobs, config.name, self._is_clear)
        self._controller = Controller(commands, self._tag, config.settings, self._script, self._jobs.clock)
        shared = ClusterContext(
            config.name,
            config.settings,
            context.jobs,
            self._directory,
            Orders(context.store, files, config.user),
            self._tag,
            context.instance,
            count(1),
        )
        self._direct = Direct(shared, self._reconciler, self._controller)
        self._pilots = Pilots(shared)
        self._policy = Policy()
        self._place_at = 0.0

    # -- when to be called ------------------------------------------------------------------------

    def due_in(self, now: float, *, placing: bool) -> float | None:
        moments = [self._controller.due_in(self._all), *(at - now for at in self._reconciler.resume_due())]
        if self._direct.all:
            moments.append(self._direct.pace.at - now)
        if self._pilots.all:
            moments.append(self._pilots.pace.at - now)
        if self._directory.is_removing:
            moments.append(REMOVE_INTERVAL)
        if placing and self._jobs.plan_due and self._jobs.waiting:
            moments.append(self._place_at - now)
        return min((moment for moment in moments if moment is not None), default=None)

    # -- the turn ---------------------------------------------------------------------------------

    def poll(self) -> None:
        now = self._jobs.clock()
        self._reconciler.resume(now)
        self._controller.watches_nodes = any(pilot.is_usable for pilot in self._pilots.all.values())
        answered = self._controller.step(self._all)
        for name, why in self._controller.take_refused():
            self._refuse(name, why)
        for name in self._controller.too_large(self._all):
            self._direct.give_up(name)
        if answered and self._controller.limit.words:  # which is tried again from time to time
            self._jobs.plan_due = True
        direct = answered or (self._direct.all and now >= self._direct.pace.at)
        pilots = answered or (self._pilots.all and now >= self._pilots.pace.at)
        if not (direct or pilots) or not self._is_reachable(now):
            return
        if answered:
            self._pilots.checks.trusts_slurm = self._controller.confines
            self._direct.note_answer()
        if pilots:
            self._pilots.look()
        if direct:
            self._direct.look(answered=answered)
        if answered:  # all that nodes wrote before has been read
            self._pilots.judge(self._controller.facts, self._controller.asked_at, self._controller.answer_interval)
            self._release_pilots()
            self._pilots.checks.judge(self._controller.facts, self._controller.asked_at)
            self._controller.cancel_ghosts(self._is_over)

    def _release_pilots(self) -> None:
        """Let pilots go that keep GPUs from other jobs, cannot get those that they wait for, or lose their node."""
        if self._direct.are_held_up or self._pilots.are_held_up:
            self._pilots.release_idle()
        self._pilots.release_nodes(self._controller.drained)
        for pilot in self._pilots.too_large():
            self._controller.forget(pilot.tag, 0)

    @property
    def _all(self) -> dict[str, Bundle]:
        """Everything that is one job or array in Slurm."""
        return {**self._direct.all, **self._pilots.all, **self._pilots.checks.all}

    def _is_over(self, name: str, index: int) -> bool:
        """Whether the attempt of a task in Slurm is over; one of another engine that lives is not ours to judge."""
        bundle = self._direct.all.get(name) or self._pilots.all.get(name) or self._pilots.checks.all.get(name)
        if bundle is not None:
            return index not in bundle.tasks
        instance = instance_of(name)
        return instance == self._context.instance or not engine_lives(self._context.paths, instance)

    def _is_reachable(self, now: float) -> bool:
        """Whether the shared directory is there; if not, nothing that is missing from it is gone."""
        if not any(bundle.made for bundle in self._all.values()) or self._directory.is_reachable():
            return True
        for pace in (self._direct.pace, self._pilots.pace):
            pace.looked(now, 0.0, news=False)
        return False

    # -- placing ----------------------------------------------------------------------------------

    def place(self, now: float, policy: Policy) -> None:
        self._policy = policy
        if not self._jobs.plan_due or now < self._place_at or not self._controller.knows_limits:
            return
        if not self._is_reachable(now) or not self._has_directory():
            self._place_at = now + DISK_PAUSE
            return
        self._jobs.plan_due, self._pilots.nodes = False, self._controller.nodes
        if not self._jobs.waiting:
            for pilot in self._pilots.dispensable():
                self._controller.forget(pilot.tag, 0)
        if not policy.paused:
            caps = self._caps()
            self._hand_over(caps, now)
            self._pilots.balance(now)
            self._start_pilots(caps, now)

    def _has_directory(self) -> bool:
        """Whether the directory of the queue is there for jobs that wait; it is made before they are assigned.

        Else the engine after a crash could not tell a directory that was never made from one that is out of sight.
        """
        try:
            if self._jobs.waiting:
                self._directory.make()
        except OSError as error:
            self._directory.failed(error)
            return False
        return True

    def _hand_over(self, caps: Caps, now: float) -> None:
        """Assign waiting jobs as far as there is room for them."""
        assert self._controller.max_array is not None
        most = self._controller.max_array - 1
        arrays = cache(lambda: Counter(job.array for job in self._active()))
        room = SlurmRoom(self._room(), most, lambda array: arrays()[array])
        direct: list[Job] = []
        obstacles: dict[str, str] = {"": ""}
        unready: list[tuple[int, str]] = []
        self._pilots.survey(self._jobs.waiting.groups(), now)
        self._hold_for_failures()

        def offer(job: Job) -> bool:
            if (code := job.spec.code) not in obstacles:
                obstacles[code] = obstacle_to(job.spec, self._directory.files)
            if why := obstacles[code]:
                unready.append((job.id, why))
                return True
            in_pilot = self._pilots.takes(job)
            if caps.full(job, arrays=in_pilot) is not None:  # of an array in a bundle Slurm keeps the limit
                return False
            taken = self._pilots.offer(job) if in_pilot else room.take(job)
            if taken:
                caps.take(job)
                direct.extend([] if in_pilot else [job])
            return taken

        offer_in_order(self._jobs.waiting.groups(), offer)
        for job_id, why in unready:
            self._reconciler.hold(job_id, f"held: {why}")
        self._pilots.assign_offered(now)
        for bundle in bundles(direct, most):
            self._direct.assign(bundle, now)

    def _room(self) -> int:
        """How many more jobs may wait in Slurm."""
        room = self._settings.queued_max - sum(1 for _ in self._direct.pending)
        limit = self._controller.limit_room(self._all)
        return room if limit is None else min(room, limit)

    def _start_pilots(self, caps: Caps, now: float) -> None:
        """Start pilots for the jobs that still wait for one."""
        if not self._pilots.may_start:
            return
        need, least = 0, 1
        for group in self._jobs.waiting.groups():
            job = next(iter(group))
            if self._pilots.takes(job):
                left = caps.left(job)
                least = max(least, job.spec.resources.gpus)
                need += job.spec.resources.gpus * max(0, len(group) if left is None else min(left, len(group)))
        assert self._controller.nodes is not None
        self._pilots.start(need, least, self._controller.nodes, now)

    def _hold_for_failures(self) -> None:
        """Hold pilot jobs after RETURNS_ALLOWED pilots failed to start."""
        if len(self._pilots.failures) >= RETURNS_ALLOWED:
            why = self._pilots.failures.pop()
            self._pilots.failures.clear()
            self._hold_pilot_jobs(f"held: pilots ended {RETURNS_ALLOWED} times before they worked ({why})")

    def _hold_pilot_jobs(self, why: str) -> None:
        waiting = [job for group in self._jobs.waiting.groups() for job in group]
        for job in filter(self._pilots.takes, waiting):
            self._reconciler.hold(job.id, why)

    def _caps(self) -> Caps:
        return Caps(self._policy.limits, self._policy.max_running, self._count_active)

    def _count_active(self) -> Counter[str]:
        """Active jobs by the caps that they count towards."""
        counts = Counter(name for job in self._active_of(self._direct.attempts) for name in cap_names(job))
        for pilot in self._pilots.all.values():
            counts.update(pilot.caps)
        return counts

    def _active(self) -> list[Job]:
        delegated = (attempt for pilot in self._pilots.all.values() for attempt in pilot.delegated.values())
        return [*self._active_of(self._direct.attempts), *self._active_of(delegated)]

    def _active_of(self, attempts: Iterable[BundledAttempt | DelegatedAttempt]) -> Iterator[Job]:
        for attempt in attempts:
            if (job := self._jobs.active(attempt.job_id)) is not None:
                yield job

    def dispatch(self, *, recorded: bool) -> None:
        if not recorded:
            return
        failures = [self._direct.write_new(), self._pilots.write_new(), self._pilots.send()]
        for error in filter(None, failures):
            self._directory.failed(error)
            self._place_at = self._jobs.clock() + DISK_PAUSE
        self._directory.remove_discarded()

    def _script(self, bundle: Bundle) -> str:
        if isinstance(bundle, NodeCheck):
            return check_script(self._settings, astuple(bundle.check))
        make = pilot_script if isinstance(bundle, PilotHandle) else node_script
        return make(self._settings, bundle.folder)

    def _refuse(self, name: str, why: str) -> None:
        """Hold the jobs of a bundle that Slurm will never take, with Slurm's words."""
        if self._pilots.checks.refuse(name, why):
            return
        if name not in self._pilots.all:
            self._direct.refuse(name, why)
            return
        del self._pilots.all[name]
        self._hold_pilot_jobs(f"held: Slurm refused a pilot for it: {why}")

    def _is_clear(self, bundle: Bundle, attempt: BundledAttempt) -> bool:
        fact = attempt.answers.fact
        node = attempt.node or (first_node(fact.node) if fact is not None else "")
        return self._pilots.checks.is_clear(task_check(bundle, attempt), node, bundle.folder)

    # -- single jobs ------------------------------------------------------------------------------

    def adopt(self, job: Job) -> None:
        assert isinstance(job.state, Active)
        (self._pilots if is_pilot(read_ref(job.state.ref)[0]) else self._direct).adopt(job)

    def stop(self, job: Job, grace: float | None, signal_number: int = 0) -> None:
        grace = job.spec.grace if grace is None else grace
        self._pilots.stop(job, grace, signal_number)
        self._direct.stop(job, grace, signal_number)

    def can_give_way(self, job: Job) -> bool:
        return self._pilots.has(job)

    def give_way(self, job: Job) -> None:
        self._pilots.give_way(job)

    def idle_since(self) -> Mapping[int, float | None]:
        """Of jobs in pilots: nothing measures those that Slurm runs."""
        return self._pilots.idle_since()

    def recall(self, job: Job) -> None:
        if isinstance(job.state, Starting):
            self._pilots.recall(job)
            self._direct.recall(job)

    def drain(self) -> None:
        for job in self._active():
            self.recall(job)
        self._direct.recall_all()

    # -- what it shows ----------------------------------------------------------------------------

    def devices(self, device_ids: Sequence[str]) -> tuple[Device, ...]:
        return tuple(Device(device_id, device_id, device_id, (), "declared") for device_id in device_ids)

    def reason(self, job: Job) -> Reason | None:
        """Why a job waits that was not handed over."""
        return self._reasons()(job)

    def _reasons(self) -> Callable[[Job], Reason]:
        """The same for any number of jobs: what does not depend on the job is found out once."""
        if self._policy.paused:
            return lambda _: QueuePaused(self._policy.paused)
        if trouble := self._directory.away or self._directory.trouble or self._slurm_trouble:
            return lambda _: OutOfResources(trouble)
        caps, waits_for_pilot = self._caps(), cache(self._pilots.reason)
        limited = self._controller.limit_room(self._all) == 0
        unsubmitted = limited and any(pilot.submitted_at is None for pilot in self._pilots.all.values())

        def reason(job: Job) -> Reason:
            if (full := caps.full(job)) is not None:
                return full
            in_pilot = self._pilots.takes(job)
            if unsubmitted or (limited and not in_pilot):
                return InCluster(None, self._controller.limit.words)
            if in_pilot:
                return waits_for_pilot()
            return InCluster(None, f"{self._settings.queued_max} jobs wait in Slurm already")

        return reason

    @property
    def _slurm_trouble(self) -> str:
        trouble = self._controller.trouble
        return f"{trouble}; see stoker cluster check {self._config.name}" if trouble else ""

    def status(self) -> SiteStatus:
        return SiteStatus(
            Snapshot(self._jobs.clock(), ()),
            summary=self._summary() if self._all else "",
            waits=tuple(self._waits()),
            trouble="; ".join(
                filter(
                    None,
                    (self._slurm_trouble, self._directory.away, self._directory.trouble, self._pilots.checks.trouble),
                )
            ),
            survivors=dict.fromkeys(self._suspended(), SUSPENDED),
            handed_over={**self._direct.situations(), **self._pilots.situations()},
        )

    def _suspended(self) -> Iterator[int]:
        """Jobs that Slurm has stopped, by its newest answer."""
        for attempt in self._direct.attempts:
            if attempt.began is not None and is_suspended(attempt.answers):
                yield attempt.job_id
        for pilot in self._pilots.all.values():
            if is_suspended(pilot.answers):
                yield from (delegated.job_id for delegated in pilot.delegated.values() if delegated.began is not None)

    def _summary(self) -> str:
        in_pilots = list(self._pilots.all.values())
        pending = sum(1 for _ in self._direct.pending) + sum(pilot.waiting for pilot in in_pilots)
        active = sum(1 for _ in self._direct.attempts) + sum(len(pilot.delegated) for pilot in in_pilots)
        answered = self._controller.answered_text()
        return f"{self._config.name}: {active - pending} running, {pending} waiting in Slurm{answered}"

    def _waits(self) -> Iterator[tuple[ReasonKey, Reason]]:
        reason = self._reasons()
        for group in self._jobs.waiting.groups():
            job = next(iter(group))
            yield ReasonKey(job_kind_of(job).resources, job.spec.priority, caps_of(job)), reason(job)

    def forecast(self, typical: float | None = None) -> Forecast:
        """Slurm's expected starts."""
        facts = ((attempt.job_id, attempt.answers.fact) for attempt in self._direct.pending)
        return Forecast({job_id: fact.start for job_id, fact in facts if fact is not None and fact.start is not None})

    # -- the end ----------------------------------------------------------------------------------

    def close(self, *, recorded: bool) -> None:
        self._controller.close()
        if recorded:
            self._directory.remove_discarded(math.inf)
