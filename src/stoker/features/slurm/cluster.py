"""Jobs on a cluster: judge attempts by journals and Slurm's answers, bundle jobs, and say in words why they wait.

Journals, which nodes write, are the truth. Slurm is asked only why something waits and what died.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import heapify, heappop, heapreplace
from itertools import islice
from math import ceil
from typing import Literal, NamedTuple

from stoker.core.job import Job
from stoker.core.planner.queue import CPU_JOBS, caps_of
from stoker.core.planner.reasons import AtLimit, CapFull
from stoker.core.settings import ClusterSettings
from stoker.core.spec import JobSpec

ANSWERS_NEEDED = 2
"""Answers of Slurm in a row that must agree before an end is believed that is in no journal."""
SETTLE_SECONDS = 5.0
"""Seconds that these answers must span: a shared directory may show a node's lines with a delay."""
START_SECONDS = 60.0
"""Seconds after which a task is taken back that Slurm calls running, and whose journal has no start."""
GHOST_ANSWERS = 3
"""Answers in a row that show a task as alive whose attempt is over; then it is cancelled in Slurm."""

ENDED_STATES = frozenset(
    (
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
        *("REVOKED", "SPECIAL_EXIT", "TIMEOUT"),
    )
)
"""States in which Slurm does no more for a job. One that is not known here counts as alive."""
UNSEEN_STATES = frozenset(("BOOT_FAIL", "NODE_FAIL"))
"""States in which Slurm has lost sight of a node, whose processes may go on."""
SUSPENDED_STATES = frozenset(("STOPPED", "SUSPENDED"))
"""States in which Slurm has stopped the processes of a job."""
BUSY_REASONS = frozenset(("Priority", "Resources"))
"""Reasons of Slurm for a job that waits until others release what it needs."""
WAITING_STATES = frozenset(("CONFIGURING", "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"))


class SlurmFact(NamedTuple):
    """One task in an answer of Slurm."""

    state: str
    reason: str = ""
    job: str = ""
    """Its id, as scancel takes it. Only a hint: Slurm may give an id out twice."""
    start: float | None = None
    """When it started, or is expected to start."""
    node: str = ""
    """Its node; empty if it was never given one."""

    @property
    def is_over(self) -> bool:
        return self.state in ENDED_STATES

    @property
    def is_blocked(self) -> bool:
        """Whether it waits for GPUs that other jobs have."""
        return self.state in WAITING_STATES and self.reason in BUSY_REASONS


class Answers(NamedTuple):
    """Slurm's latest answers about a task."""

    fact: SlurmFact | None = None
    """None if Slurm does not know the task."""
    times: int = 0
    """Answers in a row that agree whether it is alive, over or unknown; 0 if Slurm has not answered."""
    seconds: float = 0.0
    """Time between the first and the last of these."""


class JournalFact(NamedTuple):
    """The journal of an attempt, as far as it was read."""

    started: bool = False
    ended: bool = False
    gone: bool = False
    """Whether no process of the attempt is left, though it did not come to its end."""


Verdict = Literal["waits", "runs", "ended", "cut off", "take back", "called off"]
"""`cut off`: it began, and only Slurm knows what ended it. `take back`: make its claim; if that works, it never began.
`called off`: the same, and it was cancelled in Slurm."""


def judge(journal: JournalFact, answers: Answers) -> Verdict:
    """Judge an attempt. The journal must have been read after the last of the answers was given."""
    if journal.ended:
        return "ended"
    state = answers.fact.state if answers.fact is not None else ""
    if journal.gone and is_ghost(answers):
        return "cut off"
    if journal.started:
        return "cut off" if is_settled(answers) else "runs"
    if state in ENDED_STATES or is_settled(answers) or is_stalled(answers):
        return "called off" if state == "CANCELLED" and not _had_node(answers) else "take back"
    return "waits"


def _had_node(answers: Answers) -> bool:
    """Whether a task may have been cancelled by its node: that is how one ends that the node refuses to launch."""
    return answers.fact is not None and bool(answers.fact.node)


def first_node(nodes: str) -> str:
    """The first of `n1`, `n[1-3,7]` or `a1,b2`, where the batch script of a job runs."""
    match = re.match(r"([^,\[]*)(?:\[(\d+))?", nodes)
    return "".join(part or "" for part in match.groups()) if match else ""


