"""Jobs on a cluster: judge what journals and Slurm say of an attempt, bundle jobs, and say in words why they wait.

Journals, which nodes write, are the truth. Slurm is asked only why something waits and what died.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Literal, NamedTuple

from stoker.core.job import Job
from stoker.core.planner.queue import CPU_JOBS, caps_of
from stoker.core.settings import ClusterSettings
from stoker.core.spec import JobSpec

ANSWERS_NEEDED = 2
"""Answers of Slurm in a row that must agree before an end is believed that no journal tells..."""
SETTLE_SECONDS = 5.0
"""... and the seconds that they must span: a shared directory may show what a node wrote with a delay."""
START_SECONDS = 60.0
"""A task that Slurm calls running for so long without a start in the journal was never launched, and is taken back."""
GHOST_ANSWERS = 3
"""Answers in a row that show a task as alive whose attempt is over; then it is cancelled in Slurm."""

ENDED_STATES = frozenset(
    (
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
        *("REVOKED", "SPECIAL_EXIT", "TIMEOUT"),
    )
)
"""States in which Slurm does no more for a job. One that is not known here counts as alive."""
WAITING_STATES = frozenset(("CONFIGURING", "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"))


class SlurmFact(NamedTuple):
    """What Slurm says of one task."""

    state: str
    reason: str = ""
    job: str = ""
    """Its id, as scancel takes it. Only a hint: Slurm may give an id out twice."""
    start: float | None = None
    """When it started, or is expected to start."""
    node: str = ""
    """Where it runs or ran; empty where it was never given a node."""

    @property
    def is_over(self) -> bool:
        return self.state in ENDED_STATES


class Answers(NamedTuple):
    """What Slurm's latest answers say of a task."""

    fact: SlurmFact | None = None
    """None where Slurm does not know the task."""
    times: int = 0
    """Answers in a row that agree whether it is alive, over or unknown; 0 where Slurm has not answered."""
    seconds: float = 0.0
    """Time between the first and the last of these."""


class JournalFact(NamedTuple):
    """What the journal of an attempt says."""

    started: bool = False
    ended: bool = False


Verdict = Literal[
    "waits", "runs", "ended", "timeout", "out of memory", "cancelled", "preempted", "lost", "take back", "called off"
]
"""`take back`: make its claim; if that works, it never began. `called off`: the same, and it was cancelled in Slurm."""

_ENDS: Mapping[str, Verdict] = {
    "CANCELLED": "cancelled",
    "DEADLINE": "timeout",
    "OUT_OF_MEMORY": "out of memory",
    "PREEMPTED": "preempted",
    "TIMEOUT": "timeout",
}


def judge(journal: JournalFact, answers: Answers) -> Verdict:
    """What became of an attempt. The journal must have been read after the last of the answers was given."""
    if journal.ended:
        return "ended"
    state = answers.fact.state if answers.fact is not None else ""
    if journal.started:
        return _ENDS.get(state, "lost") if is_settled(answers) else "runs"
    if state in ENDED_STATES or is_settled(answers) or is_stalled(answers):
        return "called off" if state == "CANCELLED" and not _had_node(answers) else "take back"
    return "waits"


def _had_node(answers: Answers) -> bool:
    """Whether a task may have been cancelled by its node: that is how one ends that the node refuses to launch."""
    return answers.fact is not None and bool(answers.fact.node)


def is_settled(answers: Answers) -> bool:
    """Whether Slurm says for long enough that it does no more for the task."""
    over = answers.fact is None or answers.fact.is_over
    return over and answers.times >= ANSWERS_NEEDED and answers.seconds >= SETTLE_SECONDS


def is_stalled(answers: Answers) -> bool:
    """Whether Slurm calls a task running for so long that its program should have begun.

    After a crash of the controller a node may refuse to launch a task whose id it knows.
    """
    return _class_of(answers.fact) == "runs" and answers.times >= GHOST_ANSWERS and answers.seconds >= START_SECONDS


def heard(before: Answers, fact: SlurmFact | None, seconds: float) -> Answers:
    """The answers after one more, which came so many seconds after the last."""
    same = before.times > 0 and _class_of(before.fact) == _class_of(fact)
    return Answers(fact, before.times + 1, before.seconds + seconds) if same else Answers(fact, 1)


