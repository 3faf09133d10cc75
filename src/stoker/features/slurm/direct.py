"""Direct mode: jobs and tasks of arrays that are jobs of Slurm's themselves, handed over in bundles."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from stoker.core.errors import StokerError
from stoker.core.job import Active, Job, Returned
from stoker.core.planner.reasons import InCluster
from stoker.features.slurm.attempts import Bundle, BundledAttempt, Reconciler, read_ref, ref_of
from stoker.features.slurm.bundles import JobBundle, sbatch_words
from stoker.features.slurm.controller import Controller
from stoker.features.slurm.judge import reason_text
from stoker.features.slurm.orders import ClusterContext
from stoker.store.waiting import PollPace

FASTEST_LOOK = 0.25
SLOWEST_LOOK = 1.0
LOOK_SHARE = 200
"""Seconds between two looks at the bundles. Looking takes at most 1/LOOK_SHARE of the time."""
WHOLE_INTERVAL = 5.0
WHOLE_SHARE = 1000
"""The same for looks at the journals of all attempts, also those whose claim the head does not see yet."""


class Direct:
    """The bundles of an engine."""

    def __init__(self, context: ClusterContext, reconciler: Reconciler, controller: Controller) -> None:
        self.all: dict[str, Bundle] = {}
        self.pace = PollPace(FASTEST_LOOK, SLOWEST_LOOK, LOOK_SHARE)
        self._context = context
        self._jobs = context.jobs
        self._directory = context.directory
        self._orders = context.orders
        self._reconciler = reconciler
        self._controller = controller
        self._new: list[tuple[Bundle, list[Job]]] = []
        """Bundles whose assignments are not recorded yet."""
        self._whole_at = 0.0

    # -- handing over -----------------------------------------------------------------------------

    def assign(self, planned: JobBundle, now: float) -> None:
        """Assign jobs to a new bundle; its files follow once that is recorded."""
        bundle = self._add(self._context.new_name())
        first = planned.jobs[0]
        bundle.options = [
            f"--job-name=stoker-{first.array or first.id}",
            *sbatch_words(planned.shape, len(planned.jobs), self._context.settings),
        ]
        bundle.since = now
        assigned = []
        for index, job in enumerate(planned.jobs):
            assigned.append(self._jobs.apply(job, self._orders.assigned(job, ref_of(bundle.name, index), now)))
            bundle.attempts[index] = BundledAttempt(assigned[-1], index)
        self._new.append((bundle, assigned))

    def _add(self, name: str) -> Bundle:
        bundle = self.all[name] = Bundle(name, self._context.tag + name, self._directory.folder(name))
        return bundle

    def write_new(self) -> OSError | None:
        """Write the files of new bundles; the error if one could not be written and was taken back."""
        new, self._new = self._new, []
        return next(filter(None, [self._write(bundle, jobs) for bundle, jobs in new]), None)

    def _write(self, bundle: Bundle, jobs: list[Job]) -> OSError | None:
        """Write the files of a bundle; what was cancelled meanwhile is claimed before Slurm hears of it."""
        environments = {job.spec.environment: self._orders.environment(job.spec.environment) for job in jobs}
        try:
            bundle.folder.make([self._orders.order(job) for job in jobs], environments)
            for index in range(len(jobs)):
                if index not in bundle.attempts:
                    bundle.folder.claim(index)
        except (OSError, StokerError) as error:  # also that what was prepared for a job is gone: then it is held
            self._take_all_back(bundle)
            return error if isinstance(error, OSError) else None
        self._directory.trouble = ""
        bundle.made = True
        return None

    def refuse(self, name: str, why: str) -> None:
        """Slurm will never take the bundle: its jobs are held with Slurm's words."""
        for job_id in self.give_up(name):
            self._reconciler.hold(job_id, f"held: Slurm refused it: {why}")

    def give_up(self, name: str) -> list[int]:
        """Take all jobs of a bundle back that Slurm did not take; their ids."""
        bundle = self.all.get(name)
        return [] if bundle is None else self._take_all_back(bundle)

    def _take_all_back(self, bundle: Bundle) -> list[int]:
        taken = [attempt for attempt in list(bundle.attempts.values()) if self._reconciler.take_back(bundle, attempt)]
        for attempt in taken:
            self._leave(bundle, attempt)
        return [attempt.job_id for attempt in taken]

    # -- what happens -----------------------------------------------------------------------------

    def note_answer(self) -> None:
        """Take Slurm's answer for each attempt that it knew when it was asked."""
        controller = self._controller
        for bundle in self.all.values():
            if bundle.submitted_at is not None and controller.asked_at > bundle.submitted_at:
                self._reconciler.observe(bundle, controller.facts, controller.answer_interval)

    def look(self, *, answered: bool) -> None:
        """Read journals and apply their lines; after an answer of Slurm's, judge all attempts by both."""
        began = self._jobs.clock()
        whole = began >= self._whole_at
        news = {bundle.name for bundle in self.all.values() if bundle.made and bundle.read(whole=whole)}
        now = self._jobs.clock()
        if whole:
            self._whole_at = now + max(WHOLE_INTERVAL, WHOLE_SHARE * (now - began))
        self.pace.looked(now, now - began, news=bool(news))
        for bundle in list(self.all.values()):
            if answered or bundle.name in news:
                self._decide(bundle)

    def _decide(self, bundle: Bundle) -> None:
        if not bundle.made:
            return
        for attempt in list(bundle.attempts.values()):
            try:
                is_over = self._reconciler.reconcile(bundle, attempt)
            except OSError as error:  # decided again at the next answer
                self._directory.failed(error)
                return
            if is_over:
                self._leave(bundle, attempt)

    def _leave(self, bundle: Bundle, attempt: BundledAttempt) -> None:
        """Forget an attempt that is over or was taken back."""
        del bundle.attempts[attempt.index]
        self._jobs.plan_due = True
        if not bundle.attempts:
            del self.all[bundle.name]
            self._directory.discard(bundle.folder)

    # -- single jobs ------------------------------------------------------------------------------

    def adopt(self, job: Job) -> None:
        """Take over an attempt of a dead engine; the journal and Slurm tell the rest."""
        assert isinstance(job.state, Active)
        name, index = read_ref(job.state.ref)
        bundle = self.all.get(name)
        if bundle is None:
            bundle = self._add(name)
            bundle.since = job.state.since
            if not bundle.folder.is_complete and self._directory.is_there:  # no engine can have submitted it
                del self.all[name]
                self._jobs.apply(job, Returned(job.attempts, self._jobs.clock()))
                return
            bundle.made = True
            bundle.doubtful = not bundle.folder.was_submitted
            bundle.submitted_at = None if bundle.doubtful else 0.0
        bundle.attempts[index] = BundledAttempt(job, index)

    def stop(self, job: Job, grace: float, signal_number: int) -> None:
        if (place := self._find(job)) is None:
            return
        bundle, attempt = place
        try:
            if self._withdraw(bundle, attempt):
                return
            bundle.folder.stop(attempt.index, grace, signal_number)
        except OSError:  # Slurm ends it, with its own grace
            self._controller.forget(bundle.tag, attempt.index)
            return
        self._controller.signal(bundle.tag, attempt.index)

    def recall(self, job: Job) -> None:
        """Take an attempt back that has not started."""
        if (place := self._find(job)) is not None:
            self._withdraw(*place)

    def recall_all(self) -> None:
        for bundle in list(self.all.values()):
            for attempt in [attempt for attempt in bundle.attempts.values() if attempt.began is None]:
                self._withdraw(bundle, attempt)

    def _withdraw(self, bundle: Bundle, attempt: BundledAttempt) -> bool:
        """Take an attempt back that has not started, and let Slurm forget it; whether that worked."""
        if not self._reconciler.take_back(bundle, attempt):
            return False
        self._controller.forget(bundle.tag, attempt.index)
        self._leave(bundle, attempt)
        return True

    def _find(self, job: Job) -> tuple[Bundle, BundledAttempt] | None:
        assert isinstance(job.state, Active)
        name, index = read_ref(job.state.ref)
        bundle = self.all.get(name)
        return (bundle, bundle.attempts[index]) if bundle is not None and index in bundle.attempts else None

    # -- what it shows ----------------------------------------------------------------------------

    @property
    def attempts(self) -> Iterator[BundledAttempt]:
        for bundle in self.all.values():
            yield from bundle.attempts.values()

    @property
    def pending(self) -> Iterator[BundledAttempt]:
        """Attempts that have not started."""
        return (attempt for attempt in self.attempts if attempt.began is None)

    @property
    def are_held_up(self) -> bool:
        """Whether an attempt waits for GPUs of others."""
        return any(attempt.answers.fact is not None and attempt.answers.fact.is_blocked for attempt in self.pending)

    def situations(self) -> dict[str, InCluster]:
        """Why attempts have not started, by bundle."""
        limit = self._controller.limit.words
        return {name: _situation(bundle, bundle.attempts.values(), limit) for name, bundle in self.all.items()}


def _situation(bundle: Bundle, attempts: Collection[BundledAttempt], limit: str) -> InCluster:
    """Why the first attempt of a bundle waits that has not started; `limit` is why it may not be submitted."""
    facts = (attempt.answers.fact for attempt in attempts if attempt.began is None)
    fact = next((fact for fact in facts if fact is not None), None)
    if fact is None:
        unsubmitted = limit or "about to be submitted"
        return InCluster(bundle.since, "submitted" if bundle.submitted_at is not None else unsubmitted)
    return InCluster(bundle.since, reason_text(fact.reason), fact.start)