def is_settled(answers: Answers) -> bool:
    """Whether Slurm says for long enough that it does no more for the task."""
    over = answers.fact is None or answers.fact.is_over
    return over and answers.times >= ANSWERS_NEEDED and answers.seconds >= SETTLE_SECONDS


def is_stalled(answers: Answers) -> bool:
    """Whether Slurm calls a task running for so long that its program should have begun.

    After a crash of the controller a node may refuse to launch a task whose id it knows.
    """
    return _class_of(answers.fact) == "runs" and answers.times >= GHOST_ANSWERS and answers.seconds >= START_SECONDS


def count_answer(before: Answers, fact: SlurmFact | None, seconds: float) -> Answers:
    """Add an answer to those before; it came `seconds` after the last one.

    Slurm forgets a task that is over after MinJobAge, often 300 s; what it said of it before still counts.
    """
    if fact is None and before.fact is not None and before.fact.is_over:
        fact = before.fact
    same = before.times > 0 and _class_of(before.fact) == _class_of(fact)
    return Answers(fact, before.times + 1, before.seconds + seconds) if same else Answers(fact, 1)


def _class_of(fact: SlurmFact | None) -> str:
    return (
        "unknown" if fact is None else "over" if fact.is_over else "waits" if fact.state in WAITING_STATES else "runs"
    )


def is_suspended(answers: Answers) -> bool:
    """Whether Slurm has stopped the processes of a task for a while."""
    return answers.fact is not None and answers.fact.state in SUSPENDED_STATES


def is_ghost(answers: Answers) -> bool:
    """Whether Slurm goes on with a task whose attempt is over, so that its GPUs stay taken."""
    fact = answers.fact
    if fact is None or fact.is_over or fact.state == "COMPLETING":
        return False
    return answers.times >= GHOST_ANSWERS and answers.seconds >= SETTLE_SECONDS


def loss_text(answers: Answers) -> str:
    """Why an attempt was lost, for the user."""
    if answers.fact is None:
        return "it vanished from Slurm without a word, as after a crash of the controller or a node"
    if answers.fact.state in UNSEEN_STATES:
        return f"its node went down (Slurm: {answers.fact.state})"
    if answers.fact.state == "PREEMPTED":
        return "Slurm gave its GPUs to other jobs (PREEMPTED)"
    return f"it was killed from outside, perhaps for its host memory (Slurm: {slurm_text(answers.fact)})"


def slurm_text(fact: SlurmFact) -> str:
    """State and reason in Slurm's own words."""
    return fact.state if fact.reason in ("", "None") else f"{fact.state}, {fact.reason}"


# -- bundles -------------------------------------------------------------------------------------


class SbatchShape(NamedTuple):
    """The options that all jobs of one sbatch share."""

    gpus: int
    nodes: int
    model: str
    minutes: int | None
    """Time limit for Slurm; None is that of the partition."""
    array: int = 0
    """The array whose tasks are limited by `at_once`; 0 for all others."""
    at_once: int | None = None
    options: tuple[tuple[str, str], ...] = ()
    """More options for sbatch."""


class JobBundle(NamedTuple):
    """Jobs that are handed over by one sbatch."""

    shape: SbatchShape
    jobs: Sequence[Job]


def sbatch_shape(job: Job) -> SbatchShape:
    spec = job.spec
    limited = spec.at_once is not None
    return SbatchShape(
        spec.resources.gpus,
        spec.nodes,
        spec.resources.model,
        minutes_of(spec),
        job.array if limited else 0,
        spec.at_once,
        spec.slurm,
    )


def minutes_of(spec: JobSpec) -> int | None:
    """The limit for Slurm, which counts in minutes: the job's own limit ends it first, with its grace."""
    return None if spec.limit is None else ceil((spec.limit + spec.grace) / 60) + 1


def importance(job: Job) -> tuple[int, int]:
    """Sorts waiting jobs: the more important first, then the older."""
    return -job.spec.priority, job.id


