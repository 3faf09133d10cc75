"""The site that is a cluster under Slurm: hands bundles of jobs over by sbatch, and reads journals that nodes write."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from stoker.core.cluster import JobBundle, bundles, importance, reason_text, sbatch_words, within_limits
from stoker.core.device import Device, Snapshot
from stoker.core.job import Active, Assigned, Job, Returned, Starting
from stoker.core.launch import Order, order_of, output_paths, variables
from stoker.core.planner.forecast import Forecast
from stoker.core.planner.queue import Wants, caps_of, shape_of
from stoker.core.planner.reasons import InCluster, QueuePaused, Reason, Short
from stoker.core.settings import ClusterSettings, Policy
from stoker.core.slurm import slurm_environment
from stoker.sites.interface import SiteContext, SiteStatus
from stoker.sites.slurm.attempts import RETURNS_ALLOWED, Attempt, Bundle, Judgement, read_all, read_ref, ref_of
from stoker.sites.slurm.commands import TAG, SlurmCommands
from stoker.sites.slurm.controller import Controller
from stoker.sites.slurm.node import ARRAY, GPUS
from stoker.sites.slurm.pilots import MARK, Pilot, Pilots, is_pilot, pilot_plan, pilot_words
from stoker.sites.slurm.shared import MARKER, BundleFolder
from stoker.store.engine_lock import engine_lives
from stoker.store.paths import Paths, identity_of

LOOK_INTERVAL = 0.5
"""Seconds between two looks at the journals..."""
LOOK_SHARE = 100
"""... and longer if a look takes more than one part in so many of that."""
PILOT_INTERVAL = 0.1
"""Seconds between two looks while jobs are in pilots."""
DISK_PAUSE = 10.0
"""Seconds before files are written again after the shared directory refused them."""
_PACKAGE_PARENT = str(Path(__file__).resolve().parents[3])
_PROGRAM = """import os, sys
sys.path.insert(0, sys.argv.pop(1))
try:
    from stoker.sites.slurm.node import main
except Exception as error:  # such as a library that the node lacks
    with open(f"{sys.argv[1]}/errors/{os.environ.get('SLURM_ARRAY_TASK_ID', 0)}", "a") as file:
        print(f"{os.uname().nodename}: {sys.executable}: {error}", file=file)
    raise
