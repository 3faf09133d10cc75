"""Attempts on a cluster: read their journals, judge them together with Slurm's answers, apply the events."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from stoker.core.device import NodeGpu
from stoker.core.job import (
    Active,
    Cancelled,
    Event,
    Exited,
    Job,
    Lost,
    Paused,
    Returned,
    Started,
    Stopping,
    started_at,
)
from stoker.core.launch import attempt_key
from stoker.core.logs.oom import find_oom
from stoker.features.slurm.cluster import (
    UNSEEN_STATES,
    WAITING_STATES,
    Answers,
    JournalFact,
    SlurmFact,
    count_answer,
    is_settled,
    judge,
    loss_text,
    slurm_text,
)
from stoker.features.slurm.shared import ALIVE, GONE, BundleFolder
from stoker.runner import journal
from stoker.sites.interface import EngineJobs
from stoker.store.logs import read_tail

RETURNS_ALLOWED = 3
"""Returns without a start in a row after which a job, or all jobs for pilots, are held."""
SHORT_SECONDS = 60.0
"""Seconds before a job is handed over again that a node could not start for lack of resources."""
REFUSED_SECONDS = 10.0
"""The same for one that its node refused to launch."""
SILENT_SECONDS = 20.0
"""A node that works on an attempt answers sooner: it looks for messages every 10 s, and each way may take seconds."""


def ref_of(bundle: str, index: int) -> str:
    """The ref of an attempt. It has no second word: every attempt is a slot of its own."""
    return f"{bundle}.{index}"


def read_ref(ref: str) -> tuple[str, int]:
    bundle, _, index = ref.rpartition(".")
    return bundle, int(index)


def start_by_our_clock(job: Job, at: float, now: float) -> float:
    """When an attempt started; the clock of its node, which says `at`, may be wrong."""
    assert isinstance(job.state, Active)
    return min(max(at, job.state.since), now)


def end_by_our_clock(job: Job, began: float | None, at: float) -> float:
    """When an attempt ended that by the clock of its node lasted from `began` to `at`."""
    ours = started_at(job)
    return at if ours is None or began is None else ours + max(0.0, at - began)


class BundledAttempt:
    """An attempt that is a task of Slurm's, with its journal and Slurm's answers."""

    def __init__(self, job: Job, index: int) -> None:
        self.job_id = job.id
        self.number = job.attempts
        self.index = index
        self.answers = Answers()
        self.offset = 0
        self.began: float | None = None
        """By the clock of the node."""
        self.node = ""
        self.gpus: tuple[str, ...] = ()
        self.end: journal.AttemptExited | journal.AttemptReturned | None = None
        self.is_gone = False
        """Whether its node has shown that no process of it is left."""
        self.pinged_at: float | None = None
        """When its node was asked whether it goes on; None if it answered, or was not asked."""

    @property
    def key(self) -> str:
        return attempt_key(self.job_id, self.number)

    @property
    def fact(self) -> JournalFact:
        return JournalFact(self.began is not None, self.end is not None, self.is_gone)

    def read(self, folder: BundleFolder) -> bool:
        """Read new lines of the journal; whether there are any."""
        if self.end is not None:
            return True
        data = folder.journal(self.index, self.offset)
        self.offset += len(data)
        for line in data.splitlines():
            self._take(line)
        return bool(data)

    def _take(self, line: bytes) -> None:
        if line.startswith(f"{ALIVE} {self.key} ".encode()):
            self.pinged_at, self.answers = None, Answers()
            return
        if line == f"{GONE} {self.key}".encode():
            self.is_gone, self.answers = True, Answers()  # from now on Slurm should say that it is over
            return
        try:
            record = journal.record_of(line)
        except journal.JournalUnreadable:
            return
        if record.attempt != self.key:
            return
        if isinstance(record, journal.AttemptStarted):
            self.began = record.at
            _, _, _, self.node, gpus, *_ = [*line.decode(errors="replace").split(" "), "", "-"]
            self.gpus = () if gpus == "-" else tuple(gpus.split(","))
        elif isinstance(record, journal.AttemptExited | journal.AttemptReturned):
            self.end = record


class Bundle:
    """Attempts that one sbatch hands over. `doubtful`: sbatch may or may not have accepted it."""

    def __init__(self, name: str, tag: str, folder: Path) -> None:
        self.name = name
        self.tag = tag
        self.folder = BundleFolder(folder)
        self.attempts: dict[int, BundledAttempt] = {}
        self.options: list[str] = []
        self.made = False
        """Whether its folder is complete."""
        self.submitted_at: float | None = None
        """When sbatch had taken it: only answers of later questions count."""
        self.doubtful = False
        self.slurm_id = ""
        self.since = 0.0
        self.begun: set[int] = set()
        """Indices of attempts that may have begun: they have a claim, or Slurm does not say that they wait."""
        self._claims_changed = (0, 0)
        """When the last two looks saw the claims change."""

    @property
    def tasks(self) -> Collection[int]:
        """Indices of its tasks in Slurm that matter still."""
        return self.attempts

    def read(self, *, whole: bool) -> bool:
        """Read new lines of the journals; whether there are any.

        An attempt makes its claim before it writes, so only those that may have begun are read, unless it is the
        `whole` bundle: a client of NFS may see a new claim a minute late, but each opened file as it is.
        """
        self._find_claims()
        news = False
        for attempt in [
            self.attempts[index] for index in (self.attempts if whole else self.begun & self.attempts.keys())
        ]:
            with contextlib.suppress(FileNotFoundError):
                news = attempt.read(self.folder) or news
        return news

    def _find_claims(self) -> None:
        """List the claims if there may be new ones: two at the same tick of the clock change the directory once."""
        with contextlib.suppress(FileNotFoundError):
            changed = self.folder.claims_changed
            if self._claims_changed != (changed, changed):
                self.begun.update(self.folder.claims())
                self._claims_changed = (self._claims_changed[1], changed)


class Reconciler:
    """Applies events to the jobs of attempts, by their journals and Slurm's answers."""

    def __init__(self, jobs: EngineJobs, cluster: str, is_clear: Callable[[Bundle, BundledAttempt], bool]) -> None:
        """`is_clear` tells whether nothing is left of an attempt that is over for Slurm."""
        self._jobs = jobs
        self._is_clear = is_clear
        self._cluster = cluster
        self._returns: dict[int, int] = {}
        """How often in a row a job came back without a start."""
        self._resumes: list[tuple[float, int]] = []

    def job(self, attempt: BundledAttempt) -> Job | None:
        """The job of an attempt, unless that is over."""
        return self._jobs.attempt(attempt.key)

    def observe(self, bundle: Bundle, facts: Mapping[tuple[str, int], SlurmFact], seconds: float) -> None:
        """Take one more answer of Slurm, which came `seconds` after the last."""
        for attempt in bundle.attempts.values():
            fact = facts.get((bundle.tag, attempt.index))
            attempt.answers = count_answer(attempt.answers, fact, seconds)
            if fact is None or fact.state not in WAITING_STATES:
                bundle.begun.add(attempt.index)

    def reconcile(self, bundle: Bundle, attempt: BundledAttempt) -> bool:
        """Apply the start and the end of an attempt; whether it is over."""
        job = self.job(attempt)
        if job is None:
            return True
        if attempt.began is not None and started_at(job) is None:
            self._returns.pop(job.id, None)
            began = start_by_our_clock(job, attempt.began, self._jobs.clock())
            job = self._jobs.apply(job, Started(attempt.number, began, self._devices(attempt)))
        verdict = judge(attempt.fact, attempt.answers)
        if verdict in ("waits", "runs"):
            return False
        if verdict in ("take back", "called off"):
            return self._take_back(bundle, attempt, job, called_off=verdict == "called off")
        is_dead = verdict == "ended" or self._is_dead(bundle, attempt)
        if not is_dead and not isinstance(job.state, Stopping):  # which does not run again; the check goes on
            return False
        self._jobs.apply(job, self._end(job, attempt))
        self._jobs.plan_due = True
        return True

    def take_back(self, bundle: Bundle, attempt: BundledAttempt) -> bool:
        """Take an attempt back that has not started; whether that worked."""
        job = self.job(attempt)
        if job is None:
            return True
        if started_at(job) is not None or (bundle.made and not bundle.folder.claim(attempt.index)):
            return False
        self._jobs.apply(job, Returned(attempt.number, self._jobs.clock()))
        self._jobs.plan_due = True
        return True

    def hold(self, job_id: int, why: str) -> None:
        """Hold a job that came back, until a user lets it go."""
        job = self._jobs.waiting.get(job_id)
        if job is not None:
            advice = f"mend that, or change it with stoker edit {job_id}; then type: stoker resume {job_id}"
            self._jobs.apply(job, Paused(self._jobs.clock(), f"{why}; {advice}"))

    def resume_due(self) -> list[float]:
        """When jobs may be handed over again."""
        return [at for at, _ in self._resumes]

    def resume(self, now: float) -> None:
        """Let jobs be handed over again that a node could not start."""
        due = [job_id for at, job_id in self._resumes if at <= now]
        self._resumes = [(at, job_id) for at, job_id in self._resumes if at > now]
        for job_id in due:
            self._jobs.resume(job_id)

    def _is_dead(self, bundle: Bundle, attempt: BundledAttempt) -> bool:
        """Whether no process of an attempt can be left: its node has shown it, or is asked and does not answer.

        A task that is over for Slurm may have left processes. A controller that forgot a task, or lost sight of its
        node, says nothing about the processes there.
        """
        fact, now = attempt.answers.fact, self._jobs.clock()
        if attempt.is_gone:
            return True
        if fact is not None and fact.state not in UNSEEN_STATES:
            return self._is_clear(bundle, attempt)
        if attempt.pinged_at is None:
            bundle.folder.ping(attempt.index)
            attempt.pinged_at = now
        if now - attempt.pinged_at < SILENT_SECONDS:
            return False
        bundle.folder.stop(attempt.index, 0.0, signal.SIGKILL)  # a node that comes back must not go on
        return True

    def _take_back(self, bundle: Bundle, attempt: BundledAttempt, job: Job, *, called_off: bool) -> bool:
        """Slurm does no more for an attempt that has no start in its journal: its claim tells whether it began."""
        now = self._jobs.clock()
        if not bundle.folder.claim(attempt.index):
            gone = is_settled(attempt.answers) and self._is_dead(bundle, attempt)  # else the journal may only be late
            if gone:
                self._jobs.apply(job, Lost(attempt.number, now, loss_text(attempt.answers)))
            return gone
        fact = attempt.answers.fact
        if called_off:
            job = self._jobs.apply(job, Cancelled(now, "cancelled in Slurm"))
        self._jobs.plan_due = True
        if not called_off and fact is not None and (not fact.is_over or fact.state == "CANCELLED"):
            self._resumes.append((now + REFUSED_SECONDS, job.id))
            self._jobs.apply(job, Returned(attempt.number, now, f"node {fact.node} did not start it"))
            return True
        self._jobs.apply(job, Returned(attempt.number, now))
        times = self._returns[job.id] = self._returns.get(job.id, 0) + (fact is not None)
        if times >= RETURNS_ALLOWED and fact is not None:
            del self._returns[job.id]
            words = bundle.folder.error(attempt.index) or slurm_text(fact)
            self.hold(job.id, f"held: Slurm could not start it {times} times ({words})")
        return True

    def _end(self, job: Job, attempt: BundledAttempt) -> Event:
        """The end in the journal; without one, what Slurm says of the task."""
        now, number = self._jobs.clock(), attempt.number
        match attempt.end:
            case journal.AttemptExited() as end:
                return self._exited(job, attempt, end)
            case journal.AttemptReturned(note=note):
                self._resumes.append((now + SHORT_SECONDS, job.id))
                return Returned(number, now, note or "the node could not start it")
        match attempt.answers.fact.state if attempt.answers.fact is not None else "":
            case "DEADLINE" | "TIMEOUT":
                return Exited(number, 143, 15, now, why="timeout", note="Slurm's time limit was over")
            case "OUT_OF_MEMORY":
                return Exited(number, 137, 9, now, note="it used more host memory than Slurm gave it (OUT_OF_MEMORY)")
            case "CANCELLED":
                return Exited(number, 143, 15, now, why="stopped", note="cancelled in Slurm")
            case state:
                return Lost(number, now, loss_text(attempt.answers), preempted=state == "PREEMPTED")

    def _exited(self, job: Job, attempt: BundledAttempt, end: journal.AttemptExited) -> Exited:
        assert isinstance(job.state, Active)
        at = end_by_our_clock(job, attempt.began, end.at)
        why, note = end.why, end.note
        oom = find_oom(read_tail(job.state.log)) if end.code and why == "exited" and _has_gpus(job) else None
        if oom is not None:
            note = "; ".join(filter(None, (f"out of GPU memory: {oom.text}", note)))
        cause = "oom" if oom is not None else ""
        return Exited(attempt.number, end.code, end.signal, at, why, end.peak, note, cause)  # type: ignore[arg-type]

    def _devices(self, attempt: BundledAttempt) -> tuple[str, ...]:
        return tuple(NodeGpu(self._cluster, attempt.node, gpu).id for gpu in attempt.gpus)


def _has_gpus(job: Job) -> bool:
    return bool(job.spec.resources.gpus)