def offer_in_order(groups: Iterable[Iterable[Job]], offer: Callable[[Job], bool]) -> None:
    """Offer waiting jobs, the more important and the older first; after a refusal no more of the same group.

    The jobs of a group are alike and sorted. So the cost depends on the jobs that are taken, not on those that wait.
    """
    heap = [(importance(job), job, jobs) for jobs in map(iter, groups) for job in islice(jobs, 1)]
    heapify(heap)
    while heap:
        _, job, jobs = heap[0]
        following = next(jobs, None) if offer(job) else None
        if following is None:
            heappop(heap)
        else:
            heapreplace(heap, (importance(following), following, jobs))


class Caps:
    """Whether a job may be handed over beside the active ones: -j, and the limits of groups and arrays."""

    def __init__(self, limits: Mapping[str, int], most: int | None, active: Callable[[], Iterable[Job]]) -> None:
        """`active` is called at most once, and only if there is a limit."""
        self._limits = {name: limit for name, limit in limits.items() if name != CPU_JOBS.name}  # of this machine
        self._most = most
        self._find_active = active

    @cached_property
    def _counts(self) -> Counter[str]:
        """Active jobs by the name of a cap; those of all under an empty name."""
        counts: Counter[str] = Counter()
        for job in self._find_active():
            counts.update(("", *(cap.name for cap in caps_of(job))))
        return counts

    def left(self, job: Job) -> int | None:
        """How many more jobs like this one may be handed over; None is any number."""
        return min((limit - self._counts[name] for name, limit in self._limits_of(job)), default=None)

    def full(self, job: Job, *, arrays: bool = True) -> AtLimit | CapFull | None:
        """The limit that keeps a job from being handed over; `arrays` is whether that of its array counts."""
        for name, limit in self._limits_of(job, arrays=arrays):
            if self._counts[name] >= limit:
                return CapFull(name, limit) if name else AtLimit(limit)
        return None

    def take(self, job: Job) -> None:
        """Count a job that is handed over."""
        if names := [name for name, _ in self._limits_of(job)]:
            self._counts.update(names)

    def _limits_of(self, job: Job, *, arrays: bool = True) -> list[tuple[str, int]]:
        limits = [("", self._most)]
        for cap in caps_of(job):
            limits.append(
                (cap.name, self._limits.get(cap.name) if cap.limit is None else cap.limit if arrays else None)
            )
        return [(name, limit) for name, limit in limits if limit is not None]


class SlurmRoom:
    """How many more jobs may wait in Slurm."""

    def __init__(self, count: int, most: int, active: Callable[[int], int]) -> None:
        """`most` is the largest bundle; `active` tells how many tasks of an array are handed over already."""
        self._count = count
        self._most = most
        self._active = active
        self._arrays: dict[int, int] = {}

    def take(self, job: Job) -> bool:
        """Take the room of one job, if there is any.

        A limited array has one bundle at a time, whose limit Slurm keeps; beside it no more follow than may run.
        """
        limit = job.spec.at_once
        if limit is not None and job.array not in self._arrays:
            before = self._active(job.array)
            self._arrays[job.array] = limit - before if before else self._most
        if self._count <= 0 or (limit is not None and self._arrays[job.array] <= 0):
            return False
        self._count -= 1
        if limit is not None:
            self._arrays[job.array] -= 1
        return True


LIMIT_PAUSE = 5.0
LONGEST_LIMIT_PAUSE = 60.0
"""Seconds before more tasks are tried than a submit limit allowed: the first time, and at most."""


class SubmitLimit:
    """How many of our tasks Slurm takes at once, learnt from its refusals; other jobs of the user count there too."""

    def __init__(self) -> None:
        self.words = ""
        """For the user, while there is a limit."""
        self.retry_at = 0.0
        """When one may try to submit more."""
        self._most: int | None = None
        self._step = 1
        self._pause = LIMIT_PAUSE

    def refused(self, tasks: int, others: int, name: str, now: float) -> None:
        """Slurm refused `tasks` tasks beside `others` of ours: half of them may fit."""
        self.words = f"your submit limit in Slurm is reached{f' ({name})' if name else ''}; it goes on as jobs end"
        self._most, self._step = others + tasks // 2, 1
        if now >= self.retry_at:  # else the last refusal has begun a pause, in which the right number is looked for
            self.retry_at, self._pause = now + self._pause, min(2 * self._pause, LONGEST_LIMIT_PAUSE)

    def accepted(self, total: int, now: float) -> None:
        """Slurm has `total` of our tasks now; if that is more than before, try still more at once."""
        if self._most is not None and total > self._most:
            self._most, self._step, self.retry_at, self._pause = total, 2 * self._step, now, LIMIT_PAUSE

    def most(self, now: float) -> int | None:
        """How many of our tasks may be in Slurm; None is any number."""
        if self._most is None:
            return None
        return self._most + (self._step if now >= self.retry_at else 0)