main()"""


class SlurmConfig(Struct, frozen=True):
    """What the site is made of."""

    name: str
    settings: ClusterSettings
    user: str
    environment: Mapping[str, str]
    """For Slurm's commands."""

    def open(self, context: SiteContext) -> SlurmSite:
        files = context.paths.share(self.name, Path(self.settings.shared))
        return SlurmSite(self, context, files, SlurmCommands(self.environment, os.getuid()))


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
        self._files = files
        self._tag = f"{TAG}{identity_of(context.paths)}/"
        self._judgement = Judgement(context.jobs, config.name)
        self._controller = Controller(commands, self._tag, config.settings, self._script)
        self._bundles: dict[str, Bundle] = {}
        self._pilots = Pilots(context.jobs, config.settings, self._environment)
        self._new_pilots: list[Pilot] = []
        self._new: list[tuple[Bundle, list[Job]]] = []
        """Bundles whose assignments are not recorded yet."""
        self._over: list[Bundle] = []
        """Bundles whose last event is not recorded yet."""
        self._count = 0
        self._draining = False
        self._policy = Policy()
        self._look_at = 0.0
        self._place_at = 0.0
        self._disk_trouble = ""
        self._away = ""
        """Why the shared directory is out of sight."""
        self._environments: dict[str, dict[str, str]] = {}
        self._marked = False

    # -- when to be called ------------------------------------------------------------------------

    def sources(self) -> Sequence[tuple[object, Callable[[], None]]]:
        return ()

    def due_in(self, now: float, *, placing: bool) -> float | None:
        moments = [self._controller.due_in(self._all), *(at - now for at in self._judgement.resume_due())]
        if self._all:
            moments.append(self._look_at - now)
        if placing and self._jobs.plan_due and self._jobs.waiting:
            moments.append(self._place_at - now)
        return min((moment for moment in moments if moment is not None), default=None)

    # -- the turn ---------------------------------------------------------------------------------

    def poll(self) -> None:
        now = self._jobs.clock()
        self._judgement.resume(now)
        answered = self._controller.step(self._all)
        for name, why in self._controller.take_refused():
            self._refuse(name, why)
        if not (answered or now >= self._look_at) or not self._is_reachable():
            return
        news = self._look(now)
        if answered:
            seconds = self._controller.answer_interval
            for bundle in self._bundles.values():
                if bundle.submitted_at is not None and self._controller.asked_at > bundle.submitted_at:
                    self._judgement.note(bundle, self._controller.facts, seconds)
            self._judge_pilots(seconds)
            self._controller.cancel_ghosts(self._is_over)
        for bundle in list(self._bundles.values()):
            if answered or bundle.name in news:
                self._decide(bundle)

    @property
    def _all(self) -> dict[str, Bundle]:
        """Everything that is one job or array in Slurm."""
        return {**self._bundles, **self._pilots.all}

    def _look(self, now: float) -> set[str]:
        began = self._jobs.clock()
        news = read_all(bundle for bundle in self._bundles.values() if bundle.made)
        self._pilots.look()
        interval = PILOT_INTERVAL if any(pilot.handed for pilot in self._pilots.all.values()) else LOOK_INTERVAL
        self._look_at = now + max(interval, LOOK_SHARE * (self._jobs.clock() - began))
        return news

    def _judge_pilots(self, seconds: float) -> None:
        for pilot in list(self._pilots.all.values()):
            if pilot.submitted_at is not None and self._controller.asked_at > pilot.submitted_at:
                self._pilots.note(pilot, self._controller.facts.get((pilot.tag, 0)), seconds)
                self._pilots.decide(pilot)

    def _decide(self, bundle: Bundle) -> None:
        if not bundle.made:
            return
        for attempt in list(bundle.attempts.values()):
            try:
                is_over = self._judgement.decide(bundle, attempt)
            except OSError as error:  # decided again at the next answer
                self._disk_failed(error)
                return
            if is_over:
                self._leave(bundle, attempt)

    def _leave(self, bundle: Bundle, attempt: Attempt) -> None:
        """Forget an attempt that is over or was taken back."""
        del bundle.attempts[attempt.index]
        self._jobs.plan_due = True
        if not bundle.attempts:
            del self._bundles[bundle.name]
            self._over.append(bundle)

    def _is_over(self, name: str, index: int) -> bool:
        """Whether the attempt of a task in Slurm is over; one of another engine that lives is not ours to judge."""
        if name in self._all:
            return index not in self._all[name].tasks
        instance = name.removeprefix(MARK).rpartition("-")[0]
        return instance == self._context.instance or not engine_lives(self._context.paths, instance)

    # -- placing ----------------------------------------------------------------------------------

    def place(self, now: float, policy: Policy) -> None:
        self._policy = policy
        if not self._jobs.plan_due or now < self._place_at or not self._controller.knows_limits:
            return
        self._jobs.plan_due, self._pilots.nodes = False, self._controller.nodes
        if not self._jobs.waiting and self._is_reachable():
            for pilot in self._pilots.dispensable():
                self._controller.forget(pilot.tag, 0)
        if policy.paused or not self._jobs.waiting or not self._is_reachable():
            return
        queued = sorted((job for group in self._jobs.waiting.groups() for job in group), key=importance)
        waiting = list(within_limits(queued, self._active(), policy.limits, policy.max_running))
        if in_pilots := self._pilots.choose(waiting):
            self._feed_pilots(in_pilots, now)
            chosen = {job.id for job in in_pilots}
            waiting = [job for job in waiting if job.id not in chosen]
        assert self._controller.max_array is not None
        room = self._config.settings.queued_max - sum(1 for _ in self._pending())
        for found in bundles(waiting, self._active_in, room, self._controller.max_array - 1):
            self._assign(found, now)

    def _feed_pilots(self, jobs: Sequence[Job], now: float) -> None:
        """Hand jobs to pilots with room for them, and start pilots for the others."""
        if len(self._pilots.failures) >= RETURNS_ALLOWED:
            why = self._pilots.failures.pop()
            self._pilots.failures.clear()
            for job in jobs:
                self._judgement.hold(job.id, f"held: pilots ended {RETURNS_ALLOWED} times before they worked ({why})")
            return
        self._pilots.feed(jobs, now, self._config.user)
        left = [job for job in jobs if job.id in self._jobs.waiting]
        nodes, gpus = self._controller.nodes, [job.spec.resources.gpus for job in left]
        assert nodes is not None
        for _ in range(self._pilots.wanted(left, nodes)):
            self._count += 1
            name = f"{MARK}{self._context.instance}-{self._count}"
            pilot = self._pilots.all[name] = Pilot(name, self._tag + name, self._files.state / name)
            pilot.options = [
                "--job-name=stoker-pilot",
                *pilot_words(self._config.settings, nodes, sum(gpus), max(gpus)),
            ]
            pilot.since, pilot.gpus = now, max(gpus)
            self._new_pilots.append(pilot)

    def _pending(self) -> Iterator[Attempt]:
        for bundle in self._bundles.values():
            yield from (attempt for attempt in bundle.attempts.values() if attempt.began is None)

    def _active(self) -> list[Job]:
        ids = [attempt.job_id for bundle in self._bundles.values() for attempt in bundle.attempts.values()]
        ids += [each.job_id for pilot in self._pilots.all.values() for each in pilot.handed.values()]
        return [job for job_id in ids if (job := self._jobs.active(job_id)) is not None]

    def _active_in(self, array: int) -> int:
        return sum(job.array == array for job in self._active())

    def _assign(self, found: JobBundle, now: float) -> None:
        self._count += 1
        name = f"{self._context.instance}-{self._count}"
        bundle = self._bundles[name] = Bundle(name, self._tag + name, self._files.state / name)
        first = found.jobs[0]
        bundle.options = [
            f"--job-name=stoker-{first.array or first.id}",
            *sbatch_words(found.shape, len(found.jobs), self._config.settings),
        ]
        bundle.since = now
        assigned = []
        for index, job in enumerate(found.jobs):
            out, err = output_paths(job, self._config.user)
            event = Assigned(ref_of(name, index), (), out, now, "" if err == out else err)
            assigned.append(self._jobs.apply(job, event))
            bundle.attempts[index] = Attempt(assigned[-1], index)
        self._new.append((bundle, assigned))

    def dispatch(self, *, recorded: bool) -> None:
        if not recorded:
            return
        new, self._new = self._new, []
        for bundle, jobs in new:
            self._make(bundle, jobs)
        for pilot in self._new_pilots:
            self._make_pilot(pilot)
        self._new_pilots.clear()
        try:
            if self._pilots.send():
                self._disk_trouble = ""
        except OSError as error:
            self._disk_failed(error)
        over, self._over, self._pilots.over = [*self._over, *self._pilots.over], [], []
        for bundle in over:
            bundle.folder.remove()

    def _make_pilot(self, pilot: Pilot) -> None:
        try:
            self._mark()
            pilot.files.make_pilot(
                pilot_plan(self._config.name, self._config.settings, self._files.reports, os.environ, pilot.gpus)
            )
            pilot.made = True
        except OSError as error:
            self._disk_failed(error)
            del self._pilots.all[pilot.name]

    def _make(self, bundle: Bundle, jobs: list[Job]) -> None:
        """Write the files of a bundle; what was cancelled meanwhile is claimed before Slurm hears of it."""
        environments = {job.spec.environment: self._environment(job.spec.environment) for job in jobs}
        try:
            self._mark()
            bundle.folder.make([self._order(job) for job in jobs], environments)
            for index in range(len(jobs)):
                if index not in bundle.attempts:
                    bundle.folder.claim(index)
        except OSError as error:
            self._disk_failed(error)
            for attempt in list(bundle.attempts.values()):
                self._judgement.take_back(bundle, attempt)
                self._leave(bundle, attempt)
            return
        self._disk_trouble = ""
        bundle.made = True

    def _disk_failed(self, error: OSError) -> None:
        self._disk_trouble = f"cannot write to the shared directory {self._files.state}: {error.strerror}"
        self._place_at = self._jobs.clock() + DISK_PAUSE

    def _script(self, bundle: Bundle) -> str:
        if isinstance(bundle, Pilot):
            return pilot_script(self._config.settings, bundle.folder)
        return node_script(self._config.settings, bundle.folder)

    def _order(self, job: Job) -> dict[str, object]:
        """The order for a node; which GPUs it gets, the node fills in."""
        outputs = output_paths(job, self._config.user)
        extra = {**variables(job, (), self._environment(job.spec.environment)), "STOKER_GPU_IDS": GPUS}
        extra["STOKER_REPORT"] = str(self._files.report(job.id))
        if job.spec.resources.gpus:
            del extra["CUDA_VISIBLE_DEVICES"]
        # srun needs Slurm's own variables; only the array is Stoker's, since a bundle is another one.
        extra = {name: extra[name] for name in extra if not name.startswith("SLURM_") or name.startswith(ARRAY)}
        order: Order = order_of(job, outputs, extra)
        return {**msgspec.structs.asdict(order), "gpus": job.spec.resources.gpus}

    def _environment(self, digest: str) -> dict[str, str]:
        if digest not in self._environments:
            self._environments[digest] = self._context.store.environment(digest)
        return self._environments[digest]

    def _mark(self) -> None:
        """Make the directory of this queue, once."""
        if not self._marked:
            for folder in (self._files.state, self._files.logs, self._files.reports):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self._files.state / MARKER).touch()
            self._marked = True

    def _is_reachable(self) -> bool:
        """Whether the shared directory is there; where it is not, nothing that is missing from it is gone."""
        is_away = any(bundle.made for bundle in self._all.values()) and not (self._files.state / MARKER).exists()
        words = f"the shared directory {self._files.state} cannot be reached; jobs on the cluster go on"
        self._away = words if is_away else ""
        return not is_away

    def _refuse(self, name: str, why: str) -> None:
        """Slurm will never take the bundle: its jobs are held with Slurm's words."""
        if name in self._pilots.all:
            del self._pilots.all[name]
            for job in self._pilots.choose([job for group in self._jobs.waiting.groups() for job in group]):
                self._judgement.hold(job.id, f"held: Slurm refused a pilot for it: {why}")
            return
        bundle = self._bundles[name]
        for attempt in list(bundle.attempts.values()):
            if self._judgement.take_back(bundle, attempt):
                self._judgement.hold(attempt.job_id, f"held: Slurm refused it: {why}")
                self._leave(bundle, attempt)

    # -- single jobs ------------------------------------------------------------------------------

    def adopt(self, job: Job) -> None:
        """The journal and Slurm tell the rest."""
        assert isinstance(job.state, Active)
        name, index = read_ref(job.state.ref)
        if is_pilot(name):
            self._adopt_in_pilot(name, job)
            return
        bundle = self._bundles.get(name)
        if bundle is None:
            bundle = Bundle(name, self._tag + name, self._files.state / name)
            bundle.made = bundle.folder.is_complete
            bundle.since = job.state.since
            if not bundle.made and (self._files.state / MARKER).exists():  # nobody can have submitted it
                self._jobs.apply(job, Returned(job.attempts, self._jobs.clock()))
                return
            bundle.made = True
            bundle.doubtful = not bundle.folder.was_submitted
            bundle.submitted_at = None if bundle.doubtful else 0.0
            self._bundles[name] = bundle
        bundle.attempts[index] = Attempt(job, index)

    def _adopt_in_pilot(self, name: str, job: Job) -> None:
        pilot = self._pilots.all.get(name)
        if pilot is None:
            pilot = self._pilots.all[name] = Pilot(name, self._tag + name, self._files.state / name)
            pilot.made, pilot.submitted_at = True, 0.0  # it worked when it was given the job
        self._pilots.adopt(pilot, job)

    def is_gone(self, _job: Job) -> bool:
        """Any attempt on the cluster can be judged, whatever became of the engine that handed it over."""
        return True

    def stop(self, job: Job, grace: float | None, number: int = 0) -> None:
        if (pilot := self._pilots.find(job)) is not None:
            self._pilots.stop(pilot, job, job.spec.grace if grace is None else grace, number)
        if (found := self._find(job)) is None:
            return
        bundle, attempt = found
        try:
            if self._withdraw(bundle, attempt):
                return
            bundle.folder.stop(attempt.index, job.spec.grace if grace is None else grace, number)
        except OSError:  # Slurm ends it, with its own grace
            self._controller.forget(bundle.tag, attempt.index)
            return
        self._controller.signal(bundle.tag, attempt.index)

    def recall(self, job: Job) -> None:
        if isinstance(job.state, Starting) and (pilot := self._pilots.find(job)) is not None:
            self._pilots.recall(pilot, job)
        if isinstance(job.state, Starting) and (found := self._find(job)) is not None:
            self._withdraw(*found)

    def drain(self) -> None:
        self._draining = True
        for job in self._active():
            self.recall(job)
        for bundle in list(self._bundles.values()):
            for attempt in [each for each in bundle.attempts.values() if each.began is None]:
                self._withdraw(bundle, attempt)

    def _withdraw(self, bundle: Bundle, attempt: Attempt) -> bool:
        """Take an attempt back that has not started, and let Slurm forget it; whether that worked."""
        if not self._judgement.take_back(bundle, attempt):
            return False
        self._controller.forget(bundle.tag, attempt.index)
        self._leave(bundle, attempt)
        return True

    def _find(self, job: Job) -> tuple[Bundle, Attempt] | None:
        assert isinstance(job.state, Active)
        name, index = read_ref(job.state.ref)
        bundle = self._bundles.get(name)
        return (bundle, bundle.attempts[index]) if bundle is not None and index in bundle.attempts else None

    def set_limit(self, _job: Job) -> bool:
        """Slurm got the limit with the job, and may be asked for less time only by an administrator."""
        return False

    def process_of(self, _job: Job) -> int | None:
        return None

    # -- what it shows ----------------------------------------------------------------------------

    def devices(self, device_ids: Sequence[str]) -> tuple[Device, ...]:
        return tuple(Device(each, each, each, (), "declared") for each in device_ids)

    def reason(self, job: Job) -> Reason | None:
        """Why a job waits that was not handed over."""
        if self._policy.paused:
            return QueuePaused(self._policy.paused)
        if trouble := self._away or self._disk_trouble or self._slurm_trouble:
            return Short(trouble)
        if self._pilots.choose([job]):
            return InCluster(None, "waits for a pilot with room for it")
        return InCluster(None, f"{self._config.settings.queued_max} jobs wait in Slurm already")

    @property
    def _slurm_trouble(self) -> str:
        found = self._controller.trouble
        return f"{found}; see stoker cluster check {self._config.name}" if found else ""

    def status(self) -> SiteStatus:
        now = self._jobs.clock()
        active = self._active()
        pending = sum(isinstance(job.state, Starting) for job in active)
        running = len(active) - pending
        answered = self._controller.answered_text()
        note = f"{self._config.name}: {running} running, {pending} waiting in Slurm{answered}" if self._all else ""
        return SiteStatus(
            Snapshot(now, ()),
            summary=note,
            waits=self._waits(),
            trouble="; ".join(filter(None, (self._slurm_trouble, self._away, self._disk_trouble))),
            handed_over={
                **{name: self._situation(bundle) for name, bundle in self._bundles.items()},
                **{
                    name: InCluster(None, f"waits in a pilot{_node_text(pilot)}")
                    for name, pilot in self._pilots.all.items()
                },
            },
        )

    def _waits(self) -> tuple[tuple[Wants, Reason], ...]:
        found = {}
        for group in self._jobs.waiting.groups():
            job = next(iter(group))
            if (reason := self.reason(job)) is not None:
                found[Wants(shape_of(job).resources, job.spec.priority, caps_of(job))] = reason
        return tuple(found.items())

    def _situation(self, bundle: Bundle) -> InCluster:
        """Why the first of a bundle's attempts waits that has not started."""
        waiting = [attempt for attempt in bundle.attempts.values() if attempt.began is None]
        fact = next((attempt.answers.fact for attempt in waiting if attempt.answers.fact is not None), None)
        if fact is None:
            words = "submitted" if bundle.submitted_at is not None else "about to be submitted"
            return InCluster(bundle.since, words)
        return InCluster(bundle.since, reason_text(fact.reason), fact.start)

    def forecast(self, typical: float | None = None) -> Forecast:
        """Slurm's expected starts."""
        starts = {}
        for attempt in self._pending():
            fact = attempt.answers.fact
            if fact is not None and fact.start is not None:
                starts[attempt.job_id] = fact.start
        return Forecast(starts)

    # -- the end ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Nothing is measured here."""

    def close(self, *, recorded: bool) -> None:
        self._controller.close()