def _class_of(fact: SlurmFact | None) -> str:
    return (
        "unknown" if fact is None else "over" if fact.is_over else "waits" if fact.state in WAITING_STATES else "runs"
    )


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
    if answers.fact.state in ("NODE_FAIL", "BOOT_FAIL"):
        return f"its node went down (Slurm: {answers.fact.state})"
    if answers.fact.state == "PREEMPTED":
        return "Slurm gave its GPUs to other jobs (PREEMPTED)"
    return f"it was killed from outside, perhaps for its host memory (Slurm: {said(answers.fact)})"


def said(fact: SlurmFact) -> str:
    """What Slurm says, in its own words."""
    return fact.state if fact.reason in ("", "None") else f"{fact.state}, {fact.reason}"


# -- bundles -------------------------------------------------------------------------------------


class Shape(NamedTuple):
    """What jobs of one sbatch have in common."""

    gpus: int
    nodes: int
    model: str
    minutes: int | None
    """Time limit for Slurm; None is that of the partition."""
    array: int = 0
    """The array whose tasks are limited by `at_once`; 0 for all others."""
    at_once: int | None = None


class JobBundle(NamedTuple):
    """Jobs that are handed over by one sbatch."""

    shape: Shape
    jobs: Sequence[Job]


def shape_of(job: Job) -> Shape:
    spec = job.spec
    limited = spec.at_once is not None
    return Shape(
        spec.resources.gpus,
        spec.nodes,
        spec.resources.model,
        minutes_of(spec),
        job.array if limited else 0,
        spec.at_once,
    )


def minutes_of(spec: JobSpec) -> int | None:
    """The limit for Slurm, which counts in minutes: the job's own limit ends it first, with its grace."""
    return None if spec.limit is None else ceil((spec.limit + spec.grace) / 60) + 1


def within_limits(
    waiting: Iterable[Job], active: Sequence[Job], limits: Mapping[str, int], most: int | None
) -> Iterator[Job]:
    """Those of the waiting jobs that may be handed over beside the active ones: groups, and -j.

    The limit of an array is kept by its bundle, and that of jobs without GPU is about this machine.
    """
    counts = Counter(cap.name for job in active for cap in caps_of(job))
    total = len(active)
    for job in waiting:
        caps = [(cap.name, limits[cap.name]) for cap in caps_of(job) if cap.name in limits and cap != CPU_JOBS]
        if (most is None or total < most) and all(counts[name] < limit for name, limit in caps):
            total += 1
            counts.update(name for name, _ in caps)
            yield job


def importance(job: Job) -> tuple[int, int]:
    """Sorts waiting jobs: the more important first, then the older."""
    return -job.spec.priority, job.id


def bundles(waiting: Iterable[Job], active: Callable[[int], int], room: int, most: int) -> Iterator[JobBundle]:
    """Bundle waiting jobs by shape, the more important and the older first.

    `active` tells how many tasks of an array are handed over already, `room` is how many more jobs may wait in Slurm,
    `most` is the largest bundle. A new bundle of a limited array must leave room for what is active.
    """
    found: dict[Shape, list[Job]] = {}
    for job in sorted(waiting, key=importance):
        found.setdefault(shape_of(job), []).append(job)
    for shape, jobs in found.items():
        allowed = jobs[: max(0, room)]
        if shape.at_once is not None:  # one bundle at a time, whose limit Slurm keeps
            before = active(shape.array)
            allowed = allowed[: max(0, shape.at_once - before)] if before else allowed[:most]
        room -= len(allowed)
        for first in range(0, len(allowed), most):
            yield JobBundle(shape, allowed[first : first + most])


def sbatch_words(shape: Shape, count: int, settings: ClusterSettings) -> list[str]:
    """The options for sbatch that follow from the jobs and the settings of the cluster."""
    words = [f"--{name}={value}" for name, value in _names(settings) if value]
    if shape.gpus:
        kind = f"gpu:{shape.model}" if shape.model else "gpu"
        words.append(f"--gres={kind}:{shape.gpus // shape.nodes}")
    if shape.nodes > 1:
        words += [f"--nodes={shape.nodes}", f"--ntasks={shape.nodes}", "--ntasks-per-node=1"]
    if shape.minutes is not None:
        words.append(f"--time={shape.minutes}")
    if count > 1:
        limit = f"%{shape.at_once}" if shape.at_once is not None else ""
        words.append(f"--array=0-{count - 1}{limit}")
    return [*words, *settings.options]


def _names(settings: ClusterSettings) -> Sequence[tuple[str, str]]:
    return ("partition", settings.partition), ("account", settings.account), ("qos", settings.qos)


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