def bundles(jobs: Iterable[Job], most: int) -> Iterator[JobBundle]:
    """Bundle jobs by shape, in their order; `most` is the largest bundle."""
    by_shape: dict[SbatchShape, list[Job]] = {}
    for job in jobs:
        by_shape.setdefault(sbatch_shape(job), []).append(job)
    for shape, alike in by_shape.items():
        for first in range(0, len(alike), most):
            yield JobBundle(shape, alike[first : first + most])


def sbatch_words(shape: SbatchShape, count: int, settings: ClusterSettings) -> list[str]:
    """The options for sbatch that follow from the jobs and the settings of the cluster; of two, the last one counts."""
    words = settings_words(settings)
    if shape.gpus:
        kind = f"gpu:{shape.model}" if shape.model else "gpu"
        words.append(f"--gres={kind}:{shape.gpus // shape.nodes}")
    if shape.nodes > 1:
        words.append(f"--nodes={shape.nodes}")
        own_tasks = any(name.startswith("ntasks") for name, _ in shape.options)
        words += [] if own_tasks else [f"--ntasks={shape.nodes}", "--ntasks-per-node=1"]
    if shape.minutes is not None:
        words.append(f"--time={shape.minutes}")
    if count > 1:
        limit = f"%{shape.at_once}" if shape.at_once is not None else ""
        words.append(f"--array=0-{count - 1}{limit}")
    own = [f"--{name}={value}" if value else f"--{name}" for name, value in shape.options]
    return [*words, *settings.options, *own]


def settings_words(settings: ClusterSettings) -> list[str]:
    """The options for sbatch that tell where a job runs, and on whose account."""
    names = {"partition": settings.partition, "account": settings.account, "qos": settings.qos}
    return [f"--{name}={value}" for name, value in names.items() if value]


# -- reasons -------------------------------------------------------------------------------------

_WORDS = {
    "None": "about to start",
    "Resources": "the next to start when GPUs become free",
    "Priority": "jobs with a higher priority in Slurm go first",
    "Dependency": "waits for another job in Slurm",
    "BeginTime": "its time in Slurm has not come",
    "JobHeldUser": "held in Slurm; scontrol release lets it go",
    "JobHeldAdmin": "held in Slurm by an administrator",
    "JobArrayTaskLimit": "as many tasks of its array run as may at once",
    "InvalidAccount": "the account is not valid; see account in the configuration of the cluster",
    "InvalidQOS": "the QOS is not valid; see qos in the configuration of the cluster",
    "PartitionTimeLimit": "its time limit is longer than the partition allows; ask for less with -t",
    "PartitionNodeLimit": "it asks for more nodes than the partition allows",
    "PartitionConfig": "the partition cannot give what it asks for",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "Reservation": "waits for a reservation",
    "Licenses": "waits for a licence",
    "BadConstraints": "no node can ever give what it asks for",
    "NodeDown": "a node that it needs is down",
    "Cleaning": "Slurm cleans up after its last run",
    "launch failed requeued held": "its start failed, and Slurm holds it",
}
_LIMIT = re.compile(r"(QOS|Assoc)(Max|Grp)([A-Za-z]*)")


def reason_text(reason: str) -> str:
    """Slurm's reason in words; one that is not known stays as it is."""
    plain = reason.partition(",")[0].strip("() ")
    if plain in _WORDS:
        return _WORDS[plain]
    if limit := _LIMIT.match(plain):
        whose = "of the QOS" if limit[1] == "QOS" else "of your account"
        return f"a limit {whose} is reached ({plain})"
    return reason or "about to start"