def _node_text(pilot: Pilot) -> str:
    return f" on {pilot.ready.node}" if pilot.ready is not None else ""


def pilot_script(settings: ClusterSettings, folder: BundleFolder) -> str:
    """The batch script of a pilot."""
    words = [settings.python or sys.executable, "-P", "-m", "stoker", "engine", "pilot", str(folder.path)]
    return f"#!/bin/sh\nexec {shlex.join(words)} 2>> {shlex.quote(str(folder.errors))}/0\n"


def node_script(settings: ClusterSettings, folder: BundleFolder) -> str:
    """The batch script: the node's program, on the interpreter of the settings or on ours."""
    python = settings.python or sys.executable
    program = [python, "-P", "-m", "stoker.sites.slurm.node"] if settings.python else _own_program(python)
    missing = f'echo "$(hostname): no "{shlex.quote(python)} >> {shlex.quote(str(folder.errors))}/$index; exit 1'
    return (
        "#!/bin/sh\nindex=${SLURM_ARRAY_TASK_ID:-0}\n"
        f"[ -x {shlex.quote(python)} ] || {{ {missing}; }}\n"
        f"exec {shlex.join([*program, str(folder.path)])}\n"
    )


def _own_program(python: str) -> list[str]:
    return [python, "-I", "-S", "-c", _PROGRAM, _PACKAGE_PARENT]
